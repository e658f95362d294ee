//! The cgroup (v2) of an agent, if we may create one: no process escapes it, and one write kills
//! all of it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why this process cannot create a cgroup that kills its members.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("no cgroup v2 hierarchy, or this process is outside it")]
    NoHierarchy,
    #[error("{}: {source}", .place.display())]
    Create { place: PathBuf, source: io::Error },
    #[error("this kernel's cgroups have no cgroup.kill (5.14)")]
    NoKill,
}

/// Tests whether we can create a cgroup here, by creating and removing one. Returns the place.
///
/// # Errors
/// If that is not possible here.
pub fn probe() -> Result<PathBuf, ProbeError> {
    let own = own().ok_or(ProbeError::NoHierarchy)?;
    let path = own.join(format!("muleteer-probe-{}", std::process::id()));
    std::fs::create_dir(&path)
        .map_err(|source| ProbeError::Create { place: own.clone(), source })?;
    let can_kill = path.join("cgroup.kill").exists();
    remove(&path);
    if can_kill { Ok(own) } else { Err(ProbeError::NoKill) }
}

/// Creates the cgroup `name` below [`own`]. `None` without permission or without a v2 hierarchy;
/// both are usual. Containment then relies on descent and nonce.
pub fn create(own: &Path, name: &str) -> Option<PathBuf> {
    let path = own.join(name);
    std::fs::create_dir(&path).ok()?;
    // A cgroup that cannot kill its members is useless here.
    if path.join("cgroup.kill").exists() {
        return Some(path);
    }
    remove(&path);
    None
}

/// Limits the processes and the memory of the cgroup, as far as its parent may pass the controllers
/// on; 0 is no limit. Returns whether all limits hold.
pub fn limit(cgroup: &Path, max_procs: u32, max_memory_bytes: u64) -> bool {
    let one = |controller: &str, file: &str, most: u64| {
        if most == 0 {
            return true;
        }
        let file = cgroup.join(file);
        if !file.exists()
            && let Some(parent) = cgroup.parent()
        {
            let control = parent.join("cgroup.subtree_control");
            let _ = std::fs::write(control, format!("+{controller}"));
        }
        // Opened without creating it: without its controller the file does not exist.
        let opened = std::fs::File::options().write(true).open(&file);
        opened.and_then(|mut file| file.write_all(most.to_string().as_bytes())).is_ok()
    };
    let processes = one("pids", "pids.max", max_procs.into());
    one("memory", "memory.max", max_memory_bytes) && processes
}

/// Moves a process into the cgroup. A child that is created there does not need it (see
/// [`crate::spawn::Program::hold`]).
pub fn enter(cgroup: &Path, pid: u32) -> bool {
    let members = std::fs::File::options().write(true).open(cgroup.join("cgroup.procs"));
    members.and_then(|mut file| file.write_all(pid.to_string().as_bytes())).is_ok()
}

/// Kills everything in the cgroup and below it, at once.
pub fn kill(cgroup: &Path) {
    let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
}

/// Returns the living processes in the cgroup.
pub fn members(cgroup: &Path) -> Vec<u32> {
    std::fs::read_to_string(cgroup.join("cgroup.procs"))
        .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
        .unwrap_or_default()
}

/// Removes the cgroup if it is empty. Killed processes may need a moment to leave it.
pub fn remove(cgroup: &Path) {
    for _ in 0..20 {
        match std::fs::remove_dir(cgroup) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            _ => return,
        }
    }
}

/// Returns the directory of this process's cgroup; `None` without a v2 hierarchy.
pub fn own() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // The usual place. The list of mounts may be long, and every shim asks.
    let usual = Path::new("/sys/fs/cgroup").join(path);
    if usual.join("cgroup.procs").exists() {
        return Some(usual);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4)).flatten()
    })?;
    Some(Path::new(mount).join(path))
}
