//! Agents with a HOME of their own: nothing that they write there reaches the person's, but for a
//! renewed login (docs/guides/sandbox.md).

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::attack::Attack;
use muleteer_tests::crash::runs::SCENARIO as RUN;
use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::{PATIENCE, last};
use muleteer_tests::{World, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const OLD: &str = "{\"token\":\"1\"}\n";
const NEW: &str = "{\"token\":\"2\"}\n";

/// Fills HOME as a person's is filled.
fn furnish(home: &Path) {
    for (name, text) in [
        (".bashrc", "export FROM_RC=1\n"),
        (".cache/pip/wheel", "a wheel\n"),
        (".cargo/bin/tool", "#!/bin/sh\n"),
        (".cargo/credentials.toml", "a secret token\n"),
        (".cargo/registry/index", "an index\n"),
        (".claude.json", "{\"hasCompletedOnboarding\":true,\"primaryApiKey\":\"zq-key\"}\n"),
        (".claude/.credentials.json", OLD),
        (".claude/projects/old/talk.jsonl", "a conversation\n"),
        (".claude/history.jsonl", "a prompt\n"),
        (".claude/.claude.json.backup.1", "a prompt\n"),
        (".claude/backups/.claude.json.backup.1", "a prompt\n"),
        (".claude/image-cache/old/1.png", "a prompt\n"),
        (".claude/paste-cache/old.txt", "a prompt\n"),
        (".claude/plans/old.md", "a conversation\n"),
        (".claude/settings.json", "{}\n"),
        (".cline/data/sessions/old", "a conversation\n"),
        (".codex/history.jsonl", "a prompt\n"),
        (".codex/log/old.log", "a conversation\n"),
        (".codex/session_index.jsonl", "a conversation\n"),
        (".copilot/session-state/old", "a conversation\n"),
        (".cursor/chats/old/store.db", "a conversation\n"),
        (".gemini/settings.json", "{}\n"),
        (".gemini/tmp/old", "a conversation\n"),
        (".gemini/history/old", "a conversation\n"),
        (".kimi/plans/old.md", "a conversation\n"),
        (".kimi/user-history/old.jsonl", "a prompt\n"),
        (".local/share/opencode/auth.json", "a login\n"),
        (".local/share/opencode/opencode.db", "a conversation\n"),
        (".pi/agent/sessions/old/talk.jsonl", "a conversation\n"),
        (".qwen/projects/old/talk.jsonl", "a conversation\n"),
        (".vibe/vibehistory", "a prompt\n"),
        (".codex/config.toml", "model = \"m\"\n"),
        (".local/bin/tool", "#!/bin/sh\n"),
        (".rustup/settings.toml", "version = \"12\"\n"),
        (".ssh/id_ed25519", "a secret key\n"),
        (".ssh/known_hosts", "a host\n"),
    ] {
        let path = home.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// Returns the text of every file below a folder, and an empty text for every folder.
fn contents(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut next = vec![top.to_owned()];
    while let Some(folder) = next.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                next.push(path.clone());
                found.insert(path, String::new());
            } else {
                let bytes = std::fs::read(&path).unwrap_or_default();
                found.insert(path, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }
    found
}

const ATTACK: &str = r#"
export -p > /dev/null
for file in .gitconfig .bashrc .local/bin/git .claude/settings.json .claude/hooks/a.sh \
  .codex/config.toml .config/systemd/user/a.service .ssh/config .zshenv .cargo/bin/git \
  .cargo/config.toml .cache/pip/wheel .cache/pip/mine .cargo/registry/mine .rustup/settings.toml \
  .profile bin/git .config/muleteer/config.yaml .claude.json; do
  mkdir -p "$HOME/$(dirname "$file")"
  echo evil > "$HOME/$file"
done
rm -rf "$HOME/.cargo" "$HOME/.claude/settings.json" "$HOME/.codex" "$HOME/.local"
ln -s /etc "$HOME/.m2"
for key in .ssh/id_ed25519 .cargo/credentials.toml .claude/projects/old; do
  test -e "$HOME/$key" && through "read $key"
done
for state in $(find / -xdev -name private -path '*agents*' 2>/dev/null); do
  through "the folder $state"
done
true
"#;

const WORK: &str = r#"
test "$(cat "$HOME/.cache/pip/wheel")" = "a wheel" || through "no cache"
echo mine > "$HOME/.cache/pip/mine" || through "the cache cannot be written"
test "$(cat "$HOME/.cargo/registry/index")" = "an index" || through "no registry"
grep -q known "$HOME/.ssh/known_hosts"; test -r "$HOME/.ssh/known_hosts" || through "no hosts"
test "$(git config user.name)" = Tester || through "no identity"
grep -q FROM_RC "$HOME/.bashrc" || through "no settings of the shell"
test -x "$HOME/.cargo/bin/tool" || test -r "$HOME/.cargo/bin/tool" || through "no tools"
grep -q Onboarding "$HOME/.claude.json" || through "no state of the CLI"
grep -q '"token":"1"' "$HOME/.claude/.credentials.json" || through "no login"
echo '{}' > "$HOME/.claude/settings.json" || through "the CLI cannot write its home"
mkdir -p "$HOME/.claude/projects/mine" || through "no conversations"
test "$(stat -c %u "$HOME/.claude/projects")" = "$(id -u)" || through "the owner"
for old in $(grep -rlE 'a (conversation|prompt)' "$HOME"); do through "the conversation $old"; done
test -r "$HOME/.gemini/settings.json" || through "no settings of another CLI"
grep -q login "$HOME/.local/share/opencode/auth.json" || through "no login of another CLI"
echo mine > "$HOME/.local/share/opencode/opencode.db" || through "no database"
mkdir "$HOME/.qwen/projects/mine" "$HOME/.gemini/tmp/mine" || through "no conversations"
"#;

#[test]
fn writes_of_an_agent_reach_nothing_in_the_home_of_the_person() {
    let test = "writes_of_an_agent_reach_nothing_in_the_home_of_the_person";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        // The cache of pip follows this variable.
        let home = attack.world.home();
        furnish(&home);
        std::fs::create_dir_all(attack.world.path().join("cache/pip")).unwrap();
        std::fs::write(attack.world.path().join("cache/pip/wheel"), "a wheel\n").unwrap();
        let daemon = attack.daemon();
        let before = contents(&home);
        let work = WORK.replace("$HOME/.cache", "$XDG_CACHE_HOME");
        assert_eq!(attack.run(&work), "", "nobody: {nobody}");
        assert_eq!(attack.run(ATTACK), "", "nobody: {nobody}");
        assert_eq!(contents(&home), before, "nobody: {nobody}");
        let cache = attack.world.path().join("cache/pip");
        assert_eq!(contents(&cache).len(), 1, "nobody: {nobody}");
        let caches = |name: &str| {
            let agents = std::fs::read_dir(attack.world.state().join("agents")).unwrap();
            agents.filter(|agent| agent.as_ref().unwrap().path().join(name).exists()).count()
        };
        assert_eq!((caches("private/home"), caches("private/caches")), (2, 0), "they passed");
        attack.end(daemon);
    }
}

#[test]
fn renewed_login_of_an_agent_comes_back_and_no_copy_stays() {
    let test = "renewed_login_of_an_agent_comes_back_and_no_copy_stays";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        let home = attack.world.home();
        furnish(&home);
        // The login of a person who keeps such files elsewhere.
        let linked = home.join("dot/auth.json");
        std::fs::create_dir(home.join("dot")).unwrap();
        std::fs::write(&linked, OLD).unwrap();
        std::os::unix::fs::symlink("../dot/auth.json", home.join(".codex/auth.json")).unwrap();
        let daemon = attack.daemon();
        let login = home.join(".claude/.credentials.json");
        let spoil = "printf %s 'no login' > \"$HOME/.claude/.credentials.json\"";
        // As a CLI does it.
        let moved = "cd \"$HOME/.claude\" && printf %s '{\"token\":\"2\"}\n' > new && mv new \
                     .credentials.json";
        let backup = "cd \"$HOME\" && mkdir -p .claude/backups && cp .claude.json \
                      .claude.json.backup && cp .claude.json .claude/.claude.json.backup.17 && cp \
                      .claude.json .claude/backups/.claude.json.backup.18 || through 'no backup'";
        assert_eq!(attack.run(backup), "");
        assert_eq!(attack.run(moved), "");
        assert_eq!(std::fs::read_to_string(&login).unwrap(), NEW, "nobody: {nobody}");
        assert_eq!(attack.run(spoil), "");
        assert_eq!(std::fs::read_to_string(&login).unwrap(), NEW, "nobody: {nobody}");
        let (address, more) = (r#"{"token":"http://evil"}"#, r#"{"token":"3","key":"!evil"}"#);
        for changed in [address, more] {
            let write = format!("printf %s '{changed}' > \"$HOME/.claude/.credentials.json\"");
            assert_eq!(attack.run(&write), "");
            assert_eq!(std::fs::read_to_string(&login).unwrap(), NEW, "nobody: {nobody}");
        }
        let renewed = "grep -q '\"1\"' \"$HOME/.codex/auth.json\" || through 'no login'; \
                       sed -i 's/1/2/' \"$HOME/.codex/auth.json\"";
        assert_eq!(attack.run(renewed), "");
        assert_eq!(std::fs::read_to_string(&linked).unwrap(), OLD, "nobody: {nobody}");
        let link = "ln -sf /etc/hostname \"$HOME/.claude/.credentials.json\"";
        assert_eq!(attack.run(link), "");
        assert_eq!(std::fs::read_to_string(&login).unwrap(), NEW, "nobody: {nobody}");
        let all = contents(&attack.world.state().join("agents"));
        let is_copy = |text: &str| text.contains("\"token\"") || text.contains("zq-key");
        let copies: Vec<_> = all.iter().filter(|(_, text)| is_copy(text)).collect();
        assert!(copies.is_empty(), "{copies:?}");
        attack.end(daemon);
    }
}

/// A person may move the homes of CLIs by variables.
#[test]
fn conversations_in_moved_homes_of_clis_are_not_shown() {
    let test = "conversations_in_moved_homes_of_clis_are_not_shown";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(mut attack) = made else { return };
        let top = attack.world.path().join("moved");
        let mut check = String::new();
        for (variable, folder, shown, old) in [
            ("CLAUDE_CONFIG_DIR", "claude", "settings.json", "plans/a.md"),
            ("CODEX_HOME", "codex", "config.toml", "log/a.log"),
            // These homes are not shown at all if they are elsewhere.
            ("GEMINI_CLI_HOME", "gemini", "", ".gemini/history/a"),
            ("QWEN_HOME", "qwen", "", "history/a"),
            ("XDG_DATA_HOME", "data", "amp/secrets.json", "amp/threads/a"),
            ("XDG_DATA_HOME", "data", "goose/models.json", "goose/sessions/a"),
            ("XDG_DATA_HOME", "data", "opencode/auth.json", "opencode/snapshot/a"),
        ] {
            let files = [(shown, "{}\n"), (old, "a conversation\n")];
            for (name, text) in files.into_iter().filter(|(name, _)| !name.is_empty()) {
                let path = top.join(folder).join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            attack.variables.push(format!("{variable}={}", top.join(folder).display()));
            let lines = format!(
                "test -z '{shown}' || test -r \"${variable}/{shown}\" || through 'no {shown}'\n\
                 test -e \"${variable}/{old}\" && through 'the conversation {old}'\n"
            );
            check.push_str(&lines);
        }
        let daemon = attack.daemon();
        let before = contents(&top);
        assert_eq!(attack.run(&check), "", "nobody: {nobody}");
        assert_eq!(contents(&top), before, "nobody: {nobody}");
        attack.end(daemon);
    }
}

/// The kernel makes a folder of an overlay that an ordinary user may not read.
#[test]
fn doctor_leaves_nothing_in_the_state_directory() {
    let test = "doctor_leaves_nothing_in_the_state_directory";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        let daemon = attack.daemon();
        let said = attack.muleteer(&["doctor", "--json"]).run();
        assert!(said.stdout.contains("sandbox.overlays"), "{said:?}");
        let entries = std::fs::read_dir(attack.world.state()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names.filter(|name| name.starts_with("doctor")).collect();
        assert!(left.is_empty(), "{left:?}, nobody: {nobody}");
        attack.end(daemon);
    }
}

/// The limit is sampled, so the agent lives until the next sample.
#[test]
fn private_home_has_a_limit() {
    let test = "private_home_has_a_limit";
    let Some(attack) = Attack::new(test) else { return };
    furnish(&attack.world.home());
    attack.world.configure("sandbox: {max_home_mib: 8}\n");
    let daemon = attack.daemon();
    let small = "head -c 3000000 /dev/zero > \"$HOME/file\" || through 'not written'; sleep 5";
    assert_eq!(attack.run(small), "");
    for file in ["$HOME/.claude/file", "$HOME/.cargo/registry/file"] {
        let script =
            format!("head -c 12000000 /dev/zero > \"{file}\"; sleep 100; through 'all of it'");
        assert_eq!(attack.run(&script), "", "{file}");
    }
    let status = attack.muleteer(&["status", "--all", "--json"]).run();
    let reason = "\"reason\":\"stopped after a limit of its shim";
    assert_eq!(status.stdout.matches(reason).count(), 2, "{}", status.stdout);
    attack.end(daemon);
}

/// The person's settings stay readable, the caches start empty, and `doctor` names the reason.
#[cfg(target_os = "linux")]
#[test]
fn kernel_that_refuses_overlays_leaves_a_usable_private_home() {
    let test = "kernel_that_refuses_overlays_leaves_a_usable_private_home";
    const CHECK: &str = r#"
test -r "$HOME/.claude/settings.json" || through "no settings"
echo evil > "$HOME/.claude/settings.json" && through "the settings can be written"
grep -q '"token":"1"' "$HOME/.claude/.credentials.json" || through "no login"
mkdir -p "$HOME/.claude/projects/mine" || through "no conversations"
test -e "$HOME/.cargo/registry/index" && through "a cache is shown"
echo mine > "$HOME/.cargo/registry/mine" || through "the cache cannot be written"
for old in $(grep -rlE 'a (conversation|prompt)' "$HOME"); do through "the conversation $old"; done
for key in .ssh/id_ed25519 .cargo/credentials.toml; do
  test -e "$HOME/$key" && through "read $key"
done
true
"#;
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        let home = attack.world.home();
        furnish(&home);
        // The filter holds for one thread, and for the processes that it starts.
        let refused = std::thread::spawn(move || {
            refuse_overlays();
            let daemon = attack.daemon();
            let before = contents(&home);
            assert_eq!(attack.run(CHECK), "", "nobody: {nobody}");
            assert_eq!(contents(&home), before, "nobody: {nobody}");
            let said = attack.muleteer(&["doctor", "--json"]).run();
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            let mut checks = report["checks"].as_array().into_iter().flatten();
            let overlays = checks.find(|check| check["name"] == "sandbox.overlays");
            let overlays = overlays.unwrap_or_else(|| panic!("{report}"));
            assert_eq!(overlays["status"], "warn", "{overlays}");
            attack.end(daemon);
        });
        refused.join().unwrap();
    }
}

/// Makes the kernel refuse overlays to this thread, as kernels before 5.11 and some security
/// modules do. The flags tell the sandbox's overlays from its other mounts.
#[cfg(target_os = "linux")]
fn refuse_overlays() {
    use rustix::mount::MountFlags;
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };
    const MOUNT: i64 = if cfg!(target_arch = "x86_64") { 165 } else { 40 };
    let flags = u64::from((MountFlags::NOSUID | MountFlags::NODEV).bits());
    let is_overlay =
        SeccompCondition::new(3, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, flags).unwrap();
    let rules = [(MOUNT, vec![SeccompRule::new(vec![is_overlay]).unwrap()])].into();
    let refused = SeccompAction::Errno(1);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// The agent's first process is killed; the second one finds what the first one wrote.
#[test]
fn private_home_survives_the_agent_and_the_daemon() {
    let test = "private_home_survives_the_agent_and_the_daemon";
    if !muleteer_tests::spec_stage::confined() {
        return skip(test, "no namespaces");
    }
    let world = World::new();
    furnish(&world.home());
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let scenario = world.path().join("scenario.yaml");
    let steps = "v: 1\nturns:\n  - steps:\n      - run: |\n          test -e \"$HOME/note\" && cat \
                 \"$HOME/note\" > found && exit 0\n          echo mine > \"$HOME/note\"; rm -rf \
                 \"$HOME/.codex\"; ln -s /etc \"$HOME/.codex\"\n          touch ready; while ! \
                 test -e go; do sleep 0.05; done\n      - result: {status: success, summary: \
                 done}\n";
    std::fs::write(&scenario, steps).unwrap();
    let args = ["spawn", "developer", repo.to_str(), "do it", "--sandbox", "on", "--scenario"];
    let id = world.muleteer(&[&args[..], &[scenario.to_str().unwrap()]].concat()).ok();
    let id = id.trim().to_string();
    wait_until("the agent", PATIENCE, || repo.path.join("ready").exists().then_some(()));
    daemon.kill_9();
    let daemon = world.daemon();
    let entry = world.wait_for_state(&id, &["running"]);
    assert_eq!(entry["attempts"], 1, "adopted");
    world.kill_9(u32::try_from(entry["pid"].as_u64().unwrap()).unwrap());
    let entry = world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&"success".into(), &2.into()), "{entry}");
    assert_eq!(repo.read("found"), "mine\n");
    assert!(!world.home().join("note").exists());
    world.finish(Some(daemon));
}

