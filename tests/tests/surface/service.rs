//! The messages to a service manager; `cargo xtask systemd-test` tests systemd itself.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{PATIENCE, World, processes, wait_until};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;

/// A socket that listens as a manager does.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn new(world: &World) -> (Self, String) {
        let path = world.path().join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        (Self { socket, heard: vec![] }, path.to_str().unwrap().to_string())
    }

    /// Waits for a line, which may have come earlier.
    fn hears(&mut self, line: &str) {
        wait_until(line, PATIENCE, || {
            let mut bytes = [0; 4096];
            while let Ok(length) = self.socket.recv(&mut bytes) {
                self.heard
                    .extend(String::from_utf8_lossy(&bytes[..length]).lines().map(String::from));
            }
            self.heard.iter().any(|heard| heard == line).then_some(())
        });
    }
}

#[test]
fn daemon_notifies_its_manager_beside_a_stopped_shim() {
    let world = World::new();
    let repo = world.repo("repo");
    let (mut manager, socket) = Manager::new(&world);
    let mut first = world.daemon();
    let id = world.spawn(&repo, "while [ ! -e go ]; do sleep 0.05; done", &[]).ok();
    world.wait_for_state(&id, &["running"]);
    let shim = processes::shims(&world.processes())[0].pid;
    first.kill_9();
    // The stopped shim answers nobody.
    world.signal(shim, Signal::STOP);

    let second = world.daemon_unready(&[("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", "500000")]);
    manager.hears("READY=1");
    manager.hears("STATUS=1 agent runs");
    manager.hears("WATCHDOG=1");
    world.signal(shim, Signal::CONT);
    wait_until("the adoption", PATIENCE, || {
        (!world.events_of(&id, "agent_adopted").is_empty()).then_some(())
    });

    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    manager.hears("STATUS=idle");
    world.muleteer(&["daemon", "stop"]).ok();
    manager.hears("STOPPING=1");
    world.finish(Some(second));
}
