//! Repositories and a user's home for the tests of trust.

use crate::daemon::paths::Paths;
use crate::daemon::trust::claude::untrusted;
use crate::daemon::trust::{Examined, examine, record};
use muleteer_backends::RepositorySettings;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Place {
    /// A canonical path.
    pub root: PathBuf,
    pub paths: Paths,
    _dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("a path");
        let home = root.join("home");
        let env = |name: &str| (name == "HOME").then(|| OsString::from(&home));
        let paths = Paths::resolve(&env, 1000, &Path::to_path_buf).expect("paths");
        Self { root, paths, _dir: dir }
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        path
    }

    /// Trusts the repository of this name as it is.
    pub fn trust(&self, name: &str) -> Examined {
        let examined = examine(&self.paths, &self.root.join(name)).expect("a repository");
        record(&self.paths, &examined, "2026-01-01T00:00:00Z".into()).expect("a record");
        examined
    }

    /// Returns the names of the files that an agent in this directory loads without trust.
    pub fn untrusted_for(&self, name: &str, loaded: RepositorySettings) -> Vec<String> {
        let files = untrusted(&self.paths, &self.root.join(name), loaded);
        let name =
            |file: &PathBuf| file.strip_prefix(&self.root).expect("inside").display().to_string();
        files.iter().map(name).collect()
    }
}
