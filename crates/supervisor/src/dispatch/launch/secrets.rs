//! Keys and passwords of agents, which stay on the disk only while their agent may start.
//!
//! `request.json` and the launch files have the environment of an agent. When the end of its
//! dispatch is durable, the values of secret variables are removed from them: a daemon that is
//! killed before that starts the agent again, which needs them. The next daemon does the same for
//! each dispatch that had ended. The daemon remembers them in memory for a message that continues
//! the session, and the next start gets them. Another daemon has only those of its own environment,
//! and those in the template of a thread, whose later agents need them.

use crate::daemon::context::Daemon;
use crate::dispatch::launch::secret_values::{Values, take};
use crate::dispatch::saved::{FileError, Saved};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::DispatchId;
use muleteer_process::fault::point;
use muleteer_protocol::v1::Spawn;
use muleteer_shim::launch::{Launch, LaunchError};
use muleteer_store::atomic::write_atomic;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Removes the secrets of a dispatch that ends from its files. A fault is recorded; it keeps no
/// dispatch from ending. Returns whether none is left.
pub(crate) async fn put_away(daemon: &Daemon, id: &DispatchId, newest_epoch: u32) -> bool {
    let dir = daemon.paths.agent(id.as_str());
    let work = move || put_away_in(&dir, newest_epoch);
    let fault = match tokio::task::spawn_blocking(work).await {
        Ok(Ok(values)) => {
            if !values.is_empty() {
                daemon.caches.secrets.remember(id, values);
            }
            daemon.caches.secrets.record(id, true);
            return true;
        }
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    daemon.fault(id, "the secrets in its files", fault);
    daemon.caches.secrets.record(id, false);
    false
}

/// Removes the secrets that an earlier daemon left, because it was killed before it did or failed.
/// Dispatches without an event since an earlier call are left out: that call removed theirs.
/// Archived ones have none: this call comes before the first is archived, and `Secrets::are_left`
/// keeps the others in the fleet.
pub(crate) async fn put_away_left(daemon: &Daemon) {
    let fleet = daemon.snapshot();
    let mark = daemon.paths.secrets_mark();
    // A mark beyond the log is that of a log which lost its end.
    let since = read_mark(&mark).filter(|mark| *mark <= fleet.seq).unwrap_or(0);
    let is_due = |dispatch: &&Arc<Dispatch>| dispatch.is_finished() && dispatch.last_seq > since;
    let ended: Vec<DispatchId> = fleet.iter().filter(is_due).map(|it| it.id.clone()).collect();
    let mut are_all = true;
    for id in ended {
        // A message may have continued it meanwhile: then it needs them, and has a newer event.
        let now = daemon.snapshot();
        let epoch = now.get(&id).filter(|dispatch| dispatch.is_finished()).map(|it| it.epoch);
        if let Some(epoch) = epoch {
            are_all &= put_away(daemon, &id, epoch).await;
        }
    }
    if are_all && since < fleet.seq {
        let text = fleet.seq.to_string();
        let written =
            tokio::task::spawn_blocking(move || write_atomic(&mark, text.as_bytes(), 0o600)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "failed to write the mark of removed keys");
        }
    }
}

/// Returns the number of the newest event of which all dispatches have no secrets left.
fn read_mark(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the removed variables. They are empty if there are none, or no files.
fn put_away_in(dir: &Path, newest_epoch: u32) -> Result<Values, FileError> {
    let mut saved = match Saved::read(dir) {
        Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(vec![]);
        }
        read => read?,
    };
    for epoch in 1..=newest_epoch {
        let mut launch = match Launch::read(dir, epoch) {
            Err(LaunchError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                continue;
            }
            read => read?,
        };
        if !take(&mut launch.env).is_empty() {
            let Ok(bytes) = serde_json::to_vec_pretty(&launch) else { continue };
            write_atomic(&Launch::path(dir, epoch), &bytes, 0o600)?;
        }
    }
    point("secrets.launches_written");
    let removed = saved.take_secrets();
    if !removed.is_empty() {
        saved.replace(dir)?;
    }
    point("secrets.removed");
    Ok(removed)
}

