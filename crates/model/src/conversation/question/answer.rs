//! The reading of a person's words as the answer to a question.

use crate::question::entity::{ALLOW, DENY};
use crate::question::event::{Answer, Choice, Kind};
use crate::question::{ANSWER_LIMIT, Question, sign_off};
use crate::spec_run::gate;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The separators between an option and the words that follow it.
const SEPARATORS: [char; 2] = [':', ','];

const YES: [&str; 8] = ["allow", "yes", "y", "ok", "approve", "approved", "accept", "go"];
const NO: [&str; 7] = ["deny", "no", "n", "reject", "rejected", "refuse", "decline"];

/// Returns the answer that a text gives to an open question; `None` if it is no answer to it.
///
/// An answer is the id or the label of an option, its number from 1, a word for yes or no where the
/// question has such options, or any text where the question takes one. Several options are
/// separated by commas. A text to a request for permission is no answer here, because it would deny
/// the request: see [`read`].
pub fn as_answer(question: &Question, text: &str) -> Option<Answer> {
    let text = text.trim();
    if !question.is_open() || text.is_empty() || text.len() > ANSWER_LIMIT {
        return None;
    }
    let chosen = chosen(question, text);
    // Without the colon it may be a message for the thread's agent that begins with such a word.
    let explained = || text.contains(':').then(|| explained(question, text)).flatten();
    chosen.or_else(explained).or_else(|| question.takes_text().then(|| Answer::text(text)))
}

/// Returns the answer that the words of an explicit `answer` give to a question.
///
/// # Errors
/// The words are empty or too long, or the question takes only its options.
pub fn read(question: &Question, words: &[&str]) -> Result<Answer, NoAnswer> {
    let said = words.join(" ");
    let said = said.trim();
    if said.is_empty() {
        return Err(NoAnswer::Empty);
    }
    if said.len() > ANSWER_LIMIT {
        return Err(NoAnswer::TooLong);
    }
    if let Some(answer) = chosen(question, said) {
        return Ok(answer);
    }
    if let Some(answer) = explained(question, said) {
        return Ok(answer);
    }
    if question.multi {
        let found: Option<Vec<_>> = words.iter().map(|word| option(question, word)).collect();
        if let Some(found) = found {
            return Ok(several(found));
        }
    }
    match question.free_text {
        true => Ok(Answer::text(said)),
        false => Err(NoAnswer::NoSuchOption),
    }
}

/// The reason why words are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("the answer is empty")]
    Empty,
    #[error("the answer is longer than {ANSWER_LIMIT} bytes")]
    TooLong,
    #[error("the question takes only its options")]
    NoSuchOption,
}

/// Returns the option that a text begins with, and the words after it as the text of the answer.
/// Only the questions of runs and specs take both. The text must begin with the exact id: "go back"
/// or "no objections" would else decide, and an approval would drop its words.
fn explained(question: &Question, text: &str) -> Option<Answer> {
    match question.kind {
        Kind::Approval | Kind::Plan | Kind::SignOff => {}
        Kind::Question | Kind::Permission | Kind::Stall | Kind::Newer => return None,
    }
    let is_end = |c: char| c.is_whitespace() || SEPARATORS.contains(&c);
    let (word, rest) = text.split_at(text.find(is_end)?);
    let rest = rest.trim_start_matches(is_end);
    let option = question.options.iter().find(|option| option.id == word)?;
    let approvals = [gate::APPROVE, sign_off::SIGN_OFF, sign_off::START_RUN];
    if approvals.contains(&&*option.id) && !rest.is_empty() {
        return None;
    }
    Some(Answer { options: vec![option.id.clone()], text: rest.into() })
}

/// Returns the options that a text chooses.
fn chosen(question: &Question, text: &str) -> Option<Answer> {
    if let Some(found) = option(question, text) {
        return Some(Answer::option(&found.id));
    }
    if question.multi {
        return separated(question, text).filter(|found| !found.is_empty()).map(several);
    }
    None
}

