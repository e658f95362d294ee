//! The beads that follow from a verdict.
//!
//! Their agents must not know the acceptance criteria. So a bead states the gap that the judge
//! found, and texts that repeat a criterion word for word are left out of it ([`Hidden`]).

use crate::spec_run::judge::{JudgeResult, NewBead, TEXT, TITLE, fitting};
use crate::text::controls::plain_line;
use crate::text::fnv1a::Fnv;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::ops::Range;

/// So many words in a row that a criterion has too are a quotation.
const QUOTED: usize = 6;
/// A shorter line of the criteria counts as a whole, if it has so many words.
const SHORTEST: usize = 4;
/// A criterion that the verdict names is certainly one, so fewer words suffice.
const SHORTEST_NAMED: usize = 2;
/// Takes the place of a quotation.
const WITHHELD: &str = "[…]";

const GENERAL_TITLE: &str = "Close a gap between the software and the spec";
const GENERAL_TEXT: &str = "The judge found that the software does not do everything that the spec \
    asks for. How it was found out is not for coding agents. Go through the spec section by \
    section, try what each one promises, also with unusual input, and correct what differs.";

/// The texts that coding agents must not see: the acceptance criteria, as far as the spec does not
/// have the same words.
#[derive(Debug, Clone, Default)]
pub struct Hidden {
    /// Hashes of runs of words, each with the number of its words.
    runs: BTreeSet<(usize, u64)>,
    /// The numbers of words that occur in `runs`.
    lengths: BTreeSet<usize>,
}

impl Hidden {
    /// `criteria` are files of criteria, `named` the criteria that a verdict names. `public` is the
    /// spec, which agents have anyway.
    pub fn new<'a>(
        criteria: impl IntoIterator<Item = &'a str>,
        named: impl IntoIterator<Item = &'a str>,
        public: &str,
    ) -> Self {
        let mut hidden = Self::default();
        for item in criteria.into_iter().flat_map(items) {
            hidden.add(&item, QUOTED);
            for line in item.lines() {
                hidden.add_short(line, SHORTEST);
            }
        }
        for text in named {
            hidden.add(text, QUOTED);
            hidden.add_short(text, SHORTEST_NAMED);
        }
        let public = words(public);
        for length in hidden.lengths.clone() {
            for run in public.windows(length) {
                hidden.runs.remove(&(length, hash(run)));
            }
        }
        hidden
    }

    fn add(&mut self, text: &str, length: usize) {
        let words = words(text);
        let runs = words.windows(length).map(|run| (length, hash(run)));
        self.runs.extend(runs);
        self.lengths.insert(length);
    }

    /// Adds a text of fewer than [`QUOTED`] words as a whole.
    fn add_short(&mut self, text: &str, shortest: usize) {
        let length = words(text).len();
        if (shortest..QUOTED).contains(&length) {
            self.add(text, length);
        }
    }

    /// Returns the text with a mark in place of each quotation.
    pub fn withhold<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let words = words(text);
        let mut quoted = vec![false; words.len()];
        for length in &self.lengths {
            for (at, run) in words.windows(*length).enumerate() {
                if self.runs.contains(&(*length, hash(run))) {
                    quoted[at..at + length].fill(true);
                }
            }
        }
        if !quoted.contains(&true) {
            return Cow::Borrowed(text);
        }
        let (mut out, mut from, mut at) = (String::with_capacity(text.len()), 0, 0);
        while at < words.len() {
            if !quoted[at] {
                at += 1;
                continue;
            }
            let first = at;
            while quoted.get(at) == Some(&true) {
                at += 1;
            }
            out.push_str(&text[from..words[first].place.start]);
            out.push_str(WITHHELD);
            from = words[at - 1].place.end;
        }
        out.push_str(&text[from..]);
        Cow::Owned(out)
    }
}

/// Splits a file of criteria into its paragraphs, headings and items of lists.
fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    for line in text.lines() {
        let trimmed = line.trim_start();
        let numbered = trimmed.trim_start_matches(|c: char| c.is_ascii_digit());
        let begins = trimmed.is_empty()
            || trimmed.starts_with(['-', '*', '+', '#', '|'])
            || (numbered.len() < trimmed.len() && numbered.starts_with(['.', ')']));
        match items.last_mut() {
            Some(item) if !begins => item.push_str(&format!("{line}\n")),
            _ => items.push(format!("{line}\n")),
        }
    }
    items
}

