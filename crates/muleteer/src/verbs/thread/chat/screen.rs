//! The terminal of `chat`: lines appear above the line that the person types.

use crate::render::clean;
use anstream::adapter::strip_str;
use rustyline::ExternalPrinter;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The lines that may wait for the terminal. A slow terminal then slows the stream down.
const WAITING: usize = 64;
/// The time for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(2);
const BELL: char = '\x07';

/// Where the lines go: above the prompt, or without a line editor just to stdout.
pub type Printer = Option<Box<dyn ExternalPrinter + Send>>;

/// Holds back output while another program has the terminal.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<Mutex<()>>);

impl Hold {
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes lines to the terminal, on a thread of its own, because the line editor takes them only
/// when it reads.
#[derive(Debug)]
pub struct Screen {
    lines: mpsc::Sender<String>,
    ended: oneshot::Receiver<()>,
    has_color: bool,
}

impl Screen {
    /// # Errors
    /// When the system starts no thread.
    pub fn new(mut printer: Printer, hold: Hold, has_color: bool) -> io::Result<Self> {
        let (lines, mut waiting) = mpsc::channel::<String>(WAITING);
        let (done, ended) = oneshot::channel();
        let print = move || {
            while let Some(line) = waiting.blocking_recv() {
                let _alone = hold.lock();
                let printed = match &mut printer {
                    Some(printer) => printer.print(line).map_err(|_| ()),
                    None => io::stdout().lock().write_all(line.as_bytes()).map_err(|_| ()),
                };
                if printed.is_err() {
                    break;
                }
            }
            let _ = done.send(());
        };
        thread::Builder::new().name("screen".into()).spawn(print)?;
        Ok(Self { lines, ended, has_color })
    }

    /// Shows lines. Colours are left out where the person does not want them.
    pub async fn show(&self, lines: impl IntoIterator<Item = String>) {
        self.write(lines, false).await;
    }

    /// Shows lines and rings the bell.
    pub async fn ring(&self, lines: impl IntoIterator<Item = String>) {
        self.write(lines, true).await;
    }

    async fn write(&self, lines: impl IntoIterator<Item = String>, bell: bool) {
        let text: String = lines.into_iter().map(|line| line + "\n").collect();
        if text.is_empty() {
            return;
        }
        let text = clean(&text);
        let mut text = if self.has_color { text } else { strip_str(&text).to_string() };
        if bell {
            text.insert(0, BELL);
        }
        drop(self.lines.send(text).await);
    }

    /// Waits until the last line is written.
    pub async fn close(self) {
        drop(self.lines);
        drop(tokio::time::timeout(PATIENCE, self.ended).await);
    }
}
