//! The style rules, each a function from a file's text to violations.

use super::Violation;
use super::files::Entry;
use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};
use xtask::text_error;

const MAX_COLUMNS: usize = 100;
const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 100;
const MAX_FOLDER_ENTRIES: usize = 14;

/// Words with which a sentence of comments and documentation must not begin.
const OPENERS: [&str; 8] = ["Who", "Whom", "Whose", "Whoever", "Whomever", "What", "Of a", "Of an"];
/// The beginning of a literal that spells an error code. It is in two parts, because it is no code
/// itself.
const CODE: &str = concat!("\"E", "_");
/// Names of agent CLIs that only their own backends may spell.
const BACKENDS: [&str; 3] = ["\"claude-code\"", "\"codex\"", "\"acp\""];

/// Every violation of every rule, in the order of the entries.
pub fn all(entries: &[Entry]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for entry in entries {
        match entry {
            Entry::Rust { path, text } => rust(path, text, &mut violations),
            Entry::Markdown { path, text } => markdown(path, text, &mut violations),
            Entry::Folder { path, entries } if *entries > MAX_FOLDER_ENTRIES => {
                let what = format!("{entries} entries, at most {MAX_FOLDER_ENTRIES}");
                push(&mut violations, "folder-size", path, 0, what);
            }
            Entry::Folder { .. } => {}
        }
    }
    violations
}

fn push(to: &mut Vec<Violation>, rule: &'static str, path: &str, line: usize, what: String) {
    to.push(Violation { rule, path: path.to_string(), line, what });
}

fn rust(path: &str, text: &str, to: &mut Vec<Violation>) {
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        push(to, "file-size", path, 0, format!("{lines} lines, at most {MAX_FILE_LINES}"));
    }
    for (number, line) in numbered(text) {
        let columns = line.chars().count();
        let is_table =
            line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with('|');
        if columns > MAX_COLUMNS && !is_table && !line.contains("://") {
            push(to, "line-width", path, number, format!("{columns} columns"));
        }
    }
    let tokens = Tokens::of(text);
    for (number, name, length) in tokens.long_functions() {
        let what = format!("`{name}` has {length} lines, at most {MAX_FUNCTION_LINES}");
        push(to, "function-size", path, number, what);
    }
    for (number, comment) in tokens.comments() {
        openers(path, number, &comment, to);
    }
    let is_test =
        path.starts_with("tests/") || path.contains("/tests") || path.contains("/examples/");
    if is_test {
        return;
    }
    let of_tests = tokens.test_modules();
    for (number, line) in numbered(text) {
        if of_tests.iter().any(|lines| lines.contains(&number))
            || line.trim_start().starts_with("//")
        {
            continue;
        }
        product_line(path, number, line, to);
    }
}

/// The rules that hold for code of the product, outside tests.
fn product_line(path: &str, number: usize, line: &str, to: &mut Vec<Violation>) {
    if text_error::has_text_error(line) {
        push(to, "string-error", path, number, "a `Result` of a text: write an error enum".into());
    }
    // Developer tooling depends on no crate of the product, so it runs git itself.
    let may_run_git = path.starts_with("crates/vcs/") || path.starts_with("crates/xtask/");
    if !may_run_git && line.contains("Command::new(\"git\")") {
        push(to, "git-command", path, number, "only `vcs` runs git".into());
    }
    let may_name_backends = path.starts_with("crates/backends/")
        || path.starts_with("crates/rehearsal/")
        || path.starts_with("crates/xtask/")
        // The table of the agents' capabilities, by which decisions are made.
        || path == "crates/model/src/agent/capability.rs";
    if !may_name_backends && BACKENDS.iter().any(|name| line.contains(name)) {
        push(to, "backend-name", path, number, "only `backends` names an agent CLI".into());
    }
    let spells_codes = path.starts_with("crates/protocol/") || path.starts_with("crates/xtask/");
    if !spells_codes && line.contains(CODE) {
        push(to, "error-code", path, number, "write an `ErrorCode`, not its text".into());
    }
}

fn markdown(path: &str, text: &str, to: &mut Vec<Violation>) {
    let mut in_fence = false;
    let mut paragraph: Option<(usize, String)> = None;
    let mut paragraphs = Vec::new();
    for (number, line) in numbered(text) {
        let columns = line.chars().count();
        let is_table = line.trim_start().starts_with('|');
        let is_link = line.contains("](") || line.contains("://");
        if columns > MAX_COLUMNS && !is_table && !is_link {
            push(to, "line-width", path, number, format!("{columns} columns"));
        }
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        let begins_another = line.trim().is_empty()
            || in_fence
            || is_table
            || line.trim_start().starts_with(['#', '-', '*', '>', '`']);
        if begins_another {
            paragraphs.extend(paragraph.take());
        }
        if in_fence || is_table || line.trim_start().starts_with('#') {
            continue;
        }
        let text = line.trim().trim_start_matches(['-', '*', '>', ' ']);
        match &mut paragraph {
            Some((_, whole)) => {
                whole.push(' ');
                whole.push_str(text);
            }
            None if text.is_empty() => {}
            None => paragraph = Some((number, text.to_string())),
        }
    }
    paragraphs.extend(paragraph);
    for (number, whole) in paragraphs {
        openers(path, number, &whole, to);
    }
}

