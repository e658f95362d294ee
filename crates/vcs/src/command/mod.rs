//! The one place that builds a git command.
//!
//! Configuration, hooks, attributes and the environment can make git run other programs, ask a
//! question, or work elsewhere. The `Purpose` of a command says what of that is allowed:
//!
//! | | `Agent` | `Own` | `Person` | `remote` |
//! |---|---|---|---|---|
//! | hooks, monitors, submodules, maintenance | off | off | off | off |
//! | replace refs and grafts | ignored | ignored | ignored | ignored |
//! | signatures, editors, pagers | off | off | off | the person's |
//! | global and system configuration | ignored | ignored | ignored | obeyed, global as a copy |
//! | a person's ignore patterns and line ends | passed on | ignored | passed on | no files |
//! | filters and merge drivers | none runs | none exists | the person's own run | no files |
//! | transports | files | files | all but `ext` | all |
//! | missing objects of a partial clone | missing | missing | fetched | missing |
//!
//! The program is the one that was found first (`program`). The global configuration is copied
//! (`snapshot`) wherever it can name programs.
//!
//! `user_repo::user_config` passes a person's settings on, and keeps filters and merge drivers from
//! running: which ones there are depends on the repository. A fetch of a `Person` is from a
//! clone on this machine, so it has the transports of `Agent`. Before a push to a remote, the
//! harness itself runs the person's `pre-push` hook: `spec_run::remote::hook`.

pub(crate) mod blocking;
mod error;
mod program;
mod running;
mod snapshot;

pub use error::{CommandError, Meaning, is_full};
pub use program::find_git;
pub use running::output;
pub(crate) use running::{own_config, own_config_of, own_config_with, run, run_bytes, run_within};
pub(crate) use snapshot::{GLOBAL, copied_configuration};
pub use snapshot::{SnapshotError, copy_global_configuration, renew_configuration};

use muleteer_model::agent::event::cut;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The purpose of a git command, by which it is hardened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// In a repository that an agent can write: nothing of it may run.
    Agent,
    /// In a repository of ours, or on the refs and objects of a person's repository. A working
    /// directory is only read through an index of ours, without anybody's configuration.
    Own,
    /// In the working directory of a person, where the person's own filters run.
    Person,
}

/// Settings for every purpose. They keep a repository's own configuration from making git run or
/// ask something. The refs of an alternate are never listed: they are useless here, and git would
/// run in a directory that may not be ours.
const HARMLESS: [&str; 10] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.alternateRefsCommand=true",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.graftFileDeprecated=false",
];
/// Settings for every purpose but the remote, to which a person may want to push with a signature.
/// A log, a merge and a commit run the program that checks or makes one.
const UNSIGNED: [&str; 8] = [
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "log.showSignature=false",
    "merge.verifySignatures=false",
    "gpg.program=false",
    "gpg.openpgp.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
];
/// By default git syncs neither the objects of a commit nor the branch that leads to it. Work that
/// is reported as done must survive a power cut.
pub(crate) const DURABLE: &str = "core.fsync=committed";
/// Variables of the daemon's own environment that could lead git elsewhere.
pub(crate) const LEADING_AWAY: [&str; 17] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_SHALLOW_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_TEMPLATE_DIR",
    "GIT_ATTR_SOURCE",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_ALLOW_PROTOCOL",
    "GIT_EXTERNAL_DIFF",
    TRUST_COUNT,
];
/// How many settings of the environment name directories that the person trusts; they come first.
/// git takes `GIT_CONFIG_COUNT` from the command that serves a fetch, and leaves the settings.
pub(crate) const TRUST_COUNT: &str = "GIT_TRUST_COUNT";
/// The command that serves a fetch from an agent's repository. It uses only the named directory,
/// and does not fetch missing objects, because the agent's configuration would say from where.
pub(crate) const UPLOAD_PACK: &str = "GIT_CONFIG_COUNT=${GIT_TRUST_COUNT:-0} git \
     -c core.hooksPath=/dev/null -c core.fsmonitor=false upload-pack --strict";
/// The same for a source whose git directory git has to find.
pub(crate) const UPLOAD_PACK_BELOW: &str = "GIT_CONFIG_COUNT=${GIT_TRUST_COUNT:-0} git \
     -c core.hooksPath=/dev/null -c core.fsmonitor=false upload-pack";
