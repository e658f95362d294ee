//! Output for people: numbers, ages and colours, with one module for each view.
//!
//! This code always writes colours. [`crate::cli::output`] removes them where they cannot be
//! displayed.

pub mod agent;
pub mod clean;
pub mod cost;
pub mod event;
pub mod page;
pub mod progress;
pub mod run;
pub mod status;
pub mod table;
pub mod terminal;
pub mod tree;
pub mod why;
pub mod work;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_model::text::controls::reorders;
use std::time::Duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub const RED: &str = "\x1b[31m";
pub const GREEN: &str = "\x1b[32m";
pub const YELLOW: &str = "\x1b[33m";
pub const BLUE: &str = "\x1b[34m";
pub const MAGENTA: &str = "\x1b[35m";
pub const CYAN: &str = "\x1b[36m";
pub const DIM: &str = "\x1b[2m";
pub const BOLD: &str = "\x1b[1m";
pub const RESET: &str = "\x1b[0m";

/// Returns the colour of a state of a dispatch or an actor.
pub fn state_color(state: &str) -> &'static str {
    match state {
        "success" | "completed" | "idle" => GREEN,
        "running" | "in-progress" => CYAN,
        "queued" | "starting" | "waiting" => BLUE,
        "partial" | "stalled" | "blocked" | "restarting" => YELLOW,
        "failed" => RED,
        "killed" => MAGENTA,
        _ => "",
    }
}

/// Formats a duration in at most two units: `45s`, `12m`, `3h20m`, `2d4h`.
pub fn span(span: Duration) -> String {
    let total = span.as_secs();
    let (days, hours, minutes, seconds) =
        (total / 86_400, total / 3600 % 24, total / 60 % 60, total % 60);
    let two = |big: u64, unit: &str, small: u64, smaller: &str| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{smaller}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) if minutes >= 10 => format!("{minutes}m"),
        (0, 0, minutes) => two(minutes, "m", seconds, "s"),
        (0, hours, minutes) => two(hours, "h", minutes, "m"),
        (days, hours, _) => two(days, "d", hours, "h"),
    }
}

/// Formats how long ago an RFC 3339 time was; `-` for none. After the clock was set back it is
/// `0s`.
pub fn age(at: Option<&str>, now: Timestamp) -> String {
    let Some(at) = at.and_then(|at| at.parse::<Timestamp>().ok()) else { return "-".into() };
    span(Duration::try_from(at.duration_until(now)).unwrap_or_default())
}

/// Formats a number: `0`, `950`, `12.3k`, `4.5M`.
#[allow(clippy::cast_precision_loss)] // Three digits are shown.
pub fn count(n: u64) -> String {
    match n {
        0..1000 => n.to_string(),
        1000..999_950 => format!("{:.1}k", n as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}

/// Formats a number of bytes: `512 B`, `132 KB`, `1.5 GB`.
#[allow(clippy::cast_precision_loss)] // Two or three digits are shown.
pub fn bytes(n: u64) -> String {
    let float = n as f64;
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.0} KB", float / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MB", float / 1_048_576.0),
        _ => format!("{:.1} GB", float / 1_073_741_824.0),
    }
}

/// Formats a cost: `-` for none, else with cents, or with four decimals below one cent.
pub fn usd(cost: f64) -> String {
    match cost {
        c if c <= 0.0 => "-".into(),
        c if c < 0.01 => format!("${c:.4}"),
        c => format!("${c:.2}"),
    }
}

/// Shortens text to at most `width` characters, ending in `…`. Control characters become spaces,
/// because an agent's text must not move the cursor.
pub fn clip(text: &str, width: usize) -> String {
    let mut clean = text.chars().map(|c| if c.is_control() || reorders(c) { ' ' } else { c });
    let mut kept: String = clean.by_ref().take(width).collect();
    if clean.next().is_some() {
        kept.pop();
        kept.push('…');
    }
    kept
}

/// Shortens text to at most `columns` columns of a terminal, ending in `…`. Characters may be wide.
pub fn clip_to_width(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_string();
    }
    let mut left = columns.saturating_sub(1);
    let mut kept = String::new();
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if width > left {
            break;
        }
        left -= width;
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Shortens text to at most `columns` columns of a terminal by its beginning, which becomes `…`.
pub fn clip_start(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_string();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    let kept: Vec<char> = text.chars().rev().take_while(fits).collect();
    let dots = if columns > 0 { "…" } else { "" };
    format!("{dots}{}", kept.into_iter().rev().collect::<String>())
}

/// Shortens a line with colours to at most `columns` columns of a terminal.
pub fn clip_line(line: &str, columns: usize) -> String {
    let plain = anstream::adapter::strip_str(line).to_string();
    if plain.width() <= columns {
        return line.to_string();
    }
    let (mut left, mut kept) = (columns.saturating_sub(1), String::new());
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if c == '\x1b' {
            // Only colours remain in the output: `ESC [ 1 ; 31 m`.
            kept.push(c);
            kept.extend(rest.by_ref().take_while(|c| *c != 'm'));
            kept.push('m');
            continue;
        }
        let width = c.width().unwrap_or(0);
        if width > left {
            break;
        }
        left -= width;
        kept.push(c);
    }
    format!("{kept}…{RESET}")
}

/// Shortens each line of a text to the width of the terminal, if stdout is one. Lines with columns
/// are unreadable once they wrap.
pub fn fitted(text: &str) -> String {
    match terminal::width() {
        Some(columns) => {
            text.lines().map(|line| format!("{}\n", clip_line(line, columns))).collect()
        }
        None => text.to_string(),
    }
}

