//! One bounded channel for everything a rehearsed agent waits for: stdin, and the output and exit
//! of its command.

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
    /// Output of the command number `run`. Background children of an older command may still print.
    /// No bytes mean that one of the command's two streams has ended.
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
    /// Starts to read stdin. The thread ends with the process, because a blocked read cannot be
    /// cancelled.
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

    /// Returns the next message, or `None` after `deadline` (of [`clock::awake`]).
    pub fn next(&self, deadline: Option<Duration>) -> Option<Mail> {
        // The channel never closes, because this struct holds a sender itself.
        let Some(deadline) = deadline else {
            return self.mail.recv().ok();
        };
        self.mail.recv_timeout(deadline.saturating_sub(clock::awake())).ok()
    }

    /// Returns a message that has arrived already.
    pub fn pending(&self) -> Option<Mail> {
        self.mail.try_recv().ok()
    }

    /// Forwards `stream` to the inbox as output of command `run`.
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

    /// Sends a message when command `run` has exited.
    pub fn await_exit(&self, run: u64, mut child: std::process::Child) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let status = child.wait().ok();
            let _ = sender.send(Mail::Exited { run, status });
        });
    }
}
