//! Runs on disk: found by id and folded from their events, with or without a daemon.

use crate::cli::failure::Failure;
use crate::client::connect::random;
use crate::client::offline::stored;
use muleteer_model::event::Record;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_protocol::ErrorCode;
use muleteer_store::events;
use muleteer_supervisor::daemon::settings;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The runs of one repository.
#[derive(Debug)]
pub struct Runs {
    pub repo: PathBuf,
}

impl Runs {
    /// Returns the runs of the repository that contains the current directory.
    ///
    /// # Errors
    /// When there is no current directory.
    pub fn here() -> Result<Self, Failure> {
        let here = crate::cli::context::here(ErrorCode::Io)?;
        let here = here.canonicalize().unwrap_or(here);
        Ok(Self { repo: settings::outermost(&here) })
    }

    pub fn folder(&self) -> PathBuf {
        self.repo.join(".muleteer/runs")
    }

    pub fn events(&self, run_id: &str) -> PathBuf {
        self.folder().join(run_id).join("events.jsonl")
    }

    /// Returns all ids, the newest last.
    pub fn ids(&self) -> Vec<String> {
        let mut found: Vec<(SystemTime, String)> = std::fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let begun = entry.path().join("frozen-spec.md");
                if !was_begun(&entry.path()) {
                    return None;
                }
                let of = |path: &Path| std::fs::metadata(path).ok()?.modified().ok();
                let time = of(&begun)
                    .or_else(|| of(&entry.path().join("events.jsonl")))
                    .or_else(|| of(&entry.path()));
                Some((time?, entry.file_name().into_string().ok()?))
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the run that `given` means: the beginning of its id or of the id's last part.
    /// Without `given` it is the newest run. An empty string is an error, because it usually comes
    /// from a script's unset variable.
    ///
    /// # Errors
    /// `E_NOT_FOUND`, `E_AMBIGUOUS`, `E_USAGE`.
    pub fn resolve(&self, given: Option<&str>) -> Result<String, Failure> {
        let ids = self.ids();
        let Some(given) = given else {
            let none = || {
                Failure::new(ErrorCode::NotFound, format!("{} has no runs", self.repo.display()))
                    .hint("start a run with `muleteer run plan.md`")
            };
            return ids.into_iter().next_back().ok_or_else(none);
        };
        if given.is_empty() {
            return Err(Failure::new(ErrorCode::Usage, "the run's id is empty")
                .hint("omit the id to select the newest run"));
        }
        let hash = |id: &str| id.rsplit('-').next().is_some_and(|hash| hash.starts_with(given));
        let matching: Vec<String> =
            ids.into_iter().filter(|id| id.starts_with(given) || hash(id)).collect();
        match matching.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Failure::new(
                ErrorCode::NotFound,
                format!("no run {given} in {}", self.repo.display()),
            )
            .run(given)
            .hint("run `muleteer runs` to list them")),
            many => match many.iter().find(|id| *id == given) {
                Some(exact) => Ok(exact.clone()),
                None => Err(Failure::new(
                    ErrorCode::Ambiguous,
                    format!("{} runs have an id that begins with {given}", many.len()),
                )
                .run(given)
                .hint(format!("name one: {}", many.join(", ")))),
            },
        }
    }

    /// Returns the only run that is under way.
    ///
    /// # Errors
    /// `E_NOT_FOUND` if there is none, `E_AMBIGUOUS` if there are several.
    pub fn under_way(&self) -> Result<String, Failure> {
        let is_live = |id: &String| self.read(id).is_ok_and(|run| run.is_live());
        let live: Vec<String> = self.ids().into_iter().filter(is_live).collect();
        match live.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Failure::new(
                ErrorCode::NotFound,
                format!("no run of {} is running", self.repo.display()),
            )
            .hint("run `muleteer runs` to list them")),
            many => {
                Err(Failure::new(ErrorCode::Ambiguous, format!("{} runs are running", many.len()))
                    .hint(format!("name one: {}", many.join(", "))))
            }
        }
    }

    /// Folds the events of a run.
    ///
    /// # Errors
    /// When the events cannot be read, or there are none.
    pub fn read(&self, run_id: &str) -> Result<Run, Failure> {
        let mut run: Option<Run> = None;
        let read = self.each(run_id, |record| match &mut run {
            Some(run) => run.apply(&record),
            None => run = Run::begin(&record),
        })?;
        run.ok_or_else(|| self.no_run(run_id, read))
    }

    /// As [`Self::read`], including the work of each agent.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn chronicle(&self, run_id: &str) -> Result<Chronicle, Failure> {
        let mut chronicle: Option<Chronicle> = None;
        let read = self.each(run_id, |record| match &mut chronicle {
            Some(chronicle) => chronicle.apply(&record),
            None => chronicle = Chronicle::begin(&record),
        })?;
        chronicle.ok_or_else(|| self.no_run(run_id, read))
    }

    /// Passes every event of the run to `take` and returns their number.
    fn each(&self, run_id: &str, mut take: impl FnMut(Record)) -> Result<u64, Failure> {
        let mut count = 0;
        let read = events::read(&self.events(run_id), |record| {
            count += 1;
            take(record);
        });
        read.map(|_| count).map_err(|error| stored(error).run(run_id))
    }

    fn no_run(&self, run_id: &str, read: u64) -> Failure {
        let path = self.events(run_id);
        let checkpoint = path.with_file_name("checkpoint.yml");
        if read == 0 && checkpoint.exists() {
            let message = format!(
                "{} has no events, but {} refers to some",
                path.display(),
                checkpoint.display()
            );
            return Failure::new(ErrorCode::EventsShort, message)
                .run(run_id)
                .file(&path)
                .hint("restore the file from a backup: durable events are missing");
        }
        if read == 0 {
            return Failure::new(
                ErrorCode::NotFound,
                format!("run {run_id} never started: {} is empty", path.display()),
            )
            .run(run_id)
            .hint("start a new run with `muleteer run plan.md`");
        }
        Failure::new(
            ErrorCode::CheckpointCorrupt,
            format!("the first event of {} does not start a run", path.display()),
        )
        .run(run_id)
    }
}

