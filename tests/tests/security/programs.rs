//! Programs and a git configuration that an agent puts where the daemon will look for them: the
//! daemon runs what was there before.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{AGENT, SpecStage};
use muleteer_tests::{World, processes, program, wait_until};
use std::path::Path;

/// Returns a program that leaves a marker, and then does what the real one does.
fn marking(name: &str, marker: &Path) -> String {
    let real = program::real(name);
    format!("#!/bin/sh\n: > '{}'\nexec '{}' \"$@\"\n", marker.display(), real.display())
}

/// Returns a PATH that begins with these folders.
fn path_with(folders: &[&Path]) -> String {
    let path = std::env::var_os("PATH").unwrap();
    let folders = folders.iter().map(|folder| folder.to_path_buf());
    let all = std::env::join_paths(folders.chain(std::env::split_paths(&path)));
    all.unwrap().into_string().unwrap()
}

#[test]
fn git_that_appears_on_the_path_while_the_daemon_runs_is_not_run() {
    let world = World::new();
    let repo = world.repo("repo");
    let (bin, marker) = (world.home().join(".local/bin"), world.path().join("ran"));
    std::fs::create_dir_all(&bin).unwrap();
    let daemon = world.daemon_with(&[("PATH", &path_with(&[&bin]))]);
    program::write(&bin.join("git"), &marking("git", &marker));
    let script = "git commit -q --allow-empty -m work";
    let id = world.spawn(&repo, script, &["--worktree", "--wait"]).ok();
    assert_eq!(repo.git(&["log", "-1", "--format=%s", &format!("muleteer/{id}")]), "work");
    assert!(!marker.exists(), "the daemon ran it");
    world.finish(Some(daemon));
}

/// A git that a person has in HOME runs as it was when the daemon started.
#[test]
fn git_in_home_that_is_replaced_while_the_daemon_runs_is_not_run() {
    let world = World::new();
    let repo = world.repo("repo");
    let (bin, marker) = (world.home().join(".local/bin"), world.path().join("ran"));
    std::fs::create_dir_all(&bin).unwrap();
    program::copy(&program::real("git"), &bin.join("git"));
    let daemon = world.daemon_with(&[("PATH", &path_with(&[&bin]))]);
    program::write(&bin.join("new"), &marking("git", &marker));
    std::fs::rename(bin.join("new"), bin.join("git")).unwrap();
    let script = "git commit -q --allow-empty -m work";
    let id = world.spawn(&repo, script, &["--worktree", "--wait"]).ok();
    assert_eq!(repo.git(&["log", "-1", "--format=%s", &format!("muleteer/{id}")]), "work");
    assert!(!marker.exists(), "the daemon ran it");
    world.finish(Some(daemon));
}

#[test]
fn shim_that_is_replaced_while_the_daemon_runs_is_not_run() {
    let world = World::new();
    let repo = world.repo("repo");
    let (own, marker) = (world.path().join("own"), world.path().join("ran"));
    std::fs::create_dir(&own).unwrap();
    for name in ["muleteer", "muleteer-shim"] {
        program::copy(&world.program().with_file_name(name), &own.join(name));
    }
    let run = "shift; exec \"$0\" \"$@\"";
    let words = ["sh", "-c", run, own.join("muleteer").to_str().unwrap()].map(String::from);
    let daemon = world.daemon_under(&words);
    wait_until("the daemon to answer", muleteer_tests::PATIENCE, || {
        (world.status()["daemon"]["running"] == true).then_some(())
    });
    program::write(&own.join("new"), &format!("#!/bin/sh\n: > '{}'\n", marker.display()));
    std::fs::rename(own.join("new"), own.join("muleteer-shim")).unwrap();
    // The next zygote begins from the file too.
    processes::kill_zygote(daemon.pid());
    for _ in 0..2 {
        world.spawn(&repo, "true", &["--wait"]).ok();
    }
    assert!(!marker.exists(), "the daemon ran it");
    world.finish(Some(daemon));
}

