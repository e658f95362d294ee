//! Mail as a channel of notifications.
//!
//! The steps of SMTP are made one by one, because a try may be repeated as long as the server has
//! not begun to receive the mail, and not afterwards.

use crate::notify::channel::{Message, detail};
use data_encoding::HEXLOWER;
use lettre::address::AddressError;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message as Letter};
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail as From, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::{self, response::Response};
use muleteer_model::config::notify::{Mail, MailTls};
use muleteer_model::text::controls::{breaks_line, plain_line};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The time in which the server may say goodbye once it has the mail.
const GOODBYE: Duration = Duration::from_secs(1);
/// The most bytes of a subject and of a text. Longer ones are cut.
const SUBJECT_LIMIT: usize = 200;
const TEXT_LIMIT: usize = 64 << 10;
/// A secret of the environment of the daemon.
const PASSWORD: &str = "MULETEER_MAIL_PASSWORD";

/// The reason why no mail was sent. It has no secret: what a server says about a password is not
/// quoted.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    #[error("notify.mail has no usable address: {0}")]
    Address(#[from] AddressError),
    #[error("cannot write the mail: {0}")]
    Letter(#[from] lettre::error::Error),
    #[error("notify.mail.user is set, but {PASSWORD} is not in the environment of the daemon")]
    NoPassword,
    #[error("{server} offers no STARTTLS; nothing was sent, because notify.mail.tls requires it")]
    NoTls { server: String },
    #[error("{server} refused user and password ({code})")]
    Login { server: String, code: String },
    #[error("{server} refused the mail: {words}")]
    Refused { server: String, words: String, is_permanent: bool },
    #[error("{server} cannot be used: {words}")]
    Failed { server: String, words: String },
    #[error("{server} did not answer within {} s", .patience.as_secs())]
    Slow { server: String, patience: Duration },
    #[error("{server} got the mail, but did not confirm it: {words}")]
    Unconfirmed { server: String, words: String },
}

impl MailError {
    /// Whether the mail may have been sent nevertheless.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Unconfirmed { .. } => true,
            Self::Address(_)
            | Self::Letter(_)
            | Self::NoPassword
            | Self::NoTls { .. }
            | Self::Login { .. }
            | Self::Refused { .. }
            | Self::Failed { .. }
            | Self::Slow { .. } => false,
        }
    }

    /// Whether another try soon would fail for the same reason. Servers lock accounts that try a
    /// wrong password again and again.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Address(_)
            | Self::Letter(_)
            | Self::NoPassword
            | Self::NoTls { .. }
            | Self::Login { .. } => true,
            Self::Refused { is_permanent, .. } => *is_permanent,
            Self::Failed { .. } | Self::Slow { .. } | Self::Unconfirmed { .. } => false,
        }
    }
}

/// Returns the password of the environment, if it is set.
pub fn password() -> Option<String> {
    std::env::var(PASSWORD).ok().filter(|password| !password.is_empty())
}

/// Sends a mail. A cancelled call may have sent it.
///
/// # Errors
/// The server has not confirmed the mail within `patience`.
pub async fn send(
    settings: &Mail,
    password: Option<String>,
    message: &Message,
    patience: Duration,
) -> Result<(), MailError> {
    let letter = letter(settings, message)?;
    let server = || settings.server.clone();
    let credentials = match (&settings.user, password) {
        (Some(user), Some(password)) => Some(Credentials::new(user.clone(), password)),
        (Some(_), None) => return Err(MailError::NoPassword),
        (None, _) => None,
    };
    let until = Instant::now() + patience;
    let ready = timeout_at(until, prepare(settings, credentials, &letter)).await;
    let mut connection = ready.unwrap_or(Err(MailError::Slow { server: server(), patience }))?;
    // From here on the server may send the mail.
    match timeout_at(until, connection.message(&letter.formatted())).await {
        Ok(Ok(_)) => {
            let _ = timeout(GOODBYE, connection.quit()).await;
            Ok(())
        }
        Ok(Err(error)) if error.status().is_some() => Err(refused(server(), &error)),
        Ok(Err(error)) => Err(MailError::Unconfirmed { server: server(), words: words(&error) }),
        Err(_) => {
            let words = format!("it did not answer within {} s", patience.as_secs());
            Err(MailError::Unconfirmed { server: server(), words })
        }
    }
}

