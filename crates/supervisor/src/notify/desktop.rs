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
    #[error(
        "no program on the session bus shows notifications ({0}); start a notification service, \
         or set notify.desktop to false"
    )]
    NoService(String),
    #[error("the desktop refused the notification: {0}")]
    Refused(String),
    #[error("failed to reach the desktop: {0}")]
    Failed(String),
    #[error("the desktop did not answer within {} s", .0.as_secs())]
    Slow(Duration),
}

impl DesktopError {
    /// Whether the desktop may show the notification nevertheless.
    pub fn is_uncertain(&self) -> bool {
        match self {
            // The connection may have ended after the notification had arrived.
            Self::Slow(_) | Self::Failed(_) => true,
            Self::NoSession(_) | Self::NoService(_) | Self::Refused(_) => false,
        }
    }

    /// Whether another try soon would fail for the same reason.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NoSession(_) => true,
            // A notification service may start a moment after the session.
            Self::NoService(_) | Self::Refused(_) | Self::Failed(_) | Self::Slow(_) => false,
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
    let Err(error) = notification.show_async().await else { return Ok(()) };
    // The library does not say which step failed, so the bus is asked.
    let missing = zbus::Connection::session().await.err().map(|error| error.to_string());
    Err(reason(&error.to_string(), missing.as_deref()))
}

#[cfg(target_os = "macos")]
async fn call(notification: Notification) -> Result<(), DesktopError> {
    match tokio::task::spawn_blocking(move || notification.show().map(drop)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(DesktopError::Refused(detail(error.to_string().as_bytes()))),
        Err(error) => Err(DesktopError::Failed(error.to_string())),
    }
}

/// Returns the error for the words of the library. The words of an answer begin with the name of a
/// D-Bus error. `missing` says why there is no session bus, if there is none.
#[cfg(not(target_os = "macos"))]
fn reason(words: &str, missing: Option<&str>) -> DesktopError {
    /// Names of the bus for a service that nobody offers, or that cannot be started.
    const NO_SERVICE: [&str; 3] = [
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
        "org.freedesktop.DBus.Error.Spawn.",
    ];
    if let Some(error) = missing {
        return DesktopError::NoSession(detail(error.as_bytes()));
    }
    let shown = detail(words.as_bytes());
    let name = words.split(": ").next().unwrap_or_default();
    let is_part = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let is_answer = name.contains('.') && name.split('.').all(is_part);
    match NO_SERVICE.iter().any(|service| name.starts_with(service)) {
        true => DesktopError::NoService(shown),
        false if is_answer => DesktopError::Refused(shown),
        false => DesktopError::Failed(shown),
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

    #[cfg(not(target_os = "macos"))]
    #[test]
    fn each_failure_of_a_desktop_has_its_own_reason() {
        let kind = |words: &str, missing: Option<&str>| {
            let error = reason(words, missing);
            assert!(!error.to_string().contains('\u{1b}'));
            match error {
                DesktopError::NoSession(_) => "no session",
                DesktopError::NoService(_) => "no service",
                DesktopError::Refused(_) => "refused",
                DesktopError::Failed(_) => "failed",
                DesktopError::Slow(_) => "slow",
            }
        };
        let no_bus = Some("I/O error: No such file or directory");
        for (words, missing, wanted) in [
            ("I/O error: No such file or directory (os error 2)", no_bus, "no session"),
            ("address error: unsupported transport", Some("address error"), "no session"),
            ("D-Bus handshake failed: x", Some("D-Bus handshake failed: x"), "no session"),
            ("org.freedesktop.DBus.Error.ServiceUnknown: not provided", None, "no service"),
            ("org.freedesktop.DBus.Error.NameHasNoOwner: none", None, "no service"),
            ("org.freedesktop.DBus.Error.Spawn.ExecFailed: x", None, "no service"),
            ("org.freedesktop.DBus.Error.AccessDenied: a \u{1b}[31m policy", None, "refused"),
            (
                "org.freedesktop.Notifications.Error.ExcessNotificationGeneration: too many",
                None,
                "refused",
            ),
            ("org.kde.Error.Inhibited: no details", None, "refused"),
            ("I/O error: Broken pipe (os error 32)", None, "failed"),
            ("Invalid D-Bus method reply", None, "failed"),
            ("", None, "failed"),
        ] {
            assert_eq!(kind(words, missing), wanted, "{words}");
        }
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
