//! The desktop as a channel of notifications: by D-Bus on Linux.

use crate::notify::channel::{Message, detail};
use muleteer_model::text::controls::reorders;
use notify_rust::{Notification, Timeout};
use std::time::Duration;
use tokio::time::timeout;

/// The most bytes of a title and of a text. Longer ones are cut: a desktop shows a few lines.
const TITLE_LIMIT: usize = 200;
const TEXT_LIMIT: usize = 1500;

/// The reason why the desktop showed nothing.
#[derive(Debug, thiserror::Error)]
pub enum DesktopError {
    #[error(
        "the daemon has no desktop session ({0}); start it in one, or set notify.desktop to false"
    )]
    NoSession(String),
    #[error("the desktop shows no notifications: {0}")]
    Refused(String),
    #[error("the desktop did not answer within {} s", .0.as_secs())]
    Slow(Duration),
}

impl DesktopError {
    /// Whether the desktop may show the notification nevertheless.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Slow(_) => true,
            Self::NoSession(_) | Self::Refused(_) => false,
        }
    }

    /// Whether another try soon would fail for the same reason.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NoSession(_) => true,
            Self::Refused(_) | Self::Slow(_) => false,
        }
    }
}

/// Shows a notification. Cancel-safe: a cancelled call shows it or does not.
///
/// # Errors
/// There is no session, or its desktop refused or did not answer within `patience`.
pub async fn show(message: &Message, patience: Duration) -> Result<(), DesktopError> {
    let shown = timeout(patience, call(rendered(message))).await;
    shown.unwrap_or(Err(DesktopError::Slow(patience)))
}

/// Returns the notification for a message. Texts of agents are in it, so the body, in which
/// desktops read markup, has none.
fn rendered(message: &Message) -> Notification {
    let mut notification = Notification::new();
    notification.appname("Muleteer").timeout(Timeout::Default);
    notification.summary(&clean(&message.title, TITLE_LIMIT));
    // A title that is the whole text is not shown twice.
    if message.text != message.title {
        notification.body(&escape(&clean(&message.text, TEXT_LIMIT)));
    }
    notification
}

/// Returns a text without characters that control a display, cut.
fn clean(text: &str, limit: usize) -> String {
    let is_shown = |c: &char| *c == '\n' || !(c.is_control() || reorders(*c));
    let mut clean: String = text.chars().filter(is_shown).collect();
    if clean.len() > limit {
        clean.truncate(clean.floor_char_boundary(limit));
        clean.push('…');
    }
    clean
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(not(target_os = "macos"))]
async fn call(notification: Notification) -> Result<(), DesktopError> {
    match notification.show_async().await {
        Ok(_) => Ok(()),
        Err(error) => Err(reason(&error.to_string())),
    }
}

#[cfg(target_os = "macos")]
async fn call(notification: Notification) -> Result<(), DesktopError> {
    match tokio::task::spawn_blocking(move || notification.show().map(drop)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(reason(&error.to_string())),
        Err(error) => Err(DesktopError::Refused(error.to_string())),
    }
}

/// Returns the error for the words of the library. A bus that answers names its error; all others
/// say that no bus was reached.
fn reason(error: &str) -> DesktopError {
    let words = detail(error.as_bytes());
    match error.contains("org.freedesktop.DBus.Error") {
        true => DesktopError::Refused(words),
        false => DesktopError::NoSession(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_agent_is_no_markup_and_no_control_sequence() {
        let message = Message {
            title: "a \u{1b}]0;x\u{7}\u{202e}asks".into(),
            text: "<a href=\"x\">&\u{9b}31m\nsecond".into(),
            matters: vec![],
        };
        let shown = rendered(&message);
        assert_eq!(shown.summary, "a ]0;xasks");
        assert_eq!(shown.body, "&lt;a href=\"x\"&gt;&amp;31m\nsecond");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "ü".repeat(5000);
        let message = Message { title: format!("{text}."), text, matters: vec![] };
        let shown = rendered(&message);
        assert!(shown.summary.len() <= TITLE_LIMIT + 3, "{}", shown.summary.len());
        assert!(shown.body.len() <= TEXT_LIMIT + 3 && shown.body.ends_with('…'));
        let message = Message { text: message.title.clone(), ..message };
        assert_eq!(rendered(&message).body, "");
    }
}
