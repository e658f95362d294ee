//! The state directory that is damaged, and the commands that are asked about it.

use crate::crash::corruption::{Class, Files};
use crate::spec_stage::{AGENT, SpecStage, last};
use crate::{Daemon, Output, PATIENCE, World, processes, wait_until};
use muleteer_model::event::id::{DispatchId, ID_BYTES};
use muleteer_model::event::{Entry, Record};
use muleteer_process::fault::SEGMENT_VAR;
use muleteer_store::events::{EventLog, fold_fleet, read, snapshot};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of copies that are made of a finished dispatch; 20 stay in memory.
const COPIES: u8 = 30;
/// The number of copies of an answered message; 50 messages stay in memory.
const MESSAGES: u32 = 60;
/// A file has a few dozen records.
const SMALL: (&str, &str) = (SEGMENT_VAR, "16384");

#[derive(Debug)]
pub struct Scene {
    stage: SpecStage,
    run: String,
    thread: String,
    /// An archived dispatch with compressed output.
    first: String,
    /// A dispatch in the fleet.
    newest: String,
    /// The newest record before any damage.
    seq: u64,
    answers: BTreeMap<String, String>,
}

impl Scene {
    /// # Panics
    /// When the scene cannot be made.
    pub fn begin() -> Self {
        // Two beads, and a judge that finds nothing.
        let agent = AGENT
            .replace("  c=$(muleteer bead create --title Right)\n", "")
            .replace("  muleteer bead dep add \"$c\" \"$a\" 2>/dev/null ;;", "  ;;")
            .replace("if test \"$MULETEER_ITERATION\" = 1; then", "if false; then");
        let stage = SpecStage::new(&agent);
        stage.world.configure(
            "sandbox: {write: [~/out]}\n\
             retention: {in_memory: 20, compress_after: 0s, events: 0s}\n",
        );
        let mut scene = Self {
            stage,
            run: String::new(),
            thread: String::new(),
            first: String::new(),
            newest: String::new(),
            seq: 0,
            answers: BTreeMap::new(),
        };
        scene.live();
        scene.keep();
        scene
    }

    fn world(&self) -> &World {
        &self.stage.world
    }

    fn log(&self) -> PathBuf {
        self.world().state().join("events.jsonl")
    }

    /// Leaves the files of a month.
    fn live(&mut self) {
        let mut daemon = self.world().daemon_with(&[SMALL]);
        let done = last(&self.stage.begin(&["--json"]).run().expect_code(0).stdout);
        assert_eq!(done["status"], "completed", "{done}");
        self.run = done["run_id"].as_str().expect("an id").into();
        self.first = self.rehearsed();
        let opened = self.rehearse(&["thread", "new", "--project", self.stage.repo.to_str()]);
        self.thread = opened["thread_id"].as_str().expect("an id").into();
        self.say("k-first");
        daemon.kill_9();
        self.copy_dispatches();
        self.copy_messages();
        let mut daemon = self.world().daemon_with(&[SMALL]);
        self.wait_until_archived(&self.first);
        self.wait_until_compressed();
        let removed = self.world().muleteer(&["clean", "--apply", "--json"]).json();
        assert!(removed["events"]["events"].as_u64() > Some(10), "{removed}");
        // The first one has files, so its events stay.
        for _ in 0..3 {
            self.newest = self.rehearsed();
        }
        self.say("k-newest");
        wait_until("its sums", PATIENCE, || {
            let metrics = self.metrics();
            metrics.iter().any(|text| text.contains(&self.newest)).then_some(())
        });
        self.wait_until_compressed();
        daemon.kill_9();
        let (fleet, _) = fold_fleet(&self.log()).expect("the log");
        snapshot::write(&self.log(), &fleet).expect("a snapshot");
        // The records after the snapshot.
        let mut daemon = self.world().daemon_with(&[SMALL]);
        self.newest = self.rehearsed();
        self.wait_until_compressed();
        daemon.kill_9();
        self.leave_one_plain();
    }

    fn rehearse(&self, words: &[&str]) -> Value {
        let scenario = self.world().path().join("scenario.yaml");
        let turn =
            "  - steps:\n      - say: hello\n      - result: {status: success, summary: done}\n";
        fs::write(&scenario, format!("v: 1\nturns:\n{}", turn.repeat(9))).expect("a file");
        let path = scenario.display().to_string();
        let how = ["--backend", "rehearsal", "--scenario", &path, "--json"];
        self.world().muleteer(&[words, &how].concat()).json()
    }

