//! Fenced code blocks of Markdown, whose content is not Markdown.

/// The opening of a fenced block, as in `CommonMark`. The caller checks the indentation.
#[derive(Debug, Clone, Copy)]
pub struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    pub fn opened_by(line: &str) -> Option<Self> {
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let info = line.trim_start_matches(mark);
        let length = line.len() - info.len();
        // Otherwise it is a code span.
        (length >= 3 && (mark == '~' || !info.contains('`'))).then_some(Self { mark, length })
    }

    pub fn is_closed_by(self, line: &str) -> bool {
        let rest = line.trim_start_matches(self.mark);
        line.len() - rest.len() >= self.length && rest.trim().is_empty()
    }
}
