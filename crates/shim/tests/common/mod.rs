//! The daemon's role in tests: starts real shims with real agents, reads their spools, and leaves
//! nothing running, whatever happens.
#![allow(dead_code, clippy::unwrap_used)]

use muleteer_process::clock::awake;
use muleteer_process::group::{Before, by_nonce, sweep};
use muleteer_process::identity::ProcessId;
use muleteer_protocol::shim::v1::{FromShim, ToShim};
use muleteer_shim::attach::{self, Client, Liveness};
use muleteer_shim::control::Control;
use muleteer_shim::launch::Launch;
use muleteer_shim::meta;
use muleteer_shim::record::{Cursor, Stream};
use muleteer_shim::spool::{Reader, Record, State};
use muleteer_shim::start::{self, ShimProgram};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longer than anything takes on a loaded machine. Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Agent {
    pub root: tempfile::TempDir,
    pub nonce: String,
    pub launch: Launch,
    pub shim: Option<Child>,
}

impl Agent {
    /// Prepares an agent that runs this shell script, without starting it.
    pub fn script(script: &str) -> Self {
        Self::new(&["/bin/sh", "-c", script])
    }

    pub fn new(argv: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = tempfile::tempdir().unwrap();
        let nonce = format!("t{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let argv = argv.iter().map(|word| (*word).to_string()).collect();
        let mut launch = Launch::new(1, 1, nonce.clone(), argv, root.path().to_owned());
        launch.env = vec![("PATH".into(), "/usr/bin:/bin".into()), ("LC_ALL".into(), "C".into())];
        launch.timing.term_grace_ms = 300;
        Self { root, nonce, launch, shim: None }
    }

    pub fn dir(&self) -> PathBuf {
        self.root.path().join("agents").join(&self.nonce)
    }

    pub fn spool(&self) -> PathBuf {
        muleteer_shim::spool::dir_of(&self.dir())
    }

    /// Starts the shim; the "daemon" keeps only the child, to reap it.
    pub fn start(&mut self) -> &mut Self {
        self.start_faulty(None)
    }

    /// Starts the shim with a fault point armed.
    pub fn start_faulty(&mut self, fault: Option<&str>) -> &mut Self {
        let dir = self.dir();
        start::prepare(&dir, &self.launch).unwrap();
        let Liveness::Dead(lock) = attach::probe(&dir).unwrap() else { panic!("already alive") };
        let program = match fault {
            // The daemon's environment becomes the shim's, so a wrapper sets the variable for this
            // shim only.
            Some(fault) => ShimProgram::open(
                Path::new("/usr/bin/env"),
                &[&format!("MULETEER_FAULT={fault}"), BINARY],
            ),
            None => ShimProgram::open(Path::new(BINARY), &[]),
        };
        let child = start::launch(&dir, &program.unwrap(), &lock, self.launch.epoch).unwrap();
        self.shim = Some(child);
        self
    }

    pub fn client(&self) -> Client {
        self.client_of(self.launch.generation)
    }

    pub fn client_of(&self, generation: u64) -> Client {
        let dir = self.dir();
        wait_for("the shim's socket", || Client::connect(&dir, generation).ok())
    }

    /// Returns a connection after the handshake.
    pub fn attached(&self) -> Client {
        let mut client = self.client();
        match client.receive(PATIENCE).unwrap() {
            FromShim::HelloOk { nonce, .. } => assert_eq!(nonce, self.nonce),
            other => panic!("{other:?}"),
        }
        client
    }

    /// Reads the whole spool as it is now.
    pub fn read(&self) -> (Vec<Record>, State) {
        let mut reader = Reader::open(&self.spool());
        let (mut records, mut cursor) = (vec![], Cursor::default());
        loop {
            let batch = reader.read(cursor, 1 << 20).unwrap();
            records.extend(batch.records);
            if batch.state != State::More && batch.next == cursor {
                return (records, batch.state);
            }
            cursor = batch.next;
        }
    }

    pub fn controls(&self) -> Vec<Control> {
        self.read().0.iter().filter_map(Record::control).collect()
    }

    /// Waits for a control record.
    pub fn control(&self, what: &str, wanted: impl Fn(&Control) -> bool) -> Control {
        wait_for(what, || self.controls().into_iter().find(|control| wanted(control)))
    }

    pub fn exited(&self) -> Control {
        self.control("the agent's end", Control::is_final)
    }

    pub fn stream(&self, stream: Stream) -> Vec<u8> {
        self.read()
            .0
            .into_iter()
            .filter(|record| record.stream == stream)
            .flat_map(|record| record.bytes)
            .collect()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stream(Stream::Stdout)).into_owned()
    }

    /// Waits until the shim's lock is free.
    pub fn gone(&mut self) -> &mut Self {
        let dir = self.dir();
        wait_for("the shim's end", || {
            matches!(attach::probe(&dir).unwrap(), Liveness::Dead(_)).then_some(())
        });
        self.shim.as_mut().map(|shim| shim.wait().unwrap());
        self
    }

    pub fn is_alive(&self) -> bool {
        matches!(attach::probe(&self.dir()).unwrap(), Liveness::Alive)
    }

    pub fn agent_id(&self) -> ProcessId {
        match self.control("spawned", |control| matches!(control, Control::Spawned { .. })) {
            Control::Spawned { agent, .. } => agent,
            _ => unreachable!(),
        }
    }

    /// Sends kill -9 to the shim alone.
    pub fn kill_shim(&mut self) {
        let shim = self.shim.as_mut().unwrap();
        shim.kill().unwrap();
        shim.wait().unwrap();
    }

    pub fn nothing_left(&self) {
        wait_for("the agent's processes to be gone", || {
            by_nonce(&self.nonce).is_empty().then_some(())
        });
    }

    pub fn cgroup(&self) -> Option<PathBuf> {
        meta::read(&self.dir()).ok().flatten().and_then(|meta| meta.cgroup)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(shim) = &mut self.shim {
            let _ = shim.kill();
            let _ = shim.wait();
        }
        sweep(&[&self.nonce], self.cgroup().as_deref(), Before::Nobody, Duration::from_secs(20));
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir().join("lock")).unwrap_or_default();
            eprintln!("shim.log: {log}");
        }
    }
}

const BINARY: &str = env!("CARGO_BIN_EXE_muleteer-shim");

/// Polls until there is an answer.
pub fn wait_for<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let deadline = awake() + PATIENCE;
    loop {
        if let Some(found) = answer() {
            return found;
        }
        assert!(awake() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn write(idem: u8, text: &str, close: bool) -> ToShim {
    ToShim::WriteStdin { idem: [idem; 16], close, bytes: text.as_bytes().to_vec() }
}

/// Returns the outcome of the command with this key.
pub fn outcome(client: &mut Client, idem: u8) -> muleteer_protocol::shim::v1::Outcome {
    client
        .receive_until(PATIENCE, |frame| match frame {
            FromShim::Done { idem: done, outcome } if *done == [idem; 16] => Some(*outcome),
            _ => None,
        })
        .unwrap()
}
