//! Completes the names of commands and roles.

use muleteer_model::conversation::command;
use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

/// The commands that `chat` carries out itself, with a few words about each.
pub const LOCAL: [(&str, &str); 3] = [
    ("editor", "write a message in $VISUAL or $EDITOR"),
    ("help", "list the commands"),
    ("quit", "leave; the thread stays"),
];

/// Helps the line editor of `chat`.
#[derive(Debug, Default)]
pub struct Assistant {
    pub roles: Vec<String>,
}

impl Assistant {
    /// Returns where the word before the cursor begins, and its completions.
    fn complete(&self, line: &str, pos: usize) -> (usize, Vec<String>) {
        let before = line.get(..pos).unwrap_or_default();
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let word = &before[start..];
        let all: Vec<String> = if start == 0 && word.starts_with('/') {
            let local = LOCAL.iter().map(|(name, _)| *name);
            let names = local.chain(command::all().map(|command| command.name));
            names.map(|name| format!("/{name} ")).collect()
        } else if word.starts_with('@') {
            self.roles.iter().map(|role| format!("@{role} ")).collect()
        } else {
            vec![]
        };
        let mut fit: Vec<_> = all.into_iter().filter(|name| name.starts_with(word)).collect();
        fit.sort();
        fit.dedup();
        (start, fit)
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.complete(line, pos))
    }
}

impl Validator for Assistant {
    /// A line that ends with a backslash goes on in the next one.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_roles_are_completed() {
        let assistant = Assistant { roles: vec!["reviewer".into(), "researcher".into()] };
        let complete = |line: &str| assistant.complete(line, line.len());
        assert_eq!(complete("/qu"), (0, vec!["/quit ".to_string()]));
        assert_eq!(complete("/sp"), (0, vec!["/spawn ".to_string()]));
        assert_eq!(complete("ask @rev"), (4, vec!["@reviewer ".to_string()]));
        assert_eq!(complete("a /qu").1, Vec::<String>::new());
        assert_eq!(complete("ö @re").1.len(), 2);
    }
}
