//! The part of a person's git configuration that Muleteer obeys: ignored files, line ends, trusted
//! repositories, and filters. Without it a task would commit files that the person's own git would
//! not.
//!
//! A filter is a program. A filter of the person's or the system's configuration runs in the
//! person's own working directory, because their git runs it there too. A filter that only a
//! repository's configuration defines never runs, because an agent can write that configuration. In
//! a worker's clone no filter runs: such programs (git-lfs) read the clone's own configuration,
//! which is the agent's. If a file needs a filter that does not run, the operation fails, because a
//! commit would have other content. A merge driver is a program too. No git of ours runs one; git's
//! own merge replaces it.

use crate::command::blocking::run_bytes;
use crate::command::{TRUST_COUNT, configuration, copied_configuration, trusted_places};
use crate::user_repo::merge::Name;
use crate::user_repo::user_changes::named;
use crate::user_repo::{Git, GitError};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The keys for ignored files and line ends.
const PLAIN: [&str; 4] = ["core.excludesfile", "core.autocrlf", "core.eol", "core.safecrlf"];
const ATTRIBUTES: &str = "core.attributesfile";
const TRUSTED: &str = "safe.directory";
/// The keys that define a filter.
const FILTER: [&str; 4] = ["clean", "smudge", "process", "required"];
/// Merges texts as git does without a driver.
const MERGE: &str = "git merge-file --marker-size=%L %A %O %B";
/// The commands that read only objects and refs, and so run no filter. A command that reads an
/// index may run one, even `write-tree`.
const NO_FILES: [&str; 12] = [
    "commit-tree",
    "config",
    "diff-tree",
    "for-each-ref",
    "log",
    "ls-tree",
    "merge-base",
    "merge-file",
    "rev-list",
    "rev-parse",
    "symbolic-ref",
    "update-ref",
];

/// The definition of one filter: its keys and their values.
pub(super) type Filter = BTreeMap<String, OsString>;

/// Programs that git would run on files by a repository's own configuration.
#[derive(Debug, Default)]
struct Programs {
    /// The keys that it defines, by filter.
    filters: BTreeMap<String, BTreeSet<String>>,
    /// The keys `merge.NAME.driver`.
    drivers: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Person {
    settings: Vec<(String, OsString)>,
    pub(super) attributes: Option<PathBuf>,
    pub(super) filters: BTreeMap<String, Filter>,
    pub(super) name: Option<String>,
    pub(super) email: Option<String>,
}

impl Person {
    /// Reads the configuration with the person's own environment and these variables. The global
    /// one is the copy of it, if there is one, because it names programs.
    pub(super) fn read(dir: &Path, vars: &[(&str, &OsStr)]) -> Result<Self, GitError> {
        let mut command = configuration(dir);
        let kept = copied_configuration();
        let kept = kept.as_ref().map(|(name, path)| (*name, path.as_os_str()));
        command.args(["config", "-z", "--show-scope", "--list"]);
        command.env("LC_ALL", "C").envs(kept.into_iter().chain(vars.iter().copied()));
        let listed = run_bytes(command, b"", "config")?;
        let mut fields = listed.split(|byte| *byte == 0);
        let mut person = Self::default();
        // git reads the repository's own settings anyway, and they have precedence.
        let mut own = BTreeSet::new();
        while let (Some(scope), Some(entry)) = (fields.next(), fields.next()) {
            let mut parts = entry.splitn(2, |byte| *byte == b'\n');
            let key = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
            // A key without a value means true.
            let value = OsString::from_vec(parts.next().unwrap_or(b"true").to_vec());
            match key.as_str() {
                "user.name" => person.name = Some(value.to_string_lossy().into_owned()),
                "user.email" => person.email = Some(value.to_string_lossy().into_owned()),
                _ => {}
            }
            if matches!(scope, b"system" | b"global") {
                person.obey(key, value);
            } else {
                own.insert(key);
            }
        }
        person.settings.retain(|(key, _)| key == TRUSTED || !own.contains(key));
        let var = |name: &str| {
            let said = vars
                .iter()
                .copied()
                .chain(kept)
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value));
            said.or_else(|| std::env::var_os(name)).filter(|value| !value.is_empty())
        };
        if person.attributes.is_none() {
            let home = || var("HOME").map(|home| PathBuf::from(home).join(".config"));
            let file = var("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                .or_else(home)
                .map(|dir| dir.join("git/attributes"));
            person.attributes = file.filter(|file| file.is_file());
        }
        let restored = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"].map(|name| (name, var(name)));
        for command in person.filters.values_mut().flatten().filter(|(key, _)| *key != "required") {
            *command.1 = at_home(command.1, &restored);
        }
        Ok(person)
    }

