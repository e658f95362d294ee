//! The settings of notifications.

use crate::config::span::Span;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// The reason why a person is told.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "NotifyKind")]
pub enum Kind {
    /// An agent waits for a permission, or for the answer to a question.
    Question,
    /// A dispatch stalled, is blocked or failed.
    Stall,
    /// A dispatch that a person began has ended well.
    End,
}

/// When and where a person is told that something waits for them. Only the user's own
/// configuration counts; tokens are in the daemon's environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Notify {
    /// The matters of which a person is told.
    pub on: Vec<Kind>,
    /// A matter that is settled within this time is not told.
    pub dwell: Span,
    /// The least time between two notifications. Matters that become due meanwhile share the next.
    pub cool_down: Span,
    /// Hours of each day in which nobody is told, for example `22:00-07:00`.
    pub quiet: Option<String>,
    /// The time zone of these hours, for example `Europe/Berlin`; null is that of the system.
    pub time_zone: Option<String>,
    /// A command for `sh -c` that gets the notification as JSON on stdin.
    pub command: Option<String>,
    /// The address of an ntfy topic. Its token is in `MULETEER_NTFY_TOKEN`.
    pub ntfy: Option<String>,
    /// An address that gets the notification as JSON. Its bearer token is in
    /// `MULETEER_WEBHOOK_TOKEN`.
    pub webhook: Option<String>,
    /// Whether the desktop of the daemon's user shows notifications (D-Bus on Linux).
    pub desktop: bool,
    /// The mail of notifications; null is none.
    pub mail: Option<Mail>,
}

/// The mail of notifications. Its password is in `MULETEER_MAIL_PASSWORD`, never in a file of the
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mail {
    /// The address that gets the mail, for example `me@example.org`.
    pub to: String,
    /// The address of the sender.
    pub from: String,
    /// The name or address of the SMTP server.
    pub server: String,
    /// The port of the server; null is 587 for `starttls`, 465 for `tls` and 25 for `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How the connection is encrypted.
    #[serde(default)]
    pub tls: MailTls,
    /// The name of the account; null sends without authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// How a connection to a mail server is encrypted. None of these falls back to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MailTls {
    /// The connection begins in plain text and is encrypted before anything is sent.
    #[default]
    Starttls,
    /// The connection is encrypted from its begin.
    Tls,
    /// Nothing is encrypted. Only a server on this machine gets a password this way.
    None,
}

impl Mail {
    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            MailTls::Starttls => 587,
            MailTls::Tls => 465,
            MailTls::None => 25,
        })
    }

    /// Whether a password would cross the network in plain text.
    pub fn exposes_password(&self) -> bool {
        let local = match self.server.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.server.eq_ignore_ascii_case("localhost"),
        };
        self.user.is_some() && self.tls == MailTls::None && !local
    }
}

/// Whether a text is the address of a mailbox, without a name and on one line.
pub(crate) fn is_mailbox(address: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !"<>,;:\"()[]\\".contains(c);
    address.len() <= 254
        && address.chars().all(is_plain)
        && address
            .split_once('@')
            .is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !host.contains('@'))
}

/// Whether a text is the name or the address of a server.
pub(crate) fn is_server(server: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "-._:".contains(c);
    !server.is_empty() && server.len() <= 253 && server.chars().all(is_part)
}

impl Notify {
    /// # Errors
    /// The text has no hours.
    pub fn quiet_hours(&self) -> Result<Option<QuietHours>, BadHours> {
        self.quiet.as_deref().map(str::parse).transpose()
    }

    /// Returns the named zone of the quiet hours, if one is named.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn zone(&self) -> Result<Option<TimeZone>, jiff::Error> {
        self.time_zone.as_deref().map(TimeZone::get).transpose()
    }

    /// Returns the rules for the decision; `system` is the zone of the system. Values were checked
    /// when the configuration was loaded.
    pub fn policy(&self, system: TimeZone) -> Policy {
        Policy {
            kinds: self.on.iter().copied().collect(),
            dwell: self.dwell.as_duration(),
            cool_down: self.cool_down.as_duration(),
            quiet: self.quiet_hours().ok().flatten(),
            zone: self.zone().ok().flatten().unwrap_or(system),
        }
    }

    /// Returns the names of the configured channels.
    pub fn channels(&self) -> Vec<&'static str> {
        let all = [
            ("command", self.command.is_some()),
            ("ntfy", self.ntfy.is_some()),
            ("webhook", self.webhook.is_some()),
            ("desktop", self.desktop),
            ("mail", self.mail.is_some()),
        ];
        all.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }
}

/// Whether an address can be used; null can.
pub(crate) fn is_address(address: Option<&str>) -> bool {
    address.is_none_or(|address| {
        let rest = ["https://", "http://"].iter().find_map(|scheme| address.strip_prefix(scheme));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
    })
}

/// When a person is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub kinds: BTreeSet<Kind>,
    /// A matter that is settled within this time needs no notification.
    pub dwell: Duration,
    /// The least time between two notifications. Matters that become due meanwhile share the next.
    pub cool_down: Duration,
    pub quiet: Option<QuietHours>,
    /// The zone of the quiet hours.
    pub zone: TimeZone,
}

