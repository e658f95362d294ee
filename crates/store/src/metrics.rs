//! `metrics/YYYY-MM-DD.jsonl`: one line for each end of a dispatch or a task, by the UTC day of its
//! event. Nothing deletes them.
//!
//! The lines are made from the log, in its order, and each has the seq of its event. So the last
//! lines say how far the log was read, and no position is stored beside them: after a kill the next
//! writer continues there, and no line is written twice. A torn last line is cut and made again.

use crate::atomic::{create_dir_durable, sync_dir, sync_file};
use crate::error::StoreError;
use crate::events::MAX_LINE;
use crate::events::tail::{Cursor, Reader, Start};
use jiff::Timestamp;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::cost::metric::{self, DispatchEnd, Metric, Of};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Created, Event, Record};
use muleteer_process::fault;
use serde::Deserialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The most lines that are written together.
const BATCH: usize = 256;

/// The writer of the metrics. There must be only one.
#[derive(Debug)]
pub struct Metrics {
    folder: PathBuf,
    /// The seq of the newest line.
    newest: u64,
    /// How far this process has read the log.
    read: Option<Cursor>,
}

/// The field by which a line is found again.
#[derive(Deserialize)]
struct Seq {
    seq: u64,
}

impl Metrics {
    /// Finds the newest line in the folder, which need not exist, and cuts torn lines.
    ///
    /// # Errors
    /// `E_STORE_IO`, also if the last whole line of a file is no line of metrics.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        create_dir_durable(folder, 0o700)?;
        let fail = StoreError::io(folder, "list");
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let (mut newest, mut newest_file) = (0, None);
        for entry in entries.map_err(fail)? {
            let path = entry.path();
            if path.extension().is_some_and(|suffix| suffix == "jsonl") {
                let last = mend(&path).map_err(StoreError::io(&path, "read the last line of"))?;
                if last > newest {
                    (newest, newest_file) = (last, Some(path));
                }
            }
        }
        // A killed writer may have left it in memory. Older files were durable before it.
        newest_file.iter().try_for_each(|path| sync_file(path))?;
        sync_dir(folder)?;
        Ok(Self { folder: folder.into(), newest, read: None })
    }

    /// Writes the lines that are missing up to the newest record of `fleet`, durably; returns how
    /// many. Only new records are read.
    ///
    /// # Errors
    /// Those of [`Reader::next_line`], `E_STORE_IO`. Open the metrics again then.
    pub fn catch_up(&mut self, events: &Path, fleet: &Fleet) -> Result<u64, StoreError> {
        if fleet.seq <= self.newest {
            return Ok(0);
        }
        let start = self.read.map_or(Start::Seq(self.newest + 1), Start::Cursor);
        let mut reader = Reader::follow(events, start)?;
        let (mut lines, mut count) = (vec![], 0);
        // A later record may begin a dispatch again, of which `fleet` does not know.
        while reader.cursor().seq < fleet.seq {
            let Some(line) = reader.next_line()? else { break };
            if let Some(metric) = metric_of(&line.record, events, fleet)? {
                lines.push(metric);
            }
            if lines.len() == BATCH {
                count += self.write(&lines)?;
                lines.clear();
            }
        }
        count += self.write(&lines)?;
        self.read = Some(reader.cursor());
        Ok(count)
    }

    /// Appends lines to the files of their days, in order and durably.
    fn write(&mut self, lines: &[Metric]) -> Result<u64, StoreError> {
        let day = |line: &Metric| line.ts.strftime("%Y-%m-%d").to_string();
        // The file of each line is durable before the next file gets one: else a lost line would be
        // older than the newest.
        for group in lines.chunk_by(|a, b| day(a) == day(b)) {
            let [first, ..] = group else { continue };
            let path = self.folder.join(format!("{}.jsonl", day(first)));
            let fail = |doing| StoreError::io(&path, doing);
            let mut text = vec![];
            for line in group {
                serde_json::to_writer(&mut text, line)
                    .map_err(|error| fail("encode")(error.into()))?;
                text.push(b'\n');
            }
            let is_new = !path.exists();
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
            let mut file = file.map_err(fail("open"))?;
            fault::point("metrics.before_write");
            file.write_all(&text).map_err(fail("write"))?;
            fault::point("metrics.after_write");
            file.sync_data().map_err(fail("make durable"))?;
            if is_new {
                sync_dir(&self.folder)?;
            }
            self.newest = group.last().map_or(self.newest, |line| line.seq);
        }
        Ok(lines.len() as u64)
    }
}

