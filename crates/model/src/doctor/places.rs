//! Checks of the directories, the key, the daemon and the shim: they must exist and be private.

use crate::doctor::{
    Barred, Cause, Check, DaemonFacts, DatabaseFacts, DirFacts, DirState, EventFacts, Facts,
    ShimFacts, Status, There,
};
use std::path::Path;

/// Below this, a burst of output fills the disk within minutes.
const ROOM_WANTED: u64 = 1 << 30;
/// Below this, no new dispatch should begin.
const ROOM_NEEDED: u64 = 64 << 20;
/// The longest socket address the kernel takes, in bytes.
const SOCKET_LIMIT: usize = 107;
/// The variables that move the directories, and their suggested value.
const STATE: &str = "XDG_STATE_HOME";
const RUNTIME: &str = "XDG_RUNTIME_DIR";
const OWN: &str = "a directory that you own";

pub(super) fn state_dir(facts: &Facts) -> Check {
    let DirFacts { path, there, .. } = &facts.state_dir;
    let check = |status, message: String| Check::new("state_dir", status, message);
    let dir = match there {
        There::Missing(Ok(())) => {
            return check(Status::Ok, format!("the first daemon creates {}", path.display()));
        }
        There::Missing(Err(barred)) => {
            return check(
                Status::Fail,
                format!("cannot create {}: {}", path.display(), barred.why),
            )
            .hint(make_room_for_it(barred, STATE));
        }
        There::Broken(error) => {
            return check(Status::Fail, format!("{}: {error}", path.display()))
                .hint("make it a directory that you own, or set HOME or XDG_STATE_HOME to one");
        }
        There::Dir(dir) => dir,
    };
    if let Some((wrong, cure)) = not_ours(path, dir, facts.uid, 0o077, STATE) {
        return check(Status::Fail, format!("{} {wrong}", path.display())).hint(cure);
    }
    if dir.free_bytes < ROOM_NEEDED {
        return check(
            Status::Fail,
            format!("{}: only {} MiB free", path.display(), dir.free_bytes >> 20),
        )
        .hint("free disk space: Muleteer starts nothing new on a full disk");
    }
    if let Some(kind) = &dir.doubtful_fs {
        return check(Status::Warn, format!("{} is on {kind}", path.display()))
            .hint("set XDG_STATE_HOME to a directory on a local disk")
            .best_effort("this file system may not support locks and fsync reliably");
    }
    if dir.free_bytes < ROOM_WANTED {
        return check(
            Status::Warn,
            format!("{}: only {} MiB free", path.display(), dir.free_bytes >> 20),
        )
        .hint("free disk space: agents' output is spooled there");
    }
    check(Status::Ok, format!("{}, {} GiB free", path.display(), dir.free_bytes >> 30))
}

pub(super) fn runtime_dir(facts: &Facts) -> Check {
    let DirFacts { path, there, socket_len } = &facts.runtime_dir;
    let check = |status, message: String| Check::new("runtime_dir", status, message);
    if let Some(len) = socket_len.filter(|len| *len > SOCKET_LIMIT) {
        return check(
            Status::Fail,
            format!("the socket's path would have {len} bytes: the limit is {SOCKET_LIMIT}"),
        )
        .hint("set XDG_RUNTIME_DIR to a shorter path");
    }
    for DirFacts { path, there, .. } in [&facts.runtime_parent, &facts.runtime_dir] {
        let wrong = match there {
            There::Missing(Ok(())) => None,
            There::Missing(Err(barred)) => Some((
                format!("cannot be created: {}", barred.why),
                make_room_for_it(barred, RUNTIME),
            )),
            There::Broken(error) => {
                Some((error.clone(), format!("remove it, or set {RUNTIME} to {OWN}")))
            }
            There::Dir(dir) => not_ours(path, dir, facts.uid, 0o022, RUNTIME),
        };
        if let Some((wrong, cure)) = wrong {
            return check(Status::Fail, format!("{} {wrong}", path.display())).hint(cure);
        }
    }
    match there {
        There::Dir(_) => check(Status::Ok, path.display().to_string()),
        _ => check(Status::Ok, format!("the first daemon creates {}", path.display())),
    }
}