/// Makes every step before the text of the mail.
async fn prepare(
    settings: &Mail,
    credentials: Option<Credentials>,
    letter: &Letter,
) -> Result<AsyncSmtpConnection, MailError> {
    let server = || settings.server.clone();
    let failed = |error: &smtp::Error| MailError::Failed { server: server(), words: words(error) };
    let (mut at_begin, mut later) = match settings.tls {
        MailTls::None => (None, None),
        MailTls::Starttls => (None, Some(parameters(settings).await?)),
        MailTls::Tls => (Some(parameters(settings).await?), None),
    };
    let hello = ClientId::default();
    let address = (settings.server.as_str(), settings.port());
    let connected =
        AsyncSmtpConnection::connect_tokio1(address, None, &hello, at_begin.take(), None).await;
    let mut connection = connected.map_err(|error| failed(&error))?;
    if let Some(parameters) = later.take() {
        if !connection.can_starttls() {
            return Err(MailError::NoTls { server: server() });
        }
        connection.starttls(parameters, &hello).await.map_err(|error| failed(&error))?;
    }
    if let Some(credentials) = &credentials {
        let login = connection.auth(DEFAULT_MECHANISMS, credentials).await;
        login.map_err(|error| match error.status() {
            // The words of the server could quote the password.
            Some(code) if error.is_permanent() => {
                MailError::Login { server: server(), code: code.to_string() }
            }
            Some(code) => MailError::Failed {
                server: server(),
                words: format!("it accepts no password now ({code})"),
            },
            None if error.is_client() => MailError::Login {
                server: server(),
                code: "it offers neither PLAIN nor LOGIN".into(),
            },
            None => failed(&error),
        })?;
    }
    let step = |done: Result<Response, smtp::Error>| match done {
        Ok(_) => Ok(()),
        Err(error) if error.status().is_some() => Err(refused(server(), &error)),
        Err(error) => Err(failed(&error)),
    };
    let envelope = letter.envelope();
    step(connection.command(From::new(envelope.from().cloned(), vec![])).await)?;
    for to in envelope.to() {
        step(connection.command(Rcpt::new(to.clone(), vec![])).await)?;
    }
    step(connection.command(Data).await)?;
    Ok(connection)
}

/// Returns how the certificate of the server is checked: by those that the system trusts.
async fn parameters(settings: &Mail) -> Result<TlsParameters, MailError> {
    let server = settings.server.clone();
    let failed = |words: String| MailError::Failed { server: settings.server.clone(), words };
    // It reads the files of the certificates.
    let read = tokio::task::spawn_blocking(move || TlsParameters::new(server)).await;
    let read = read.map_err(|error| failed(error.to_string()))?;
    read.map_err(|error| failed(words(&error)))
}

/// Returns the mail for a message. Texts of agents are in it, so no character of them can end a
/// header.
fn letter(settings: &Mail, message: &Message) -> Result<Letter, MailError> {
    let from: Mailbox = Mailbox::new(None, settings.from.parse()?);
    let to = Mailbox::new(None, settings.to.parse()?);
    let mut random = [0; 16];
    // Without an identifier the server makes one.
    let id = getrandom::fill(&mut random)
        .is_ok()
        .then(|| format!("<{}@{}>", HEXLOWER.encode(&random), from.email.domain()));
    let is_text = |c: &char| *c == '\n' || !breaks_line(*c);
    let text: String = message.text.chars().filter(is_text).collect();
    let mut builder = Letter::builder()
        .from(from)
        .to(to)
        .subject(cut(plain_line(&message.title), SUBJECT_LIMIT))
        .header(ContentType::TEXT_PLAIN)
        // Absence notes do not answer.
        .raw_header(HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".into(),
        ));
    if let Some(id) = id {
        builder = builder.message_id(Some(id));
    }
    Ok(builder.body(format!("{}\n", cut(text, TEXT_LIMIT)))?)
}

fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}

fn refused(server: String, error: &smtp::Error) -> MailError {
    MailError::Refused { server, words: words(error), is_permanent: error.is_permanent() }
}

fn words(error: &smtp::Error) -> String {
    detail(error.to_string().as_bytes())
}

#[cfg(test)]
mod tests;
