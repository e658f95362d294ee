//! Confines the agents of a run: whether that is possible here, and the file with the plan of each
//! process.

pub(crate) mod confined;
mod error;
pub(super) mod plan;

use crate::daemon::context::Daemon;
pub use crate::dispatch::confine::confined::Confined;
pub use crate::dispatch::confine::error::ConfineError;
pub(crate) use crate::dispatch::confine::plan::named_files;
use crate::dispatch::confine::plan::{Ground, machine_mounts, named, plan, real};
pub use crate::dispatch::confine::plan::{holds, is_home};
use muleteer_process::sandbox::Plan;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::OnceCell;

/// The possibilities of the sandbox on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Possible {
    /// The kernel makes overlays for agents, and the file system of the state directory can hold
    /// their changes.
    pub overlays: bool,
}

static FOUND: OnceCell<Result<Possible, ConfineError>> = OnceCell::const_new();

/// Whether agents can be confined here, found out by trying it once. The error names the step that
/// failed, and why.
pub async fn possible(daemon: &Daemon) -> Result<Possible, &'static ConfineError> {
    FOUND.get_or_init(|| attempt(daemon)).await.as_ref().copied()
}

async fn attempt(daemon: &Daemon) -> Result<Possible, ConfineError> {
    let file = daemon.paths.state_dir.join("sandbox-probe.json");
    let folder = daemon.paths.state_dir.join("sandbox-probe");
    let layers = ["lower", "changes", "work"].map(|name| folder.join(name));
    for layer in &layers {
        muleteer_store::atomic::create_dir_durable(layer, 0o700).map_err(ConfineError::Write)?;
    }
    let there = layers[0].join("there");
    muleteer_store::atomic::write_atomic(&there, b"", 0o600).map_err(ConfineError::Write)?;
    write(&file, &plan::probing(layers)).map_err(ConfineError::Write)?;
    let mut command = daemon.shims.program().confining_now(&file, Path::new("/"));
    command.arg("/bin/sh").args(["-c", "test ! -e \"$0\" || echo overlays"]).arg(&there);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    if output.status.success() {
        return Ok(Possible { overlays: !output.stdout.is_empty() });
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(ConfineError::Refused { status: output.status, stderr })
}

/// Returns the most bytes of memory that the agent may use; 0 is no limit.
pub fn memory_limit(confined: &Confined) -> u64 {
    match confined.max_memory_mib {
        Some(limit) => limit.saturating_mul(1 << 20),
        None => plan::memory().unwrap_or_default() / 4 * 3,
    }
}

/// Returns the most bytes on disk of the agent's private HOME; 0 is no limit.
pub fn home_limit(confined: &Confined, agent_dir: &Path) -> u64 {
    match confined.max_home_mib {
        _ if !confined.private_home => 0,
        Some(limit) => limit.saturating_mul(1 << 20),
        None => {
            let found = rustix::fs::statvfs(agent_dir).ok();
            let free = found.map(|found| found.f_bavail.saturating_mul(found.f_frsize));
            let folder = plan::private::folder(agent_dir);
            let used = muleteer_store::removal::tree_size(&folder, MEASURED).unwrap_or_default();
            usual_home_limit(free, used)
        }
    }
}

/// The time for the measurement of a private HOME before its process starts.
const MEASURED: Duration = Duration::from_secs(2);
/// The limit of a private HOME where the free space cannot be found out.
const HOME_OF_UNKNOWN_DISK: u64 = 16 << 30;
/// The least limit: 0 would be no limit, and each HOME has a few folders of ours.
const LEAST_HOME: u64 = 1 << 20;

/// Returns the limit of a private HOME that uses some bytes already: half of what it could use. A
/// resumed agent has used a part of its share, so the free space alone would shrink with each
/// attempt.
fn usual_home_limit(free: Option<u64>, used: u64) -> u64 {
    let half = |free: u64| (free.saturating_add(used) / 2).max(LEAST_HOME);
    free.map_or(HOME_OF_UNKNOWN_DISK, half)
}

/// Returns the file with the plan of one of an agent's processes.
pub fn file(agent_dir: &Path, epoch: u32) -> PathBuf {
    agent_dir.join(format!("sandbox-{epoch:08}.json"))
}

/// Translates a path of the agent's sandbox to the path outside of it.
///
/// # Errors
/// When its plan cannot be read.
pub fn outside(agent_dir: &Path, epoch: u32, path: &Path) -> Result<PathBuf, ConfineError> {
    let file = file(agent_dir, epoch);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(source) => return Err(ConfineError::Read { file, source }),
    };
    let plan: Plan =
        serde_json::from_slice(&bytes).map_err(|source| ConfineError::Parse { file, source })?;
    let path = real(path.to_owned());
    let above = plan.places.iter().filter(|place| path.starts_with(&place.path));
    let nearest = above.max_by_key(|place| place.path.components().count());
    Ok(nearest.and_then(|place| place.instead_of(&path)).unwrap_or(path))
}

