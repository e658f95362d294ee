//! Agents that look for a way out of their view of the machine (docs/guides/sandbox.md): devices,
//! keys, other mounts, sockets, files that other programs obey, and the machine's resources.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::attack::Attack;
use muleteer_process::sandbox::probe::limits_ports;
use muleteer_process::sandbox::{Place, Plan, What};
use muleteer_tests::World;
use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::confined;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

/// Devices, terminals, and the rest of the machine.
const LOOK: &str = r#"
for name in /dev/pts/[0-9]*; do test -e "$name" && through "the terminal $name"; done
for name in /dev/*; do test -b "$name" && through "the device $name"; done
for name in kmsg mem port kvm fuse loop-control net; do
  test -e "/dev/$name" && through "the device $name"
done
mknod disk b 254 0 && through "made a device"
for dir in /mnt /media /srv /boot /var/lib/docker /var/log /sys/kernel/debug; do
  test -n "$(ls -A "$dir" 2>/dev/null)" && through "the folder $dir"
done
cat /etc/shadow && through "the passwords"
touch /mine /dev/mine /proc/sys/mine /sys/mine /usr/mine /etc/mine /run/mine
for name in /mine /dev/mine /usr/mine /etc/mine /run/mine; do
  test -e "$name" && through "wrote $name"
done
root=$(dirname "$HOME")
find "$root/run" ! -type d | grep . && through "a file of the daemon"
for name in state/muleteer/operator.key state/muleteer/events.jsonl; do
  test -n "$(ls -A "$root/$name" 2>/dev/null)" && through "the path $name"
done
find / -xdev -name operator.key 2>/dev/null | grep . && through "the key"
test -c /dev/null && echo x > /dev/null || through "no /dev/null"
test "$(head -c 8 /dev/urandom | wc -c)" = 8 || through "no randomness"
script -qc "echo typed" /dev/null < /dev/null | grep -q typed || through "no terminal of its own"
true
"#;

#[test]
fn agent_sees_no_device_and_no_folder_that_is_not_shown() {
    for nobody in [false, true] {
        let test = "agent_sees_no_device_and_no_folder_that_is_not_shown";
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        let daemon = attack.daemon();
        assert_eq!(attack.run(LOOK), "", "nobody: {nobody}");
        attack.end(daemon);
    }
}

/// The numbers of `add_key`, `keyctl`, `userfaultfd` and `io_uring_register`.
#[cfg(target_arch = "x86_64")]
const CALLS: [u32; 4] = [248, 250, 323, 427];
#[cfg(not(target_arch = "x86_64"))]
const CALLS: [u32; 4] = [217, 219, 282, 427];

/// The daemon and its agents inherit the session of the person who starts the daemon.
#[test]
fn agent_has_no_keys_of_the_session_and_no_calls_that_change_the_machine() {
    let test = "agent_has_no_keys_of_the_session_and_no_calls_that_change_the_machine";
    let Some(attack) = Attack::new(test) else { return };
    let [add_key, keyctl, userfaultfd, io_uring] = CALLS;
    let with_key = format!(
        "my ($kind, $name, $text) = (\"user\", \"muleteer-test-key\", \"secret\"); \
         syscall({add_key}, $kind, $name, $text, 6, -3) > 0 or die; exec {{$ARGV[0]}} @ARGV;"
    );
    let daemon = attack.daemon_under(&["perl", "-e", &with_key, "--"].map(String::from));
    let mut script = String::from(
        "grep muleteer-test-key /proc/keys && through 'the key of the session'\n\
         unshare --user true && through 'a user namespace'\n\
         unshare --user --map-root-user --mount umount /tmp && through 'unmounted'\n",
    );
    for (name, call) in [
        ("keyctl", format!("{keyctl}, 1, 0")),
        ("add_key", format!("{add_key}, my $kind = \"user\", my $name = \"mine\", 0, 0, -3")),
        ("userfaultfd", format!("{userfaultfd}, 1")),
        ("io_uring", format!("{io_uring}, 0, 0")),
    ] {
        script.push_str(&format!(
            "perl -e 'exit((syscall({call}) < 0 && $! == 1) ? 1 : 0)' && through '{name}'\n"
        ));
    }
    assert_eq!(attack.run(&script), "");
    attack.end(daemon);
}

/// A sandbox inside of the sandbox is allowed by a key, and sees no more. The kernel lets root make
/// none: it would have to map root's own id.
#[test]
fn nested_sandbox_is_possible_if_configured_and_sees_no_more() {
    let test = "nested_sandbox_is_possible_if_configured_and_sees_no_more";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        attack.world.configure("sandbox: {nested: true}\n");
        let daemon = attack.daemon();
        let script = r#"
test "$(id -u)" = 0 ||
  unshare --user --map-root-user --mount --pid --fork --mount-proc sh -c '
    mount -t tmpfs none /tmp && touch /tmp/inside' || through "no sandbox of its own"
unshare --user --map-root-user --mount sh -c '
  for path in /tmp /dev/pts /dev / "$1/state/muleteer" "$1/state"; do umount -l "$path"; done
  cat "$1/state/muleteer/operator.key" && exit 0
  for path in /usr /etc /; do mount -o remount,rw,bind "$path" && touch "$path/mine" && exit 0; done
  exit 1' sh "$(dirname "$HOME")" && through "left the view"
(echo 1 > /proc/sys/kernel/printk) 2>/dev/null && through "set the system"
true
"#;
        assert_eq!(attack.run(script), "", "nobody: {nobody}");
        attack.end(daemon);
    }
}

/// A file system can be mounted twice. Hidden state must be hidden under each of its names, also
/// in a folder that the configuration shows.
#[test]
fn second_mount_of_the_file_system_does_not_show_the_hidden_state() {
    let test = "second_mount_of_the_file_system_does_not_show_the_hidden_state";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can mount");
    }
    let Some(attack) = Attack::new(test) else { return };
    let root = attack.world.path().to_str().unwrap().to_string();
    std::fs::create_dir(attack.world.home().join("second")).unwrap();
    std::fs::create_dir(attack.world.path().join("shown")).unwrap();
    attack.world.configure(&format!("sandbox: {{show: [{root}/shown]}}\n"));
    let mount = format!(
        "mount --bind {root}/state {root}/home/second && mount --bind {root} {root}/shown && \
         mount --bind {root} /mnt && exec \"$0\" \"$@\""
    );
    let words = ["unshare", "--mount", "sh", "-c", &mount].map(String::from);
    let daemon = attack.daemon_under(&words);
    let script = r#"
find "$HOME" /mnt "$(dirname "$HOME")" -name operator.key -o -name events.jsonl | grep . &&
  through "the state"
test -e "$(dirname "$HOME")/shown/daemon.log" || through "the folder is not shown"
true
"#;
    assert_eq!(attack.run(script), "");
    attack.end(daemon);
}

/// A socket in `/run` that no list names.
#[test]
fn unknown_socket_of_the_system_cannot_be_reached() {
    let test = "unknown_socket_of_the_system_cannot_be_reached";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can write to /run");
    }
    let Some(attack) = Attack::new(test) else { return };
    let folder = tempfile::Builder::new().prefix("engine-").tempdir_in("/run").unwrap();
    let socket = folder.path().join("private");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let daemon = attack.daemon();
    let script = format!(
        "timeout 5 muleteer --socket {0} daemon stop\ntest -e {0} && through seen\ntrue",
        socket.display()
    );
    assert_eq!(attack.run(&script), "");
    assert!(listener.accept().is_err(), "it was reached");
    attack.end(daemon);
}

/// Programs outside of the sandbox run or obey these files.
#[test]
fn files_in_a_shared_home_that_other_programs_obey_are_read_only() {
    let test = "files_in_a_shared_home_that_other_programs_obey_are_read_only";
    let Some(attack) = Attack::new(test) else { return };
    let home = attack.world.home();
    attack.world.configure("sandbox: {home: shared}\n");
    for folder in [".local/bin", ".ssh", ".config/systemd/user", ".config/git"] {
        std::fs::create_dir_all(home.join(folder)).unwrap();
    }
    std::fs::write(home.join(".bashrc"), "").unwrap();
    let daemon = attack.daemon();
    let script = r#"
for file in .gitconfig .bashrc .local/bin/git .ssh/config .config/systemd/user/a.service \
  .config/git/config; do
  (echo x >> "$HOME/$file") 2>/dev/null && through "wrote $file"
done
for folder in .local .config .ssh; do
  mv -T "$HOME/$folder" "$HOME/$folder.moved" 2>/dev/null && through "moved $folder"
done
for folder in $(echo "$PATH" | tr : ' '); do
  (echo x > "$folder/muleteer-test-program") 2>/dev/null && through "wrote in $folder"
done
true
"#;
    assert_eq!(attack.run(script), "");
    attack.end(daemon);
}

/// All private folders share one limit, and an agent that makes processes without end meets one.
#[test]
fn scratch_and_processes_of_an_agent_are_limited() {
    let test = "scratch_and_processes_of_an_agent_are_limited";
    for nobody in [false, true] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(attack) = made else { return };
        attack.world.configure("sandbox: {max_processes: 60}\n");
        let daemon = attack.daemon();
        let script = r#"
test "$(stat -c %d /tmp /var/tmp /dev/shm "$TMPDIR" | sort -u | wc -l)" = 1 ||
  through "more than one file system in memory"
total=$(awk '/^MemTotal/ {print $2}' /proc/meminfo)
test "$(df -k --output=size /tmp | tail -n 1)" -le $((total / 4 + 4)) || through "no limit"
"#;
        assert_eq!(attack.run(script), "", "nobody: {nobody}");
        let script = "i=0; while test $i -lt 300; do sleep 30 & i=$((i+1)); done\n\
             sleep 20; through 'all processes'";
        assert_eq!(attack.run(script), "", "nobody: {nobody}");
        attack.end(daemon);
    }
}

/// The structurer's plan names the ports of its model. The kernel cannot tell addresses.
#[test]
fn agent_that_only_talks_to_its_model_connects_to_no_other_port() {
    let test = "agent_that_only_talks_to_its_model_connects_to_no_other_port";
    if !confined() || !limits_ports() {
        return skip(test, "no namespaces, or Linux is older than 6.7");
    }
    let world = World::new();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (model, other) = (listen(), listen());
    let [model, other] = [&model, &other].map(|socket| socket.local_addr().unwrap().port());
    let show = ["/usr", "/bin", "/lib", "/lib64", "/etc"].map(|path| (path, What::Show));
    let places = show.into_iter().chain([("/tmp", What::Scratch)]);
    let places: Vec<_> = places.map(|(path, what)| Place { path: path.into(), what }).collect();
    let shim = world.program().with_file_name("muleteer-shim");
    let connects = |ports: Option<Vec<u16>>, port: u16| {
        let (plan, file) = (Plan { ports, ..Plan::new(places.clone()) }, world.path().join("p"));
        std::fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
        let mut command = std::process::Command::new(&shim);
        command.arg("confine").arg(&file).args(["/tmp", "/bin/bash", "-c", &script]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("Permission denied"), "{said}");
        output.status.success()
    };
    assert!(connects(None, other) && connects(Some(vec![443, model]), model));
    assert!(!connects(Some(vec![443, model]), other));
}
