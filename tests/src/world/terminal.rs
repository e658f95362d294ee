//! Runs `muleteer` on a pseudo-terminal, as a person does.

use crate::{PATIENCE, World, wait_until};
use nix::pty::{Winsize, openpty};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A running command on a terminal. Dropping it kills it.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keyboard: File,
    output: Arc<Mutex<Vec<u8>>>,
}

const ROWS: u16 = 200;
const COLUMNS: u16 = 100;

impl World {
    /// Starts a command on a terminal of 100 columns.
    ///
    /// # Panics
    /// When the system gives no pseudo-terminal.
    pub fn on_a_terminal(&self, args: &[&str], variables: &[(&str, &str)]) -> Terminal {
        self.on_a_terminal_running(self.program(), args, variables)
    }

    /// Does the same with another program.
    ///
    /// # Panics
    /// When the system gives no pseudo-terminal.
    pub fn on_a_terminal_running(
        &self,
        program: impl AsRef<OsStr>,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Terminal {
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        // Without a session of its own the command would have the test's terminal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(program).args(args);
        self.environment(&mut command);
        command.current_dir(self.path()).env("TERM", "xterm-256color");
        command.envs(variables.iter().copied());
        let stream = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        command.stdin(stream()).stdout(stream()).stderr(stream());
        let child = command.spawn().expect("setsid starts");
        drop(command);
        drop(pty.slave);
        let keyboard = File::from(pty.master);
        let mut screen = keyboard.try_clone().expect("a descriptor");
        let output: Arc<Mutex<Vec<u8>>> = Arc::default();
        let read = output.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when the last process has closed the terminal.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let mut all = read.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend_from_slice(&bytes[..count]);
            }
        });
        Terminal { child, keyboard, output }
    }
}

impl Terminal {
    /// Types text. `\r` is the Enter key.
    ///
    /// # Panics
    /// When the terminal is closed.
    pub fn keys(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("the terminal takes keys");
    }

    /// Returns all bytes that were written to the terminal.
    pub fn bytes(&self) -> Vec<u8> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what a person sees.
    pub fn screen(&self) -> String {
        let mut parser = vt100::Parser::new(ROWS, COLUMNS, 1000);
        parser.process(&self.bytes());
        parser.screen().contents()
    }

    /// Waits until the person sees this text.
    pub fn sees(&self, text: &str) -> String {
        wait_until(&format!("{text:?} on the screen"), PATIENCE, || {
            let screen = self.screen();
            screen.contains(text).then_some(screen)
        })
    }

    /// Waits until the command edits a line, which begins with bracketed paste. Keys that come
    /// before may be lost, because the terminal drops them when its mode changes.
    pub fn edits(&self) {
        wait_until("an editor of a line", PATIENCE, || {
            let begins = self.bytes().windows(8).any(|bytes| bytes == b"\x1b[?2004h");
            begins.then_some(())
        });
    }

    /// Waits for the end of the command, and returns its exit code.
    ///
    /// # Panics
    /// When it cannot be awaited.
    pub fn ended(&mut self) -> Option<i32> {
        wait_until("the end of the command", PATIENCE, || {
            self.child.try_wait().expect("waiting for a child")
        })
        .code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the terminal\n{}", self.screen());
        }
    }
}