/// Returns the line for a record, if it gets one.
fn metric_of(record: &Record, events: &Path, fleet: &Fleet) -> Result<Option<Metric>, StoreError> {
    let is_end = matches!(record.entry.event, Event::DispatchFinished { .. });
    let Some(id) = record.entry.dispatch_id.as_ref().filter(|_| is_end) else {
        return Ok(metric::of(record, None));
    };
    let known = fleet.get(id);
    // The sums in the fleet are those of this end only if it was not begun again since.
    if let Some(known) = known
        && known.is_finished()
        && known.since == record.ts
    {
        return Ok(metric::of(record, Some(known)));
    }
    let begin = known.map_or(Start::Beginning, |known| Start::Seq(known.created_seq));
    Ok(metric::of(record, folded(events, begin, id, record.seq)?.as_ref()))
}

/// Passes on the ends of dispatches in all files of a folder, in the order of the days. Lines of
/// other kinds and of newer versions are skipped, and so is a torn last line.
///
/// # Errors
/// `E_STORE_IO`.
pub fn each_dispatch(
    folder: &Path,
    mut each: impl FnMut(Timestamp, &DispatchEnd),
) -> Result<(), StoreError> {
    let fail = |error| StoreError::io(folder, "list")(error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
    };
    let mut paths = vec![];
    for entry in entries {
        let path = entry.map_err(fail)?.path();
        paths.extend((path.extension().is_some_and(|suffix| suffix == "jsonl")).then_some(path));
    }
    paths.sort();
    for path in paths {
        let fail = |error| StoreError::io(&path, "read")(error);
        let mut lines = BufReader::new(File::open(&path).map_err(fail)?);
        let mut line = vec![];
        while lines.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line).map_err(fail)? > 0 {
            if let Ok(Metric { ts, of: Of::Dispatch(end), .. }) = serde_json::from_slice(&line) {
                each(ts, &end);
            }
            line.clear();
        }
    }
    Ok(())
}

/// Folds one dispatch from the log up to the record `seq`. That takes long, and happens only if the
/// dispatch was begun again, or left the fleet, before its end was read here.
fn folded(
    events: &Path,
    begin: Start,
    id: &DispatchId,
    seq: u64,
) -> Result<Option<Dispatch>, StoreError> {
    let mut folded: Option<Dispatch> = None;
    let mut reader = Reader::open(events, begin)?;
    while let Some(line) = reader.next_line()? {
        let record = &line.record;
        if record.seq > seq {
            break;
        }
        if record.entry.dispatch_id.as_ref() != Some(id) {
            continue;
        }
        match (&mut folded, &record.entry.event) {
            (Some(dispatch), _) => dispatch.apply(record),
            (none, Event::DispatchCreated(created)) => {
                *none = Some(Dispatch::new(id.clone(), Created::clone(created), record.ts));
            }
            (None, _) => {}
        }
    }
    Ok(folded)
}

/// Cuts a torn last line, and returns the seq of the last whole one; 0 without any.
fn mend(path: &Path) -> io::Result<u64> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut end = file.metadata()?.len();
    // A line is a few hundred bytes; the models of a dispatch are few.
    const MOST: u64 = 1024 * 1024;
    let begin = end.saturating_sub(MOST);
    let mut text = vec![];
    file.seek(SeekFrom::Start(begin))?;
    Read::by_ref(&mut file).take(MOST).read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole < text.len() {
        cut(&file, begin + whole as u64)?;
        end = begin + whole as u64;
        text.truncate(whole);
    }
    if end == 0 {
        return Ok(0);
    }
    let line = text.strip_suffix(b"\n").unwrap_or(&text);
    let line = line.rsplit(|byte| *byte == b'\n').next().unwrap_or(line);
    Ok(serde_json::from_slice::<Seq>(line)?.seq)
}

fn cut(file: &File, len: u64) -> io::Result<()> {
    file.set_len(len)?;
    file.sync_all()
}
