//! What the CLIs' own transcripts are called and what they say about a prompt.
//!
//! They are JSON lines, appended to while the agent works: a process that is killed leaves the
//! beginning of a line at most. What cannot be read (a damaged line that names the prompt, a record
//! beyond all size) makes the answer unclear and never a guess.

use muleteer_model::agent::event::{ModelUsage, cut};
use muleteer_model::agent::transcript::{Reading, Seen, Session, Standing, Used};
use muleteer_model::text::foreign_json::{self, Reader};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::PathBuf;

/// A record longer than this is read as it comes, with its long texts shortened.
const RECORD_LIMIT: usize = 16 * 1024 * 1024;

/// More answers of the model than a turn has, and more models.
const ANSWERS: usize = 10_000;
const MODELS: usize = 32;
const MODEL_LIMIT: usize = 200;

/// Nobody reads on after so much: the answer is then unclear.
const FILE_LIMIT: u64 = 2 * 1024 * 1024 * 1024;

/// The transcripts of one CLI.
pub trait Transcripts: Send + Sync {
    /// Where they are, given the agent's environment.
    ///
    /// # Errors
    /// What is missing to tell.
    fn place(&self, env: &[(String, String)]) -> Result<Place, String>;

    /// New sessions get an id that we choose, so that an unheard-of one can be found by it.
    fn chooses_session(&self) -> bool;

    /// What one transcript says about the prompt `key`.
    ///
    /// # Errors
    /// Those of `source`.
    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading>;

    /// The CLI's last words are that the session to go on with is not there.
    fn says_lost(&self, stderr: &str) -> bool;
}

/// A folder whose files, `depth` folders down, are transcripts: each is named after its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub root: PathBuf,
    pub depth: u32,
}

/// A variable of the agent's environment that is an absolute path.
pub(crate) fn folder(env: &[(String, String)], name: &str) -> Option<PathBuf> {
    let value = env.iter().rev().find(|(known, _)| known == name)?.1.as_str();
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

/// What has been made of the records so far.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// The session can be resumed.
    pub held: bool,
    pub session_id: Option<String>,
    /// Of the prompt that is asked about.
    pub standing: Option<Standing>,
    /// By its turn: of each of the model's answers what was told of it last, in no more than
    /// [`ANSWERS`].
    used: Vec<(String, ModelUsage)>,
    /// By all of the session's turns, where the transcript tells sums: at its end, and when the
    /// prompt came.
    total: ModelUsage,
    total_before: ModelUsage,
    /// It tells sums.
    sums: bool,
}

impl Account {
    /// The prompt that is asked about.
    pub fn prompted(&mut self) {
        self.standing = Some(Standing::Unanswered);
        self.used.clear();
        self.total_before = self.total.clone();
    }

    /// What one of the model's answers has used, told once or several times under its name.
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

    /// What all of the session has used so far.
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

    /// Something happened in the turn of the prompt, if it has begun.
    pub fn now(&mut self, standing: Standing) {
        if self.standing.is_some() {
            self.standing = Some(standing);
        }
    }
}

/// Reads all records and gives what `fold` makes of them.
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
            // The agent died as it wrote this: whatever it was to say, the session does not hold
            // it.
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
    /// It is longer than `RECORD_LIMIT`, and was read as it came.
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
