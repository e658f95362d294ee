//! The spelling of keys.

/// The longest name of an adapter or a schedule in bytes.
const NAME_LIMIT: usize = 64;

/// Whether a name that a file of the configuration gives can be a part of a file's name.
pub(crate) fn is_file_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !name.is_empty() && name.len() <= NAME_LIMIT && name.chars().all(fits)
}

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
