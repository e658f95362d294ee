//! Decides who gets the next turn of a meeting.

use crate::conversation::meeting::event::{EndReason, TurnKind};
use crate::conversation::meeting::fold::{Chair, Meeting, Taken};
use crate::conversation::thread::Message;

/// The next turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Turn {
        role: String,
        kind: TurnKind,
        /// The reason, for people.
        why: String,
    },
    /// Nobody was mentioned: a person's message is awaited.
    Wait,
    End(EndReason),
}

impl Next {
    fn speak(role: &str, why: impl Into<String>) -> Self {
        Self::Turn { role: role.into(), kind: TurnKind::Speak, why: why.into() }
    }
}

/// Decides who gets the next turn. `held` are the messages of people that nobody has heard, oldest
/// first.
pub fn next(meeting: &Meeting, held: &[&Message]) -> Next {
    if meeting.present().next().is_none() {
        return Next::End(EndReason::EveryRoleFailed);
    }
    // A person gives the floor, whatever the chair.
    let by_person = held.iter().rev().find_map(|message| {
        let role = mentioned(&message.text, meeting.present(), "")?;
        Some(Next::speak(role, format!("mentioned by {}", message.author.name)))
    });
    if let Some(next) = by_person {
        return next;
    }
    match meeting.chair() {
        Chair::RoundRobin => in_turn(meeting, "round robin"),
        Chair::Mention => by_mention(meeting, held),
        Chair::Role(chair) if meeting.has_left(chair) => {
            in_turn(meeting, "round robin, because the chair failed")
        }
        Chair::Role(chair) => by_chair(meeting, chair),
    }
}

/// Returns the role after the last speaker.
fn in_turn(meeting: &Meeting, why: &str) -> Next {
    let roles = &meeting.started.roles;
    let last = last_speech(meeting).and_then(|turn| roles.iter().position(|it| *it == turn.role));
    let first = last.map_or(0, |last| last + 1);
    let order = (0..roles.len()).map(|step| &roles[(first + step) % roles.len()]);
    let next = order.into_iter().find(|role| !meeting.has_left(role));
    next.map_or(Next::End(EndReason::EveryRoleFailed), |role| Next::speak(role, why))
}

fn by_mention(meeting: &Meeting, held: &[&Message]) -> Next {
    let Some(last) = last_speech(meeting) else { return in_turn(meeting, "it opens the meeting") };
    // A turn that was lost said nothing, so the mention before it is used up.
    let said = meeting.said.as_deref().filter(|_| last.lost.is_none()).unwrap_or_default();
    if let Some(role) = mentioned(said, meeting.present(), &last.role) {
        return Next::speak(role, format!("mentioned by {}", last.role));
    }
    if held.is_empty() {
        return Next::Wait;
    }
    match meeting.has_left(&last.role) {
        true => in_turn(meeting, "a person wrote"),
        false => Next::speak(&last.role, "a person wrote"),
    }
}

/// Gives every second turn to the chair, who names the next speaker in it.
fn by_chair(meeting: &Meeting, chair: &str) -> Next {
    let ask =
        |why: &str| Next::Turn { role: chair.into(), kind: TurnKind::Choose, why: why.into() };
    match last_turn(meeting) {
        None => ask("it opens the meeting"),
        Some(turn) if turn.kind != TurnKind::Choose => ask("it chairs"),
        Some(turn) if turn.lost.is_some() => in_turn(meeting, "round robin, the chair was silent"),
        Some(_) => {
            let said = meeting.said.as_deref().unwrap_or_default();
            match choice(said) {
                Some(Choice::End) => return Next::End(EndReason::ChairEnded),
                Some(Choice::Role(role)) if meeting.present().any(|it| it == role) => {
                    return Next::speak(&role, format!("named by {chair}"));
                }
                Some(Choice::Role(_)) | None => {}
            }
            match mentioned(said, meeting.present(), chair) {
                Some(role) => Next::speak(role, format!("mentioned by {chair}")),
                None => in_turn(meeting, "round robin, the chair named nobody"),
            }
        }
    }
}

fn last_turn(meeting: &Meeting) -> Option<&Taken> {
    meeting.turns.last()
}

fn last_speech(meeting: &Meeting) -> Option<&Taken> {
    meeting.turns.iter().rfind(|turn| turn.kind == TurnKind::Speak)
}

/// The decision of a chair.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    Role(String),
    End,
}

/// Reads the decision of a chair: the last line `NEXT: ROLE` or `END`.
fn choice(text: &str) -> Option<Choice> {
    let plain = |line: &str| {
        line.trim_matches(|c: char| c.is_whitespace() || "*`_.".contains(c)).to_string()
    };
    text.lines().rev().map(plain).find_map(|line| {
        if line.eq_ignore_ascii_case("end") {
            return Some(Choice::End);
        }
        let (word, rest) = line.split_once(':')?;
        let word = plain(word);
        let role = plain(rest);
        let role = role.trim_start_matches('@');
        match word.eq_ignore_ascii_case("next") {
            true if role.eq_ignore_ascii_case("end") => Some(Choice::End),
            true => Some(Choice::Role(role.into())),
            false => None,
        }
    })
}

/// Returns the first role that a text mentions as `@ROLE`, except for one.
pub fn mentioned<'a>(
    text: &str,
    roles: impl Iterator<Item = &'a str>,
    except: &str,
) -> Option<&'a str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let mut names = text.split('@').skip(1).map(|rest| {
        // A name ends with its last letter: `@tester-` is the tester.
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        rest[..end].trim_end_matches(['-', '_'])
    });
    let roles: Vec<_> = roles.filter(|role| *role != except).collect();
    names.find_map(|name| roles.iter().find(|role| **role == name).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_of_a_chair_is_its_last_line_of_that_form() {
        for (text, expected) in [
            ("Let us hear the tests.\n\nNEXT: @tester", Some(Choice::Role("tester".into()))),
            ("**Next:** tester", Some(Choice::Role("tester".into()))),
            ("next: `@tester`.", Some(Choice::Role("tester".into()))),
            ("NEXT: a\nNEXT: b", Some(Choice::Role("b".into()))),
            ("All is said.\nEND", Some(Choice::End)),
            ("NEXT: END", Some(Choice::End)),
            ("This is the end of it", None),
            ("", None),
        ] {
            assert_eq!(choice(text), expected, "{text}");
        }
    }

    #[test]
    fn mention_is_a_whole_name_of_another_role() {
        let roles = ["tester", "developer"];
        let of = |text, except| mentioned(text, roles.into_iter(), except);
        assert_eq!(of("ask @tester, please", ""), Some("tester"));
        assert_eq!(of("@testers and ann@developer.org", ""), Some("developer"));
        assert_eq!(of("I, @tester, ask (@developer)", "tester"), Some("developer"));
        assert_eq!(of("tester", ""), None);
        assert_eq!(of("@tester", "tester"), None);
    }
}