    fn obey(&mut self, key: String, value: OsString) {
        if key == ATTRIBUTES {
            self.attributes = Some(value.into());
        } else if key == TRUSTED || PLAIN.contains(&key.as_str()) {
            self.settings.push((key, value));
        } else if let Some((name, what)) = filter_key(&key) {
            self.filters.entry(name.into()).or_default().insert(what.into(), value);
        }
    }

    /// Makes a git command obey these settings, and `more`.
    pub(super) fn tell(&self, command: &mut Command, more: &[(String, OsString)]) {
        if let Some(file) = &self.attributes {
            // The file names filters, but defines none. It replaces the one that a repository's
            // configuration may name.
            let mut setting = OsString::from("core.attributesFile=");
            setting.push(file);
            command.arg("-c").arg(setting);
        }
        let (trusted, others): (Vec<_>, Vec<_>) =
            self.settings.iter().chain(more).partition(|(key, _)| key == TRUSTED);
        let trusted = trusted_places(trusted.into_iter().map(|(_, value)| value.as_os_str()));
        command.env(TRUST_COUNT, trusted.len().to_string());
        let trusted = trusted.iter().map(|value| (TRUSTED, value));
        let others = others.into_iter().map(|(key, value)| (key.as_str(), value));
        let all: Vec<_> = trusted.chain(others).collect();
        for (at, (key, value)) in all.iter().enumerate() {
            command
                .env(format!("GIT_CONFIG_KEY_{at}"), key)
                .env(format!("GIT_CONFIG_VALUE_{at}"), value);
        }
        command.env("GIT_CONFIG_COUNT", all.len().to_string());
    }
}

/// Returns a filter's command with the variables restored by which git finds the person's
/// configuration. Our git ignores it, but git-lfs reads credentials from it.
fn at_home(command: &OsStr, restored: &[(&str, Option<OsString>)]) -> OsString {
    if command.as_bytes().trim_ascii().is_empty() {
        return command.into();
    }
    let mut text = vec![];
    for (name, value) in restored {
        match value {
            None => text.extend_from_slice(format!("unset {name}; ").as_bytes()),
            Some(value) => {
                let quoted = value.to_string_lossy().replace('\'', "'\\''");
                text.extend_from_slice(format!("export {name}='{quoted}'; ").as_bytes());
            }
        }
    }
    text.extend_from_slice(command.as_bytes());
    OsString::from_vec(text)
}

/// Splits `filter.NAME.KEY`.
fn filter_key(key: &str) -> Option<(&str, &str)> {
    let (name, what) = key.strip_prefix("filter.")?.rsplit_once('.')?;
    FILTER.contains(&what).then_some((name, what))
}

impl Git {
    /// Returns the settings of filters for a git command that may run them.
    pub(super) fn filters(&self, args: &[&str]) -> Result<Vec<(String, OsString)>, GitError> {
        let is_plain = args.first().is_none_or(|verb| match *verb {
            "cat-file" => !args.contains(&"--filters"),
            "hash-object" => !args.contains(&"--stdin-paths"),
            verb => NO_FILES.contains(&verb),
        });
        if is_plain {
            return Ok(vec![]);
        }
        let mut told = vec![];
        let of_person = self.person.filters.iter().filter(|_| !self.is_clone);
        for (name, filter) in of_person {
            told.extend(
                filter.iter().map(|(key, value)| (format!("filter.{name}.{key}"), value.clone())),
            );
        }
        let own = self.programs()?;
        told.extend(own.drivers.into_iter().map(|key| (key, MERGE.into())));
        for (name, keys) in own.filters {
            let of_person = self.person.filters.get(&name).filter(|_| !self.is_clone);
            let is_foreign = is_foreign(of_person, &keys);
            for key in FILTER.iter().filter(|key| is_foreign || keys.contains(**key)) {
                if is_foreign || !of_person.is_some_and(|filter| filter.contains_key(*key)) {
                    let nothing = if *key == "required" { "false" } else { "" };
                    told.push((format!("filter.{name}.{key}"), nothing.into()));
                }
            }
        }
        Ok(told)
    }