/// Reads the file of a dispatch that starts. If it had ended before, it gets its secrets again:
/// those that this daemon remembers, else those of its thread, and else those of the daemon's own
/// environment.
///
/// # Errors
/// Its file cannot be read or written.
pub(crate) async fn give_back(daemon: &Daemon, id: &DispatchId) -> Result<Saved, FileError> {
    let dir = daemon.paths.agent(id.as_str());
    let remembered = daemon.caches.secrets.of(id);
    let fleet = daemon.snapshot();
    let thread = fleet.get(id).and_then(|dispatch| dispatch.created.thread());
    let template = thread.map(|thread| daemon.paths.thread_request(thread));
    let work = move || {
        let mut saved = Saved::read(&dir)?;
        if saved.removed.is_empty() {
            return Ok(saved);
        }
        let mut known = template.map(|path| of_thread(&path)).unwrap_or_default();
        known.extend(remembered);
        saved.give_secrets(&known, &|name| std::env::var(name).ok());
        saved.replace(&dir)?;
        Ok(saved)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Reads the file of a dispatch that has ended, with its secrets, which stay off the disk.
///
/// # Errors
/// Its file cannot be read.
pub(crate) async fn read_ended(daemon: &Daemon, id: &DispatchId) -> Result<Saved, FileError> {
    let dir = daemon.paths.agent(id.as_str());
    let remembered = daemon.caches.secrets.of(id);
    let fleet = daemon.snapshot();
    let thread = fleet.get(id).and_then(|dispatch| dispatch.created.thread());
    let template = thread.map(|thread| daemon.paths.thread_request(thread));
    let work = move || {
        let mut saved = Saved::read(&dir)?;
        let mut known = template.map(|path| of_thread(&path)).unwrap_or_default();
        known.extend(remembered);
        saved.give_secrets(&known, &|name| std::env::var(name).ok());
        Ok(saved)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Returns the environment in the template of a thread's dispatches. Without one, the thread gives
/// none.
fn of_thread(path: &Path) -> Values {
    let read = std::fs::read(path).ok();
    let template = read.and_then(|bytes| serde_json::from_slice::<Spawn>(&bytes).ok());
    let values = template.map(|it| it.env.into_iter().chain(it.extra_env).collect());
    values.unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::event::Event;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    fn files(dir: &Path) -> String {
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default()
        };
        std::fs::read_dir(dir).unwrap().map(read).collect()
    }

    #[tokio::test]
    async fn keys_leave_the_files_when_the_agent_has_ended_and_return_with_a_message() {
        let root = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(root.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        let dir = daemon.paths.agent(id.as_str());
        let saved: Saved = serde_json::from_value(serde_json::json!({
            "v": 1,
            "env": [["PATH", "/bin"], ["ANTHROPIC_API_KEY", "sk-one"]],
            "withheld": [["OPENAI_API_KEY", "sk-two"]],
            "extra_env": [["MY_TOKEN", "sk-three"], ["HOME", "/h"]],
            "backend_env": [["AWS_SECRET_ACCESS_KEY", "sk-four"], ["IS_SANDBOX", "1"]],
            "command": null, "args": [], "scenario": null, "system_prompt": null,
        }))
        .unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        saved.replace(&dir).unwrap();
        let mut launch = Launch::new(1, 1, "n1".into(), vec!["x".into()], "/".into());
        launch.env = vec![pair("HOME", "/h"), pair("ANTHROPIC_API_KEY", "sk-one")];
        launch.write(&dir).unwrap();
        assert!(files(&dir).contains("sk-one"));
        put_away(&daemon, &id, 1).await;
        assert!(!files(&dir).contains("sk-"), "{}", files(&dir));
        let left = Saved::read(&dir).unwrap();
        assert_eq!(left.env, [pair("PATH", "/bin")]);
        assert_eq!(Launch::read(&dir, 1).unwrap().env, [pair("HOME", "/h")]);
        // Once more, as after a crash.
        put_away(&daemon, &id, 1).await;
        give_back(&daemon, &id).await.unwrap();
        let again = Saved::read(&dir).unwrap();
        let sorted = |saved: &Saved| {
            let lists = [&saved.env, &saved.withheld, &saved.extra_env, &saved.backend_env];
            lists.map(|list| {
                let mut list = list.clone();
                list.sort();
                list
            })
        };
        assert_eq!((sorted(&again), again.removed.len()), (sorted(&saved), 0));
        // The next daemon remembers nothing.
        put_away(&daemon, &id, 1).await;
        let next = test_daemon::daemon(root.path(), Pool::default());
        give_back(&next, &id).await.unwrap();
        let again = Saved::read(&dir).unwrap();
        assert_eq!(again.extra_env, [pair("HOME", "/h")]);
        assert!(again.removed.iter().any(|(_, name)| name == "MY_TOKEN"));
    }

    #[tokio::test]
    async fn agent_of_a_thread_gets_the_keys_of_the_thread_from_the_next_daemon() {
        let root = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(root.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created") else {
            panic!("no dispatch");
        };
        created.by = "thread/thrd2345".into();
        let created = Event::DispatchCreated(created);
        daemon.fold(&id, created.clone());
        let dir = daemon.paths.agent(id.as_str());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("request.json"), SAVED).unwrap();
        put_away(&daemon, &id, 0).await;
        assert!(!files(&dir).contains("sk-"));
        let template = Spawn {
            extra_env: vec![pair("ANTHROPIC_API_KEY", "sk-of-thread")],
            ..Spawn::default()
        };
        let path = daemon.paths.thread_request("thrd2345");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, serde_json::to_vec(&template).unwrap()).unwrap();
        let next = test_daemon::daemon(root.path(), Pool::default());
        next.fold(&id, created);
        let saved = give_back(&next, &id).await.unwrap();
        assert_eq!(saved.env, [pair("ANTHROPIC_API_KEY", "sk-of-thread")]);
    }

    #[tokio::test]
    async fn keys_that_a_killed_daemon_left_are_removed_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(root.path(), Pool::default());
        let ids = ["abcd2345", "bcde2345"].map(test_daemon::id);
        let begun = ["dispatch_created", "attempt_started"].map(test_daemon::sample);
        for id in &ids {
            begun.iter().for_each(|event| daemon.fold(id, event.clone()));
            let dir = daemon.paths.agent(id.as_str());
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("request.json"), SAVED).unwrap();
        }
        daemon.fold(&ids[0], test_daemon::sample("dispatch_finished"));
        put_away_left(&daemon).await;
        assert!(!files(&daemon.paths.agent(ids[0].as_str())).contains("sk-"));
        assert!(files(&daemon.paths.agent(ids[1].as_str())).contains("sk-"), "it goes on");
    }

    #[tokio::test]
    async fn only_dispatches_with_events_since_the_last_look_are_looked_at() {
        let root = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(root.path(), Pool::default());
        let ids = ["abcd2345", "bcde2345"].map(test_daemon::id);
        let file = |id: &DispatchId| daemon.paths.agent(id.as_str()).join("request.json");
        let ends = |id: &DispatchId, file_text: &str| {
            for event in ["dispatch_created", "attempt_started", "dispatch_finished"] {
                daemon.fold(id, test_daemon::sample(event));
            }
            std::fs::create_dir_all(daemon.paths.agent(id.as_str())).unwrap();
            std::fs::write(file(id), file_text).unwrap();
        };
        // A file that cannot be read is looked at again.
        ends(&ids[0], "{");
        put_away_left(&daemon).await;
        std::fs::write(file(&ids[0]), SAVED).unwrap();
        put_away_left(&daemon).await;
        assert!(!files(&daemon.paths.agent(ids[0].as_str())).contains("sk-"));
        std::fs::write(file(&ids[0]), SAVED).unwrap();
        ends(&ids[1], SAVED);
        put_away_left(&daemon).await;
        assert!(files(&daemon.paths.agent(ids[0].as_str())).contains("sk-"), "it was done");
        assert!(!files(&daemon.paths.agent(ids[1].as_str())).contains("sk-"));
        // The log lost its end.
        std::fs::write(daemon.paths.secrets_mark(), "1000000").unwrap();
        put_away_left(&daemon).await;
        assert!(!files(&daemon.paths.agent(ids[0].as_str())).contains("sk-"));
    }

    /// The next daemon looks for them in the fleet.
    #[tokio::test]
    async fn dispatch_whose_keys_could_not_be_removed_is_not_archived() {
        let root = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(root.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        let file = daemon.paths.agent(id.as_str()).join("request.json");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{").unwrap();
        assert!(!crate::ledger::archive::is_held(&daemon, &id, "operator"));
        put_away(&daemon, &id, 1).await;
        assert!(crate::ledger::archive::is_held(&daemon, &id, "operator"));
        std::fs::write(&file, SAVED).unwrap();
        put_away(&daemon, &id, 1).await;
        assert!(!crate::ledger::archive::is_held(&daemon, &id, "operator"));
    }

    const SAVED: &str = r#"{"v": 1, "env": [["ANTHROPIC_API_KEY", "sk-one"]], "extra_env": [],
        "backend_env": [], "command": null, "args": [], "scenario": null, "system_prompt": null}"#;

    #[tokio::test]
    async fn dispatch_without_files_or_keys_is_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(root.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        put_away(&daemon, &id, 3).await;
        assert!(!daemon.paths.agent(id.as_str()).exists());
    }
}