    fn rehearsed(&self) -> String {
        let args = ["spawn", "developer", self.stage.repo.to_str(), "do it", "--wait"];
        self.rehearse(&args)["dispatch_id"].as_str().expect("an id").into()
    }

    fn say(&self, key: &str) -> Value {
        let args = ["thread", "send", &self.thread, "hi", "--key", key, "--wait", "--json"];
        self.world().muleteer(&args).json()
    }

    fn records(&self) -> Vec<Record> {
        let mut records = vec![];
        read(&self.log(), |record| records.push(record)).expect("the events");
        records
    }

    fn append(&self, entries: &[Entry]) {
        let (log, _) = EventLog::open(&self.log(), 0, |_| {}).expect("the log");
        let mut log = log.with_segments(16384);
        log.append(entries, jiff::Timestamp::now()).expect("they are appended");
    }

    fn copy_dispatches(&self) {
        let mut records = self.records();
        records.retain(|record| {
            record.entry.dispatch_id.as_ref().is_some_and(|of| of.as_str() == self.first)
        });
        for number in 1..=COPIES {
            let id = DispatchId::from_random([number; ID_BYTES]);
            let copy = |(at, record): (usize, &Record)| Entry {
                id: format!("{id}-{at}"),
                dispatch_id: Some(id.clone()),
                more: false,
                ..record.entry.clone()
            };
            self.append(&records.iter().enumerate().map(copy).collect::<Vec<_>>());
        }
    }

    /// Repeats the first message of the thread and its answer under other ids and keys.
    fn copy_messages(&self) {
        let shown = self.world().muleteer(&["thread", "show", &self.thread, "--json"]).json();
        let messages = shown["messages"].as_array().expect("messages");
        let ids: Vec<_> =
            messages.iter().map(|one| one["id"].as_str().expect("an id").to_string()).collect();
        let mut records = self.records();
        records.retain(|record| {
            let text = format!("{:?}", record.entry.event);
            text.starts_with("Message") && ids.iter().any(|id| text.contains(id))
        });
        for number in 1..=MESSAGES {
            let renamed = |text: String| {
                let renamed = ids.iter().fold(text, |text, id| {
                    let other = format!("{}{number:04}", &id[..id.len() - 4]);
                    text.replace(id, &other)
                });
                renamed.replace("k-first", &format!("k-{number}"))
            };
            let copy = |(at, record): (usize, &Record)| {
                let text = serde_json::to_string(&record.entry).expect("an event");
                let entry: Entry = serde_json::from_str(&renamed(text)).expect("an event");
                Entry { id: format!("copy-{number}-{at}"), more: false, ..entry }
            };
            self.append(&records.iter().enumerate().map(copy).collect::<Vec<_>>());
        }
    }

    fn wait_until_archived(&self, id: &str) {
        wait_until("the archival", PATIENCE, || {
            let is_it = |event: &Value| {
                event["event"] == "dispatches_archived" && event.to_string().contains(id)
            };
            self.world().events().iter().any(is_it).then_some(())
        });
    }

