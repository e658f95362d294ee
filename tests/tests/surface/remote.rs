//! `--remote`: verbs against another host's daemon. The other host is this one: first behind a
//! program that stands for ssh, then behind a real sshd on loopback.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::world::processes::is_alive;
use muleteer_tests::{PATIENCE, World, program, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Puts `muleteer` on the PATH of the other side, and a program in the place of ssh. It runs the
/// command as sshd does: joined by spaces, by a shell, in the home directory. `first` runs before,
/// in the first call only, with the command as `"$*"`.
fn stand_in(world: &World, first: &str) -> PathBuf {
    let own = format!("#!/bin/sh\nexec '{}' \"$@\"\n", world.program().display());
    program::write(&world.bin().join("muleteer"), &own);
    let mark = world.path().join("called");
    let ssh = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\n[ \"$1\" = me@box ] || exit \
         255\nshift\ncd\nif mkdir '{}' 2>/dev/null; then :\n{first}\nfi\nexec sh -c \"$*\"\n",
        mark.display()
    );
    program::write(&world.bin().join("ssh"), &ssh);
    mark
}

fn dispatches(world: &World) -> Vec<Value> {
    world.status()["dispatches"].as_array().unwrap().clone()
}

#[test]
fn verbs_run_on_the_other_host_with_their_output_and_exit_code() {
    let world = World::new();
    let repo = world.repo("repo");
    stand_in(&world, "");
    let daemon = world.daemon();
    let there = |args: &[&str]| world.muleteer(&[&["--remote", "me@box"], args].concat());
    let spawn = ["spawn", "developer", repo.to_str(), "--backend", "subprocess", "--command"];
    let script = "cat; echo 'it'\\''s done'";
    let said = there(&[&spawn[..], &[script, "--wait", "-q"]].concat())
        .stdin("a prompt with 'quotes' and $signs")
        .ok();
    let id = said.lines().next().unwrap_or_default().to_string();
    let logs = there(&["logs", &id]).ok();
    assert!(logs.contains("it's done") && logs.contains("'quotes' and $signs"), "{logs}");
    let status = there(&["status", "--json"]).json();
    assert_eq!(status["dispatches"][0]["id"].as_str(), Some(id.as_str()), "{status}");
    let failed = there(&[&spawn[..], &["exit 7", "--wait"]].concat()).stdin("fail").run();
    assert_eq!(failed.code, Some(4), "{failed:?}");
    let by_variable = world.muleteer(&["status", "--json"]).env("MULETEER_HOST", "me@box").json();
    assert_eq!(by_variable["dispatches"].as_array().map(Vec::len), Some(2), "{by_variable}");
    world.finish(Some(daemon));
}

#[test]
fn request_whose_answer_is_lost_takes_effect_once() {
    let world = World::new();
    let repo = world.repo("repo");
    // The verb does its work, then its output and ssh are lost.
    let mark = stand_in(&world, "sh -c \"$*\" >/dev/null 2>&1\nkill -9 $$");
    let daemon = world.daemon();
    let there = |args: &[&str]| world.muleteer(&[&["--remote", "me@box"], args].concat());
    let spawn = ["spawn", "developer", repo.to_str(), "--backend", "subprocess", "--command"];
    let id = there(&[&spawn[..], &["cat; exec sleep 600"]].concat()).stdin("do it").ok();
    let all = dispatches(&world);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["id"].as_str(), Some(id.as_str()));
    wait_until("the agent to run", PATIENCE, || {
        (world.dispatch(&id)["state"] == "running").then_some(())
    });
    std::fs::remove_dir(&mark).unwrap();
    there(&["kill", &id]).ok();
    assert_eq!(world.events_of(&id, "kill_requested").len(), 1);
    world.finish(Some(daemon));
}

