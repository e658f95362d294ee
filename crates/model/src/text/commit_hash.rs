//! The short form of a commit hash.

/// Returns the first twelve characters of a full hash (SHA-1 or SHA-256), or any other text as it
/// is.
pub fn short(commit: &str) -> &str {
    commit.get(..12).filter(|_| commit.len() == 40 || commit.len() == 64).unwrap_or(commit)
}