/// # Errors
/// When it cannot be written.
pub fn write(file: &Path, plan: &Plan) -> Result<(), muleteer_store::StoreError> {
    let bytes = serde_json::to_vec(plan).unwrap_or_default();
    muleteer_store::atomic::write_atomic(file, &bytes, 0o600)
}

/// Makes the plan of a process of this backend, and the folders that it hides, so that later files
/// in them are hidden too. It also makes the configuration folder, because an agent could create a
/// missing one.
pub fn plan_of(
    daemon: &Daemon,
    confined: &Confined,
    (project, backend): (&str, &str),
    env: &[(String, String)],
    argv: &[String],
    agent_dir: &Path,
) -> Plan {
    let project = crate::daemon::settings::outermost(Path::new(project));
    let mut repos: BTreeSet<PathBuf> = daemon.runs.repositories(&daemon.paths);
    let fleet = daemon.snapshot();
    for dispatch in fleet.unfinished() {
        repos.insert(crate::daemon::settings::outermost(Path::new(&dispatch.created.project)));
    }
    repos.insert(project.clone());
    let identities = daemon.paths.identity();
    let ground = Ground {
        state: &daemon.paths.state_dir,
        cache: &daemon.paths.cache_dir,
        config: &daemon.paths.config_dir,
        runtime: &daemon.paths.runtime_dir,
        identities: &identities,
        muleteer: &daemon.settings.muleteer,
        repos: repos.into_iter().collect(),
        sockets: named(|name| std::env::var(name).ok()),
        project,
        mounts: machine_mounts(),
        overlays: matches!(FOUND.get(), Some(Ok(Possible { overlays: true }))),
    };
    for dir in [ground.state.join("sealed"), ground.cache.to_owned()] {
        let _ = std::fs::create_dir_all(dir);
    }
    let _ = muleteer_store::atomic::create_dir_durable(ground.config, 0o700);
    let home = env
        .iter()
        .rev()
        .find(|(name, _)| name == "HOME")
        .map(|(_, home)| real(PathBuf::from(home)));
    for repo in ground.repos.iter().filter(|repo| Some(real((*repo).clone())) == home) {
        let _ = std::fs::create_dir(repo.join(".muleteer"));
    }
    plan(&ground, confined, backend, env, argv, agent_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_a_private_home_does_not_shrink_with_its_use_and_is_never_none() {
        let (gib, disk) = (1_u64 << 30, 100_u64 << 30);
        for used in [0, gib, 40 * gib] {
            assert_eq!(usual_home_limit(Some(disk - used), used), 50 * gib);
        }
        assert_eq!(usual_home_limit(Some(0), 0), LEAST_HOME);
        assert_eq!(usual_home_limit(None, 0), HOME_OF_UNKNOWN_DISK);
    }
}
