//! Keys and passwords of a run, which stay in `run.json` only while agents of the run may start.
//!
//! A run that rests with a question keeps them, because the answer starts agents without a client.
//!
//! A resumption brings the environment of its client. Variables that were given for the agents
//! alone come from the memory of the daemon, and else from that environment.

use crate::daemon::context::Daemon;
use crate::dispatch::launch::secret_values;
use crate::spec_run::begin::files::{saved, write};
use crate::spec_run::host::{Places, Saved};
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::WireError;

/// Removes the values of secret variables from the file of a run that rests. A fault is logged; it
/// keeps no run from resting.
pub fn put_away(daemon: &Daemon, places: &Places, key: &DispatchId) {
    if let Err(error) = try_put_away(daemon, places, key) {
        let file = places.saved();
        tracing::error!(file = %file.display(), error = %error.message, "failed to remove keys");
    }
}

fn try_put_away(daemon: &Daemon, places: &Places, key: &DispatchId) -> Result<(), WireError> {
    let mut saved = saved(&places.saved())?;
    // A resumption brings those of its client.
    let of_client = secret_values::take(&mut saved.request.env);
    let secret = secret_values::take(&mut saved.request.extra_env);
    if of_client.is_empty() && secret.is_empty() {
        return Ok(());
    }
    saved.removed.extend(secret.iter().map(|(name, _)| name.clone()));
    if !secret.is_empty() {
        daemon.caches.secrets.remember(key, secret);
    }
    write(places, &saved)
}

/// Gives the removed variables to a run that is resumed. `env` is the environment of the client.
pub(super) fn give_back(
    daemon: &Daemon,
    saved: &mut Saved,
    key: &DispatchId,
    env: &[(String, String)],
) {
    let known = daemon.caches.secrets.of(key);
    let of_client = |name: &str| {
        let found = env.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let extra_env = &mut saved.request.extra_env;
    let add = |_: &String, pair| extra_env.push(pair);
    secret_values::give(&mut saved.removed, String::as_str, &known, &of_client, add);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use crate::spec_run::begin::files::save;
    use crate::spec_run::host::Chosen;
    use muleteer_model::config::Pool;
    use muleteer_protocol::v1;

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[tokio::test]
    async fn keys_leave_the_file_of_a_resting_run_and_return_when_it_is_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let key = test_daemon::id("abcd2345");
        let places = Places::new(&daemon.paths, dir.path(), "run-2026-11-27-abcd2345");
        std::fs::create_dir_all(places.saved().parent().unwrap()).unwrap();
        let given = pairs(&[("MODE", "fast"), ("MY_API_KEY", "sk-two")]);
        let request = v1::Run {
            run_id: "run-2026-11-27-abcd2345".into(),
            repo: dir.path().display().to_string(),
            env: pairs(&[("PATH", "/bin"), ("ANTHROPIC_API_KEY", "sk-one")]),
            extra_env: given.clone(),
            ..v1::Run::default()
        };
        save(&places, &request, &Chosen::default()).unwrap();
        put_away(&daemon, &places, &key);
        let text = std::fs::read_to_string(places.saved()).unwrap();
        assert!(!text.contains("sk-"), "{text}");
        // Once more, as after a crash.
        put_away(&daemon, &places, &key);
        let resumed = |daemon: &Daemon, env: &[(&str, &str)]| {
            let mut found = saved(&places.saved()).unwrap();
            give_back(daemon, &mut found, &key, &pairs(env));
            found.request.extra_env
        };
        assert_eq!(resumed(&daemon, &[]), given);
        // Another daemon remembers nothing.
        let other = tempfile::tempdir().unwrap();
        let next = test_daemon::daemon(other.path(), Pool::default());
        assert_eq!(resumed(&next, &[]), pairs(&[("MODE", "fast")]));
        assert_eq!(resumed(&next, &[("MY_API_KEY", "sk-two")]), given);
    }
}
