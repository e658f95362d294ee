//! The sandbox of a dispatch outside a run, which `--sandbox on` asks for.

use crate::daemon::context::Daemon;
use crate::dispatch::confine::{self, Confined};
use crate::dispatch::error::{fault, unwritten};
use crate::dispatch::request::load;
use muleteer_model::config::{Config, SandboxHome};
use muleteer_model::event::Created;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use muleteer_store::atomic::create_dir_durable;
use std::path::{Path, PathBuf};

/// Checks that agents can be confined here, and makes the folder of the journal: a sandbox can only
/// show what exists.
///
/// # Errors
/// `E_UNSUPPORTED` where the system allows no sandbox, so that no agent runs without the one that
/// was asked for.
pub(super) async fn prepare(daemon: &Daemon, journal: &str) -> Result<(), WireError> {
    possible(daemon).await?;
    let Some(folder) = Path::new(journal).parent() else { return Ok(()) };
    create_dir_durable(folder, 0o700).map_err(|error| unwritten(&error))
}

/// # Errors
/// `E_UNSUPPORTED` where the system allows no sandbox.
pub(crate) async fn possible(daemon: &Daemon) -> Result<(), WireError> {
    confine::possible(daemon).await.map(drop).map_err(|why| {
        let message = format!("--sandbox on: this system cannot confine agents: {why}");
        let hint = "run `muleteer doctor` for the reason, or omit --sandbox";
        fault(ErrorCode::Unsupported, &message, hint)
    })
}

/// Returns the rules for the commands that Muleteer runs for sandboxed agents: those of the agents,
/// but for the directory.
///
/// # Errors
/// The configuration is invalid.
pub(crate) fn of_commands(daemon: &Daemon, spawn: &Spawn) -> Result<Confined, WireError> {
    let top = crate::daemon::settings::repository(Path::new(&spawn.project));
    let env = spawn.env.iter().chain(&spawn.extra_env).cloned().collect();
    let config = load(daemon, spawn.config.as_deref(), Some(&top), env)?;
    Ok(exceptions(spawn, &config))
}

/// Returns the paths that the agent may see and write: its clone or its directory, the folder of
/// its journal, and the configured exceptions. A repository's own `.git` stays read-only, because
/// the person's git runs the programs that its configuration and hooks name.
pub(super) fn confined(created: &Created, spawn: &Spawn, config: &Config) -> Confined {
    let mut confined = exceptions(spawn, config);
    confined.write.push(PathBuf::from(created.directory()));
    confined.write.extend(Path::new(&created.journal).parent().map(Path::to_path_buf));
    confined
}

/// Returns the configured exceptions, and the scenario.
fn exceptions(spawn: &Spawn, config: &Config) -> Confined {
    let exceptions = config.sandbox.exceptions().unwrap_or_default();
    let env = spawn.env.iter().chain(&spawn.extra_env).rev();
    let home = env.into_iter().find(|(name, _)| name == "HOME").map(|(_, home)| home.clone());
    let expand = |path: &String| match (path.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => PathBuf::from(path),
    };
    let mut show: Vec<PathBuf> = exceptions.show.iter().map(expand).collect();
    show.extend(spawn.scenario.as_ref().map(PathBuf::from));
    Confined {
        write: exceptions.write.iter().map(expand).collect(),
        show,
        private_home: exceptions.home == SandboxHome::Private,
        nested: exceptions.nested,
        max_processes: exceptions.max_processes,
        max_memory_mib: exceptions.max_memory_mib,
        max_home_mib: exceptions.max_home_mib,
        ..Confined::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::{self, Layer, Source};
    use muleteer_model::event::Event;

    #[test]
    fn sandbox_writes_the_directory_the_journal_and_the_exceptions() {
        let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created") else {
            panic!("another sample")
        };
        let text = "sandbox: {write: [~/cache, /opt/x], show: [/opt/y]}\n";
        let config = config::load(&[Source::new(Layer::User, "c.yaml", text)], &[]).unwrap();
        let spawn = Spawn {
            env: vec![("HOME".into(), "/home/a".into())],
            extra_env: vec![("HOME".into(), "/home/b".into())],
            scenario: Some("/s.yaml".into()),
            ..Spawn::default()
        };
        created.journal = "/r/.agents/journals/f/a.md".into();
        created.project = "/r/web".into();
        for (clone, place) in [(None, "/r/web"), (Some("/r/c"), "/r/c")] {
            created.worktree = clone.map(String::from);
            let found = confined(&created, &spawn, &config);
            let expected = ["/home/b/cache", "/opt/x", place, "/r/.agents/journals/f"];
            assert_eq!(found.write, expected.map(PathBuf::from));
            assert_eq!(found.show, ["/opt/y", "/s.yaml"].map(PathBuf::from));
        }
        let off = config::load(&[Source::new(Layer::User, "c.yaml", "sandbox: off\n")], &[]);
        let found = confined(&created, &spawn, &off.unwrap());
        assert_eq!(found.write.len(), 2, "the flag counts, and there are no exceptions");
    }
}
