//! The stdin of a verb that runs on another host. It is kept, within a limit, so that a verb that
//! runs again gets it from the beginning.

use crate::remote::pieces;
use muleteer_protocol::codec::FRAME_LIMIT;
use std::io::{self, Read, Write};
use std::process::ChildStdin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The most bytes that are kept: the longest prompt, and a little more.
const LIMIT: usize = FRAME_LIMIT;
const CHUNK: usize = pieces::LIMIT;

#[derive(Debug, Default)]
struct State {
    /// The bytes that were read and not forgotten.
    bytes: Vec<u8>,
    /// How many of these the current run has been given.
    given: usize,
    /// The first bytes are gone, so no further run can get them.
    is_forgotten: bool,
    has_ended: bool,
    /// Why it could not be read to its end.
    failure: Option<String>,
    /// The number of the current run.
    run: u32,
}

/// The stdin of this process, read in the background.
#[derive(Debug, Clone, Default)]
pub struct Input {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Input {
    /// Begins to read `from`. The thread ends with its end, or with the process.
    pub fn read(from: impl Read + Send + 'static) -> Self {
        let input = Self::default();
        let reader = input.clone();
        std::thread::spawn(move || reader.fill(from));
        input
    }

    /// Returns an input that has ended.
    pub fn empty() -> Self {
        let input = Self::default();
        input.lock().has_ended = true;
        input
    }

    /// Whether another run would get everything from the beginning.
    pub fn is_whole(&self) -> bool {
        !self.lock().is_forgotten
    }

    /// Returns why the input could not be read to its end.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Gives the order and the input to a run of the verb, in the background. Ends when everything
    /// is given, the run does not read on, or [`Self::end_run`] is called.
    pub fn give(&self, order: Vec<u8>, mut to: ChildStdin) -> JoinHandle<()> {
        let mut state = self.lock();
        state.run = state.run.wrapping_add(1);
        state.given = 0;
        let (run, input) = (state.run, self.clone());
        drop(state);
        std::thread::spawn(move || {
            if to.write_all(&order).is_ok() {
                input.write(run, to);
            }
        })
    }

    /// Ends what [`Self::give`] began.
    pub fn end_run(&self) {
        let mut state = self.lock();
        state.run = state.run.wrapping_add(1);
        self.shared.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, mut from: impl Read) {
        let mut chunk = [0; CHUNK];
        loop {
            let count = match from.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(count) => count,
                Err(error) => {
                    self.lock().failure = Some(error.to_string());
                    return self.shared.1.notify_all();
                }
            };
            let mut state = self.lock();
            while state.bytes.len() + count > LIMIT {
                if state.given == state.bytes.len() {
                    state.bytes.clear();
                    (state.given, state.is_forgotten) = (0, true);
                } else {
                    state = self.wait(state);
                }
            }
            state.bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
            state.has_ended = count == 0;
            self.shared.1.notify_all();
            if count == 0 {
                return;
            }
        }
    }

    fn write(&self, run: u32, mut to: impl Write) {
        loop {
            let mut state = self.lock();
            let is_open = |state: &State| !state.has_ended && state.failure.is_none();
            while state.run == run && state.given == state.bytes.len() && is_open(&state) {
                state = self.wait(state);
            }
            if state.run != run || state.failure.is_some() {
                return;
            }
            if state.given == state.bytes.len() {
                drop(state);
                // The other side may have ended without reading it.
                drop(pieces::write(&mut to, &[]));
                return;
            }
            let rest = state.bytes.get(state.given..).unwrap_or_default();
            let chunk: Vec<u8> = rest.iter().take(CHUNK).copied().collect();
            drop(state);
            if pieces::write(&mut to, &chunk).is_err() {
                return;
            }
            let mut state = self.lock();
            if state.run != run {
                return;
            }
            state.given += chunk.len();
            self.shared.1.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(input: &Input) -> Vec<u8> {
        let mut to = Vec::new();
        let run = {
            let mut state = input.lock();
            state.run += 1;
            state.given = 0;
            state.run
        };
        input.write(run, &mut to);
        let mut text = vec![];
        // An input that failed has no end.
        drop(pieces::copy(&to[..], &mut text));
        text
    }

    #[test]
    fn another_run_gets_the_input_from_the_beginning() {
        let text = "x".repeat(3 * CHUNK + 7);
        let input = Input::read(io::Cursor::new(text.clone().into_bytes()));
        for _ in 0..2 {
            assert_eq!(given(&input).len(), text.len());
            assert!(input.is_whole());
        }
    }

    /// Gives some bytes and then an error.
    struct Broken(bool);

    impl Read for Broken {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::other("it broke"));
            }
            to[..4].copy_from_slice(b"half");
            Ok(4)
        }
    }

    #[test]
    fn input_that_cannot_be_read_has_no_end() {
        let input = Input::default();
        input.fill(Broken(false));
        let mut to = Vec::new();
        input.write(0, &mut to);
        assert!(pieces::copy(&to[..], io::sink()).is_err());
        assert_eq!(input.failure().as_deref(), Some("it broke"));
    }

    #[test]
    fn input_beyond_the_limit_is_passed_on_once() {
        let long = LIMIT + 2 * CHUNK;
        let input = Input::read(io::repeat(b'x').take(long as u64));
        assert_eq!(given(&input).len(), long);
        assert!(!input.is_whole());
    }
}
