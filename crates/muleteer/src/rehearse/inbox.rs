//! Everything a rehearsed agent waits for, in one bounded channel: stdin, and the output and end of
//! the command it runs.

use muleteer_backends::rehearsal::wire::{self, Input};
use muleteer_process::clock;
use std::io::{BufRead, Read};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

const WAITING: usize = 64;

#[derive(Debug)]
pub enum Mail {
    Input(Input),
    /// Stdin has ended.
    Closed,
    /// Of the command with that number; an older one's background children may still print. No
    /// bytes: one of its two streams has ended.
    Output {
        run: u64,
        bytes: Vec<u8>,
    },
    Exited {
        run: u64,
        status: Option<ExitStatus>,
    },
}

#[derive(Debug)]
pub struct Inbox {
    mail: Receiver<Mail>,
    sender: SyncSender<Mail>,
}

impl Inbox {
    /// Reads stdin from now on. Its thread ends with the process: a blocked read cannot be called
    /// back.
    pub fn open() -> Self {
        let (sender, mail) = sync_channel(WAITING);
        let stdin = sender.clone();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().split(b'\n').map_while(Result::ok) {
                let input = wire::read(&String::from_utf8_lossy(&line));
                if input.is_some_and(|input| stdin.send(Mail::Input(input)).is_err()) {
                    return;
                }
            }
            let _ = stdin.send(Mail::Closed);
        });
        Self { mail, sender }
    }

    /// The next thing, or `None` after `deadline` (of [`clock::awake`]).
    pub fn next(&self, deadline: Option<Duration>) -> Option<Mail> {
        // The channel cannot be closed: we hold a sender ourselves.
        let Some(deadline) = deadline else {
            return self.mail.recv().ok();
        };
        self.mail.recv_timeout(deadline.saturating_sub(clock::awake())).ok()
    }

    /// What has come already.
    pub fn pending(&self) -> Option<Mail> {
        self.mail.try_recv().ok()
    }

    /// Brings what `stream` gives to the inbox, as output of command `run`.
    pub fn listen(&self, run: u64, mut stream: impl Read + Send + 'static) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let mut chunk = vec![0; 16 * 1024];
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                if sender.send(Mail::Output { run, bytes: chunk[..n].to_vec() }).is_err() {
                    return;
                }
            }
            let _ = sender.send(Mail::Output { run, bytes: vec![] });
        });
    }

    /// Tells when command `run` has ended.
    pub fn await_exit(&self, run: u64, mut child: std::process::Child) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let status = child.wait().ok();
            let _ = sender.send(Mail::Exited { run, status });
        });
    }
}