/// The hours of each day in which nobody is told: `22:00-07:00`, in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    begin: Time,
    end: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` are no hours: write `22:00-07:00`")]
pub struct BadHours(pub String);

impl FromStr for QuietHours {
    type Err = BadHours;

    fn from_str(text: &str) -> Result<Self, BadHours> {
        let bad = || BadHours(text.chars().take(40).collect());
        let (begin, end) = text.split_once('-').ok_or_else(bad)?;
        let time = |text: &str| {
            let (hour, minute) = text.trim().split_once(':')?;
            let is_short = hour.len() <= 2 && minute.len() == 2;
            Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok().filter(|_| is_short)
        };
        let (begin, end) = (time(begin).ok_or_else(bad)?, time(end).ok_or_else(bad)?);
        if begin == end {
            return Err(bad());
        }
        Ok(Self { begin, end })
    }
}

impl QuietHours {
    /// Returns when the quiet hours end, if it is quiet at `now`.
    ///
    /// The hours follow the wall clock of the zone: a night in which the clock changes is an hour
    /// longer or shorter.
    pub fn until(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let local = now.to_zoned(zone.clone());
        let time = local.time();
        let is_quiet = match self.begin < self.end {
            true => (self.begin..self.end).contains(&time),
            false => time >= self.begin || time < self.end,
        };
        if !is_quiet {
            return None;
        }
        let end = self.next_end(&local)?;
        // A clock that was set back can repeat the end; then it is quiet until the second one.
        Some(end.timestamp().max(now + SignedDuration::from_secs(1)))
    }

    fn next_end(&self, local: &Zoned) -> Option<Zoned> {
        let date = match local.time() < self.end {
            true => local.date(),
            false => local.date().tomorrow().ok()?,
        };
        date.to_datetime(self.end).to_zoned(local.time_zone().clone()).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn hours_are_two_different_times() {
        for good in ["22:00-07:00", " 9:30 - 12:00 ", "00:00-23:59"] {
            assert!(good.parse::<QuietHours>().is_ok(), "{good}");
        }
        for bad in ["", "22-7", "22:00", "24:00-07:00", "07:00-07:00", "22:0-7:00", "a:00-b:00"] {
            assert_eq!(bad.parse::<QuietHours>(), Err(BadHours(bad.into())), "{bad}");
        }
    }

    #[test]
    fn quiet_hours_follow_the_zone_and_pass_midnight() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let night: QuietHours = "22:00-07:00".parse().unwrap();
        for (now, until) in [
            // 21:59, 22:00, 23:30, 06:59 and 07:00 of a winter's night in Berlin.
            ("2026-01-10T20:59:59Z", None),
            ("2026-01-10T21:00:00Z", Some("2026-01-11T06:00:00Z")),
            ("2026-01-10T22:30:00Z", Some("2026-01-11T06:00:00Z")),
            ("2026-01-11T05:59:59Z", Some("2026-01-11T06:00:00Z")),
            ("2026-01-11T06:00:00Z", None),
            // The nights in which the clock is set forward and back.
            ("2026-03-28T22:00:00Z", Some("2026-03-29T05:00:00Z")),
            ("2026-10-24T21:00:00Z", Some("2026-10-25T06:00:00Z")),
        ] {
            assert_eq!(night.until(at(now), &berlin), until.map(at), "{now}");
        }
        let noon: QuietHours = "12:00-13:00".parse().unwrap();
        assert_eq!(noon.until(at("2026-01-10T11:59:59Z"), &TimeZone::UTC), None);
        let until = noon.until(at("2026-01-10T12:00:00Z"), &TimeZone::UTC);
        assert_eq!(until, Some(at("2026-01-10T13:00:00Z")));
    }

    #[test]
    fn mailbox_is_one_address_on_one_line() {
        for good in ["me@example.org", "a+b.c@localhost", "ü@bücher.example"] {
            assert!(is_mailbox(good), "{good}");
        }
        let long = format!("{}@x", "a".repeat(300));
        for bad in ["", "me", "@x", "me@", "a@b@c", "Me <me@x>", "a@x,b@x", "a@x\r\nBcc:b@x", &long]
        {
            assert!(!is_mailbox(bad), "{bad}");
        }
        assert!(is_server("smtp.example.org") && is_server("::1") && is_server("127.0.0.1"));
        assert!(!is_server("") && !is_server("smtp://x") && !is_server("a b") && !is_server("a\n"));
    }

    #[test]
    fn password_is_exposed_by_plain_text_to_another_machine_only() {
        let mail = |server: &str, tls, user: Option<&str>| Mail {
            to: "a@x".into(),
            from: "b@x".into(),
            server: server.into(),
            port: None,
            tls,
            user: user.map(String::from),
        };
        assert!(mail("smtp.example.org", MailTls::None, Some("u")).exposes_password());
        assert!(mail("localhost.evil.example", MailTls::None, Some("u")).exposes_password());
        for safe in [
            mail("smtp.example.org", MailTls::None, None),
            mail("smtp.example.org", MailTls::Starttls, Some("u")),
            mail("127.0.0.1", MailTls::None, Some("u")),
            mail("localhost", MailTls::None, Some("u")),
        ] {
            assert!(!safe.exposes_password(), "{safe:?}");
        }
        assert_eq!(mail("x", MailTls::Tls, None).port(), 465);
    }

    /// New York skips 02:00 to 03:00 on this day.
    #[test]
    fn quiet_hours_end_in_a_gap_of_the_clock() {
        let zone = TimeZone::get("America/New_York").unwrap();
        let hours: QuietHours = "22:00-02:30".parse().unwrap();
        let until = hours.until(at("2026-03-08T06:00:00Z"), &zone).unwrap();
        assert_eq!(until, at("2026-03-08T07:30:00Z"));
        assert_eq!(hours.until(until, &zone), None);
    }
}
