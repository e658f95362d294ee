//! Finds the CLIs' own transcripts and reads what they say about a prompt.
//!
//! A transcript is a file of JSON lines to which the agent appends, so a killed process leaves at
//! most the beginning of a line. A damaged line that names the prompt, or a record above the size
//! limit, makes the answer unclear; the reader never guesses.

use crate::{Home, home_path};
use muleteer_model::agent::event::{ModelUsage, cut};
use muleteer_model::agent::transcript::{Reading, Seen, Session, Standing, Used};
use muleteer_model::text::foreign_json::{self, Reader};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::PathBuf;

/// A record longer than this is parsed while it is read, with its long texts shortened.
const RECORD_LIMIT: usize = 16 * 1024 * 1024;

/// Upper bounds for answers and models: more than any turn has.
const ANSWERS: usize = 10_000;
const MODELS: usize = 32;
const MODEL_LIMIT: usize = 200;

/// The reader stops after this many bytes, and the answer is then unclear.
const FILE_LIMIT: u64 = 2 * 1024 * 1024 * 1024;

/// The transcripts of one CLI.
pub trait Transcripts: Send + Sync {
    /// Returns where the transcripts are, given the agent's environment.
    ///
    /// # Errors
    /// If the environment lacks a variable that is needed to find them.
    fn place(&self, env: &[(String, String)]) -> Result<Place, PlaceError>;

    /// Whether we choose the id of a new session. An unreported session can then be found by that
    /// id.
    fn chooses_session(&self) -> bool;

    /// Reads what one transcript says about the prompt `key`.
    ///
    /// # Errors
    /// Returns the read errors of `source`.
    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading>;

    /// Whether the CLI's last stderr output says that the session to resume does not exist.
    fn says_lost(&self, stderr: &str) -> bool;
}

/// Why an agent's transcripts cannot be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Neither `HOME` nor the CLI's own variable is an absolute path.
    #[error("its environment has no absolute HOME or {or}")]
    NoHome { or: &'static str },
    #[error("its environment has no {variable}")]
    NoFolder { variable: &'static str },
}

/// A folder that holds transcripts `depth` folders down. Each file is named after its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub root: PathBuf,
    pub depth: u32,
}

/// Returns a variable of the agent's environment if it is an absolute path.
pub(crate) fn folder(env: &[(String, String)], name: &str) -> Option<PathBuf> {
    let value = env.iter().rev().find(|(known, _)| known == name)?.1.as_str();
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

/// Returns the CLI's home in the agent's environment.
pub(crate) fn home(home: Home, env: &[(String, String)]) -> Result<PathBuf, PlaceError> {
    let absolute = |name: &str| folder(env, name).map(|path| path.display().to_string());
    home_path(home, &absolute).ok_or(PlaceError::NoHome { or: home.variable })
}

/// The state accumulated from the records read so far.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// The session can be resumed.
    pub held: bool,
    pub session_id: Option<String>,
    /// How far the requested prompt has come.
    pub standing: Option<Standing>,
    /// Usage of the prompt's turn: the latest numbers for each of the model's answers, at most
    /// [`ANSWERS`].
    used: Vec<(String, ModelUsage)>,
    /// Usage of all turns of the session, if the transcript reports running totals: at its end, and
    /// at the time of the prompt.
    total: ModelUsage,
    total_before: ModelUsage,
    /// The transcript reports running totals.
    sums: bool,
}

impl Account {
    /// Records that the requested prompt was reached.
    pub fn prompted(&mut self) {
        self.standing = Some(Standing::Unanswered);
        self.used.clear();
        self.total_before = self.total.clone();
    }

    /// Records the usage of one of the model's answers. The transcript may report it several times
    /// under the same name; the latest report wins.
    pub fn answer(&mut self, name: &str, usage: ModelUsage) {
        if self.standing.is_none() {
            return;
        }
        if let Some((_, told)) = self.used.iter_mut().rev().find(|(known, _)| known == name) {
            *told = usage;
        } else if self.used.len() < ANSWERS {
            self.used.push((name.to_string(), usage));
        }
    }

    /// Records the usage of the whole session so far.
    pub fn total(&mut self, total: ModelUsage) {
        self.total = total;
        self.sums = true;
    }

