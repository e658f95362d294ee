use crate::task_list::*;
use jiff::Timestamp;
use muleteer_model::task_list::log::{self, Entry};
use muleteer_model::task_list::{Task, TaskList};
use std::fs;
use std::path::Path;
use std::process::Stdio;

fn now() -> Timestamp {
    "2025-07-01T10:00:00Z".parse().expect("an instant")
}

struct Place {
    dir: tempfile::TempDir,
    root: Root,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let root = Root::at(dir.path());
        let mut tx = root.create(TaskList::new(now()), now()).expect("creates");
        tx.list.tasks.push(Task::new("task-001", "First"));
        tx.log(Entry::init("Harness initialized"));
        tx.commit().expect("commits");
        Self { dir, root }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.progress()).expect("a log")
    }

    /// Returns the names of unexpected files.
    fn stray(&self) -> Vec<String> {
        let names = |dir: &Path| -> Vec<String> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let known = [
            "harness-tasks.json",
            "harness-tasks.json.bak",
            "harness-progress.txt",
            ".muleteer",
            "session.json",
        ];
        let mut all = [names(self.dir.path()), names(&self.root.private())].concat();
        all.retain(|name| !known.contains(&name.as_str()));
        all.sort_unstable();
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(self.root.lock_dir()));
    }
}

#[test]
fn lock_name_matches_the_reference() {
    // printf '%s' / | sha256sum | cut -c1-16
    assert_eq!(
        Root::at("/".as_ref()).lock_dir().to_str(),
        Some("/tmp/harness-8a5edab282632443.lock")
    );
}

#[test]
fn the_root_is_the_nearest_directory_with_a_list_or_the_pinned_one() {
    let place = Place::new();
    let deep = place.dir.path().join("src/deep");
    fs::create_dir_all(&deep).expect("dirs");
    assert_eq!(Root::find(&deep, None).expect("found"), place.root);
    let elsewhere = tempfile::tempdir().expect("a directory");
    assert_eq!(Root::find(elsewhere.path(), Some(place.dir.path())).expect("pinned"), place.root);
    let error = Root::find(elsewhere.path(), None).expect_err("nothing there");
    assert_eq!(error.code(), "E_TASKS_MISSING");
}

#[test]
fn before_every_write_the_current_file_is_the_backup_and_no_temporary_is_left() {
    let place = Place::new();
    let before = fs::read_to_string(place.root.tasks()).expect("reads");
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    tx.list.tasks[0].title = "Changed".into();
    tx.commit().expect("commits");
    assert_eq!(fs::read_to_string(place.root.backup()).expect("a backup"), before);
    assert!(!place.root.temporary().exists() && !place.root.lock_dir().exists());
    assert!(place.log().lines().all(|line| log::parse(line).is_some()));
}

#[test]
fn corrupt_list_is_restored_from_its_backup_or_rejected() {
    let place = Place::new();
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    tx.list.tasks[0].title = "Changed".into();
    tx.commit().expect("commits");
    for damage in ["", "{\"version\": 2, \"tas"] {
        fs::write(place.root.tasks(), damage).expect("damages");
        assert!(place.root.read().expect("reads").from_backup);
        let tx = place.root.begin(Right::Own, now()).expect("restores");
        assert_eq!(tx.list.tasks[0].title, "First", "the state before the last change");
        drop(tx);
        assert!(!place.root.read().expect("reads").from_backup, "restored for good");
    }
    assert!(place.log().contains("WARN harness-tasks.json was damaged; restored"));
    fs::write(place.root.tasks(), "{").expect("damages");
    fs::write(place.root.backup(), "{").expect("damages");
    let error = place.root.begin(Right::Own, now()).expect_err("unrecoverable");
    assert_eq!(error.code(), "E_TASKS_CORRUPT");
    assert!(
        place
            .log()
            .ends_with("ERROR [ENV_SETUP] harness-tasks.json corrupted and unrecoverable\n")
    );
    assert!(!place.root.lock_dir().exists(), "the lock is given back");
}