/// Written by a run's agent: everything by which git at the remote, or `gh`, would run a program.
/// The agent itself goes on with what was there before.
const ATTACK: &str = r#"
  PATH=$(printf %s "$PATH" | sed "s#$HOME/.local/bin:##g")
  test -e "$HOME/before" || cp "$HOME/.gitconfig" "$HOME/before"
  export GIT_CONFIG_GLOBAL="$HOME/before"
  cat >> "$HOME/.gitconfig" <<END
[protocol "ext"]
  allow = always
[url "ext::sh -c %S% touch% $HOME/ran-ext"]
  insteadOf = person:
[core]
  sshCommand = touch $HOME/ran-ssh; false
  fsmonitor = touch $HOME/ran-fsmonitor
  attributesFile = $HOME/attributes
  hooksPath = $HOME/hooks
[filter "evil"]
  smudge = touch $HOME/ran-filter; cat
END
  echo '* filter=evil' > "$HOME/attributes"
  mkdir -p "$HOME/hooks"
  for name in .local/bin/git .local/bin/gh .local/bin/ssh hooks/pre-push; do
    printf '#!/bin/sh\ntouch "$HOME/ran-%s"\n' "${name##*/}" > "$HOME/$name"
    chmod 755 "$HOME/$name"
  done
"#;
/// The agents of the test have no sandbox, which would prevent most of the attack.
const SETTINGS: &str = "sandbox: off\n\
    run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n";

/// The person's own `core.sshCommand`, in an included file, and their own `gh` still work.
#[test]
fn what_an_agent_writes_for_git_and_gh_has_no_effect_at_the_push() {
    let stage = SpecStage::new(&AGENT.replace("implement)", &format!("implement) {ATTACK}")));
    stage.world.configure("sandbox: off\n");
    stage.configure(SETTINGS);
    let home = stage.world.home();
    let origin = stage.world.path().join("origin.git");
    let origin = origin.to_str().unwrap();
    stage.repo.git(&["init", "--quiet", "--bare", "--initial-branch=main", origin]);
    stage.repo.git(&["push", "--quiet", origin, "main"]);
    stage.repo.git(&["remote", "add", "origin", "person:origin"]);
    let bin = home.join(".local/bin");
    std::fs::create_dir_all(&bin).unwrap();
    // Its last argument is the command for the other machine.
    let last = "for word; do :; done\nexec \"${word%% *}\"";
    let ssh = format!("#!/bin/sh\n: > \"$HOME/own-ssh\"\n{last} '{origin}'\n");
    program::write(&home.join("own-ssh.sh"), &ssh);
    let gh = "#!/bin/sh\n: > \"$HOME/own-gh\"\necho https://example.org/pull/1\n";
    program::write(&stage.world.bin().join("gh"), gh);
    let own = std::fs::read_to_string(home.join(".gitconfig")).unwrap();
    std::fs::write(home.join(".gitconfig"), own + "[include]\n\tpath = more\n").unwrap();
    let more = format!("[core]\n\tsshCommand = {}/own-ssh.sh\n", home.display());
    std::fs::write(home.join("more"), more).unwrap();
    let daemon = stage.world.daemon();
    stage.begin(&[]).env("PATH", path_with(&[&bin, &stage.world.bin()])).run().expect_code(0);
    let document = stage.status();
    let run = document["run_id"].as_str().unwrap();
    let written = std::fs::read_to_string(home.join(".gitconfig")).unwrap();
    assert!(written.contains("ran-ext") && bin.join("gh").exists(), "the attack took place");
    let names = std::fs::read_dir(&home).unwrap().flatten();
    let ran: Vec<_> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("ran-"))
        .collect();
    assert_eq!(ran, Vec::<String>::new(), "{document}");
    let branch = format!("refs/heads/muleteer/{run}");
    assert!(!stage.repo.git(&["ls-remote", origin, &branch]).is_empty(), "{document}");
    assert!(home.join("own-ssh").exists() && home.join("own-gh").exists(), "{document}");
    assert!(document.to_string().contains("https://example.org/pull/1"), "{document}");
    stage.world.finish(Some(daemon));
}
