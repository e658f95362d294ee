//! A database that stays open from one look to the next.

use super::{Archive, ArchiveError};
use crate::db::Projection;
use crate::error::StoreError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Keeps the database of an [`Archive`] open. Opening it reads its schema, which costs more than a
/// look at one dispatch, and each new dispatch looks whether its id is taken.
#[derive(Debug, Default)]
pub struct Reader(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    file: FileId,
    database: Projection,
}

/// A damaged database is moved away and another one takes its name.
type FileId = (u64, u64);

impl Reader {
    /// Asks a database that has all archived dispatches. Blocks, also while another thread asks.
    ///
    /// # Errors
    /// Those of [`Archive::open`] and of `ask`.
    pub(super) fn read<T>(
        &self,
        archive: &Archive<'_>,
        ask: impl Fn(&Projection) -> Result<T, StoreError>,
    ) -> Result<T, ArchiveError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |kept: &Kept| {
            file_id(archive.database) == Some(kept.file)
                && kept.database.has_all(archive.fleet.archived_until()).unwrap_or(false)
        };
        if let Some(kept) = kept.as_ref().filter(|kept| is_current(kept))
            && let Ok(answer) = ask(&kept.database)
        {
            return Ok(answer);
        }
        // The kept one is replaced or fails: the answer of a fresh one counts.
        *kept = None;
        let file = file_id(archive.database);
        let database = archive.open()?;
        let answer = ask(&database)?;
        // If another file got the name between the two looks, this one is not kept.
        let same = file.filter(|file| file_id(archive.database) == Some(*file));
        *kept = same.map(|file| Kept { file, database });
        Ok(answer)
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
