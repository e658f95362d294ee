//! The last valid configuration files of each project, and the last valid files of each role.

use muleteer_model::agent::role::RoleSource;
use muleteer_model::config::Source;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most projects, and the most roles, whose last valid files are kept.
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

/// A role: the repository of its project, and its name.
pub type RolePlace = (PathBuf, String);

/// The last valid files of each role, and the faults of those that are invalid now.
#[derive(Debug, Default)]
pub struct LastValidRoles(Mutex<HashMap<RolePlace, LastRole>>);

#[derive(Debug)]
struct LastRole {
    sources: Vec<RoleSource>,
    fault: Option<String>,
}

impl LastValidRoles {
    /// Returns the faults of role files that are not in force because of them.
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> =
            self.all().values().filter_map(|last| last.fault.clone()).collect();
        faults.sort();
        faults.dedup();
        faults
    }

    /// Returns the last valid files of a role.
    pub fn of(&self, place: &RolePlace) -> Option<Vec<RoleSource>> {
        self.all().get(place).map(|last| last.sources.clone())
    }

    /// Notes the files of a role, which are valid.
    pub fn note_valid(&self, place: &RolePlace, sources: Vec<RoleSource>) {
        let mut all = self.all();
        if all.len() >= MOST && !all.contains_key(place) {
            all.clear();
        }
        all.insert(place.clone(), LastRole { sources, fault: None });
    }

    /// Notes that the present files of a role are its last valid ones again.
    pub fn note_fixed(&self, place: &RolePlace) {
        if let Some(last) = self.all().get_mut(place) {
            last.fault = None;
        }
    }

    /// Notes the fault of the present files. Returns whether it is new.
    pub fn note_fault(&self, place: &RolePlace, fault: &str) -> bool {
        let mut all = self.all();
        let Some(last) = all.get_mut(place) else { return false };
        let is_new = last.fault.as_deref() != Some(fault);
        last.fault = Some(fault.into());
        is_new
    }

    fn all(&self) -> MutexGuard<'_, HashMap<RolePlace, LastRole>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
