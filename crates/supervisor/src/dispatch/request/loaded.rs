//! Loads the configuration for a request, and keeps the last valid one of each project in force.
//!
//! The files are read for each request, so an edit takes effect without a restart. A person may
//! save a file that is not valid yet. Then the request gets the last valid files of that project,
//! all of them, and the fault is recorded and shown in `status`.

use crate::daemon::context::{Daemon, Loaded};
use crate::daemon::settings;
use crate::dispatch::error::{fault, internal, located};
use muleteer_model::config::{self, Config, ConfigError, Source};
use muleteer_model::event::Event;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use std::path::Path;
use std::sync::{Arc, PoisonError};

/// Loads the configuration for a project, with the requesting client's environment. `top` is the
/// project's [`settings::repository`], if it is to count.
///
/// # Errors
/// `E_CONFIG_INVALID` if the files are invalid, and were so when this daemon first read them.
pub(crate) fn load(
    daemon: &Daemon,
    given: Option<&str>,
    top: Option<&Path>,
    mut env: Vec<(String, String)>,
) -> Result<Arc<Config>, WireError> {
    let given = given.map(Path::new);
    let place = (top.map(Path::to_path_buf), given.map(Path::to_path_buf));
    env.retain(|(name, _)| name.starts_with(config::ENV_PREFIX));
    let runtime = daemon.snapshot().runtime.sources();
    let files = settings::sources(&daemon.paths, top, given);
    let error = match &files {
        Ok(files) => {
            let sources = [&files[..], &runtime].concat();
            match merged(daemon, sources, env.clone()) {
                Ok(config) => {
                    daemon.caches.last_valid.note_valid(&place, files);
                    return Ok(config);
                }
                Err(errors) => refused(errors),
            }
        }
        Err(error) => WireError {
            file: Some(error.path.display().to_string()),
            ..fault(ErrorCode::ConfigInvalid, &error.to_string(), "")
        },
    };
    let brief = brief(&error);
    let Some((files, is_new)) = daemon.caches.last_valid.instead(&place, &brief) else {
        return Err(error);
    };
    // The client's variables or a setting of run time may be at fault, not the files.
    let Ok(config) = merged(daemon, [&files[..], &runtime].concat(), env) else {
        return Err(error);
    };
    if is_new {
        let message = format!(
            "{brief}; until it is fixed the last valid configuration stays in force (run \
             `muleteer config check` to list every fault)"
        );
        daemon.note(Event::Fault { what: "configuration".into(), message });
    }
    Ok(config)
}

/// Merges sources, or returns what the last merge of the same sources gave.
fn merged(
    daemon: &Daemon,
    sources: Vec<Source>,
    env: Vec<(String, String)>,
) -> Result<Arc<Config>, Vec<ConfigError>> {
    let known = || daemon.caches.config.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) =
        known().as_ref().filter(|known| known.sources == sources && known.env == env)
    {
        return Ok(known.config.clone());
    }
    let config = Arc::new(settings::config(&sources, &env)?);
    *known() = Some(Loaded { sources, env, config: config.clone() });
    Ok(config)
}

fn refused(errors: Vec<ConfigError>) -> WireError {
    let count = errors.len();
    let first = errors.into_iter().next();
    let mut wire = first.map_or_else(|| internal("the configuration is invalid"), located);
    if count > 1 {
        wire.message = format!(
            "{} (and {} more: run `muleteer config check` to list them)",
            wire.message,
            count - 1
        );
    }
    wire
}

/// Returns the place and the message of an error in one line.
pub(super) fn brief(error: &WireError) -> String {
    match (&error.file, error.line) {
        (Some(file), Some(line)) => format!("{file}:{line}: {}", error.message),
        (Some(file), None) => format!("{file}: {}", error.message),
        (None, _) => error.message.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    #[test]
    fn invalid_edit_keeps_the_last_valid_configuration_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let file = daemon.paths.config_file();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "pool: {max_depth: oops}\n").unwrap();
        let first = load(&daemon, None, None, vec![]).unwrap_err();
        assert_eq!(first.code, "E_CONFIG_INVALID", "there is no valid one yet");
        std::fs::write(&file, "models: {default: m1}\npool: {max_depth: 3}\n").unwrap();
        let model = || load(&daemon, None, None, vec![]).unwrap().models.default.clone();
        assert_eq!(model().as_deref(), Some("m1"));
        assert!(daemon.caches.last_valid.faults().is_empty());
        std::fs::write(&file, "models: {default: m2}\npool: {max_depth: oops}\n").unwrap();
        assert_eq!(model().as_deref(), Some("m1"), "never half of an edit");
        let faults = daemon.caches.last_valid.faults();
        assert!(faults[0].contains("config.yaml:2: `pool.max_depth`"), "{faults:?}");
        std::fs::write(&file, "models: {default: m2}\n").unwrap();
        assert_eq!(model().as_deref(), Some("m2"));
        assert!(daemon.caches.last_valid.faults().is_empty());
        // A client's own variable is the client's fault.
        let env = vec![("MULETEER_CONFIG__POOL__MAX_DEPTH".to_string(), "x".to_string())];
        assert!(load(&daemon, None, None, env).is_err());
    }
}
