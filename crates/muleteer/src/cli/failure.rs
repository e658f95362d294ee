//! Errors as a user sees them: a code, a message, a hint, and the exit code that follows.

use crate::cli::exit::{self, Exit};
use crate::render::{BOLD, RED, RESET};
pub use muleteer_model::text::error_chain::chain;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::ClientError;
use muleteer_protocol::v1::WireError;
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
use std::io;

/// The one error type of the verbs.
#[derive(Debug)]
pub enum Failure {
    Told(Box<Told>),
    /// The reader of our stdout has closed it (`muleteer logs … | head`). This is no error, and
    /// nothing is printed.
    OutputClosed,
}

#[derive(Debug, Default)]
pub struct Told {
    pub error: WireError,
    /// The faulty line with a marker under it, for people.
    pub snippet: Option<String>,
    /// Further errors that were found together with this one, as a configuration file may have
    /// several.
    pub others: Vec<Failure>,
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        WireError { code: code.into(), message: message.into(), ..WireError::default() }.into()
    }

    /// Wraps an error of another layer, including its chain of sources.
    pub fn of(code: ErrorCode, error: &dyn Error) -> Self {
        Self::new(code, chain(error))
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Told(told) = &mut self {
            told.error.hint = Some(hint.into());
        }
        self
    }

    #[must_use]
    pub fn dispatch(mut self, id: &str) -> Self {
        if let Self::Told(told) = &mut self {
            told.error.dispatch_id = Some(id.into());
        }
        self
    }

    #[must_use]
    pub fn run(mut self, id: &str) -> Self {
        if let Self::Told(told) = &mut self {
            told.error.run_id = Some(id.into());
        }
        self
    }

    #[must_use]
    pub fn file(mut self, file: impl AsRef<std::path::Path>) -> Self {
        if let Self::Told(told) = &mut self {
            told.error.file = Some(file.as_ref().display().to_string());
        }
        self
    }

    #[must_use]
    pub fn at(mut self, line: Option<u64>, column: Option<u64>) -> Self {
        if let Self::Told(told) = &mut self {
            (told.error.line, told.error.column) = (line, column);
        }
        self
    }

    #[must_use]
    pub fn snippet(mut self, text: Option<String>) -> Self {
        if let Self::Told(told) = &mut self {
            told.snippet = text;
        }
        self
    }

    /// Adds errors that were found together with this one.
    #[must_use]
    pub fn and(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        if let Self::Told(told) = &mut self {
            told.others.extend(others);
        }
        self
    }

    pub fn code(&self) -> &str {
        match self {
            Self::Told(told) => &told.error.code,
            Self::OutputClosed => "",
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Self::Told(told) => exit::of_code(&told.error.code),
            Self::OutputClosed => Exit::Done,
        }
    }

    /// Ignores that the reader of the output is gone. A verb that reports how something ended must
    /// exit by that outcome, even if nobody reads its output.
    ///
    /// # Errors
    /// Every error except [`Self::OutputClosed`].
    pub fn unless_closed(said: Result<(), Self>) -> Result<(), Self> {
        match said {
            Err(Self::OutputClosed) => Ok(()),
            said => said,
        }
    }

    /// Returns the document that `--json` prints.
    pub fn document(&self) -> Value {
        json!({ "error": self.body() })
    }

    /// Returns the error's keys; absent values are left out.
    fn body(&self) -> Value {
        let Self::Told(told) = self else { return Value::Null };
        let error = &told.error;
        let others: Option<Vec<_>> =
            (!told.others.is_empty()).then(|| told.others.iter().map(Self::body).collect());
        let keys = [
            ("code", json!(error.code)),
            ("message", json!(error.message)),
            ("hint", json!(error.hint)),
            ("dispatch_id", json!(error.dispatch_id)),
            ("run_id", json!(error.run_id)),
            ("file", json!(error.file)),
            ("line", json!(error.line)),
            ("column", json!(error.column)),
            ("snippet", json!(told.snippet)),
            ("others", json!(others)),
        ];
        let present = keys.into_iter().filter(|(_, value)| !value.is_null());
        Value::Object(present.map(|(key, value)| (key.to_string(), value)).collect())
    }

    /// Returns the text that a person reads on stderr.
    pub fn text(&self) -> String {
        let Self::Told(told) = self else { return String::new() };
        let error = &told.error;
        let mut text =
            format!("{RED}error{RESET}{BOLD}[{}]{RESET}: {}", error.code, error.message.trim_end());
        if let Some(file) = &error.file {
            let numbers = [error.line, error.column].into_iter().flatten();
            let place = numbers.fold(file.clone(), |place, number| format!("{place}:{number}"));
            if !error.message.contains(&place) {
                let _ = write!(text, "\n  --> {place}");
            }
        }
        if let (Some(snippet), Some(line)) = (&told.snippet, error.line) {
            let margin = " ".repeat(line.to_string().len());
            let _ = write!(text, "\n {margin} |\n {line} | {}", snippet.trim_end());
            if let Some(before) =
                error.column.and_then(|column| usize::try_from(column.checked_sub(1)?).ok())
            {
                let _ = write!(text, "\n {margin} | {}^", " ".repeat(before));
            }
        }
        if let Some(hint) = &error.hint {
            let _ = write!(text, "\n{BOLD}hint{RESET}: {hint}");
        }
        for other in &told.others {
            let _ = write!(text, "\n{}", other.text());
        }
        text
    }
}

impl From<WireError> for Failure {
    fn from(mut error: WireError) -> Self {
        let snippet = error.snippet.take();
        Self::Told(Box::new(Told { error, snippet, ..Told::default() }))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let text = chain(&error);
        match error {
            ClientError::Remote(wire) | ClientError::Refused(wire) => wire.into(),
            ClientError::NoDaemon { .. } => Self::new(ErrorCode::NoDaemon, text)
                .hint("start a daemon with `muleteer daemon`, or name its socket with --socket"),
            ClientError::Lost => Self::new(ErrorCode::ConnectionLost, text),
            ClientError::Connect { .. } => Self::new(ErrorCode::NoDaemon, text),
            ClientError::Slow(_) => Self::new(ErrorCode::Busy, text)
                .hint("read its log; killing the daemon, even with -9, loses no work"),
            ClientError::Frame(_) | ClientError::Unexpected(_) => {
                Self::new(ErrorCode::Protocol, text).hint(
                    "client and daemon may have different versions: run `muleteer status --json`",
                )
            }
        }
    }
}

/// Errors of writing our own output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::new(ErrorCode::Io, format!("cannot write the output: {error}")),
        }
    }
}