/// The network is open, and root is stopped by less; nothing else weakens the sandbox of a scripted
/// judge.
#[test]
fn run_with_private_homes_says_enforced_unless_its_agents_are_root() {
    let test = "run_with_private_homes_says_enforced_unless_its_agents_are_root";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        let scenario = attack.world.path().join("scenario.yaml");
        std::fs::write(&scenario, RUN).unwrap();
        std::fs::create_dir(attack.world.home().join("out")).unwrap();
        attack.world.configure("sandbox: {write: [~/out]}\n");
        attack.repo.write("plan.md", "# Four files\n\nEach says what it is about.\n");
        let daemon = attack.daemon();
        let args = ["run", "--spec", "plan.md", "--json", "--scenario", scenario.to_str().unwrap()];
        let said = attack.muleteer(&args).current_dir(&attack.repo.path).run().expect_code(0);
        let document = last(&said.stdout);
        let enforced = &document["enforced"];
        let root = rustix::process::geteuid().is_root() && !nobody;
        let claim = if root { "checked" } else { "enforced" };
        assert_eq!(enforced["judge_read_only"], claim, "{enforced}");
        assert_eq!(enforced["acceptance_hidden"], claim, "{enforced}");
        let text = enforced[if root { "reason" } else { "by" }].as_str().unwrap();
        assert!(text.contains(if root { "root" } else { "private HOME" }), "{enforced}");
        assert!(!text.contains("HOME, from which"), "{enforced}");
        attack.end(daemon);
    }
}

/// HOME is shared only if a trusted configuration says so.
#[test]
fn shared_home_is_written_and_a_repository_cannot_choose_it() {
    let test = "shared_home_is_written_and_a_repository_cannot_choose_it";
    let Some(attack) = Attack::new(test) else { return };
    furnish(&attack.world.home());
    std::fs::create_dir_all(attack.repo.path.join(".muleteer")).unwrap();
    attack.repo.write(".muleteer/config.yaml", "sandbox: {home: shared}\n");
    let note = attack.world.home().join("note");
    let daemon = attack.daemon();
    assert_eq!(attack.run("echo mine > \"$HOME/note\""), "");
    assert!(!note.exists(), "nobody trusts the repository");
    attack.world.configure("sandbox: {home: shared}\n");
    assert_eq!(attack.run("echo mine > \"$HOME/note\" || through 'not writable'"), "");
    assert!(note.exists());
    let status: Value = attack.world.status();
    assert_eq!(status["daemon"]["running"], true);
    attack.end(daemon);
}