#[test]
fn prompt_that_a_lost_connection_cut_is_not_taken_for_a_whole_one() {
    let world = World::new();
    let repo = world.repo("repo");
    // The first connection is lost in the middle of stdin.
    stand_in(&world, "head -c 20000 | sh -c \"$*\"\nexit 255");
    let daemon = world.daemon();
    let prompt = "x".repeat(40_000);
    let spawn = ["--remote", "me@box", "spawn", "developer", repo.to_str(), "--backend"];
    let spawn = [&spawn[..], &["subprocess", "--command", "cat > got", "--wait"]].concat();
    world.muleteer(&spawn).stdin(&prompt).ok();
    assert_eq!(dispatches(&world).len(), 1);
    assert_eq!(repo.read("got").trim_end().len(), prompt.len());
    world.finish(Some(daemon));
}

#[test]
fn host_that_cannot_be_reached_is_an_error_with_its_code() {
    let world = World::new();
    stand_in(&world, "");
    let said = world.muleteer(&["--remote", "you@nowhere", "status", "--json"]).run();
    assert_eq!((said.code, said.error_code().as_str()), (Some(3), "E_NO_DAEMON"), "{said:?}");
    program::write(&world.bin().join("ssh"), "#!/bin/sh\nexit 127\n");
    let said = world.muleteer(&["--remote", "me@box", "status", "--json"]).run();
    assert_eq!((said.code, said.error_code().as_str()), (Some(3), "E_NO_DAEMON"), "{said:?}");
    let said = world.muleteer(&["--remote=-oProxyCommand=x", "status"]).run();
    assert_eq!(said.code, Some(2), "{said:?}");
    world.finish(None);
}

/// The other side of a connection without a shell: it reads no words but those of its protocol, and
/// has variables and a shell's greeting of its own.
fn connected(world: &World, before: &str) {
    let ssh = format!(
        "#!/bin/sh\necho \"$*\" >> '{}'\n{before}\nexport MULETEER_HOST=me@box\n\
         exec '{}' connect\n",
        world.path().join("called").display(),
        world.program().display()
    );
    program::write(&world.bin().join("ssh"), &ssh);
}

#[test]
fn one_command_serves_every_verb_and_no_shell_reads_its_words() {
    let world = World::new();
    let repo = world.repo("repo");
    connected(&world, "echo 'Welcome to box'");
    let daemon = world.daemon();
    let there = |args: &[&str]| world.muleteer(&[&["--remote", "me@box"], args].concat());
    let prompt = "it's \"so\"\n$HOME `id` -- \\ größe";
    let spawn = ["spawn", "developer", repo.to_str(), prompt, "--backend", "subprocess"];
    let made = there(&[&spawn[..], &["--command", "cat", "--json", "--wait"]].concat()).json();
    let id = made["dispatch_id"].as_str().unwrap();
    assert!(there(&["logs", id]).ok().contains("$HOME `id` -- \\ größe"));
    let called = std::fs::read_to_string(world.path().join("called")).unwrap();
    for line in called.lines() {
        assert!(line.ends_with(" me@box muleteer connect"), "{called}");
    }
    world.finish(Some(daemon));
}

#[test]
fn output_has_the_width_and_colours_of_this_terminal() {
    let world = World::new();
    let repo = world.repo("repo");
    connected(&world, "export COLUMNS=200");
    let daemon = world.daemon();
    let title = "a long title ".repeat(12);
    world.spawn(&repo, "true", &["--title", title.trim(), "--wait"]).ok();
    let there = |args: &[&str]| world.muleteer(&[&["--remote", "me@box"], args].concat());
    let shown = there(&["status"]).env("COLUMNS", "50").ok();
    assert!(shown.lines().all(|line| line.chars().count() <= 50), "{shown}");
    let shown = there(&["status"]).env("CLICOLOR_FORCE", "1").ok();
    assert!(shown.contains("\u{1b}["), "{shown}");
    assert!(!there(&["status"]).ok().contains("\u{1b}["));
    world.finish(Some(daemon));
}

