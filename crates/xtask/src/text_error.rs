//! The rule that a function returns its errors as types, not as texts.

/// Returns whether a type of the line is a `Result` whose error is a text.
pub fn has_text_error(line: &str) -> bool {
    line.split("Result<").skip(1).any(|rest| {
        let (mut depth, mut error) = (0, 0);
        for (at, c) in rest.char_indices() {
            match c {
                '<' | '(' | '[' => depth += 1,
                ',' if depth == 0 => error = at + 1,
                '>' if depth == 0 => return rest[error..at].trim() == "String" && error > 0,
                '>' | ')' | ']' => depth -= 1,
                _ => {}
            }
        }
        false
    })
}