/// The backup is one change behind, and the damage may come with a manual change.
#[test]
fn content_of_a_damaged_list_is_saved_and_reported() {
    let place = Place::new();
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    tx.list.tasks[0].title = "Changed".into();
    tx.commit().expect("commits");
    let kept = |name: &str| fs::read_to_string(place.dir.path().join(name)).ok();
    for (damage, name) in
        [("{,1", "harness-tasks.json.damaged"), ("{,2", "harness-tasks.json.damaged.2")]
    {
        fs::write(place.root.tasks(), damage).expect("damages");
        let tx = place.root.begin(Right::Own, now()).expect("restores");
        let said = tx.restored.clone().expect("it is said");
        assert!(said.contains(&format!("as {name} (")) && said.contains("line 1"), "{said}");
        assert!(place.log().contains(&said), "{}", place.log());
        assert_eq!(kept(name).as_deref(), Some(damage));
    }
    assert_eq!(kept("harness-tasks.json.damaged").as_deref(), Some("{,1"), "none is overwritten");
    // Damaged while a change is in progress.
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    assert_eq!(tx.restored, None);
    tx.list.tasks[0].title = "Newer".into();
    fs::write(place.root.tasks(), "{,3").expect("damages");
    tx.commit().expect("commits");
    assert_eq!(kept("harness-tasks.json.damaged.3").as_deref(), Some("{,3"));
    assert!(
        place.log().ends_with("saved the damaged content as harness-tasks.json.damaged.3\n"),
        "{}",
        place.log()
    );
    assert_eq!(place.root.read().expect("reads").list.tasks[0].title, "Newer");
}

/// A person who edits the file takes no lock, and always has time between the read and the
/// replacement.
#[test]
fn concurrent_manual_edit_is_merged() {
    for (exchanges, anew) in [(true, false), (true, true), (false, false)] {
        let place = Place::new();
        let mut tx = place.root.begin(Right::Own, now()).expect("begins");
        tx.exchanges = exchanges;
        muleteer_model::task_list::outcome::complete(&mut tx.list.tasks[0], now());
        tx.log(Entry::completed("task-001", "abc1234"));
        let text = fs::read_to_string(place.root.tasks()).expect("reads");
        let text = text.replace("First", "In other words");
        if anew {
            let beside = place.dir.path().join("beside");
            fs::write(&beside, text).expect("writes");
            fs::rename(beside, place.root.tasks()).expect("replaces");
        } else {
            fs::write(place.root.tasks(), text).expect("writes");
        }
        let list = tx.commit().expect("commits");
        let read = place.root.read().expect("reads").list;
        assert_eq!(read, list, "what is told is what was written");
        let task = &read.tasks[0];
        assert_eq!(
            (task.title.as_str(), task.status.as_str()),
            ("In other words", "completed"),
            "{exchanges} {anew}"
        );
        let said = "Completed [task-001] (commit abc1234)\n[2025-07-01T10:00:00Z] [SESSION-1] WARN \
            another program changed harness-tasks.json during a change: merged both changes\n";
        assert!(place.log().ends_with(said), "{}", place.log());
        assert_eq!(place.stray(), [""; 0]);
    }
}

#[test]
fn conflicting_manual_edit_is_saved_beside_the_list() {
    for exchanges in [true, false] {
        let place = Place::new();
        let mut tx = place.root.begin(Right::Own, now()).expect("begins");
        tx.exchanges = exchanges;
        tx.list.tasks[0].title = "Ours".into();
        let theirs =
            fs::read_to_string(place.root.tasks()).expect("reads").replace("First", "Theirs");
        fs::write(place.root.tasks(), &theirs).expect("writes");
        tx.commit().expect("commits");
        assert_eq!(place.root.read().expect("reads").list.tasks[0].title, "Ours");
        let said = "also of tasks[task-001].title: kept the harness's values and saved the other \
            ones as harness-tasks.json.damaged\n";
        assert!(place.log().ends_with(said), "{}", place.log());
        assert_eq!(place.stray(), ["harness-tasks.json.damaged"]);
        assert_eq!(fs::read_to_string(place.root.damaged(1)).expect("kept"), theirs);
    }
}

