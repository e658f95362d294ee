//! Fenced code blocks of markdown, in which nothing is what it looks like.

/// What opened a block, as `CommonMark` has it. Indentation is the caller's to judge.
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
        // Else it is a code span.
        (length >= 3 && (mark == '~' || !info.contains('`'))).then_some(Self { mark, length })
    }

    pub fn is_closed_by(self, line: &str) -> bool {
        let rest = line.trim_start_matches(self.mark);
        line.len() - rest.len() >= self.length && rest.trim().is_empty()
    }
}
