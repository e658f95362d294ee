//! The daemon is killed around the making and the closing of a private HOME. The next daemon
//! repeats the step, and neither a renewed login is lost nor does a key stay in a file.

#![allow(clippy::unwrap_used)]

use muleteer_process::fault::HOME_POINTS;
use muleteer_tests::World;
use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::confined;
use std::path::Path;

const OLD: &str = "{\"token\":\"zq-1\"}\n";
const NEW: &str = "{\"token\":\"zq-2\"}\n";
/// A CLI that renews its login and makes a backup of its state.
const CLI: &str = "echo ran >> effects; cd \"$HOME\" && printf '%s\\n' '{\"token\":\"zq-2\"}' > \
                   .claude/.credentials.json && mkdir -p .claude/backups && cp .claude.json \
                   .claude/backups/.claude.json.backup.1";

#[test]
fn killed_daemon_loses_no_login_and_leaves_no_key() {
    let test = "killed_daemon_loses_no_login_and_leaves_no_key";
    if !confined() {
        return skip(test, "no namespaces");
    }
    // The second record is that of the CLI's state.
    for point in HOME_POINTS.iter().map(ToString::to_string).chain(["home.recorded:2".into()]) {
        kill_at(&point);
    }
}

fn kill_at(point: &str) {
    let world = World::new();
    let home = world.home();
    std::fs::create_dir_all(home.join(".claude")).unwrap();
    let login = home.join(".claude/.credentials.json");
    std::fs::write(&login, OLD).unwrap();
    std::fs::write(home.join(".claude.json"), "{\"primaryApiKey\":\"zq-key\"}\n").unwrap();
    let repo = world.repo("repo");
    let mut daemon = world.daemon_with(&[("MULETEER_FAULT", point)]);
    let spawn = ["spawn", "developer", repo.to_str(), "do it", "--backend", "subprocess"];
    let how = ["--command", CLI, "--sandbox", "on", "--env", "MY_TOKEN=zq-mine"];
    let id = world.muleteer(&[&spawn[..], &how].concat()).ok().trim().to_string();
    let status = daemon.ended();
    assert!(status.code().is_none(), "{point}: it was to be killed, but {status}");
    let daemon = world.daemon();
    let entry = world.wait_for_end(&id);
    assert_eq!(repo.effects("effects"), ["ran"], "{point}: {entry}");
    assert_eq!(std::fs::read_to_string(&login).unwrap(), NEW, "{point}: {entry}");
    let agents = world.state().join("agents");
    muleteer_tests::wait_until("the keys to leave", muleteer_tests::spec_stage::PATIENCE, || {
        with_keys(&agents).is_empty().then_some(())
    });
    world.finish(Some(daemon));
}

/// Returns the files below a folder that hold one of the keys. The command line and the output of
/// the agent, which name one, are no files of keys.
fn with_keys(top: &Path) -> Vec<String> {
    let mut found = vec![];
    let mut next = vec![top.to_owned()];
    while let Some(folder) = next.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(path);
            } else if ["zq-1", "zq-key", "zq-mine"].iter().any(|key| text.contains(key)) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}