#[test]
fn list_removed_during_a_change_is_written_again() {
    for exchanges in [true, false] {
        let place = Place::new();
        let mut tx = place.root.begin(Right::Own, now()).expect("begins");
        tx.exchanges = exchanges;
        tx.list.tasks[0].title = "Changed".into();
        fs::remove_file(place.root.tasks()).expect("goes");
        tx.commit().expect("commits");
        assert_eq!(place.root.read().expect("reads").list.tasks[0].title, "Changed");
        assert!(
            place.log().ends_with("WARN harness-tasks.json was removed; wrote it again\n"),
            "{}",
            place.log()
        );
        assert_eq!(place.stray(), [""; 0]);
    }
}

/// Edits arrive at any time between the read and the replacement, and more than once.
#[test]
fn constant_manual_edits_are_not_lost() {
    let place = Place::new();
    let mut number = 0_u64;
    let by_hand = |list: &TaskList| list.tasks[0].unknown("by_hand").cloned();
    for _ in 0..40 {
        std::thread::scope(|scope| {
            let change = scope.spawn(|| {
                let mut tx = place.root.begin(Right::Own, now()).expect("begins");
                tx.list.session_count += 1;
                tx.commit().expect("commits");
            });
            for _ in 0..3 {
                let mut list = place.root.read().expect("reads").list;
                number += 1;
                list.tasks[0].keep("by_hand", number.into());
                let beside = place.dir.path().join("beside");
                fs::write(&beside, list.to_text()).expect("writes");
                fs::rename(beside, place.root.tasks()).expect("replaces");
                std::thread::yield_now();
            }
            change.join().expect("no panic");
        });
        assert_eq!(
            by_hand(&place.root.read().expect("reads").list),
            Some(number.into()),
            "{}",
            place.log()
        );
    }
}

/// The process is killed right after the exchange, before it has checked the replaced file.
#[test]
fn edit_during_a_killed_change_is_saved_by_the_next() {
    let place = Place::new();
    let text = fs::read_to_string(place.root.tasks()).expect("reads");
    let (new, theirs) = (text.replace("First", "New"), text.replace("First", "Theirs"));
    let out = |what: &str| {
        fs::write(place.root.tasks(), &new).expect("writes");
        let name = crate::task_list::swap::name(
            Some(crate::task_list::intent::mark(text.as_bytes())),
            crate::task_list::intent::mark(new.as_bytes()),
        );
        fs::write(place.root.private().join(name), what).expect("writes");
        drop(place.root.begin(Right::Own, now()).expect("begins"));
    };
    fs::create_dir_all(place.root.private()).expect("a folder");
    for known in [&text, &new] {
        out(known);
        assert_eq!(place.stray(), [""; 0]);
        assert!(!place.log().contains("WARN"), "{}", place.log());
    }
    out(&theirs);
    assert_eq!(place.stray(), ["harness-tasks.json.damaged"]);
    assert_eq!(fs::read_to_string(place.root.damaged(1)).expect("kept"), theirs);
    assert!(
        place.log().ends_with("that change is saved as harness-tasks.json.damaged\n"),
        "{}",
        place.log()
    );
    assert_eq!(fs::read_to_string(place.root.tasks()).expect("reads"), new);
}