/// Formats a time with its date, in the local time zone.
pub fn local_time(at: Timestamp) -> String {
    at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns the text with its UTC times in RFC 3339 (`2026-01-02T03:04:05Z`) in the local time zone.
/// The daemon's texts have them, because it does not know the zone of its clients.
pub fn in_local_time(text: &str) -> String {
    in_zone(text, &TimeZone::system())
}

fn in_zone(text: &str, zone: &TimeZone) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_inside = shown.chars().next_back().is_some_and(char::is_alphanumeric);
        match utc_time(rest).filter(|_| !is_inside) {
            Some((at, length)) => {
                let local = at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S");
                shown.push_str(&local.to_string());
                rest = &rest[length..];
            }
            None => {
                shown.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    shown
}

/// Parses a UTC time at the beginning of a text. Returns it with its length in bytes.
fn utc_time(text: &str) -> Option<(Timestamp, usize)> {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    if !is_digit(0) || text.as_bytes().get(10) != Some(&b'T') {
        return None;
    }
    let length = text.bytes().take(32).position(|byte| byte == b'Z')? + 1;
    Some((text.get(..length)?.parse().ok()?, length))
}

/// Makes an agent's text safe for a terminal: newlines and tabs stay, escape sequences do not.
pub fn safe(text: &str) -> String {
    text.chars().filter(|c| stays(*c)).collect()
}

/// Makes any text safe for a terminal as [`safe`] does, but keeps colours (`ESC [ 1 ; 31 m`).
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut parts = text.split('\x1b');
    cleaned.extend(parts.next().unwrap_or_default().chars().filter(|c| stays(*c)));
    for part in parts {
        let color = part
            .strip_prefix('[')
            .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'))
            .is_some_and(|rest| rest.starts_with('m'));
        if color {
            cleaned.push('\x1b');
        }
        cleaned.extend(part.chars().filter(|c| stays(*c)));
    }
    cleaned
}

/// Returns whether a character is harmless: it neither moves the cursor nor changes the direction
/// of the text around it.
fn stays(c: char) -> bool {
    !(c.is_control() || reorders(c)) || matches!(c, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let spans = [0, 59, 61, 599, 3600, 12_000, 187_200].map(|s| span(Duration::from_secs(s)));
        assert_eq!(spans, ["0s", "59s", "1m1s", "9m59s", "1h", "3h20m", "2d4h"]);
        assert_eq!(
            [0, 950, 12_345, 999_999, 4_500_000].map(count),
            ["0", "950", "12.3k", "1.0M", "4.5M"]
        );
        assert_eq!([512, 135_168, 1_610_612_736].map(bytes), ["512 B", "132 KB", "1.5 GB"]);
        assert_eq!([0.0, 0.0012, 0.5, 12.0].map(usd), ["-", "$0.0012", "$0.50", "$12.00"]);
    }

    #[test]
    fn utc_times_in_a_text_are_shown_in_the_zone_of_the_reader() {
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        for (text, shown) in [
            ("restarts at 2026-01-02T03:04:05.678Z: é", "restarts at 2026-01-01 22:04:05: é"),
            ("2026-01-02T03:04:05Z", "2026-01-01 22:04:05"),
            (
                "x2026-01-02T03:04:05Z and 2026-01-02Tnow",
                "x2026-01-02T03:04:05Z and 2026-01-02Tnow",
            ),
            ("until 9, not Z", "until 9, not Z"),
        ] {
            assert_eq!(in_zone(text, &zone), shown, "{text}");
        }
    }

    #[test]
    fn clipped_text_fits_and_keeps_its_colours_closed() {
        assert_eq!(clip_to_width("abcdef", 4), "abc…");
        assert_eq!(clip_to_width("日本語", 4), "日…");
        assert_eq!(clip_to_width("日本", 4), "日本");
        let starts = [clip_start("abcdef", 4), clip_start("日本語", 4), clip_start("日本", 4)];
        assert_eq!(starts, ["…def", "…語", "日本"]);
        let line = format!("{RED}abcdef{RESET} gh");
        assert_eq!(clip_line(&line, 4), format!("{RED}abc…{RESET}"));
        assert_eq!(clip_line(&line, 9), line);
    }

    #[test]
    fn agent_text_cannot_control_the_terminal() {
        assert_eq!(clip("a\x1b[2Jb\nc", 20), "a [2Jb c");
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip("a\u{202e}b", 20), "a b");
        assert_eq!(safe("a\x1b[2J\n\tb\u{2066}"), "a[2J\n\tb");
        let cases = [
            ("plain\n\ttext – ö", "plain\n\ttext – ö"),
            ("\x1b[1m\x1b[1;31mred\x1b[m\x1b[0m", "\x1b[1m\x1b[1;31mred\x1b[m\x1b[0m"),
            ("m\x1b]0;pwn\x07", "m]0;pwn"),
            ("a\x1b[2J\x1b[H\x1b[?25l\x1bc", "a[2J[H[?25lc"),
            ("a\r\x08\x7f\0b", "ab"),
            ("a\u{9b}31m\u{85}\u{9d}0;x\u{9c}", "a31m0;x"),
            ("a\u{202e}b\u{2069}c\u{200f}d", "abcd"),
            // Removing characters must not join the text around them into a colour or another
            // sequence.
            ("\x1b\x07[31m\x1b[3\r1m\x1b\x1b[31m", "[31m[31m\x1b[31m"),
            ("end\x1b", "end"),
            ("end\x1b[31", "end[31"),
        ];
        for (given, shown) in cases {
            assert_eq!(clean(given), shown, "{given:?}");
        }
    }
}
