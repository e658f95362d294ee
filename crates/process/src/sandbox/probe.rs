//! Tests whether this host supports the sandbox, by setting one up: sysctls, security modules and
//! containers each forbid it in their own way.
//!
//! [`namespaces`] and [`landlock()`] change the calling process permanently. They are for a child
//! that was started for this and ends right after (`muleteer probe WHAT`).

use std::io;
use std::path::Path;

/// Why the sandbox does not work on this host.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A step failed. The text names the step.
    #[error("{what}: {source}")]
    Step { what: &'static str, source: io::Error },
    /// The error of the second half of [`namespaces`], as that child printed it.
    #[error("{0}")]
    Inner(String),
    #[error("pid namespace: this is pid {0}, not 1")]
    OldPidNamespace(u32),
    #[error("proc: {0} foreign processes are visible")]
    Strangers(usize),
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Ruleset(#[from] landlock::RulesetError),
    #[error("the kernel does not support it, or it is off: a forbidden write succeeded")]
    NotEnforced,
    /// The system is not Linux.
    #[error(transparent)]
    Unsupported(io::Error),
}

#[cfg(target_os = "linux")]
fn step(what: &'static str) -> impl FnOnce(io::Error) -> ProbeError {
    move |source| ProbeError::Step { what, source }
}

/// Makes the namespaces and mounts of the sandbox, and runs this program again inside them. It
/// mounts a private `/tmp`, clones, moves and makes it read-only as the sandbox does (newer calls,
/// which a container's filter may not know), and mounts a fresh `/proc`. The calling process must
/// have one thread.
///
/// # Errors
/// The step that failed, with the system's error.
#[cfg(target_os = "linux")]
pub fn namespaces() -> Result<String, ProbeError> {
    use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
    use rustix::mount::{mount, mount_change, move_mount, open_tree};
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare().map_err(step("unshare"))?;
    std::fs::write("/proc/self/setgroups", "deny").map_err(step("setgroups"))?;
    // Root inside, because another user would lose its capabilities by the exec that begins the
    // second half. The sandbox itself only forks and keeps its uid.
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(step("uid_map"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(step("gid_map"))?;
    let errno = |what| move |errno: rustix::io::Errno| step(what)(errno.into());
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(errno("private mounts"))?;
    mount("tmpfs", "/tmp", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)
        .map_err(errno("tmpfs"))?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(rustix::fs::CWD, "/tmp", clone).map_err(errno("open_tree"))?;
    move_mount(&tree, "", rustix::fs::CWD, "/tmp", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(errno("move_mount"))?;
    crate::sandbox::set_read_only(Path::new("/tmp"), true).map_err(step("mount_setattr"))?;
    // The pid namespace begins with the next child; a fresh /proc can only be mounted from within.
    let mut inner = crate::command::helper("/proc/self/exe");
    let output =
        inner.args(["probe", "inner"]).output().map_err(step("a child in the pid namespace"))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    match said.strip_prefix("ok ") {
        Some(_) if output.status.success() => {
            Ok("user, mount and pid namespaces can be made".into())
        }
        _ => {
            let why = said.strip_prefix("no ").unwrap_or("the child in the pid namespace died");
            Err(ProbeError::Inner(why.to_string()))
        }
    }
}

/// Runs the second half of [`namespaces`], as the first process of the new pid namespace.
///
/// # Errors
/// The step that failed, with the system's error.
#[cfg(target_os = "linux")]
pub fn inner() -> Result<String, ProbeError> {
    use rustix::mount::{MountFlags, mount};
    if std::process::id() != 1 {
        return Err(ProbeError::OldPidNamespace(std::process::id()));
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(|errno| step("proc")(errno.into()))?;
    let seen = crate::host::host().pids();
    if seen == [1] { Ok("alone".into()) } else { Err(ProbeError::Strangers(seen.len())) }
}

/// Restricts this process to writing below `allowed`, and tries to write a file in `forbidden`.
///
/// # Errors
/// Says which step failed, or that the forbidden write succeeded.
#[cfg(target_os = "linux")]
pub fn landlock(allowed: &Path, forbidden: &Path) -> Result<String, ProbeError> {
    use landlock::{
        ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
    };
    let write = AccessFs::from_write(ABI::V3);
    let restrict = || -> Result<RulesetStatus, landlock::RulesetError> {
        let rules = path_beneath_rules([allowed], write);
        Ok(Ruleset::default()
            .handle_access(write)?
            .create()?
            .add_rules(rules)?
            .restrict_self()?
            .ruleset)
    };
    let status = restrict()?;
    let name = format!(".muleteer-probe-{}", std::process::id());
    std::fs::write(allowed.join(&name), "").map_err(step("writing where it is allowed"))?;
    let _ = std::fs::remove_file(allowed.join(&name));
    match std::fs::write(forbidden.join(&name), "") {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match status {
            RulesetStatus::FullyEnforced => Ok("Landlock blocks writes".into()),
            _ => Ok("Landlock blocks writes (an older version: not every kind)".into()),
        },
        Err(error) => Err(step("writing where it is forbidden")(error)),
        Ok(()) => {
            let _ = std::fs::remove_file(forbidden.join(&name));
            Err(ProbeError::NotEnforced)
        }
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn unshare() -> io::Result<()> {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    // SAFETY: no pointers; it moves this process, which has one thread and was started for this,
    // into new namespaces. No shared state of the program is affected: descriptors and memory stay.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn namespaces() -> Result<String, ProbeError> {
    Err(absent())
}

/// Not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn inner() -> Result<String, ProbeError> {
    Err(absent())
}

/// Not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn landlock(_: &Path, _: &Path) -> Result<String, ProbeError> {
    Err(absent())
}

#[cfg(not(target_os = "linux"))]
fn absent() -> ProbeError {
    ProbeError::Unsupported(io::ErrorKind::Unsupported.into())
}