#[test]
fn a_byte_order_mark_is_no_damage() {
    let place = Place::new();
    let text = fs::read_to_string(place.root.tasks()).expect("reads");
    fs::write(place.root.tasks(), format!("\u{feff}{text}")).expect("writes");
    assert!(!place.root.read().expect("reads").from_backup);
    let tx = place.root.begin(Right::Own, now()).expect("begins");
    assert_eq!(tx.restored, None);
    tx.commit().expect("commits");
    assert_eq!(fs::read_to_string(place.root.tasks()).expect("reads"), text);
}

#[test]
fn an_invalid_list_is_left_alone() {
    let place = Place::new();
    let text = "{\"version\": 2, \"tasks\": [{\"id\": \"a\", \"status\": \"odd\"}]}";
    fs::write(place.root.tasks(), text).expect("writes");
    let error = place.root.begin(Right::Own, now()).expect_err("invalid");
    assert_eq!(error.code(), "E_TASKS_INVALID");
    assert_eq!(
        fs::read_to_string(place.root.tasks()).expect("reads"),
        text,
        "a person mends it, not we"
    );
}

#[test]
fn second_session_fails_fast_and_a_dead_lock_is_reclaimed() {
    let place = Place::new();
    let (lock, stale) = place.root.lock_session("run1").expect("locks");
    assert!(!stale);
    let error = place.root.lock_session("run2").expect_err("held");
    assert_eq!(error.code(), "E_TASKS_LOCKED");
    assert!(error.to_string().contains(&format!("pid={}", std::process::id())), "{error}");
    assert!(place.root.begin(Right::Own, now()).is_err(), "adding needs the lock");
    drop(place.root.begin(Right::Run("run1"), now()).expect("its own agent may"));
    assert!(place.root.begin(Right::Run("run2"), now()).is_err());
    drop(lock);
    assert!(!place.root.lock_dir().exists());

    // The lock of a dead process without our record: it belongs to another tool.
    let mut child = muleteer_process::command::helper("true")
        .stdout(Stdio::null())
        .spawn()
        .expect("a process");
    let pid = child.id();
    child.wait().expect("it ends");
    fs::create_dir(place.root.lock_dir()).expect("a lock");
    fs::write(place.root.lock_dir().join("pid"), format!("{pid}\n")).expect("a pid");
    let tx = place.root.begin(Right::Own, now()).expect("reclaims");
    assert!(tx.stale_lock);
    tx.commit().expect("commits");
    assert!(place.log().ends_with("WARN Removed stale lock\n"));
}

#[test]
fn reused_pid_does_not_hold_the_lock() {
    let place = Place::new();
    let (lock, _) = place.root.lock_session("run1").expect("locks");
    let mut holder: Holder = serde_json::from_slice(
        &fs::read(place.root.lock_dir().join("muleteer.json")).expect("reads"),
    )
    .expect("JSON");
    holder.start_time += 1;
    fs::write(
        place.root.lock_dir().join("muleteer.json"),
        serde_json::to_vec(&holder).expect("JSON"),
    )
    .expect("writes");
    assert!(SessionLock::holder(&place.root).is_none());
    drop(place.root.lock_session("run2").expect("reclaimed"));
    drop(lock);
}

#[test]
fn the_log_is_only_appended_to_and_a_torn_line_gets_an_end() {
    let place = Place::new();
    let before = place.log();
    let torn = format!("{before}[2025-07-01T10:0");
    fs::write(place.root.progress(), &torn).expect("tears");
    place.root.note(1, now(), vec![Entry::warn(None, "on")]).expect("appends");
    assert_eq!(place.log(), format!("{torn}\n[2025-07-01T10:00:00Z] [SESSION-1] WARN on\n"));
    assert_eq!(place.root.log_tail(1), ["[2025-07-01T10:00:00Z] [SESSION-1] WARN on"]);
}