#[test]
fn verb_of_the_other_host_ends_with_its_user() {
    for signal in [Signal::INT, Signal::TERM] {
        let world = World::new();
        let repo = world.repo("repo");
        let verb = world.path().join("verb");
        connected(&world, &format!("echo $$ > '{}'", verb.display()));
        let daemon = world.daemon();
        let id = world.spawn(&repo, "exec sleep 600", &[]).ok();
        let waiting = world.muleteer(&["--remote", "me@box", "wait", &id]).start();
        let pid = wait_until("the verb to wait", PATIENCE, || {
            std::fs::read_to_string(&verb).ok()?.trim().parse::<u32>().ok()
        });
        world.signal(waiting.pid(), signal);
        let said = waiting.finish();
        let code = if signal == Signal::INT { Some(130) } else { None };
        assert_eq!(said.code, code, "{said:?}");
        wait_until("the verb to end", PATIENCE, || (!is_alive(pid)).then_some(()));
        assert_eq!(world.dispatch(&id)["state"], "running");
        world.muleteer(&["kill", &id]).ok();
        world.finish(Some(daemon));
    }
}

#[test]
fn verb_ends_when_nobody_hears_it_any_more() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "exec sleep 600", &[]).ok();
    let body = serde_json::json!({"v": 1, "args": ["wait", id]}).to_string();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    // The empty piece is the end of the verb's stdin: the verb must not end because of a cut one.
    let order = [b"MULE", &length[..], body.as_bytes(), &[0; 4]].concat();
    std::fs::write(world.path().join("order"), order).unwrap();
    // The verb waits and prints nothing; the mark before its output is ten bytes.
    let line = format!("'{}' connect < order | head -c 10", world.program().display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(world.path()).stdout(Stdio::null());
    world.environment(&mut shell);
    let mut shell = shell.spawn().unwrap();
    let ended = || shell.try_wait().unwrap().map(|_| ());
    wait_until("the verb to end", PATIENCE, ended);
    assert_eq!(world.dispatch(&id)["state"], "running");
    world.muleteer(&["kill", &id]).ok();
    world.finish(Some(daemon));
}

#[test]
fn host_without_a_verb_is_an_error_and_is_asked_for_a_password_once() {
    let world = World::new();
    let called = world.path().join("called");
    for (script, code, word) in [
        ("exit 255", 2, "ssh failed"),
        ("echo 'This account is not available.'; exit 1", 1, "did not run the verb"),
        ("echo '{}'; exit 0", 1, "did not run the verb"),
    ] {
        connected(&world, script);
        let said = world.muleteer(&["--remote", "me@box", "status", "--json"]).run();
        assert_eq!((said.code, said.error_code().as_str()), (Some(3), "E_NO_DAEMON"), "{said:?}");
        assert!(said.stdout.contains(word), "{said:?}");
        let lines = std::fs::read_to_string(&called).unwrap();
        assert_eq!(lines.lines().count(), code, "{lines}");
        let quiet = lines.lines().filter(|line| line.contains("-oBatchMode=yes")).count();
        assert_eq!(quiet, code - 1, "{lines}");
        std::fs::remove_file(&called).unwrap();
    }
    let agent = world.muleteer(&["completions", "bash"]).env("MULETEER_HOST", "me@box");
    agent.env("MULETEER_SOCKET", "/nowhere/socket").ok();
    assert!(!called.exists(), "an agent has its daemon");
    world.finish(None);
}

#[test]
fn connect_relays_the_protocol_and_ends_with_its_peer() {
    let world = World::new();
    let daemon = world.daemon();
    // A peer that says nothing gets nothing; the end of its input ends the relay.
    let said = world.muleteer(&["connect"]).run().expect_code(0);
    assert_eq!(said.stdout, "");
    world.finish(Some(daemon));
}

// ---- A real sshd

/// An sshd on loopback whose sessions have the world's environment.
struct Sshd {
    child: Child,
}

