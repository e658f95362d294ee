//! The last valid configuration files of each project.

use muleteer_model::config::Source;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The most projects whose last valid files are kept.
const MOST: usize = 64;

/// The files of a project: its repository, and the file of `--config`.
pub type Place = (Option<PathBuf>, Option<PathBuf>);

/// The last valid files of each project, and the faults of those that are invalid now.
#[derive(Debug, Default)]
pub struct LastValid {
    sources: Mutex<HashMap<Place, Vec<Source>>>,
    faults: Mutex<HashMap<Place, String>>,
}

impl LastValid {
    /// Returns the faults of configuration files that are not in force because of them.
    pub fn faults(&self) -> Vec<String> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let mut faults: Vec<_> = faults.values().cloned().collect();
        faults.sort();
        faults.dedup();
        faults
    }

    /// Notes that these files of a project are valid.
    pub fn note_valid(&self, place: &Place, sources: &[Source]) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
        let mut all = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(place).is_some_and(|known| known == sources) {
            return;
        }
        if all.len() >= MOST && !all.contains_key(place) {
            all.clear();
        }
        all.insert(place.clone(), sources.to_vec());
    }

    /// Returns the last valid files, and whether this fault of the present ones is new.
    pub fn instead(&self, place: &Place, fault: &str) -> Option<(Vec<Source>, bool)> {
        let all = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = all.get(place)?.clone();
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() >= MOST && !faults.contains_key(place) {
            faults.clear();
        }
        let known = faults.insert(place.clone(), fault.into());
        Some((sources, known.as_deref() != Some(fault)))
    }
}
