//! `rotel`, a real OpenTelemetry collector, as the Python package contains it.

use crate::skip::skip;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running collector, which prints everything that it receives. Dropping it stops it.
#[derive(Debug)]
pub struct Rotel {
    child: Child,
    port: u16,
    output: PathBuf,
}

impl Rotel {
    /// Starts it. Returns `None` after a report that `test` is skipped.
    pub fn start(test: &str, dir: &Path) -> Option<Self> {
        let program = match xtask::rotel::install() {
            Ok(program) => program,
            Err(failure) => {
                skip(test, &failure.to_string());
                return None;
            }
        };
        let (grpc, port) = (free_port(), free_port());
        let output = dir.join("rotel.out");
        let file = std::fs::File::create(&output).expect("rotel's output");
        let mut command = Command::new(program);
        command.args([
            "start",
            "--exporter",
            "blackhole",
            "--debug-log",
            "traces",
            "--debug-log-verbosity",
            "detailed",
        ]);
        command.arg("--otlp-grpc-endpoint").arg(format!("127.0.0.1:{grpc}"));
        command.arg("--otlp-http-endpoint").arg(format!("127.0.0.1:{port}"));
        command
            .arg("--pid-file")
            .arg(dir.join("rotel.pid"))
            .arg("--log-file")
            .arg(dir.join("rotel.log"));
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file);
        let child = command.spawn().expect("rotel starts");
        Some(Self { child, port, output })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns whether the collector accepts connections.
    pub fn answers(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    /// Returns everything that the collector printed.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    listener.local_addr().expect("its address").port()
}