    /// Returns the programs of the repository's own configuration that git would run on files.
    fn programs(&self) -> Result<Programs, GitError> {
        let mut command = self.command()?;
        self.person.tell(&mut command, &[]);
        command.args(["config", "-z", "--name-only", "--get-regexp", r"^(filter|merge)\."]);
        let listed = match run_bytes(command, b"", "config") {
            Err(error @ GitError::Unheard { .. }) => return Err(error),
            // There are none. If git cannot read the configuration, the next command fails.
            listed => listed.unwrap_or_default(),
        };
        let mut found = Programs::default();
        for key in listed.split(|byte| *byte == 0) {
            let key = String::from_utf8_lossy(key).into_owned();
            if let Some((name, what)) = filter_key(&key) {
                found.filters.entry(name.into()).or_default().insert(what.into());
            } else if key.starts_with("merge.") && key.ends_with(".driver") {
                found.drivers.insert(key);
            }
        }
        Ok(found)
    }

    /// Checks that no file here goes through a filter that does not run. `for_clones` checks it for
    /// a checkout in the clones of workers.
    pub fn check_filters(&self, for_clones: bool) -> Result<(), GitError> {
        let for_clones = for_clones || self.is_clone;
        let not_run = self.not_run(for_clones)?;
        if not_run.is_empty() {
            return Ok(());
        }
        let files = self.bytes(
            &["ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            b"",
            None,
        )?;
        self.refuse(&not_run, &files, for_clones)
    }

    /// Does the same as [`Self::check_filters`] for these files, each with a NUL after it.
    pub(super) fn check_filters_of(&self, files: &[u8]) -> Result<(), GitError> {
        let not_run = self.not_run(self.is_clone)?;
        if not_run.is_empty() { Ok(()) } else { self.refuse(&not_run, files, self.is_clone) }
    }

    fn not_run(&self, in_clone: bool) -> Result<BTreeSet<String>, GitError> {
        let repositorys = self.programs()?.filters;
        let of_person = |name: &String| self.person.filters.get(name).filter(|_| !in_clone);
        let foreign = repositorys.iter().filter(|(name, keys)| is_foreign(of_person(name), keys));
        let mut not_run: BTreeSet<String> = foreign.map(|(name, _)| name.clone()).collect();
        if in_clone {
            not_run.extend(self.person.filters.keys().cloned());
        }
        Ok(not_run)
    }

    fn refuse(
        &self,
        not_run: &BTreeSet<String>,
        files: &[u8],
        in_clone: bool,
    ) -> Result<(), GitError> {
        if files.is_empty() {
            return Ok(());
        }
        let told = self.bytes(&["check-attr", "-z", "--stdin", "filter"], files, None)?;
        let fields: Vec<_> = told.split(|byte| *byte == 0).collect();
        let (triples, _) = fields.as_chunks::<3>();
        let named_filter = triples.iter().find_map(|[path, _, value]| {
            let name = String::from_utf8_lossy(value).into_owned();
            not_run.contains(&name).then(|| (name, path.to_vec()))
        });
        let Some((name, path)) = named_filter else { return Ok(()) };
        let path: Name = path;
        Err(GitError::Filter { name, path: named(&[path]), in_clone })
    }
}

/// Whether a filter is not the person's alone, because the repository's configuration changes it.
fn is_foreign(of_person: Option<&Filter>, repositorys: &BTreeSet<String>) -> bool {
    // git runs only the `process` of a filter that has one, even an empty one, so this key of the
    // repository cannot be overridden.
    of_person
        .is_none_or(|filter| repositorys.contains("process") && !filter.contains_key("process"))
}