/// Returns the options that a text names, separated by commas. Names of options may contain commas,
/// so a text may have several readings. The one with the fewest options counts: `Red, warm` is the
/// option of that name, and not `Red` and `warm`. A text whose shortest readings choose different
/// options names none: a person must not get an option that they did not mean.
fn separated<'a>(question: &'a Question, text: &str) -> Option<Vec<&'a Choice>> {
    let commas = |choice: &Choice| {
        [&choice.id, &choice.label].map(|name| name.matches(',').count()).into_iter().max()
    };
    let most = question.options.iter().filter_map(commas).max().unwrap_or_default();
    let commas = text.match_indices(',').map(|(at, _)| at);
    let ends: Vec<_> = commas.chain([text.len()]).collect();
    // The shortest reading of the text up to each end that some reading has. A name has at most
    // `most` commas, so the number of readings at the same time is bounded.
    let mut readings = BTreeMap::from([(0, Reading::default())]);
    for (part, end) in ends.iter().enumerate() {
        readings.retain(|parts, _| part - parts <= most);
        let mut found: Option<Reading> = None;
        for (parts, reading) in &readings {
            let begin = parts.checked_sub(1).map_or(0, |before| ends[before] + 1);
            let Some(choice) = option(question, text.get(begin..*end).unwrap_or("").trim()) else {
                continue;
            };
            let longer = reading.and(choice);
            found = Some(found.map_or_else(|| longer.clone(), |other| other.or(&longer)));
        }
        readings.extend(found.map(|reading| (part + 1, reading)));
        if readings.keys().next_back().is_none_or(|parts| part + 1 - parts > most) {
            return None;
        }
    }
    let whole = readings.remove(&ends.len()).filter(|reading| !reading.is_ambiguous)?;
    Some(whole.options)
}

/// The options that a reading of a text has found, in the order of the text.
#[derive(Debug, Clone, Default)]
struct Reading<'a> {
    /// The number of names, with repeated ones.
    names: usize,
    options: Vec<&'a Choice>,
    /// Another reading with as many names chooses other options.
    is_ambiguous: bool,
}

impl<'a> Reading<'a> {
    fn and(&self, choice: &'a Choice) -> Self {
        let mut longer = self.clone();
        longer.names += 1;
        if !longer.has(choice) {
            longer.options.push(choice);
        }
        longer
    }

    /// Returns the reading with fewer names.
    fn or(self, other: &Self) -> Self {
        match self.names.cmp(&other.names) {
            Ordering::Less => self,
            Ordering::Greater => other.clone(),
            Ordering::Equal => {
                let is_same = self.options.len() == other.options.len()
                    && other.options.iter().all(|choice| self.has(choice));
                let is_ambiguous = self.is_ambiguous || other.is_ambiguous || !is_same;
                Self { is_ambiguous, ..self }
            }
        }
    }

    fn has(&self, choice: &Choice) -> bool {
        self.options.iter().any(|known| known.id == choice.id)
    }
}

/// Returns the answer that separate arguments give to a question with several options, if each of
/// them names one.
pub fn by_arguments(question: &Question, arguments: &[String]) -> Option<Answer> {
    if !question.multi || arguments.iter().map(String::len).sum::<usize>() > ANSWER_LIMIT {
        return None;
    }
    let found: Option<Vec<_>> =
        arguments.iter().map(|argument| option(question, argument.trim())).collect();
    found.filter(|found| !found.is_empty()).map(several)
}

fn several(found: Vec<&Choice>) -> Answer {
    let mut answer = Answer::default();
    for option in found {
        if !answer.options.contains(&option.id) {
            answer.options.push(option.id.clone());
        }
    }
    answer
}