/// The author and committer of an agent if the person has configured none.
pub(crate) const AGENT_NAME: &str = "Muleteer agent";
pub(crate) const AGENT_EMAIL: &str = "agent@muleteer.invalid";
/// A git on this machine that has used no CPU time for this long hangs. An agent can cause that by
/// a pipe in place of a file.
pub(crate) const STUCK: Duration = Duration::from_secs(20);
/// The limit of a quoted complaint.
const COMPLAINT_LIMIT: usize = 2048;

/// Returns a git command that works in `dir`, hardened for a purpose.
pub(crate) fn hardened(dir: &Path, purpose: Purpose) -> Command {
    let mut command = program::git();
    command.arg("-C").arg(dir);
    set(&mut command, HARMLESS.iter().chain(&[DURABLE]).chain(&UNSIGNED));
    for name in LEADING_AWAY {
        command.env_remove(name);
    }
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_EDITOR", "true")
        .env("GIT_SEQUENCE_EDITOR", "true")
        .env("GIT_PAGER", "cat")
        .env("GIT_DEFAULT_REF_FORMAT", "files")
        .env("LC_ALL", "C");
    ignore_replacements(&mut command);
    match purpose {
        Purpose::Own => {
            set(&mut command, &["core.excludesFile=/dev/null"]);
            command.env("GIT_ATTR_NOSYSTEM", "1");
            only_files(&mut command);
        }
        Purpose::Agent => only_files(&mut command),
        Purpose::Person => set(&mut command, &["protocol.ext.allow=never"]),
    }
    command
}

/// Returns a git command on a repository of ours, or on the refs and objects of a person's.
pub(crate) fn git(dir: &Path) -> tokio::process::Command {
    let mut command = hardened(dir, Purpose::Own);
    if dir.join(".git").exists() {
        // git would ignore a broken repository and continue with the one around it: our clones are
        // inside of a person's repository.
        command.envs(dir.parent().map(|above| ("GIT_CEILING_DIRECTORIES", above)));
    }
    command.into()
}

/// Returns a git command that reaches a person's remote from `dir`, with the person's environment
/// and configuration. It is used for nothing else, because both may name programs. `settings` are
/// not arguments, because every user can read those.
pub(crate) fn remote(
    dir: &Path,
    environment: &[(String, String)],
    settings: &[(String, String)],
) -> tokio::process::Command {
    let mut command = program::git();
    as_person(&mut command, dir, environment);
    command.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (at, (key, value)) in settings.iter().enumerate() {
        command
            .env(format!("GIT_CONFIG_KEY_{at}"), key)
            .env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
    set(&mut command, HARMLESS.iter().chain(&[DURABLE]));
    command.into()
}

/// Makes a program run in a directory as the person would run it, without a terminal. Variables
/// that lead git elsewhere are left out.
pub fn as_person(command: &mut Command, dir: &Path, environment: &[(String, String)]) {
    let person = environment.iter().filter(|(name, _)| !LEADING_AWAY.contains(&name.as_str()));
    command
        .current_dir(dir)
        .env_clear()
        .envs(person.map(|(name, value)| (name, value)))
        .env("GIT_TERMINAL_PROMPT", "0");
    ignore_replacements(command);
}

/// Returns a git command that has these variables alone, for a repository that nobody else uses.
pub fn alone(dir: &Path, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Command {
    let mut command = program::git();
    command.current_dir(dir).env_clear().envs(variables);
    command
}

/// Returns a git command that only reads configuration, in `dir`, with the daemon's environment: it
/// is the person's. Its subcommand must be `config` or `var`, which run no program.
pub(crate) fn configuration(dir: &Path) -> Command {
    let mut command = program::git();
    command.arg("-C").arg(dir);
    for name in LEADING_AWAY {
        command.env_remove(name);
    }
    command
}

fn set<'a>(command: &mut Command, settings: impl IntoIterator<Item = &'a &'static str>) {
    command.args(settings.into_iter().flat_map(|setting| ["-c", *setting]));
}

/// Lets git fetch from this machine alone, and no missing objects. The variable overrides every
/// `protocol.NAME.allow`, with which a repository could permit a transport that its own
/// `core.sshCommand` runs.
pub(crate) fn only_files(command: &mut Command) {
    command.env("GIT_ALLOW_PROTOCOL", "file").env("GIT_NO_LAZY_FETCH", "1");
}

fn ignore_replacements(command: &mut Command) {
    command.env("GIT_NO_REPLACE_OBJECTS", "1").env("GIT_GRAFT_FILE", "/dev/null");
}

/// Returns a fetch into `into` from `from`, the git directory of a repository that may be an
/// agent's.
pub(crate) fn fetching(into: &Path, from: &Path) -> tokio::process::Command {
    let mut command = git(into);
    command
        .args([
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--upload-pack",
            UPLOAD_PACK,
        ])
        .arg(from);
    command
}

/// Returns the values of `safe.directory` for our gits. The command that serves a fetch checks the
/// git directory, and not the working directory that the person trusts.
pub(crate) fn trusted_places<'a>(values: impl IntoIterator<Item = &'a OsStr>) -> Vec<OsString> {
    let with_git_dir = |value: &OsStr| {
        let is_place = !value.is_empty() && !value.as_bytes().ends_with(b"*");
        let git_dir = is_place.then(|| Path::new(value).join(".git").into_os_string());
        [Some(value.to_os_string()), git_dir]
    };
    values.into_iter().flat_map(with_git_dir).flatten().collect()
}

