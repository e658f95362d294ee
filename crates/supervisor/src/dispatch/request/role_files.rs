//! Finds the role of a request, and keeps the last valid files of each role in force.
//!
//! The files are read for each request, so an edit takes effect without a restart. A person may
//! save a file that is not valid yet. Then the request gets the role by its last valid files; the
//! fault is recorded once, told in the thread, and shown in `status` and `config show`.

use crate::daemon::context::{Daemon, KnownRole, RolePlace};
use crate::daemon::settings;
use crate::dispatch::error::{fault, located};
use crate::dispatch::request::loaded::brief;
use muleteer_model::agent::role::{Catalog, InForce, RoleError, RoleSource, parse};
use muleteer_model::config::Config;
use muleteer_model::event::Event;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use std::path::Path;
use std::sync::{Arc, PoisonError};

/// A role, as it is in force.
#[derive(Debug)]
pub(super) struct Found {
    pub found: InForce,
    /// The fault of the present files, if the last valid ones are in force instead.
    pub fault: Option<String>,
}

/// Finds a role for a request. `top` is the project's [`settings::repository`].
///
/// # Errors
/// There is no such role, or its file is invalid and was so when this daemon first read it.
pub(super) fn find_role(
    daemon: &Daemon,
    name: &str,
    top: &Path,
    config: &Arc<Config>,
) -> Result<Found, WireError> {
    let sources = settings::roles(&daemon.paths, Some(top)).map_err(|error| WireError {
        file: Some(error.path.display().to_string()),
        ..fault(ErrorCode::ConfigInvalid, &error.to_string(), "")
    })?;
    let place: RolePlace = (top.to_path_buf(), name.to_string());
    let last_valid = &daemon.caches.last_valid_roles;
    let known = || daemon.caches.role.lock().unwrap_or_else(PoisonError::into_inner);
    // The files were read again, so nothing can be out of date.
    if let Some(known) = known().as_ref().filter(|known| {
        known.name == name && Arc::ptr_eq(&known.config, config) && known.sources == sources
    }) {
        last_valid.note_fixed(&place);
        return Ok(Found { found: known.found.clone(), fault: None });
    }
    let invalid = ErrorCode::ConfigInvalid.as_str();
    let kept = last_valid.of(&place);
    let error = match broken(kept.as_deref().unwrap_or_default(), &sources) {
        Some(error) => error,
        None => match checked_role(name, config, &sources) {
            Ok(found) => {
                last_valid.note_valid(&place, of_role(name, &sources));
                let (name, config) = (name.to_string(), config.clone());
                *known() = Some(KnownRole { sources, config, name, found: found.clone() });
                return Ok(Found { found, fault: None });
            }
            Err(error) if error.code == invalid => error,
            Err(error) => return Err(error),
        },
    };
    let Some(kept) = kept else { return Err(error) };
    // The user may have withdrawn the trust in them.
    let kept = settings::with_present_trust(&daemon.paths, top, kept);
    // The configuration may be at fault, and not the files.
    let Ok(found) = checked_role(name, config, &kept) else { return Err(error) };
    let fault = format!(
        "the file of the role `{name}` is invalid, and its last valid version stays in force until \
         it is fixed: {}",
        brief(&error)
    );
    if last_valid.note_fault(&place, &fault) {
        daemon.note(Event::Fault { what: "role".into(), message: fault.clone() });
    }
    Ok(Found { found, fault: Some(fault) })
}

/// Returns the fault of a file that gave the role when it was valid. An invalid file has no name of
/// its own, so without this a weaker file of that name would replace it.
fn broken(kept: &[RoleSource], sources: &[RoleSource]) -> Option<WireError> {
    let now = |before: &RoleSource| {
        sources.iter().find(|now| now.layer == before.layer && now.file == before.file)
    };
    kept.iter().filter_map(now).find_map(|now| parse(now).err()).map(located)
}