/// Returns the option that a word names: by id, by label in any case, by number, or by yes and no.
fn option<'a>(question: &'a Question, word: &str) -> Option<&'a Choice> {
    let options = &question.options;
    let by = |fits: &dyn Fn(&Choice) -> bool| options.iter().find(|option| fits(option));
    by(&|option| option.id == word)
        .or_else(|| by(&|option| option.label.eq_ignore_ascii_case(word)))
        .or_else(|| {
            let number: usize = word.parse().ok()?;
            options.get(number.checked_sub(1)?)
        })
        .or_else(|| {
            let lower = word.to_ascii_lowercase();
            let yes = YES.contains(&lower.as_str());
            let no = NO.contains(&lower.as_str());
            match (yes, no) {
                (true, _) => by(&|option| [ALLOW, gate::APPROVE].contains(&&*option.id))
                    .or_else(|| by(&|option| option.description == "allow_once")),
                (_, true) => by(&|option| [DENY, gate::REJECT].contains(&&*option.id))
                    .or_else(|| by(&|option| option.description == "reject_once")),
                _ => None,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::event::QuestionAsked;
    use jiff::Timestamp;

    fn question(kind: Kind, options: &[(&str, &str)], multi: bool, free_text: bool) -> Question {
        let choice =
            |(id, label): &(&str, &str)| Choice { label: (*label).into(), ..Choice::new(id, "") };
        let asked = QuestionAsked {
            question: "q2345678".into(),
            kind,
            text: "Which?".into(),
            options: options.iter().map(choice).collect(),
            multi,
            free_text,
            detail: serde_json::Value::Null,
            default: None,
            deadline: None,
            thread: None,
            shown_in: vec![],
            dispatch: None,
            asked_by: "developer".into(),
            subject: String::new(),
        };
        Question::of_event(&asked, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn text_is_read_as_an_option_a_number_or_a_free_text() {
        let colours = [("red", "Red wine"), ("blue", "Blue sky")];
        let closed = question(Kind::Question, &colours, false, false);
        let open = question(Kind::Question, &colours, false, true);
        for (text, option) in [("red", "red"), (" BLUE SKY ", "blue"), ("2", "blue"), ("1", "red")]
        {
            assert_eq!(as_answer(&closed, text), Some(Answer::option(option)), "{text}");
        }
        for text in ["0", "3", "green", ""] {
            assert_eq!(as_answer(&closed, text), None, "{text}");
        }
        assert_eq!(as_answer(&open, "green"), Some(Answer::text("green")));
    }

    #[test]
    fn permission_takes_yes_and_no_and_no_other_text() {
        let permission =
            question(Kind::Permission, &[("allow", "allow"), ("deny", "deny")], false, true);
        assert_eq!(as_answer(&permission, "Yes"), Some(Answer::option("allow")));
        assert_eq!(as_answer(&permission, "deny"), Some(Answer::option("deny")));
        assert_eq!(as_answer(&permission, "tell me more"), None);
        assert_eq!(read(&permission, &["use", "git"]), Ok(Answer::text("use git")));
    }

    #[test]
    fn answer_to_a_run_is_an_option_with_words() {
        let options = [("approve", "approve"), ("change", "change"), ("reject", "reject")];
        let plan = question(Kind::Plan, &options, false, true);
        let change = |text: &str| Answer { options: vec!["change".into()], text: text.into() };
        assert_eq!(read(&plan, &["change", "split it"]), Ok(change("split it")));
        assert_eq!(read(&plan, &["change: split: it"]), Ok(change("split: it")));
        assert_eq!(read(&plan, &["yes"]), Ok(Answer::option("approve")));
        assert_eq!(read(&plan, &["no"]), Ok(Answer::option("reject")));
        assert_eq!(read(&plan, &["split it"]), Ok(Answer::text("split it")));
        // A text in a conversation is for its agent, unless it is an answer beyond doubt.
        assert_eq!(as_answer(&plan, "change: split it"), Some(change("split it")));
        for text in ["change the colour", "split it", "why: so many?"] {
            assert_eq!(as_answer(&plan, text), None, "{text}");
        }
        let merge = question(Kind::Approval, &options[..1], false, false);
        assert_eq!(read(&merge, &["nonsense"]), Err(NoAnswer::NoSuchOption));
    }

    #[test]
    fn words_that_begin_like_an_option_decide_nothing() {
        let options = [("approve", "approve"), ("change", "change"), ("reject", "reject")];
        let plan = question(Kind::Plan, &options, false, true);
        let merge = question(Kind::Approval, &[options[0], options[2]], false, false);
        for text in [
            "go back and split the parser",
            "ok but change the names",
            "1 bead is too many",
            "no objections",
            "yes: but first",
            "approve nothing yet",
        ] {
            assert_eq!(read(&plan, &[text]), Ok(Answer::text(text)), "{text}");
            assert_eq!(read(&merge, &[text]), Err(NoAnswer::NoSuchOption), "{text}");
            assert_eq!(as_answer(&plan, text), None, "{text}");
        }
        let why = Answer { options: vec!["reject".into()], text: "it is late".into() };
        assert_eq!(read(&merge, &["reject", "it is late"]), Ok(why));
        assert_eq!(read(&merge, &["approve:"]), Ok(Answer::option("approve")));
    }

    #[test]
    fn several_options_are_chosen_only_where_the_question_allows_it() {
        let many = question(Kind::Question, &[("a", "a"), ("b", "b"), ("c", "c")], true, false);
        let chosen = Answer { options: vec!["a".into(), "c".into()], text: String::new() };
        assert_eq!(as_answer(&many, "a, 3, a"), Some(chosen.clone()));
        assert_eq!(read(&many, &["a", "c"]), Ok(chosen));
        assert_eq!(as_answer(&many, "a, x"), None);
        let one = question(Kind::Question, &[("a", "a"), ("b", "b")], false, false);
        assert_eq!(read(&one, &["a", "b"]), Err(NoAnswer::NoSuchOption));
    }

    #[test]
    fn options_that_contain_commas_stay_apart() {
        let names = ["Red, warm", "Red", "warm", "a, b, c"].map(|name| (name, name));
        let many = question(Kind::Question, &names, true, false);
        for (text, chosen) in [
            ("Red, warm", &["Red, warm"][..]),
            ("warm, Red", &["warm", "Red"]),
            ("warm,a, b, c,Red", &["warm", "a, b, c", "Red"]),
            ("Red, Red, warm, 3", &["Red", "Red, warm", "warm"]),
        ] {
            let answer = as_answer(&many, text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(answer.options, chosen, "{text}");
        }
        for text in ["a, b", "Red,", ",Red", "Red,,warm", ","] {
            assert_eq!(as_answer(&many, text), None, "{text}");
        }
        let given = ["Red".to_string(), "warm".to_string()];
        let answer = by_arguments(&many, &given).expect("options");
        assert_eq!(answer.options, ["Red", "warm"], "and not the option `Red, warm`");
        assert_eq!(by_arguments(&many, &["Red".into(), "blue".into()]), None);
        assert_eq!(answer.told(), "Red, warm");
        let answer = Answer { options: vec!["Red, warm".into(), "Red".into()], ..answer };
        assert_eq!(answer.told(), "\"Red, warm\", Red");
    }

    #[test]
    fn text_with_commas_is_never_split_into_options_that_nobody_meant() {
        let of = |names: &[&'static str]| {
            let names: Vec<_> = names.iter().map(|name| (*name, *name)).collect();
            question(Kind::Question, &names, true, false)
        };
        // The longest name first would leave a rest that is no option.
        let overlap = of(&["a", "a, b", "b, c"]);
        let answer = as_answer(&overlap, "a, b, c").expect("an answer");
        assert_eq!(answer.options, ["a", "b, c"]);
        let chain = of(&["a", "a, b", "b, c", "c, d", "d"]);
        let answer = as_answer(&chain, "a, b, c, d").expect("an answer");
        assert_eq!(answer.options, ["a, b", "c, d"]);
        // Two readings of the same length: the words do not tell which one was meant.
        let twice = of(&["a", "a, b", "b, c", "c"]);
        assert_eq!(as_answer(&twice, "a, b, c"), None);
        assert_eq!(read(&twice, &["a, b, c"]), Err(NoAnswer::NoSuchOption));
        assert_eq!(as_answer(&twice, "c, a, b, c"), None, "its beginning does not decide");
        let answer = as_answer(&twice, "a, c").expect("an answer");
        assert_eq!(answer.options, ["a", "c"]);
        // Numbers and separate arguments say it in any case.
        let answer = as_answer(&twice, "1, 3").expect("an answer");
        assert_eq!(answer.options, ["a", "b, c"]);
        // Both readings choose the same options.
        let same = of(&["x", "x, x"]);
        let answer = as_answer(&same, "x, x, x").expect("an answer");
        assert_eq!(answer.options, ["x", "x, x"]);
        // With a free text the agent gets the words themselves.
        let names = [("a", "a"), ("a, b", "a, b"), ("b, c", "b, c"), ("c", "c")];
        let free = question(Kind::Question, &names, true, true);
        assert_eq!(as_answer(&free, "a, b, c"), Some(Answer::text("a, b, c")));
    }

    #[test]
    fn longest_text_of_commas_is_read_in_time() {
        let names = ["a", "a,a,a,a,a,a,a,a", "b"].map(|name| (name, name));
        let many = question(Kind::Question, &names, true, false);
        let text = "a,".repeat(ANSWER_LIMIT / 2 - 1);
        assert_eq!(as_answer(&many, &text), None);
        assert!(as_answer(&many, &format!("{text}b")).is_some());
    }

    #[test]
    fn closed_question_takes_no_answer() {
        let mut closed = question(Kind::Question, &[], false, true);
        closed.state = crate::question::State::Delivered;
        assert_eq!(as_answer(&closed, "yes"), None);
    }
}
