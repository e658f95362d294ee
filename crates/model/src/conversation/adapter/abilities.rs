//! The abilities of an outside system, and the texts for one that lacks an ability.

use crate::conversation::adapter::asks::Asked;
use crate::conversation::event::MessageFile;
use std::fmt::Write;

/// The length from which a text becomes a document, unless the adapter names another one, in bytes.
pub const LONGEST_TEXT: usize = 16 * 1024;
/// The smallest such length. A document of a few words would hide them.
const SHORTEST: usize = 256;

/// The abilities of an outside system that change what its adapter is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    pub files: bool,
    pub questions: bool,
    pub reactions: bool,
    pub status: bool,
    pub streaming: bool,
    /// A longer text becomes a document, in bytes.
    longest_text: Option<usize>,
}

impl Abilities {
    /// Reads the capabilities of a hello, and its `longest_text`.
    pub fn of(capabilities: &[String], longest_text: Option<u64>) -> Self {
        let has = |name: &str| capabilities.iter().any(|one| one == name);
        let longest = longest_text.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Self {
            files: has("files"),
            questions: has("questions"),
            reactions: has("reactions"),
            status: has("status"),
            streaming: has("streaming"),
            longest_text: longest.map(|bytes| bytes.max(SHORTEST)),
        }
    }

    /// Whether a text is given as a document.
    pub fn is_document(&self, text: &str) -> bool {
        self.files && text.len() > self.longest_text.unwrap_or(LONGEST_TEXT)
    }

    /// Whether something is given that no record owes: reactions, streams or states.
    pub fn is_live(&self) -> bool {
        self.reactions || self.streaming || self.status
    }
}

/// Returns a question as a text with its options. `mark` is in front of the names of commands.
pub fn question_text(asked: &Asked, mark: char) -> String {
    let mut text = asked.text.clone();
    if !asked.options.is_empty() {
        text.push('\n');
    }
    for option in &asked.options {
        let _ = write!(text, "\n- `{}`", option.id);
        for more in [&option.label, &option.description] {
            if !more.is_empty() && *more != option.id {
                let _ = write!(text, ": {more}");
            }
        }
    }
    let answer = if asked.options.is_empty() { "TEXT" } else { "OPTION" };
    let _ = write!(text, "\n\nAnswer with `{mark}answer {} {answer}`.", asked.id);
    text
}

/// Returns the text that names a file which the outside system cannot take.
pub fn file_text(file: &MessageFile, path: &str) -> String {
    format!(
        "A file of {} bytes is attached: `{}`. It is on the machine of the daemon, at `{path}`.",
        file.bytes, file.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Choice;

    fn abilities(names: &[&str], longest: Option<u64>) -> Abilities {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Abilities::of(&names, longest)
    }

    #[test]
    fn long_text_is_a_document_only_for_a_system_with_files() {
        let long = "x".repeat(LONGEST_TEXT + 1);
        assert!(abilities(&["files"], None).is_document(&long));
        assert!(!abilities(&["files"], None).is_document(&long[1..]));
        assert!(!abilities(&["files"], Some(u64::MAX)).is_document(&long));
        assert!(!abilities(&["threads"], None).is_document(&long));
        assert!(!abilities(&["files"], Some(0)).is_document(&long[..SHORTEST]));
    }

    #[test]
    fn question_as_a_text_has_its_options_and_the_way_to_answer() {
        let options = vec![Choice::new("allow", "allow"), Choice::new("deny", "no, never")];
        let asked = Asked { id: "q2345678".into(), text: "Run it?".into(), options };
        assert_eq!(
            question_text(&asked, '!'),
            "Run it?\n\n- `allow`\n- `deny`: no, never\n\nAnswer with `!answer q2345678 OPTION`."
        );
        let free = Asked { options: vec![], ..asked };
        assert_eq!(question_text(&free, '/'), "Run it?\n\nAnswer with `/answer q2345678 TEXT`.");
    }
}