    fn used(&mut self) -> Used {
        if self.sums {
            let (now, before) = (&self.total, &self.total_before);
            let models = vec![ModelUsage {
                model: now.model.clone(),
                input: now.input.saturating_sub(before.input),
                output: now.output.saturating_sub(before.output),
                cache_read: now.cache_read.saturating_sub(before.cache_read),
                cache_write: now.cache_write.saturating_sub(before.cache_write),
                cost_usd: 0.0,
            }];
            return Used { models, told_again: true };
        }
        let mut models: BTreeMap<String, ModelUsage> = BTreeMap::new();
        for (_, usage) in self.used.drain(..) {
            if models.len() == MODELS && !models.contains_key(&usage.model) {
                continue;
            }
            let sum = models.entry(usage.model.clone()).or_default();
            sum.model = cut(&usage.model, MODEL_LIMIT);
            sum.input = sum.input.saturating_add(usage.input);
            sum.output = sum.output.saturating_add(usage.output);
            sum.cache_read = sum.cache_read.saturating_add(usage.cache_read);
            sum.cache_write = sum.cache_write.saturating_add(usage.cache_write);
        }
        Used { models: models.into_values().collect(), told_again: false }
    }

    /// Records progress in the prompt's turn, if that turn has begun.
    pub fn now(&mut self, standing: Standing) {
        if self.standing.is_some() {
            self.standing = Some(standing);
        }
    }
}

/// Reads all records and returns the state that `fold` accumulates from them.
pub(crate) fn read(
    source: &mut dyn BufRead,
    key: &str,
    fold: impl Fn(&mut Account, &Value, &str),
) -> io::Result<Reading> {
    let mut account = Account::default();
    let mut unclear = None;
    let (mut line, mut read) = (Vec::new(), 0_u64);
    while let Some(end) = next_line(source, &mut line)? {
        read += end.bytes;
        if read > FILE_LIMIT {
            unclear = Some(format!("its transcript is longer than {} GiB", FILE_LIMIT >> 30));
            break;
        }
        if line.trim_ascii().is_empty() && end.long.is_none() {
            continue;
        }
        let document = end.long.map_or_else(|| foreign_json::read(&line), |reader| reader.finish());
        match document.damage {
            None => fold(&mut account, &document.value, key),
            // The agent died while it wrote this line, so the session does not contain it.
            Some(_) if !end.newline => {}
            Some(_) if end.bytes > RECORD_LIMIT as u64 => {
                unclear =
                    Some(format!("its transcript has a damaged record of {} bytes", end.bytes));
            }
            Some(_) if names(&line, key) => {
                unclear = Some("the record of it in its transcript is damaged".into())
            }
            Some(_) => {}
        }
    }
    let prompt = match (account.standing, unclear) {
        (Some(standing), _) => Seen::Present(standing),
        (None, Some(why)) => Seen::Unclear(why),
        (None, None) => Seen::Absent,
    };
    let session = if account.held { Session::Held } else { Session::Empty };
    let used = if account.standing.is_some() { account.used() } else { Used::default() };
    Ok(Reading { session, session_id: account.session_id.filter(|_| account.held), prompt, used })
}

struct LineEnd {
    bytes: u64,
    /// The reader for a line longer than `RECORD_LIMIT`, which is parsed while it is read.
    long: Option<Box<Reader>>,
    newline: bool,
}

fn next_line(source: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Option<LineEnd>> {
    line.clear();
    let mut end = LineEnd { bytes: 0, long: None, newline: false };
    loop {
        let chunk = match source.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok((end.bytes > 0).then_some(end));
        }
        let newline = chunk.iter().position(|byte| *byte == b'\n');
        let used = newline.map_or(chunk.len(), |at| at + 1);
        let text = &chunk[..newline.unwrap_or(used)];
        if end.long.is_none() && line.len() + text.len() > RECORD_LIMIT {
            let mut reader = Box::new(Reader::long());
            reader.push(line);
            line.truncate(0);
            end.long = Some(reader);
        }
        match &mut end.long {
            Some(reader) => reader.push(text),
            None => line.extend_from_slice(text),
        }
        end.bytes += used as u64;
        source.consume(used);
        if newline.is_some() {
            end.newline = true;
            return Ok(Some(end));
        }
    }
}

fn names(line: &[u8], key: &str) -> bool {
    line.windows(key.len().max(1)).any(|window| window == key.as_bytes())
}