#[test]
fn log_lines_of_a_killed_change_are_written_once_if_it_took_effect() {
    let place = Place::new();
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    muleteer_model::task_list::outcome::complete(&mut tx.list.tasks[0], now());
    tx.log(Entry::completed("task-001", "abc1234"));
    tx.die_before_the_log();
    assert!(!place.log().contains("Completed"));
    for _ in 0..2 {
        drop(place.root.begin(Right::Own, now()).expect("begins"));
        assert_eq!(place.log().matches("Completed [task-001] (commit abc1234)\n").count(), 1);
    }
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    tx.list.tasks.push(Task::new("task-002", "Never"));
    crate::task_list::intent::write(&place.root, &tx.list.to_text(), "not so\n")
        .expect("an intent");
    drop(tx);
    drop(place.root.begin(Right::Own, now()).expect("begins"));
    assert!(!place.log().contains("not so"));
}

#[test]
fn marker_is_removed_when_no_task_is_left() {
    let place = Place::new();
    let mut tx = place.root.begin(Right::Own, now()).expect("begins");
    tx.mark_active(true).expect("marks");
    tx.settle_marker().expect("settles");
    assert!(place.root.active().exists());
    muleteer_model::task_list::outcome::complete(&mut tx.list.tasks[0], now());
    tx.settle_marker().expect("settles");
    assert!(!place.root.active().exists());
}

/// Agents work in this folder.
#[test]
fn pipe_instead_of_the_list_does_not_block() {
    let place = Place::new();
    fs::remove_file(place.root.tasks()).expect("goes");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    for path in [place.root.tasks(), place.root.progress()] {
        let _ = fs::remove_file(&path);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
    }
    assert!(place.root.read().is_err());
    assert_eq!(place.root.completions(), []);
}

/// The list that a session wrote last wins over manual edits, also for the daemon that succeeds a
/// killed one.
#[test]
fn last_version_of_a_session_is_restored_and_known_to_the_next() {
    let place = Place::new();
    let forge = || {
        let text = fs::read_to_string(place.root.tasks()).expect("reads");
        fs::write(place.root.tasks(), text.replace("\"pending\"", "\"completed\""))
            .expect("writes");
    };
    let (lock, _) = place.root.lock_session("one").expect("locks");
    let begin = |lock: &SessionLock| place.root.begin(Right::Session(lock), now()).expect("begins");
    assert_eq!(begin(&lock).overwritten, []);
    let mut tx = begin(&lock);
    tx.list.tasks[0].title = "Changed".into();
    tx.commit().expect("commits");
    forge();
    // Nothing of that was committed, so the next reader finds it again from the file.
    let put_back = |lock: &SessionLock| {
        let tx = begin(lock);
        assert_eq!(tx.list.tasks[0].title, "Changed");
        (tx.overwritten.len(), tx.list.tasks[0].status.as_str())
    };
    assert_eq!(put_back(&lock), (1, "pending"));
    drop(lock);
    let (next, _) = place.root.lock_session("one").expect("locks");
    assert_eq!(put_back(&next), (1, "pending"));
    begin(&next).commit().expect("commits");
    assert!(place.log().contains("WARN [task-001] its status in"), "{}", place.log());
    // Killed before the list was replaced: the file has the older list.
    let mut decided = place.root.read().expect("reads").list;
    decided.tasks[0].title = "Decided".into();
    let written = next.written.clone().expect("a session's");
    written.is_about_to_write(&place.root, &decided).expect("writes");
    drop(next);
    let (next, _) = place.root.lock_session("one").expect("locks");
    assert_eq!(put_back(&next), (0, "pending"));
    // The same, but somebody has edited the file: we did not write these contents.
    forge();
    next.written
        .clone()
        .expect("a session's")
        .is_about_to_write(&place.root, &decided)
        .expect("writes");
    drop(next);
    let (next, _) = place.root.lock_session("one").expect("locks");
    assert_eq!(put_back(&next), (1, "pending"));
    // Another run accepts the list as it finds it.
    drop(next);
    forge();
    let (other, _) = place.root.lock_session("two").expect("locks");
    assert_eq!(put_back(&other), (0, "completed"));
}
