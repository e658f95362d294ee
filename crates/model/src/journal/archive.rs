//! The places of archived journals.

use std::path::{Path, PathBuf};

/// The folder of archived journals, beside the folders of the features.
const ARCHIVE: &str = "archive";

/// Returns the place of a journal once it is archived: `<journals>/archive/<feature>/<id>.md`.
/// `None` if the journal is not in a folder of `.agents/journals`.
pub fn archived(journal: &Path) -> Option<PathBuf> {
    let (name, feature) = (journal.file_name()?, journal.parent()?);
    let journals = feature.parent()?;
    let archive = journals.join(ARCHIVE);
    let is_one = journals.ends_with(".agents/journals") && feature != archive;
    is_one.then(|| Some(archive.join(feature.file_name()?).join(name))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archived_journal_keeps_its_feature_and_its_name() {
        let place =
            |journal: &str| archived(Path::new(journal)).map(|path| path.display().to_string());
        assert_eq!(
            place("/repo/.agents/journals/login/abcd2345.md").as_deref(),
            Some("/repo/.agents/journals/archive/login/abcd2345.md")
        );
        for other in ["/repo/login/abcd2345.md", "/j", "/repo/.agents/journals/archive/a.md"] {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