/// The sentences of `text` that begin with a forbidden word. Questions are allowed.
fn openers(path: &str, number: usize, text: &str, to: &mut Vec<Violation>) {
    for sentence in sentences(text) {
        let begins = |opener: &&&str| {
            sentence.strip_prefix(**opener).is_some_and(|rest| rest.starts_with([' ', '’', '\'']))
        };
        if let Some(opener) = OPENERS.iter().find(begins)
            && !sentence.ends_with('?')
        {
            let shown: String = sentence.chars().take(60).collect();
            push(to, "sentence-opener", path, number, format!("begins with `{opener}`: {shown}"));
        }
    }
}

/// The sentences of a paragraph, each with its final mark.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut from = 0;
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let ends = matches!(byte, b'.' | b'!' | b'?' | b':')
            && bytes.get(at + 1).is_none_or(|next| *next == b' ');
        if ends {
            found.push(text[from..=at].trim());
            from = at + 1;
        }
    }
    found.push(text[from..].trim());
    found.retain(|sentence| !sentence.is_empty());
    found
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// The tokens of a Rust file with their texts and lines.
struct Tokens<'a> {
    all: Vec<(TokenKind, &'a str, usize)>,
}

impl<'a> Tokens<'a> {
    fn of(text: &'a str) -> Self {
        let mut all = Vec::new();
        let (mut at, mut line) = (0, 1);
        for token in tokenize(text, FrontmatterAllowed::No) {
            let end = at + token.len as usize;
            let part = &text[at..end];
            all.push((token.kind, part, line));
            line += part.matches('\n').count();
            at = end;
        }
        Self { all }
    }

    /// Functions that are too long: first line, name, number of lines.
    fn long_functions(&self) -> Vec<(usize, String, usize)> {
        let code: Vec<_> = self.all.iter().filter(|(kind, ..)| !is_blank(*kind)).collect();
        let mut found = Vec::new();
        for (at, (_, word, line)) in code.iter().enumerate() {
            let is_fn =
                *word == "fn" && code.get(at + 1).is_some_and(|next| next.0 == TokenKind::Ident);
            if !is_fn {
                continue;
            }
            let Some(end) = body_end(&code[at..]) else { continue };
            let length = end - line + 1;
            if length > MAX_FUNCTION_LINES {
                found.push((*line, code[at + 1].1.to_string(), length));
            }
        }
        found
    }

    /// The lines of every `mod tests { … }` and of every function under `#[cfg(test)]`.
    fn test_modules(&self) -> Vec<std::ops::RangeInclusive<usize>> {
        let code: Vec<_> = self.all.iter().filter(|(kind, ..)| !is_blank(*kind)).collect();
        let marker = ["#", "[", "cfg", "(", "test", ")", "]"];
        let mut found = Vec::new();
        for at in 0..code.len() {
            let is_marker = marker
                .iter()
                .enumerate()
                .all(|(offset, word)| code.get(at + offset).is_some_and(|token| token.1 == *word));
            if is_marker && let Some(end) = body_end(&code[at + marker.len()..]) {
                found.push(code[at].2..=end);
            }
        }
        found
    }

    /// Comments, adjacent line comments joined: first line and text without its marks.
    fn comments(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut last_line = 0;
        for (kind, part, line) in &self.all {
            let text = match kind {
                TokenKind::LineComment { .. } => {
                    part.trim_start_matches(['/', '!']).trim().to_string()
                }
                TokenKind::BlockComment { .. } => {
                    part.trim_matches(['/', '*', '!', ' ']).to_string()
                }
                _ => continue,
            };
            let begins_another = text.is_empty() || text.starts_with(['-', '*', '#', '|']);
            if *line == last_line + 1
                && !begins_another
                && let Some((_, whole)) = found.last_mut()
            {
                whole.push(' ');
                whole.push_str(&text);
            } else {
                let text = text.trim_start_matches(['-', '*', '#', '|', ' ']).to_string();
                found.push((*line, text));
            }
            last_line = *line;
        }
        found
    }
}

fn is_blank(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. }
    )
}

/// The line of the brace that closes the first `{` of `code`; `None` when a `;` comes first.
fn body_end(code: &[&(TokenKind, &str, usize)]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut inner = 0_usize;
    for (kind, _, line) in code {
        match kind {
            TokenKind::OpenBrace => depth += 1,
            TokenKind::CloseBrace => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(*line);
                }
            }
            TokenKind::OpenParen | TokenKind::OpenBracket => inner += 1,
            TokenKind::CloseParen | TokenKind::CloseBracket => inner = inner.saturating_sub(1),
            TokenKind::Semi if depth == 0 && inner == 0 => return None,
            _ => {}
        }
    }
    None
}
