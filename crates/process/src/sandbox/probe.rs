//! Tests whether this host supports the sandbox, by setting one up: sysctls, security modules and
//! containers each forbid it in their own way.
//!
//! [`namespaces`], [`overlays`] and [`landlock()`] change the calling process permanently. They are
//! for a child that was started for this and ends right after (`muleteer probe WHAT`).

use std::io;
use std::path::Path;

/// Why the sandbox does not work on this host.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A step failed. The text names the step.
    #[error("{what}: {source}")]
    Step { what: &'static str, source: io::Error },
    /// A step of the sandbox failed.
    #[error(transparent)]
    Sandbox(#[from] crate::sandbox::SandboxError),
    /// The error of the first process of the pid namespace, as that process told it.
    #[error("{0}")]
    Inner(String),
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

/// Makes the namespaces, the root and the `/proc` of a sandbox, as an agent would get them, and
/// takes the same rights from a child in them. The calling process must have one thread.
///
/// # Errors
/// The step that failed, with the system's error.
#[cfg(target_os = "linux")]
pub fn namespaces() -> Result<String, ProbeError> {
    within(vec![], || Ok(()))?;
    Ok("user, mount and pid namespaces can be made".into())
}

/// Shows `lower` as an overlay in a sandbox, with the changes in two other folders, and changes it.
/// The calling process must have one thread.
///
/// # Errors
/// The step that failed, with the system's error.
#[cfg(target_os = "linux")]
pub fn overlays(lower: &Path, changes: &Path, work: &Path) -> Result<String, ProbeError> {
    use crate::sandbox::{Place, What};
    const NAME: &str = "changed";
    let what = What::Overlay { changes: changes.to_owned(), work: work.to_owned() };
    let changed = lower.join(NAME);
    within(vec![Place { path: lower.to_owned(), what }], || {
        std::fs::write(&changed, "").map_err(step("write in the overlay"))
    })?;
    let is_there = std::fs::read_dir(changes).is_ok_and(|mut entries| entries.next().is_some());
    if is_there && !changed.exists() {
        Ok("folders of HOME can be shown as overlays".into())
    } else {
        Err(ProbeError::NotEnforced)
    }
}

/// Calls `act` in a sandbox that shows these places.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn within(
    places: Vec<crate::sandbox::Place>,
    act: impl FnOnce() -> Result<(), ProbeError>,
) -> Result<(), ProbeError> {
    use crate::sandbox::{Place, Plan, What, unshare, view::View};
    // SAFETY: getppid has no preconditions.
    unshare(unsafe { libc::getppid() })?;
    let place = |path: &str, what| Place { path: path.into(), what };
    let mut all = vec![place("/etc", What::Show), place("/tmp", What::Scratch)];
    all.extend(places);
    let plan = Plan::new(all);
    let view = View::build(&plan)?;
    let (heard, tell) = crate::host::pipe::pair().map_err(step("pipe"))?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(step("fork")(io::Error::last_os_error())),
        0 => {
            let done = inner(&plan, &view).and_then(|()| act());
            let said = done.map_or_else(|error| error.to_string(), |()| ALONE.into());
            let _ = rustix::io::write(&tell, said.as_bytes());
            // SAFETY: nothing of this process needs to be tidied away.
            unsafe { libc::_exit(0) }
        }
        pid => {
            drop(tell);
            let mut said = String::new();
            let _ = io::Read::read_to_string(&mut std::fs::File::from(heard), &mut said);
            // SAFETY: a null pointer asks for no status.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            match said.as_str() {
                ALONE => Ok(()),
                "" => Err(ProbeError::Inner("the child in the pid namespace died".into())),
                why => Err(ProbeError::Inner(why.into())),
            }
        }
    }
}

/// The report of the first process of the pid namespace if everything works.
#[cfg(target_os = "linux")]
const ALONE: &str = "alone";

#[cfg(target_os = "linux")]
fn inner(plan: &crate::sandbox::Plan, view: &crate::sandbox::view::View) -> Result<(), ProbeError> {
    view.enter(Path::new("/tmp"))?;
    let seen = crate::host::host().pids();
    if seen != [1] {
        return Err(ProbeError::Strangers(seen.len()));
    }
    crate::sandbox::rights::give_up(plan)?;
    Ok(())
}

/// Whether the kernel can limit the ports to which an agent connects (Linux 6.7).
#[cfg(target_os = "linux")]
pub fn limits_ports() -> bool {
    use landlock::{AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr};
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    strict.handle_access(AccessNet::ConnectTcp).is_ok()
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

/// Not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn overlays(_lower: &Path, _changes: &Path, _work: &Path) -> Result<String, ProbeError> {
    Err(absent())
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
pub fn landlock(_: &Path, _: &Path) -> Result<String, ProbeError> {
    Err(absent())
}

#[cfg(not(target_os = "linux"))]
fn absent() -> ProbeError {
    ProbeError::Unsupported(io::ErrorKind::Unsupported.into())
}
