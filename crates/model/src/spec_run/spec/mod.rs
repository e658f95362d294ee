//! The title of a spec: its first heading.

pub mod amendment;
pub mod review;

use crate::agent::event::cut;
use crate::text::markdown_fence::Fence;

/// Longer titles are cut.
const TITLE: usize = 120;

/// Returns whether a text has no readable characters.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c.is_control() || c == '\u{feff}')
}

/// Returns the first heading of a Markdown text, or else its first line. Empty only if
/// [`is_blank`].
pub fn title(text: &str) -> String {
    let text = crate::text::bom::unmarked(text);
    let lines: Vec<&str> = body(text).lines().collect();
    let said = |line: &&str| line.chars().any(char::is_alphanumeric);
    let first = || lines.iter().copied().chain(text.lines()).find(said).map(plain);
    let readable = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
    let any =
        || text.lines().map(|line| cut(readable(line).trim(), TITLE)).find(|line| !is_blank(line));
    heading(&lines).or_else(first).or_else(any).unwrap_or_default()
}

/// Returns the text after the front matter, if there is one.
fn body(text: &str) -> &str {
    for mark in ["---", "+++"] {
        let Some(rest) = text.strip_prefix(mark).filter(|rest| rest.starts_with(['\n', '\r']))
        else {
            continue;
        };
        let mut at = 0;
        for line in rest.split_inclusive('\n') {
            at += line.len();
            if line.trim_end() == mark {
                return &rest[at..];
            }
        }
    }
    text
}

fn heading(lines: &[&str]) -> Option<String> {
    let (mut fence, mut comment): (Option<Fence>, bool) = (None, false);
    for (at, whole) in lines.iter().enumerate() {
        let line = whole.trim_start_matches(' ');
        if let Some(open) = fence {
            fence = Some(open).filter(|open| !open.is_closed_by(line));
            continue;
        }
        comment |= line.starts_with("<!--");
        if comment {
            comment = !line.contains("-->");
            continue;
        }
        // A deeper indentation is code.
        if whole.len() - line.len() > 3 || whole.starts_with('\t') {
            continue;
        }
        fence = Fence::opened_by(line);
        if fence.is_some() {
            continue;
        }
        let level = line.len() - line.trim_start_matches('#').len();
        let said = &line[level..];
        let underlined = lines.get(at + 1).is_some_and(|next| {
            let next = next.trim();
            !next.is_empty() && next.bytes().all(|byte| byte == b'=')
        });
        let title = match level {
            0 if underlined => plain(line),
            1..=6 if said.is_empty() || said.starts_with([' ', '\t']) => plain(line),
            _ => continue,
        };
        if !title.is_empty() {
            return Some(title);
        }
    }
    None
}

/// Returns a line without Markdown marks, control characters and byte order marks.
fn plain(line: &str) -> String {
    let clean: String =
        line.chars().map(|c| if c.is_control() || c == '\u{feff}' { ' ' } else { c }).collect();
    let said = clean.trim();
    let level = said.len() - said.trim_start_matches('#').len();
    let rest = &said[level..];
    let said = if rest.is_empty() || rest.starts_with(' ') { rest } else { said };
    // Closing marks.
    let said = said.trim_end();
    let open = said.trim_end_matches('#');
    let said = if open.is_empty() || open.ends_with(' ') { open } else { said };
    cut(&said.split_whitespace().collect::<Vec<_>>().join(" "), TITLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_real_heading_is_the_title() {
        for (text, wanted) in [
            ("# The plan\n\nThree files.\n", "The plan"),
            ("\u{feff}# Real Title\n## Second\n", "Real Title"),
            ("```sh\n# install\n```\n# Title\n", "Title"),
            ("```inline``` words\n# Title\n", "Title"),
            ("~~~~\n~~~\n# no\n~~~~\n## Title ##\n", "Title"),
            ("---\ntitle: x\n# a comment\n---\n# Title\n", "Title"),
            ("+++\n# a comment\n+++\n\n# Title\n", "Title"),
            ("#!/usr/bin/env markdown\n# Title\n", "Title"),
            ("#\n\n##  \n# Title\n", "Title"),
            ("#hashtag\n# Title #1\n", "Title #1"),
            ("<!--\n# no\n-->\n   # Title\n", "Title"),
            ("    # code\n\t# code\n# C#\n", "C#"),
            ("The plan\n========\n\n# Later\n", "The plan"),
            ("# A\0B\x1b[31m\tC\r\n", "A B [31m C"),
            // Without a heading, the first line is the title.
            ("\n\nJust text.\nMore.\n", "Just text."),
            ("#\0\n", "#"),
            ("#!/bin/sh\n", "#!/bin/sh"),
            ("---\ntitle: x\n---\n", "title: x"),
            ("```\n# only\n```\n", "only"),
            ("---\n# not closed\n", "not closed"),
        ] {
            assert_eq!(title(text), wanted, "{text:?}");
        }
        assert!(title(&format!("# {}", "é".repeat(200))).len() <= TITLE);
    }

    #[test]
    fn unreadable_spec_counts_as_blank() {
        assert!(["", " \n", "\u{feff}", "\u{feff}\n\0\t"].iter().all(|text| is_blank(text)));
        assert!(!is_blank("\u{feff}x"));
    }
}