    /// Waits until the closed files of both logs and the output of the first agent are compressed.
    fn wait_until_compressed(&self) {
        let is_plain = |folder: &Path, suffix: &str| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.path().to_string_lossy().ends_with(suffix))
        };
        wait_until("everything to be compressed", PATIENCE, || {
            let run = self.run_folder().join("events");
            let output = self.world().state().join("agents").join(&self.first);
            let left = is_plain(&self.log().with_extension(""), ".jsonl")
                || is_plain(&run, ".jsonl")
                || !run.exists()
                || is_plain(&output, ".seg");
            (!left).then_some(())
        });
    }

    /// Decompresses the newest segment, as a daemon that was killed before its compression leaves
    /// it.
    fn leave_one_plain(&self) {
        let mut segments = files_in(&self.log().with_extension(""));
        segments.retain(|path| !path.ends_with("begin.jsonl.zst"));
        let newest = segments.pop().expect("segments");
        let text = zstd::decode_all(&fs::read(&newest).expect("a segment")[..]).expect("a segment");
        fs::write(newest.with_extension(""), text).expect("a file");
        fs::remove_file(newest).expect("it is there");
    }

    fn run_folder(&self) -> PathBuf {
        self.stage.repo.path.join(".muleteer/runs").join(&self.run)
    }

    fn metrics(&self) -> Vec<String> {
        let files = files_in(&self.world().state().join("metrics"));
        files.iter().map(|file| fs::read_to_string(file).expect("text")).collect()
    }

    /// Keeps a copy of the state and the answers to all commands.
    fn keep(&mut self) {
        self.world().wait_for_nothing_left(&[]);
        let kept = self.world().path().join("kept");
        fs::create_dir(&kept).expect("a folder");
        copy(&self.world().state(), &kept.join("state"));
        copy(&self.stage.repo.path, &kept.join("repo"));
        self.seq = self.records().last().expect("records").seq;
        for again in [false, true] {
            let daemon = self.world().daemon_with(&[SMALL]);
            let answers = self.ask().into_iter().map(|(command, output)| {
                let answer = self.answer(&command, &output);
                (command, answer.unwrap_or_else(|| panic!("undamaged: {output:?}")))
            });
            let answers = answers.collect();
            assert!(!again || answers == self.answers, "the answers change by themselves");
            self.answers = answers;
            self.end(daemon);
            self.restore();
        }
    }

    /// Gives the state back that [`Scene::begin`] left.
    ///
    /// # Panics
    /// When a file cannot be copied.
    pub fn restore(&self) {
        processes::end_all(self.world().path());
        let kept = self.world().path().join("kept");
        for (from, to) in [
            (kept.join("state"), self.world().state()),
            (kept.join("repo"), self.stage.repo.path.clone()),
        ] {
            fs::remove_dir_all(&to).expect("it is there");
            copy(&from, &to);
        }
    }

    /// Returns the files that can be damaged; each has content.
    ///
    /// # Panics
    /// When the folders cannot be listed.
    pub fn files(&self) -> Files {
        let state = self.world().state();
        let mut files = Files::new();
        let mut add = |path: PathBuf, class| {
            if fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
                files.insert(path, class);
            }
        };
        add(self.log(), Class::Log);
        files_in(&self.log().with_extension("")).into_iter().for_each(|it| add(it, Class::Log));
        for name in [
            "events.snapshot",
            "events.mark",
            "secrets.mark",
            "muleteer.db",
            "muleteer.db-wal",
            "muleteer.db-shm",
        ] {
            add(state.join(name), Class::Derived);
        }
        files_in(&state.join("metrics")).into_iter().for_each(|it| add(it, Class::Metrics));
        for id in [&self.first, &self.newest] {
            let output = files_in(&state.join("agents").join(id)).into_iter();
            let is_output = |path: &PathBuf| path.to_string_lossy().contains(".seg");
            output.filter(is_output).for_each(|it| add(it, Class::Output));
        }
        add(self.run_folder().join("events.jsonl"), Class::RunLog);
        files_in(&self.run_folder().join("events"))
            .into_iter()
            .for_each(|it| add(it, Class::RunLog));
        files
    }

    /// Asks everything that the files answer.
    fn ask(&self) -> Vec<(String, Output)> {
        let (first, newest) = (self.first.as_str(), self.newest.as_str());
        let commands: [&[&str]; 13] = [
            &["status", "--json"],
            &["status", first, "--json"],
            &["status", newest, "--json"],
            &["events", "--json"],
            &["thread", "show", &self.thread, "--json"],
            &["cost", "--json"],
            &["cost", "--by", "agent", "--json"],
            &["logs", first, "--json"],
            &["logs", newest, "--json"],
            &["why", newest, "--json"],
            &["run", "--status", &self.run, "--json"],
            &["thread", "send", &self.thread, "hi", "--key", "k-7", "--json"],
            &["thread", "send", &self.thread, "hi", "--key", "k-newest", "--json"],
        ];
        let ask = |words: &&[&str]| {
            let answer = wait_until(&format!("an answer to {words:?}"), PATIENCE, || {
                let output = self.stage.muleteer(words).run();
                (!output.stdout.contains("\"E_BUSY\"")).then_some(output)
            });
            (words.join(" "), answer)
        };
        commands.iter().map(ask).collect()
    }

    /// Returns the answer without what belongs to the daemon that gave it; `None` for an error.
    fn answer(&self, command: &str, output: &Output) -> Option<String> {
        if output.code != Some(0) {
            return None;
        }
        let mut answer = output.json();
        for key in ["daemon", "running"] {
            answer.as_object_mut()?.remove(key);
        }
        if command.starts_with("events") {
            let events = answer["events"].as_array_mut().expect("events");
            events.retain(|event| event["seq"].as_u64() <= Some(self.seq));
        }
        Some(answer.to_string())
    }

    /// Starts a daemon with a damaged file, and checks what it answers.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check(&self, class: Class, damaged: &[&Path]) {
        let world = self.world();
        let before = self.log_files();
        let _ = fs::remove_file(world.path().join("daemon.log"));
        let mut daemon = world.daemon_unready(&[SMALL]);
        let has_ended = wait_until("the daemon to answer or to end", PATIENCE, || {
            let output = world.muleteer(&["status", "--json"]).run();
            let answer = serde_json::from_str::<Value>(&output.stdout).unwrap_or_default();
            let is_up = answer["daemon"]["running"] == true;
            let has_ended = daemon.has_ended();
            // It may answer other commands, although it has no answer to this one.
            let is_refused = !has_ended && output.code == Some(3);
            (is_up || has_ended || is_refused && daemon.log().contains("recovered"))
                .then_some(has_ended)
        });
        if has_ended {
            let log = daemon.log();
            assert!(!log.contains("panicked"), "{log}");
            assert_eq!(class, Class::Log, "no other file keeps a daemon from starting: {log}");
            let refused = world.muleteer(&["daemon", "--json"]).run().expect_code(3);
            check_error("daemon", &refused, damaged);
            assert_eq!(self.log_files(), before, "the refusal changed the log");
            return;
        }
        for (command, output) in self.ask() {
            let Some(answer) = self.answer(&command, &output) else {
                assert!(self.may_fail(class, damaged, &command), "{command}: {output:?}");
                check_error(&command, &output, damaged);
                continue;
            };
            if answer != self.answers[&command] {
                let told = format!("{}{}", output.stdout, output.stderr);
                let is_told = self.may_fail(class, damaged, &command)
                    && (told.contains("damaged") || told.contains("is missing in"));
                assert!(
                    is_told,
                    "{command}: another answer without a word\n{}\n{}",
                    first_difference(&self.answers[&command], &answer),
                    output.stderr
                );
            }
        }
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
        self.end(daemon);
    }

    /// Whether a command may tell of the damage instead of giving its answer.
    fn may_fail(&self, class: Class, damaged: &[&Path], command: &str) -> bool {
        match class {
            Class::Log => true,
            Class::Derived | Class::Metrics => false,
            Class::Output => {
                let is_of = |id: &String| {
                    damaged.iter().any(|file| file.to_string_lossy().contains(id.as_str()))
                };
                [&self.first, &self.newest]
                    .into_iter()
                    .any(|id| is_of(id) && command == format!("logs {id} --json"))
            }
            Class::RunLog => command.starts_with("run "),
        }
    }

    /// Returns the files of the log with their content.
    fn log_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = files_in(&self.log().with_extension("")).into_iter().chain([self.log()]);
        files.filter_map(|path| Some((path.clone(), fs::read(path).ok()?))).collect()
    }

    fn end(&self, mut daemon: Daemon) {
        daemon.kill_9();
        self.world().wait_for_nothing_left(&[]);
    }
}