/// Returns whether the run was begun. A run without events was never begun, unless another file
/// shows that it once had some.
fn was_begun(folder: &Path) -> bool {
    let events = folder.join("events.jsonl");
    std::fs::metadata(&events).is_ok_and(|meta| meta.len() > 0)
        // `clean` closed the file.
        || events.with_extension("").is_dir()
        || folder.join("checkpoint.yml").exists()
        || events::read(&events, |_| {}).is_err()
}

/// Returns a new run id: `run-<date>-<six hex digits>`.
///
/// # Errors
/// When the system provides no random bytes.
pub fn new_id() -> Result<String, Failure> {
    let [a, b, c, ..] = random()?;
    let today = jiff::Zoned::now().strftime("%Y-%m-%d").to_string();
    Ok(format!("run-{today}-{a:02x}{b:02x}{c:02x}"))
}

/// Returns the path as a string.
///
/// # Errors
/// When it is not UTF-8.
pub fn utf8(path: &Path) -> Result<String, Failure> {
    path.to_str().map(str::to_string).ok_or_else(|| {
        Failure::new(ErrorCode::Usage, format!("the path {} is not UTF-8", path.display()))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_model::event::{Entry, Event};
    use muleteer_store::events::EventLog;

    const ID: &str = "run-2026-11-24-a1b2c3";

    fn code<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> String {
        outcome.unwrap_err().document()["error"]["code"].as_str().unwrap().to_string()
    }

    /// A run whose events were deleted is damaged; it must not look like a run that never existed.
    #[test]
    fn run_without_its_events_is_damaged() {
        for (emptied, marked, checkpoint, expected) in [
            (true, false, true, "E_EVENTS_SHORT"),
            (true, true, false, "E_EVENTS_SHORT"),
            (true, true, true, "E_EVENTS_SHORT"),
            (false, true, true, "E_EVENTS_SHORT"),
            (false, false, true, "E_EVENTS_SHORT"),
            (true, false, false, "E_NOT_FOUND"),
            (false, false, false, "E_NOT_FOUND"),
        ] {
            let repo = tempfile::tempdir().unwrap();
            let runs = Runs { repo: repo.path().into() };
            let events = runs.events(ID);
            std::fs::create_dir_all(events.parent().unwrap()).unwrap();
            let (mut log, _) = EventLog::open(&events, 0, |_| {}).unwrap();
            let event = Event::OutputRead {};
            let entry = Entry { id: "one".into(), dispatch_id: None, at: None, more: false, event };
            log.append(&[entry], jiff::Timestamp::UNIX_EPOCH).unwrap();
            drop(log);
            std::fs::remove_file(&events).unwrap();
            if emptied {
                std::fs::write(&events, "").unwrap();
            }
            if !marked {
                std::fs::remove_file(events.with_extension("mark")).unwrap();
            }
            if checkpoint {
                std::fs::write(events.with_file_name("checkpoint.yml"), "schema_version: 1\n")
                    .unwrap();
            }
            let case = format!("emptied {emptied}, marked {marked}, checkpoint {checkpoint}");
            let found = runs.resolve(Some("a1b2")).and_then(|id| runs.read(&id));
            assert_eq!(code(found), expected, "{case}");
            let found = runs.resolve(None).and_then(|id| runs.chronicle(&id));
            assert_eq!(code(found), expected, "{case}");
        }
    }
}