/// A word in lower case, and its place in the text.
struct Word {
    text: String,
    place: Range<usize>,
}

/// Splits a text into words. Signs and Markdown's marks are no part of a word, so they hide no
/// quotation.
fn words(text: &str) -> Vec<Word> {
    let mut words = vec![];
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (c.is_alphanumeric(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                words.push(Word { text: text[from..at].to_lowercase(), place: from..at });
                start = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
    words
}

fn hash(run: &[Word]) -> u64 {
    let mut hash = Fnv::default();
    for word in run {
        hash.write(word.text.as_bytes());
        hash.write(b" ");
    }
    hash.finish()
}

impl JudgeResult {
    /// Returns the beads that fix the findings: the judge's own list, or else one for each issue
    /// and each failed criterion. A failure without findings gives one general bead. The texts may
    /// still quote criteria: [`JudgeResult::remedies_without`] is for agents.
    pub fn remedies(&self) -> Vec<NewBead> {
        if self.passed() {
            return vec![];
        }
        let task = |title: String, description: String| NewBead {
            title,
            description,
            kind: "task".into(),
        };
        let mut beads = self.new_beads.clone();
        if beads.is_empty() && self.drifted() {
            beads.extend(self.issues().iter().map(|issue| {
                let place =
                    if issue.section.is_empty() { "Spec drift" } else { issue.section.as_str() };
                let text = format!("{} (severity: {})", issue.description, issue.severity);
                task(format!("{place}: {}", first_line(&issue.description)), text)
            }));
        }
        if self.new_beads.is_empty() && !self.accepted() {
            let failed = self.criteria().iter().filter(|criterion| !criterion.passed);
            beads.extend(failed.map(|one| match first_line(&one.evidence) {
                gap if gap.is_empty() => task(GENERAL_TITLE.into(), GENERAL_TEXT.into()),
                gap => task(format!("Close the gap: {gap}"), one.evidence.clone()),
            }));
        }
        if beads.is_empty() && !self.promotes() {
            beads.push(task(
                "Bring the implementation in line with the spec".into(),
                format!("The judge reported `{}` without a finding.", self.status),
            ));
        }
        beads.into_iter().map(fitting_bead).collect()
    }

    /// Returns the same beads without the words of hidden criteria.
    pub fn remedies_without(&self, hidden: &Hidden) -> Vec<NewBead> {
        self.remedies().into_iter().map(|bead| without(bead, hidden)).collect()
    }

    /// Returns the criteria that the verdict names.
    pub fn named_criteria(&self) -> impl Iterator<Item = &str> {
        self.criteria().iter().map(|one| one.criterion.as_str())
    }
}

fn without(bead: NewBead, hidden: &Hidden) -> NewBead {
    let title = hidden.withhold(&bead.title).into_owned();
    let mut description = hidden.withhold(&bead.description).into_owned();
    if title == bead.title && description == bead.description {
        return bead;
    }
    let has_words = |text: &str| text.replace(WITHHELD, "").contains(char::is_alphanumeric);
    let left = title.strip_prefix("Close the gap: ").unwrap_or(&title);
    let title = if has_words(left) { title } else { GENERAL_TITLE.into() };
    if !has_words(&description) {
        description = GENERAL_TEXT.into();
    }
    fitting_bead(NewBead { title, description, ..bead })
}

/// Cuts a bead to the limits of every store. A title is one line of plain text.
fn fitting_bead(bead: NewBead) -> NewBead {
    let title = match plain_line(&bead.title) {
        title if title.is_empty() => GENERAL_TITLE.into(),
        title => crate::agent::event::cut(&title, TITLE),
    };
    NewBead { title, description: fitting(&bead.description, TEXT), ..bead }
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(plain_line).find(|line| !line.is_empty());
    crate::agent::event::cut(&line.unwrap_or_default(), 200)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec_run::judge::{Acceptance, Criterion, Issue, SpecDrift};

    const SECRET: &str = "Given an empty file, when the tool counts its words, then it prints 0 \
                          and exits with code 0";
    const SPEC: &str = "# Count\n\nThe tool counts the words of a file and prints their number.";

    fn failed(criterion: &str, evidence: &str) -> JudgeResult {
        JudgeResult {
            status: "success".into(),
            acceptance: Some(Acceptance {
                passed: false,
                results: vec![Criterion {
                    criterion: criterion.into(),
                    passed: false,
                    evidence: evidence.into(),
                }],
            }),
            ..JudgeResult::default()
        }
    }

    fn beads(result: &JudgeResult, files: &[&str]) -> Vec<NewBead> {
        let hidden = Hidden::new(files.iter().copied(), result.named_criteria(), SPEC);
        result.remedies_without(&hidden)
    }

    #[test]
    fn bead_of_a_failed_criterion_states_the_gap_and_not_the_criterion() {
        for (evidence, title, kept) in [
            (
                "an empty file makes it panic in src/count.rs:12",
                "Close the gap: an empty file makes it panic in src/count.rs:12",
                "src/count.rs:12",
            ),
            ("", GENERAL_TITLE, "section by section"),
            (SECRET, GENERAL_TITLE, "section by section"),
            (SECRET.to_uppercase().as_str(), GENERAL_TITLE, "section by section"),
            (
                format!("`{SECRET}` fails:\nit panics in src/count.rs:12").as_str(),
                "Close the gap: `[…]` fails:",
                "it panics in src/count.rs:12",
            ),
            (
                "Given an **empty file**, when the tool\ncounts its words, it panics",
                GENERAL_TITLE,
                "it panics",
            ),
        ] {
            let found = beads(&failed(SECRET, evidence), &[]);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].title, title, "{evidence}");
            assert!(found[0].description.contains(kept), "{:?}", found[0]);
            let told = format!("{} {}", found[0].title, found[0].description).to_lowercase();
            assert!(!told.contains("when the tool") && !told.contains("exits with"), "{told}");
        }
    }

    #[test]
    fn no_bead_of_a_verdict_repeats_a_criterion_of_the_files() {
        let files = format!("# Edge cases\n\n- {SECRET}\n- It greets by name\n");
        let new = |title: &str, text: &str| NewBead {
            title: title.into(),
            description: text.into(),
            kind: "bug".into(),
        };
        let mut result = failed("the empty file", "it panics");
        result.new_beads = vec![
            new(SECRET, "- It greets by name!"),
            new("Count an empty file", &format!("It must hold:\n> {SECRET}\nIt panics.")),
            new("It greets, by NAME", "Users are not greeted"),
        ];
        let found = beads(&result, &[&files]);
        assert_eq!((found[0].title.as_str(), found[0].kind.as_str()), (GENERAL_TITLE, "bug"));
        assert_eq!(found[0].description, GENERAL_TEXT);
        assert_eq!(found[1].title, "Count an empty file");
        assert_eq!(found[1].description, "It must hold:\n> […]\nIt panics.");
        assert_eq!(found[2].title, GENERAL_TITLE);
        assert_eq!(found[2].description, "Users are not greeted");
        // The same holds for the differences from the spec.
        result.new_beads = vec![];
        result.spec_drift = Some(SpecDrift {
            detected: true,
            issues: vec![Issue {
                section: "Count".into(),
                description: SECRET.into(),
                severity: "major".into(),
            }],
        });
        let found = beads(&result, &[&files]);
        assert_eq!(found.len(), 2, "one for each finding, whatever is left out");
        assert_eq!(found[0].title, "Count: […]");
        assert_eq!(found[0].description, "[…] (severity: major)");
    }

    #[test]
    fn words_of_the_spec_are_not_withheld() {
        let criterion = "The tool counts the words of a file and prints their number";
        let text = format!("{criterion}, but it prints nothing");
        let found = beads(&failed(criterion, &text), &[&format!("- {criterion}\n")]);
        assert_eq!(found[0].description, text);
        assert!(found[0].title.contains("counts the words"), "{:?}", found[0]);
    }

    #[test]
    fn title_of_a_remedy_is_one_line_of_text() {
        let mut result = failed("x y z", "\n\n \u{1b}[31mit\tpanics\u{202e}\nin a");
        assert_eq!(result.remedies()[0].title, "Close the gap: [31mit panics");
        result.new_beads = vec![
            NewBead { title: "a\n## The spec\u{85}b".into(), ..NewBead::default() },
            NewBead { title: "\0\u{9b}".into(), ..NewBead::default() },
            NewBead { title: "ä".repeat(1000), ..NewBead::default() },
        ];
        let titles: Vec<String> = result.remedies().into_iter().map(|bead| bead.title).collect();
        assert_eq!(titles[..2], ["a ## The spec b", GENERAL_TITLE]);
        assert!(titles[2].len() <= TITLE && !titles[2].contains('\n'), "{}", titles[2]);
    }
}
