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
pub struct LastValidRoles(Mutex<Roles>);

#[derive(Debug, Default)]
struct Roles {
    all: HashMap<RolePlace, LastRole>,
    /// The number of uses so far.
    uses: u64,
}

#[derive(Debug)]
struct LastRole {
    sources: Vec<RoleSource>,
    fault: Option<String>,
    /// The number of its last use.
    used: u64,
}

impl LastValidRoles {
    /// Returns the faults of role files that are not in force because of them.
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> =
            self.roles().all.values().filter_map(|last| last.fault.clone()).collect();
        faults.sort();
        faults.dedup();
        faults
    }

    /// Returns the roles whose files were invalid when they were last read.
    pub fn faulty(&self) -> Vec<RolePlace> {
        let roles = self.roles();
        let faulty = roles.all.iter().filter(|(_, last)| last.fault.is_some());
        faulty.map(|(place, _)| place.clone()).collect()
    }

    /// Returns the last valid files of a role.
    pub fn of(&self, place: &RolePlace) -> Option<Vec<RoleSource>> {
        self.roles().touch(place).map(|last| last.sources.clone())
    }

    /// Whether the files of a role are kept and were valid when they were last read.
    pub fn is_valid(&self, place: &RolePlace) -> bool {
        self.roles().touch(place).is_some_and(|last| last.fault.is_none())
    }

    /// Notes the files of a role, which are valid.
    pub fn note_valid(&self, place: &RolePlace, sources: Vec<RoleSource>) {
        self.roles().put(place, sources, None);
    }

    /// Notes the files that are in force instead of the present ones, and the fault of these.
    /// Returns whether the fault is new.
    pub fn note_fault(&self, place: &RolePlace, sources: Vec<RoleSource>, fault: &str) -> bool {
        let before = self.roles().put(place, sources, Some(fault.into()));
        before.and_then(|last| last.fault).as_deref() != Some(fault)
    }

    /// Forgets the files of a role: there is no such role any more.
    pub fn forget(&self, place: &RolePlace) {
        self.roles().all.remove(place);
    }

    fn roles(&self) -> MutexGuard<'_, Roles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Roles {
    fn touch(&mut self, place: &RolePlace) -> Option<&LastRole> {
        self.uses += 1;
        let last = self.all.get_mut(place)?;
        last.used = self.uses;
        Some(last)
    }

    fn put(
        &mut self,
        place: &RolePlace,
        sources: Vec<RoleSource>,
        fault: Option<String>,
    ) -> Option<LastRole> {
        if self.all.len() >= MOST && !self.all.contains_key(place) {
            // A role with a fault needs its last valid files, so it leaves last.
            let oldest = self.all.iter().min_by_key(|(_, last)| (last.fault.is_some(), last.used));
            if let Some(oldest) = oldest.map(|(place, _)| place.clone()) {
                self.all.remove(&oldest);
            }
        }
        self.uses += 1;
        self.all.insert(place.clone(), LastRole { sources, fault, used: self.uses })
    }
}
