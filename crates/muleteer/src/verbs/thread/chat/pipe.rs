//! `chat` over a pipe: each line is a message, and each answer is printed when it is complete.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::interrupt;
use crate::verbs::thread::chat::input::{too_long, unread};
use crate::verbs::thread::send::{author, end, left, new_key, send, wait};
use muleteer_model::conversation::TEXT_LIMIT;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::ThreadSend;
use std::io::{self, BufRead, Read};

/// Sends each message of stdin, and prints its answer before the next one is read.
pub async fn piped(thread: &str, end_of_message: u8, context: &Context) -> Result<Exit, Failure> {
    let mut exit = Exit::Done;
    while let Some(text) = blocking(move || read(end_of_message)).await?? {
        if text.trim().is_empty() {
            continue;
        }
        exit = exit.max(exchange(thread, text, context).await?);
        if exit == Exit::Interrupted {
            break;
        }
    }
    Ok(exit)
}

/// Reads one message; `None` at the end of the input. A message that is too long is an error before
/// all of it is read.
fn read(end_of_message: u8) -> Result<Option<String>, Failure> {
    let mut bytes = vec![];
    let mut input = io::stdin().lock().take(TEXT_LIMIT as u64 + 2);
    let count = input.read_until(end_of_message, &mut bytes).map_err(|error| unread(&error))?;
    if count == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&end_of_message) {
        bytes.pop();
    }
    if bytes.len() > TEXT_LIMIT {
        return Err(too_long());
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| Failure::new(ErrorCode::BadInput, "the message is not valid UTF-8"))
}

/// Sends a message and prints its answer.
async fn exchange(thread: &str, text: String, context: &Context) -> Result<Exit, Failure> {
    let sent =
        ThreadSend { thread: thread.into(), key: new_key()?, text, name: author(), files: vec![] };
    let (thread, message, _) = send(context, sent).await?;
    let answered = async {
        let (message, answer) = wait(context, &thread, &message).await?;
        if let Some(answer) = &answer {
            context.out.line(&answer.text)?;
        }
        Ok(end(context, &message))
    };
    interrupt::or_left(context, left(&thread), answered).await
}

/// Runs a function that waits for the person, on a thread of its own.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(read).await.map_err(|error| unread(&error))
}
