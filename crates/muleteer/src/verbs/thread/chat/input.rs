//! The line editor of `chat`, on a thread of its own.

use crate::cli::failure::Failure;
use crate::verbs::thread::chat::completion::Assistant;
use crate::verbs::thread::chat::screen::{Hold, Printer};
use muleteer_model::conversation::TEXT_LIMIT;
use muleteer_process::command::helper;
use muleteer_protocol::ErrorCode;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};
use std::fs;
use std::io::{self, Read, Write};
use std::process::Stdio;
use std::thread;
use tokio::sync::mpsc;

/// The lines that may wait for the chat.
const WAITING: usize = 16;
const PROMPT: &str = "> ";

/// The input of the person.
#[derive(Debug)]
pub enum Typed {
    Text(String),
    Help,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, `/quit`, or the end of the input.
    End,
    Failed(Failure),
}

/// Starts the line editor. Returns what the person types, and the printer for other output.
/// `earlier` are the lines of the editor's history, oldest first.
///
/// # Errors
/// When the terminal cannot be used.
pub fn start(
    assistant: Assistant,
    earlier: &[String],
    hold: Hold,
) -> Result<(mpsc::Receiver<Typed>, Printer), Failure> {
    let config = Config::builder().auto_add_history(true).bracketed_paste(true).build();
    let mut editor: Editor<Assistant, DefaultHistory> =
        Editor::with_config(config).map_err(|error| unread(&error))?;
    editor.set_helper(Some(assistant));
    for text in earlier {
        drop(editor.add_history_entry(text));
    }
    // A terminal without cursor movements has no such printer.
    let printer = editor.create_external_printer().ok();
    let printer: Printer = printer.map(|printer| Box::new(printer) as Box<_>);
    let (typed, lines) = mpsc::channel(WAITING);
    let read = move || {
        while let Some(one) = next(&mut editor, &hold) {
            let is_end = matches!(one, Typed::End | Typed::Failed(_));
            if typed.blocking_send(one).is_err() || is_end {
                break;
            }
        }
    };
    thread::Builder::new().name("input".into()).spawn(read).map_err(|error| unread(&error))?;
    Ok((lines, printer))
}

/// Reads the next line. Returns `None` if there is none to report.
fn next(editor: &mut Editor<Assistant, DefaultHistory>, hold: &Hold) -> Option<Typed> {
    loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line.replace("\\\n", "\n"),
            Err(ReadlineError::Interrupted) => return Some(Typed::Interrupt),
            Err(ReadlineError::Eof) => return Some(Typed::End),
            Err(error) => return Some(Typed::Failed(unread(&error))),
        };
        let text = line.trim();
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        return Some(match name {
            "" => continue,
            "/quit" | "/exit" if rest.is_empty() => Typed::End,
            "/help" if rest.is_empty() => Typed::Help,
            "/editor" => match edited(rest, hold) {
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => {
                    drop(editor.add_history_entry(text.trim_end()));
                    Typed::Text(text.trim_end().to_string())
                }
                Err(failure) => {
                    let _alone = hold.lock();
                    drop(writeln!(io::stdout(), "{}", failure.text()));
                    continue;
                }
            },
            _ => Typed::Text(line.trim_end().to_string()),
        });
    }
}

/// Lets the person write a text in their editor, and returns it. Other output waits meanwhile.
fn edited(text: &str, hold: &Hold) -> Result<String, Failure> {
    let named = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let program = named.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| "vi".into());
    let folder = tempfile()?;
    let path = folder.join("message.md");
    let failed = |what: &str, error: io::Error| {
        Failure::new(ErrorCode::Io, format!("cannot {what}: {error}")).file(&path)
    };
    let _alone = hold.lock();
    let outcome = (|| {
        fs::write(&path, text).map_err(|error| failed("write the file", error))?;
        // Users put options into the variable, so a shell splits it.
        let status = helper("/bin/sh")
            .args(["-c", &format!("{program} \"$0\"")])
            .arg(&path)
            .stdin(Stdio::inherit())
            .status()
            .map_err(|error| failed("start the editor", error))?;
        if !status.success() {
            let message = format!("the editor `{program}` failed ({status}); nothing was sent");
            return Err(Failure::new(ErrorCode::Io, message));
        }
        let mut written = String::new();
        let file = fs::File::open(&path).map_err(|error| failed("read the file", error))?;
        let mut file = file.take(TEXT_LIMIT as u64 + 1);
        file.read_to_string(&mut written).map_err(|error| failed("read the file", error))?;
        Ok(written)
    })();
    drop(fs::remove_dir_all(&folder));
    let text = outcome?;
    if !text.trim().is_empty() {
        let quoted = text.trim_end().replace('\n', "\n  ");
        drop(writeln!(io::stdout(), "{PROMPT}{}", crate::render::safe(&quoted)));
    }
    Ok(text)
}

/// Makes a folder that only this user can read.
fn tempfile() -> Result<std::path::PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let name = muleteer_model::event::id::encode(&crate::client::connect::random()?);
    let folder = std::env::temp_dir().join(format!("muleteer-chat-{name}"));
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|error| {
        Failure::new(ErrorCode::Io, format!("cannot create a folder: {error}")).file(&folder)
    })?;
    Ok(folder)
}

/// Converts an error of the terminal.
pub fn unread(error: &dyn std::error::Error) -> Failure {
    Failure::new(ErrorCode::Io, format!("cannot read the message: {error}"))
}

/// Returns the error for a message that no thread takes.
pub fn too_long() -> Failure {
    let message = format!("the message is longer than {} KiB", TEXT_LIMIT >> 10);
    Failure::new(ErrorCode::PromptTooLong, message)
        .hint("attach it with `muleteer thread send --file`")
}
