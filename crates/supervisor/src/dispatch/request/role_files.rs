//! Finds the role of a request, and keeps the last valid files of each role in force.
//!
//! The files are read for each request, so an edit takes effect without a restart. A person may
//! save a file that is not valid yet. Then the request gets the role by its last valid files; the
//! fault is recorded once, told in the thread, and shown in `status` and `config show`.

use crate::daemon::context::{Daemon, KnownRole, RolePlace};
use crate::daemon::settings;
use crate::dispatch::error::{fault, located};
use crate::dispatch::request::loaded::{brief, load};
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
        known.place == place && Arc::ptr_eq(&known.config, config) && known.sources == sources
    }) && last_valid.is_valid(&place)
    {
        return Ok(Found { found: known.found.clone(), fault: None });
    }
    let kept = last_valid.of(&place).unwrap_or_default();
    let (in_force, error) = match in_force(daemon, &place, config, &sources, &kept) {
        Ok(found) => found,
        Err(error) => {
            if error.code == ErrorCode::RoleUnknown.as_str() {
                last_valid.forget(&place);
            }
            return Err(error);
        }
    };
    let (files, found) = in_force;
    let Some(error) = error else {
        last_valid.note_valid(&place, of_role(name, &sources));
        let config = config.clone();
        *known() = Some(KnownRole { sources, config, place, found: found.clone() });
        return Ok(Found { found, fault: None });
    };
    let fault = format!(
        "the file of the role `{name}` is invalid, and its last valid version stays in force until \
         it is fixed: {}",
        brief(&error)
    );
    if last_valid.note_fault(&place, of_role(name, &files), &fault) {
        daemon.note(Event::Fault { what: "role".into(), message: fault.clone() });
    }
    Ok(Found { found, fault: Some(fault) })
}

/// Reads the files of the roles with a fault again, so that no fault is told that is gone.
pub(crate) fn check_faulty(daemon: &Daemon) {
    for (top, name) in daemon.caches.last_valid_roles.faulty() {
        if let Ok(config) = load(daemon, None, Some(&top), vec![]) {
            // It notes what it finds.
            let _ = find_role(daemon, &name, &top, &config);
        }
    }
}

/// The files that are in force, and the role by them.
type ByFiles = (Vec<RoleSource>, InForce);

/// Returns the role by the present files, and the first fault. Only an invalid file is replaced by
/// its last valid version, because an edit or removal of another one must count.
fn in_force(
    daemon: &Daemon,
    (top, name): &RolePlace,
    config: &Config,
    sources: &[RoleSource],
    kept: &[RoleSource],
) -> Result<(ByFiles, Option<WireError>), WireError> {
    let mut files = sources.to_vec();
    let mut first = None;
    let mut left = kept.to_vec();
    // An invalid file has no name of its own: a weaker file of that name would replace it.
    for file in &mut files {
        let is_it = |last: &RoleSource| last.layer == file.layer && last.file == file.file;
        let Some(at) = left.iter().position(is_it) else { continue };
        let Err(error) = parse(file) else { continue };
        *file = last_valid(daemon, top, left.swap_remove(at));
        first.get_or_insert_with(|| located(error));
    }
    loop {
        let error = match checked_role(name, config, &files) {
            Ok(found) => return Ok(((files, found), first)),
            Err(error) if error.code == ErrorCode::ConfigInvalid.as_str() => error,
            Err(error) => return Err(error),
        };
        // A file may be invalid although it can be parsed: its category is not configured.
        let at = left.iter().position(|last| error.file.as_ref() == Some(&last.file));
        let last = at.map(|at| left.swap_remove(at));
        let now = |last: &RoleSource| {
            files.iter().position(|now| now.layer == last.layer && now.file == last.file)
        };
        // Without a last valid version, or if the configuration is at fault, there is no role.
        let Some((last, now)) = last.and_then(|last| now(&last).map(|now| (last, now))) else {
            return Err(first.unwrap_or(error));
        };
        files[now] = last_valid(daemon, top, last);
        first.get_or_insert(error);
    }
}

/// Returns the last valid version of a file. The user may have withdrawn the trust in it.
fn last_valid(daemon: &Daemon, top: &Path, kept: RoleSource) -> RoleSource {
    let mut judged = settings::with_present_trust(&daemon.paths, top, vec![kept.clone()]);
    judged.pop().unwrap_or(kept)
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

    /// A project must not freeze the user's file by an invalid one of its own.
    #[test]
    fn edit_of_a_valid_file_counts_beside_an_invalid_one() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let top = dir.path().join("project");
        let own = daemon.paths.config_dir.join("roles");
        let theirs = top.join(".muleteer/roles");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&theirs).unwrap();
        let config = load(&daemon, None, Some(&top), vec![]).unwrap();
        let found = || find_role(&daemon, "scribe", &top, &config);
        let faults = || daemon.caches.last_valid_roles.faults();
        let (own, theirs) = (own.join("scribe.md"), theirs.join("scribe.md"));
        let with = |tools: &str| role("Write.").replacen("---\n", &format!("---\n{tools}\n"), 1);
        std::fs::write(&own, with("tools: [Read, Write]")).unwrap();
        std::fs::write(&theirs, role("Theirs.")).unwrap();
        let before = found().unwrap();
        std::fs::write(&theirs, "---\ncategory: [\n---\n").unwrap();
        let kept = found().unwrap();
        assert!(kept.fault.is_some());
        assert_eq!(format!("{:?}", kept.found), format!("{:?}", before.found));
        std::fs::write(&own, with("tools: [Read]")).unwrap();
        let tightened = found().unwrap();
        assert!(tightened.fault.is_some());
        let tools = format!("{:?}", tightened.found);
        assert_ne!(tools, format!("{:?}", kept.found));
        std::fs::write(&theirs, role("Theirs.")).unwrap();
        check_faulty(&daemon);
        assert!(faults().is_empty(), "{:?}", faults());
        assert_eq!(format!("{:?}", found().unwrap().found), tools, "the user's new file counted");
        std::fs::write(&theirs, "---\ncategory: [\n---\n").unwrap();
        assert!(found().unwrap().fault.is_some());
        std::fs::remove_file(&theirs).unwrap();
        std::fs::remove_file(&own).unwrap();
        check_faulty(&daemon);
        assert!(faults().is_empty(), "the role is gone: {:?}", faults());
        assert_eq!(found().unwrap_err().code, "E_ROLE_UNKNOWN");
    }
}