/// Returns the problem of a private directory, and its remedy. `mask` has the mode bits that others
/// must not have; `variable` moves the directory.
fn not_ours(
    path: &Path,
    dir: &DirState,
    uid: u32,
    mask: u32,
    variable: &str,
) -> Option<(String, String)> {
    let elsewhere = format!("set {variable} to {OWN}");
    let chmod = format!("`chmod 700 {}`", path.display());
    // Checked first: on a read-only file system, neither owner nor mode can be changed.
    if let Err(Barred { why, read_only: true }) = &dir.writable {
        return Some((why.clone(), format!("{elsewhere}, or mount its file system for writing")));
    }
    if dir.uid != uid {
        let wrong = format!("belongs to uid {}, not to your uid {uid}", dir.uid);
        return Some((wrong, format!("{elsewhere}, or change its owner to you and {chmod}")));
    }
    if dir.mode & mask != 0 {
        return Some((
            format!("is accessible to other users (mode {:o})", dir.mode & 0o777),
            chmod,
        ));
    }
    let Err(Barred { why, .. }) = &dir.writable else { return None };
    // With the right mode, an ACL or a security module denies the access.
    let cure = if dir.mode & 0o700 == 0o700 { elsewhere } else { chmod };
    Some((why.clone(), cure))
}

fn make_room_for_it(barred: &Barred, variable: &str) -> String {
    if barred.read_only {
        format!("set {variable} to {OWN}")
    } else {
        format!("change the owner of its parent directory to you, or set {variable} to {OWN}")
    }
}

pub(super) fn operator_key(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("operator_key", status, message);
    match &facts.operator_key {
        None => check(Status::Skip, "the first daemon creates it".into()),
        Some(key) if key.uid != facts.uid => {
            check(Status::Fail, format!("{} belongs to uid {}", key.path.display(), key.uid))
                .hint("delete it: the next daemon makes another")
        }
        Some(key) if key.mode & 0o077 != 0 => check(
            Status::Fail,
            format!("other users can read {} (mode {:o})", key.path.display(), key.mode & 0o777),
        )
        .hint("delete it and restart the daemon: whoever read it has your rights"),
        Some(key) => check(Status::Ok, format!("{}, accessible to you only", key.path.display())),
    }
}

pub(super) fn events(events: &EventFacts) -> Check {
    let check = |status, message: String| Check::new("events", status, message);
    match events {
        EventFacts::None => check(Status::Skip, "no events yet".into()),
        EventFacts::Read { records } => {
            check(Status::Ok, format!("{records} events, all readable"))
        }
        EventFacts::Slow { after_s } => {
            check(Status::Warn, format!("reading the whole log takes more than {after_s} s"))
                .hint("check the disk if the machine is idle: a daemon starts as slowly")
        }
        EventFacts::Broken { error, hint } => check(Status::Fail, error.clone()).hint(hint.clone()),
    }
}

pub(super) fn database(database: &DatabaseFacts) -> Check {
    let check = |status, message: String| Check::new("database", status, message);
    match database {
        DatabaseFacts::None => check(Status::Skip, "the first daemon creates it".into()),
        DatabaseFacts::Read { applied } => check(Status::Ok, format!("up to event {applied}")),
        DatabaseFacts::Damaged(error) => check(Status::Warn, error.clone()).hint(
            "no action needed: the next daemon sets it aside and rebuilds it from the events",
        ),
        DatabaseFacts::Broken { error, hint } => {
            check(Status::Fail, error.clone()).hint(hint.clone())
        }
    }
}

pub(super) fn daemon(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("daemon", status, message);
    match &facts.daemon {
        DaemonFacts::None => {
            check(Status::Ok, "no daemon is running; a verb that needs one starts it".into())
        }
        DaemonFacts::Left { socket } => check(
            Status::Ok,
            format!("no daemon is running; the next one replaces the old {}", socket.display()),
        ),
        DaemonFacts::Answers { pid, version, .. } if *version != facts.version => check(
            Status::Warn,
            format!("pid {pid} runs version {version}, this is {}", facts.version),
        )
        .hint("run `muleteer daemon stop`: agents continue, and the next verb starts a new daemon"),
        DaemonFacts::Answers { pid, version, socket, .. } => {
            check(Status::Ok, format!("pid {pid}, version {version}, at {}", socket.display()))
        }
        DaemonFacts::Mute { socket, error } => {
            check(Status::Fail, format!("{} does not answer: {error}", socket.display())).hint(
                "read its log; then kill it with `kill -9` and start another daemon: no work \
                       is lost",
            )
        }
    }
}

pub(super) fn shim(shim: &Result<ShimFacts, Cause>) -> Check {
    match shim {
        Ok(ShimFacts { path, own_binary: true }) => {
            Check::new("shim", Status::Ok, path.display().to_string())
        }
        Ok(ShimFacts { path, .. }) => Check::new(
            "shim",
            Status::Warn,
            format!("no muleteer-shim beside {}", path.display()),
        )
        .hint("install muleteer-shim in the same directory: `cargo xtask install` installs both")
        .best_effort("`muleteer shim` replaces it, with about six times the memory for each agent"),
        Err(error) => Check::new("shim", Status::Fail, format!("cannot start a shim: {error}"))
            .hint("install muleteer and muleteer-shim in one directory"),
    }
}