/// Checks that an error has a code, names one of the files (or the folder in which one is missing)
/// and says what to do.
fn check_error(command: &str, output: &Output, damaged: &[&Path]) {
    let told = output.json();
    let error = &told["error"];
    assert!(error["code"].as_str().is_some_and(|code| code.starts_with("E_")), "{told}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.len() > 10), "{command}: {told}");
    let place = Path::new(error["file"].as_str().unwrap_or("-"));
    let text = told.to_string();
    let is_named = damaged.iter().any(|file| {
        let name = file.file_name().expect("a file").to_string_lossy();
        let folder = file.parent().expect("a folder");
        // All of a log may be in the folder beside its file, which then ends too early.
        let is_missed = folder.with_extension("jsonl") == place;
        // The daemon may have closed the file meanwhile.
        let is_closed = name == "events.jsonl" && text.contains("/muleteer/events/0");
        folder == place || text.contains(&*name) || is_missed || is_closed
    });
    assert!(is_named, "{command}: the error names none of {damaged:?}: {told}");
}

fn first_difference(before: &str, after: &str) -> String {
    let same = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| {
        let from = same.saturating_sub(60);
        String::from_utf8_lossy(&text.as_bytes()[from..(same + 160).min(text.len())]).into_owned()
    };
    format!("before: …{}\nafter: …{}", part(before), part(after))
}

/// Returns the files of a folder, sorted.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|it| it.is_file()).collect();
    files.sort();
    files
}

/// Copies a folder with the times of its files.
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(done.is_ok_and(|status| status.success()), "{} cannot be copied", from.display());
}