/// Returns the files that define a role or bound it.
fn of_role(name: &str, sources: &[RoleSource]) -> Vec<RoleSource> {
    let is_of = |source: &&RoleSource| parse(source).is_ok_and(|role| role.name == name);
    sources.iter().filter(is_of).cloned().collect()
}

fn checked_role(name: &str, config: &Config, sources: &[RoleSource]) -> Result<InForce, WireError> {
    let catalog = Catalog::new(sources);
    let found = catalog.in_force(name, config, sources).map_err(|error| match error {
        RoleError::Unknown(unknown) => {
            fault(ErrorCode::RoleUnknown, &unknown.to_string(), &unknown.hint)
        }
        RoleError::Invalid(invalid) => located(invalid),
    })?;
    match catalog
        .without_category(config, sources)
        .into_iter()
        .find(|(name, _)| *name == found.role.name)
    {
        Some((_, error)) => Err(located(error)),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::daemon::context::test_daemon;
    use crate::dispatch::request::load;
    use muleteer_model::config::Pool;

    fn role(body: &str) -> String {
        format!("---\ncategory: coding\ndescription: writes\n---\n{body}\n")
    }

    /// The parsed role is remembered, and a change right before a request must count all the same.
    #[test]
    fn changed_role_file_counts_for_the_next_request() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let folder = daemon.paths.config_dir.join("roles");
        std::fs::create_dir_all(&folder).unwrap();
        let top = dir.path().join("project");
        std::fs::create_dir_all(&top).unwrap();
        let config = load(&daemon, None, Some(&top), vec![]).unwrap();
        let body =
            || find_role(&daemon, "scribe", &top, &config).map(|found| found.found.role.body);
        assert!(body().is_err());
        let file = folder.join("scribe.md");
        for text in ["Write one.", "Write two."] {
            std::fs::write(&file, role(text)).unwrap();
            for _ in 0..2 {
                assert_eq!(body().unwrap().trim(), text);
            }
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(body().unwrap_err().code, "E_ROLE_UNKNOWN", "a removed role is no mistake");
    }

    #[test]
    fn invalid_edit_keeps_the_last_valid_role_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let folder = daemon.paths.config_dir.join("roles");
        std::fs::create_dir_all(&folder).unwrap();
        let top = dir.path().join("project");
        std::fs::create_dir_all(&top).unwrap();
        let config = load(&daemon, None, Some(&top), vec![]).unwrap();
        // The second name is also that of a shipped role, which must not replace it.
        for (name, stem) in [("scribe", "scribe"), ("reviewer", "mine")] {
            let file = folder.join(format!("{stem}.md"));
            let text =
                |body: &str| role(body).replacen("---\n", &format!("---\nname: {name}\n"), 1);
            let found = || find_role(&daemon, name, &top, &config);
            let faults = || daemon.caches.last_valid_roles.faults();
            std::fs::write(&file, "---\ncategory: [\n---\n").unwrap();
            if name == "scribe" {
                assert!(found().is_err(), "there is no valid one yet");
            }
            std::fs::write(&file, text("Write one.")).unwrap();
            assert_eq!(found().unwrap().found.role.body.trim(), "Write one.");
            for broken in ["---\ncategory: [\n---\nWrite two.", "---\ncategory: [x]\n---\n"] {
                std::fs::write(&file, broken).unwrap();
                for _ in 0..2 {
                    let kept = found().unwrap();
                    assert_eq!(kept.found.role.body.trim(), "Write one.");
                    assert!(kept.fault.unwrap().contains(&format!("{stem}.md:")));
                }
                assert_eq!(faults().len(), 1, "{:?}", faults());
            }
            // Back to the same text as before, and on to another one.
            for body in ["Write one.", "Write three."] {
                std::fs::write(&file, text(body)).unwrap();
                let fixed = found().unwrap();
                assert_eq!((fixed.found.role.body.trim(), fixed.fault), (body, None));
                assert!(faults().is_empty());
            }
            std::fs::remove_file(&file).unwrap();
        }
    }
}
