//! Runs `muleteer` as a user's shell does, with pipes for its streams and with a deadline.

use crate::{PATIENCE, World};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A `muleteer` command line that is about to run.
#[derive(Debug)]
pub struct Muleteer {
    pub(crate) command: Command,
    stdin: Vec<u8>,
    deadline: Duration,
}

/// The result of a command. `code` is `None` after a signal.
#[derive(Debug, Clone)]
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Muleteer {
    pub(crate) fn new(world: &World, program: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).current_dir(world.path());
        world.environment(&mut command);
        Self { command, stdin: vec![], deadline: PATIENCE }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = text.as_bytes().to_vec();
        self
    }

    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Starts the command and leaves it running; its streams are read into memory.
    pub fn start(mut self) -> Running {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let said = format!("{:?}", self.command.get_args().collect::<Vec<_>>());
        let mut child = self.command.spawn().expect("the muleteer binary starts");
        if let Some(mut stdin) = child.stdin.take() {
            // The command may exit without reading its stdin.
            let _ = stdin.write_all(&self.stdin);
        }
        let so_far = Arc::default();
        let stdout = collect(child.stdout.take(), &so_far);
        let stderr = collect(child.stderr.take(), &Arc::default());
        Running { child, so_far, stdout, stderr, said, deadline: self.deadline }
    }

    /// Runs the command to its end.
    ///
    /// # Panics
    /// When the command does not end in time, or a process that it left keeps its stdout open: a
    /// caller that reads to end-of-file, as `$(muleteer …)` does, would hang.
    pub fn run(self) -> Output {
        self.start().finish()
    }

    /// Runs the command, asserts exit 0 and returns its trimmed stdout.
    pub fn ok(self) -> String {
        self.run().expect_code(0).stdout.trim().to_string()
    }

    /// Runs the command, asserts exit 0 and parses stdout as one JSON document.
    pub fn json(self) -> Value {
        self.run().expect_code(0).json()
    }
}

/// A running `muleteer`. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    so_far: Arc<Mutex<Vec<u8>>>,
    stdout: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
    said: String,
    deadline: Duration,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far.
    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&self.so_far.lock().unwrap_or_else(PoisonError::into_inner))
            .into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn finish(mut self) -> Output {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waiting for a child") {
                break status;
            }
            if start.elapsed() > self.deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                let so_far =
                    |stream: &mpsc::Receiver<String>| stream.recv_timeout(Duration::from_secs(1));
                panic!(
                    "muleteer {} did not end within {:?}\nstdout: {}\nstderr: {}",
                    self.said,
                    self.deadline,
                    so_far(&self.stdout).unwrap_or_default(),
                    so_far(&self.stderr).unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let whole = |stream: &mpsc::Receiver<String>, name: &str| {
            let held =
                |_| panic!("muleteer {} ended, but something keeps its {name} open", self.said);
            stream.recv_timeout(Duration::from_secs(5)).unwrap_or_else(held)
        };
        Output {
            code: status.code(),
            stdout: whole(&self.stdout, "stdout"),
            stderr: whole(&self.stderr, "stderr"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Output {
    /// # Panics
    /// When the exit code is another.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "exit code\nstdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Parses stdout as one JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("{error}\nstdout: {}\nstderr: {}", self.stdout, self.stderr)
        })
    }

    /// Returns the code of the error that `--json` printed.
    #[track_caller]
    pub fn error_code(&self) -> String {
        let json = self.json();
        json["error"]["code"].as_str().unwrap_or_else(|| panic!("no error in {json}")).to_string()
    }
}

fn collect(
    stream: Option<impl Read + Send + 'static>,
    so_far: &Arc<Mutex<Vec<u8>>>,
) -> mpsc::Receiver<String> {
    let (done, whole) = mpsc::channel();
    let so_far = so_far.clone();
    std::thread::spawn(move || {
        let mut chunk = [0; 8192];
        let held = || so_far.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut stream) = stream {
            loop {
                match stream.read(&mut chunk) {
                    Ok(count @ 1..) => held().extend_from_slice(&chunk[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => break,
                }
            }
        }
        let _ = done.send(String::from_utf8_lossy(&held()).into_owned());
    });
    whole
}