impl Sshd {
    /// Starts one, or says why it cannot.
    fn start(world: &World) -> Result<Self, String> {
        let sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(Path::new);
        let named = std::env::var_os("MULETEER_TEST_SSHD").map(PathBuf::from);
        let found = named.or_else(|| sshd.iter().find(|path| path.is_file()).map(Into::into));
        let sshd = found.ok_or("sshd is not installed")?;
        let ssh = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .map(|folder| folder.join("ssh"))
            .find(|path| path.is_file())
            .ok_or("ssh is not installed")?;
        let folder = world.path().join("sshd");
        std::fs::create_dir(&folder).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)])
                .status();
            made.ok().filter(|status| status.success()).ok_or("ssh-keygen does not work")?;
        }
        std::fs::copy(file("user.pub"), file("authorized")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let path = format!("{}:/usr/bin:/bin", world.bin().display());
        let root = world.path().display();
        let variables = format!(
            "HOME={0} PATH={path} XDG_STATE_HOME={root}/state XDG_CONFIG_HOME={root}/config \
             XDG_CACHE_HOME={root}/cache XDG_RUNTIME_DIR={root}/run TMPDIR={root}/tmp",
            world.home().display()
        );
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             PidFile none\nSetEnv {variables}\n",
            file("host"),
            file("authorized"),
        );
        std::fs::write(file("sshd_config"), config).unwrap();
        let client = format!(
            "Host box\n HostName 127.0.0.1\n Port {port}\n IdentityFile {}\n IdentitiesOnly yes\n \
             UserKnownHostsFile {}\n StrictHostKeyChecking accept-new\n BatchMode yes\n",
            file("user"),
            file("known"),
        );
        std::fs::write(file("ssh_config"), client).unwrap();
        let wrapper =
            format!("#!/bin/sh\nexec '{}' -F '{}' \"$@\"\n", ssh.display(), file("ssh_config"));
        program::write(&world.bin().join("ssh"), &wrapper);
        let own = format!("#!/bin/sh\nexec '{}' \"$@\"\n", world.program().display());
        program::write(&world.bin().join("muleteer"), &own);
        let log = std::fs::File::create(file("log")).unwrap();
        let child = Command::new(&sshd)
            .args(["-D", "-e", "-f", &file("sshd_config")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{}: {error}", sshd.display()))?;
        let mut sshd = Self { child };
        let answers = || {
            let ended = sshd.child.try_wait().unwrap().is_some();
            let mut ssh = Command::new(world.bin().join("ssh"));
            let ssh = ssh.args(["box", "true"]).stderr(Stdio::null()).status();
            (ended || ssh.unwrap().success()).then_some(ended)
        };
        if wait_until("sshd to answer", PATIENCE, answers) {
            let said = std::fs::read_to_string(file("log")).unwrap_or_default();
            return Err(format!("sshd does not start: {said}"));
        }
        Ok(sshd)
    }

    /// Kills every session, but not the server.
    fn kill_sessions(&self) -> usize {
        let found = Command::new("pgrep").args(["-P", &self.child.id().to_string()]).output();
        let found = String::from_utf8(found.unwrap().stdout).unwrap();
        let sessions: Vec<_> = found.split_whitespace().collect();
        for session in &sessions {
            // It may have ended by itself.
            let _ = Command::new("kill").args(["-9", session]).status();
        }
        sessions.len()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.kill_sessions();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn wait_over_a_real_sshd_survives_the_end_of_its_session() {
    let world = World::new();
    let repo = world.repo("repo");
    let sshd = match Sshd::start(&world) {
        Ok(sshd) => sshd,
        Err(why) => return skip("wait_over_a_real_sshd_survives_the_end_of_its_session", &why),
    };
    let daemon = world.daemon();
    let there = |args: &[&str]| world.muleteer(&[&["--remote", "box"], args].concat());
    let gate = world.path().join("gate");
    let script = format!("while ! test -e '{}'; do sleep 0.1; done; echo done", gate.display());
    let spawn = ["spawn", "developer", repo.to_str(), "do it", "--backend", "subprocess"];
    let id = there(&[&spawn[..], &["--command", &script]].concat()).ok();
    let mut waiting = there(&["wait", &id]).start();
    wait_until("a session", PATIENCE, || (sshd.kill_sessions() > 0).then_some(()));
    assert!(waiting.is_running(), "it connects again");
    std::fs::write(&gate, "").unwrap();
    let said = waiting.finish().expect_code(0);
    assert!(said.stdout.contains("success"), "{said:?}");
    assert_eq!(dispatches(&world).len(), 1);
    drop(sshd);
    world.finish(Some(daemon));
}
