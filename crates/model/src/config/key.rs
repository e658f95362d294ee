//! The spelling of keys.

/// Returns one spelling for `maxAgents`, `max-agents` and `max_agents`.
pub(crate) fn canonical(key: &str) -> String {
    let mut text = String::with_capacity(key.len() + 4);
    let mut after_lower = false;
    for c in key.chars() {
        match c {
            '-' => text.push('_'),
            c if c.is_ascii_uppercase() => {
                if after_lower {
                    text.push('_');
                }
                text.push(c.to_ascii_lowercase());
            }
            c => text.push(c),
        }
        after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    text
}