/// Whether git refused to work in another user's directory.
pub(crate) fn is_distrust(complaint: &[u8]) -> bool {
    String::from_utf8_lossy(complaint).contains("detected dubious ownership")
}

/// Returns a program's complaint on one line, without terminal control characters. git's hints are
/// left out, because they are for interactive users. A long one is cut in the middle.
pub fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.split(['\n', '\r']).map(str::trim_end);
    let said: Vec<_> =
        lines.filter(|line| !line.trim().is_empty() && !line.starts_with("hint:")).collect();
    let said = said.join("; ").replace(char::is_control, " ");
    match said.len() {
        0 => "it failed and did not say why".into(),
        long if long > COMPLAINT_LIMIT => {
            let tail = said.ceil_char_boundary(long - COMPLAINT_LIMIT / 2);
            format!("{} {}", cut(&said, COMPLAINT_LIMIT / 2), &said[tail..])
        }
        _ => said,
    }
}

/// Whether a complaint says that the disk or a quota is full. Only the end of a line counts,
/// because names that an agent chose may be before it.
fn no_room(why: &str) -> bool {
    let is_full = |line: &str| {
        let line = line.trim_end_matches(')');
        let line = line.rsplit_once(" (os error ").map_or(line, |(line, _)| line);
        ["No space left on device", "Disk quota exceeded"].iter().any(|full| {
            line.strip_suffix(full)
                .is_some_and(|before| before.is_empty() || before.ends_with(": "))
        })
    };
    why.split("; ").any(is_full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaint_is_one_line_without_hints_and_bounded() {
        let refused = b"remote: no\x1b[2J such branch\nTo /x\n ! [rejected] a -> b \
                        (fetch first)\r\nhint: merge it\n\nerror: failed\n";
        assert_eq!(
            complaint(refused),
            "remote: no [2J such branch; To /x;  ! [rejected] a -> b (fetch first); error: failed"
        );
        assert_eq!(complaint(b" \n"), "it failed and did not say why");
        let long = format!("error: first\n{}\nfatal: last\n", "\u{e4}\u{20ac}".repeat(4000));
        let said = complaint(long.as_bytes());
        assert!(said.starts_with("error: first; ") && said.ends_with("; fatal: last"), "{said}");
        assert!(said.len() <= COMPLAINT_LIMIT + 8, "{}", said.len());
    }

    #[test]
    fn trusted_working_directory_includes_its_git_directory() {
        let values = ["", "/a/b", "*", "/c/*"].map(OsStr::new);
        assert_eq!(trusted_places(values), ["", "/a/b", "/a/b/.git", "*", "/c/*"]);
        for serving in [UPLOAD_PACK, UPLOAD_PACK_BELOW] {
            assert!(serving.contains(&format!("${{{TRUST_COUNT}:-0}}")), "{serving}");
        }
    }

    #[test]
    fn full_disk_is_detected_only_at_the_end_of_a_line() {
        for (why, full) in [
            ("cannot take its work: fatal: write error: No space left on device", true),
            ("error: file write error: No space left on device; fatal: index-pack failed", true),
            ("/run/keep: Disk quota exceeded (os error 122)", true),
            ("No space left on device (os error 28)", true),
            ("fatal: no such ref: 'No space left on device'", false),
            ("fatal: bad config 'x: No space left on device' in file config", false),
            ("fatal: not a git repository", false),
            ("", false),
        ] {
            assert_eq!(no_room(why), full, "{why}");
        }
        let full = std::io::Error::from(rustix::io::Errno::NOSPC);
        assert!(no_room(&full.to_string()), "{full}");
    }
}
