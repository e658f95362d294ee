//! The title of a task: one line for tables and journals.

use crate::agent::event::cut;
use crate::text::one_line::one_line;

/// The limit of a title, in bytes.
pub const TITLE_LIMIT: usize = 120;

/// Returns the title of a task: the given one, else one from its prompt. `None` if neither has a
/// word.
pub fn title(given: Option<&str>, prompt: &str) -> Option<String> {
    let given = given.map(one_line).filter(|text| !text.is_empty());
    given.or_else(|| of_prompt(prompt)).map(|text| cut(&text, TITLE_LIMIT))
}

/// Returns the first line of a prompt that says something, without Markdown's marks: rules, fences,
/// the signs of headings and lists. The title of YAML front matter counts as such a line.
fn of_prompt(prompt: &str) -> Option<String> {
    let says = |line: &str| line.chars().any(char::is_alphanumeric);
    let text = prompt.trim_start_matches('\u{feff}').trim_start();
    let (front, text) = front_matter(text);
    let titled = front.lines().find_map(|line| line.strip_prefix("title:"));
    let titled = titled.map(|title| title.trim().trim_matches(['"', '\'']));
    let mut lines = text.lines().map(str::trim);
    let first = || lines.find(|line| says(line) && !line.starts_with("```"));
    let line = titled.filter(|title| says(title)).or_else(first)?;
    let is_mark = |c: char| matches!(c, '#' | '*' | '-' | '>' | '`' | '_') || c.is_whitespace();
    let text = one_line(line.trim_start_matches(is_mark).trim_end_matches(['#', '*', '`', ' ']));
    Some(text).filter(|text| !text.is_empty())
}

/// Splits YAML front matter from a text. Without a key below its `---`, that is a rule of Markdown.
fn front_matter(text: &str) -> (&str, &str) {
    let is_key = |line: &str| line.contains(':');
    text.strip_prefix("---\n")
        .filter(|rest| rest.lines().next().is_some_and(is_key))
        .and_then(|rest| rest.split_once("\n---"))
        .unwrap_or(("", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_is_the_given_one_or_the_first_line_of_the_prompt() {
        for (given, prompt, expected) in [
            (None, "Fix the flaky test\nin tests/net.rs", Some("Fix the flaky test")),
            (Some("Mend\n the net"), "Fix", Some("Mend the net")),
            (Some("  "), "Fix", Some("Fix")),
            (None, "\u{feff}\n\n# Login #\n\nUsers log in.", Some("Login")),
            (None, "---\n\n- [ ] **Fix it**", Some("[ ] **Fix it")),
            (None, "---\ntitle: \"Log in\"\n---\nMore", Some("Log in")),
            (None, "---\nowner: me\n---\n\n## Log out", Some("Log out")),
            (None, "---\nNo end", Some("No end")),
            (None, "```sh\nmake\n```", Some("make")),
            (None, "/login returns\t500", Some("/login returns 500")),
            (None, "a\u{1b}[2Jb", Some("a [2Jb")),
            (None, " \n---\n", None),
        ] {
            assert_eq!(title(given, prompt).as_deref(), expected, "{given:?} {prompt:?}");
        }
        let long = title(None, &"ä".repeat(500)).expect("a title");
        assert!(long.len() <= TITLE_LIMIT && long.ends_with('…'), "{long}");
    }
}
