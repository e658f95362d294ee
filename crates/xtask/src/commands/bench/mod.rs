//! `cargo xtask bench [NAME…]`: the cost of Muleteer, each figure beside a floor measured in the
//! same run.
//!
//! Absolute times of a shared machine mean little. A ratio to the least that the same work could
//! cost, measured in turns with it, shows the part that Muleteer adds. Every row is one
//! such figure. To add one, write a function from a [`place::Place`] to [`measure::Samples`] and
//! list it here.
//!
//! The benchmark builds release binaries first. It asserts nothing: a row beyond its gate is only
//! marked.

pub mod measure;
pub mod place;

mod build;
mod conversation_rows;
mod peers;
mod row;
mod rows;
mod table;

use measure::Judged;
use row::{Options, Row};
use rows::{agents, beads, cli, events, memory, month, output, runs, start, task_lists, threads};
use xtask::Failure;

/// All rows but those about conversations.
const OTHER_ROWS: &[Row] = &[
    Row {
        name: "cli_cold_start",
        what: "`muleteer --version`, from exec to exit",
        floor: "`true`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: cli::cold_start,
    },
    Row {
        name: "status_1",
        what: "`muleteer status --json` with one agent",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: cli::status_one,
    },
    Row {
        name: "tasks_status",
        what: "`muleteer tasks status --json` of 10,000 tasks",
        floor: "of 1,000 tasks",
        judged: Judged::Ratio,
        gate: Some(20.0),
        ambition: Some(10.0),
        run: task_lists::status,
    },
    Row {
        name: "tasks_selection",
        what: "`muleteer tasks graph --json` of 10,000 tasks: cycles, blocked ones, all that could \
            be next",
        floor: "of 1,000 tasks",
        judged: Judged::Ratio,
        gate: Some(20.0),
        ambition: Some(10.0),
        run: task_lists::selection,
    },
    Row {
        name: "status_500",
        what: "`muleteer status --json` with 500 agents",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: cli::status_many,
    },
    Row {
        name: "append",
        what: "one durable event through the log",
        floor: "a write of as many bytes, and fdatasync",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: events::append,
    },
    Row {
        name: "start_1",
        what: "request to the daemon until the agent's main, its intent durable",
        floor: "a bare spawn",
        judged: Judged::Ratio,
        gate: Some(2.2),
        ambition: Some(1.7),
        run: start::one,
    },
    Row {
        name: "start_repository",
        what: "as start_1, in a git repository",
        floor: "a bare spawn",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: start::in_repository,
    },
    Row {
        name: "start_sandboxed",
        what: "as start_1, in the sandbox",
        floor: "the same outside of it",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: start::sandboxed,
    },
    Row {
        name: "start_100",
        what: "100 requests at once until the last agent's main",
        floor: "a loop of 100 bare spawns",
        judged: Judged::Ratio,
        gate: Some(2.0),
        ambition: Some(1.4),
        run: start::hundred,
    },
    Row {
        name: "start_500",
        what: "500 requests at once until the last agent's main",
        floor: "a loop of 500 bare spawns",
        judged: Judged::Ratio,
        gate: Some(2.2),
        ambition: Some(1.6),
        run: start::many,
    },
    Row {
        name: "successor",
        what: "an agent killed until its successor's main, its end durable; without the policy's \
            pause",
        floor: "a child killed, reaped and spawned again",
        judged: Judged::Ratio,
        gate: Some(1.6),
        ambition: Some(1.35),
        run: start::successor,
    },
    Row {
        name: "capture_200mb",
        what: "200 MB in 64 KB writes, captured, checksummed and acknowledged",
        floor: "`| cat > file`",
        judged: Judged::Ratio,
        gate: Some(2.0),
        ambition: Some(1.5),
        run: output::large_writes,
    },
    Row {
        name: "capture_small",
        what: "20 MB in 100-byte writes, captured, checksummed and acknowledged",
        floor: "`| cat > file`",
        judged: Judged::Ratio,
        gate: Some(1.3),
        ambition: Some(1.05),
        run: output::small_writes,
    },
    Row {
        name: "drain_500",
        what: "500 shims of 1,000 records each, read by a fresh daemon",
        floor: "`cat` of the spools",
        judged: Judged::Ratio,
        gate: Some(2.0),
        ambition: Some(1.25),
        run: agents::drain,
    },
    Row {
        name: "reattach_500",
        what: "a daemon's start with 500 living shims until the last is adopted",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(45.0),
        run: agents::reattach,
    },
    Row {
        name: "shim_memory",
        what: "private dirty memory of one shim, of 500",
        floor: "",
        judged: Judged::Absolute("KB"),
        gate: Some(192.0),
        ambition: Some(64.0),
        run: memory::shim,
    },
    Row {
        name: "daemon_memory_0",
        what: "private dirty memory of an idle daemon",
        floor: "",
        judged: Judged::Absolute("MB"),
        gate: Some(4.0),
        ambition: Some(1.0),
        run: memory::idle_daemon,
    },
    Row {
        name: "daemon_memory_500",
        what: "private dirty memory of a daemon with 500 agents",
        floor: "",
        judged: Judged::Absolute("MB"),
        gate: Some(32.0),
        ambition: Some(18.0),
        run: memory::busy_daemon,
    },
    Row {
        name: "schedule_500",
        what: "a schedule of 500 beads made from nothing, and its first choice",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(1.0),
        ambition: Some(0.5),
        run: runs::schedule_small,
    },
    Row {
        name: "schedule_100000",
        what: "the same of 100,000 beads",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(50.0),
        ambition: Some(30.0),
        run: runs::schedule_wide,
    },
    Row {
        name: "schedule_deep",
        what: "the same of a chain of 100,000 beads",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(50.0),
        ambition: Some(30.0),
        run: runs::schedule_deep,
    },
    Row {
        name: "schedule_step",
        what: "one of 100,000 beads closed, and the next choice",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(1.0),
        ambition: Some(0.1),
        run: runs::schedule_step,
    },
    Row {
        name: "beads_load",
        what: "`muleteer bead ready --json` of 100,000 beads, from exec to exit",
        floor: "ninja, which finds nothing to do among as many nodes",
        judged: Judged::Ratio,
        gate: Some(1.0),
        ambition: Some(0.6),
        run: runs::load,
    },
    Row {
        name: "run_fold",
        what: "the log of a run of 2,000 beads, half of them done, read, checked and folded",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(200.0),
        ambition: Some(50.0),
        run: runs::fold,
    },
    Row {
        name: "run_resume",
        what: "a daemon's start until the run of 2,000 beads its killed predecessor left is under \
            way again",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(200.0),
        ambition: Some(100.0),
        run: runs::resume,
    },
    Row {
        name: "run_snapshots",
        what: "checkpoint and run log of a run of 2,000 beads, durable",
        floor: "as many bytes in two files, replaced as durably, one after the other",
        judged: Judged::Ratio,
        gate: Some(2.0),
        ambition: Some(1.3),
        run: runs::snapshots,
    },
    Row {
        name: "run_transition",
        what: "one transition of a run of 200 beads (one done, or the next given out): decided, \
            durable, folded, and its share of the snapshots",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(1.0),
        ambition: Some(0.5),
        run: runs::transitions,
    },
    Row {
        name: "run_200",
        what: "a run of 200 beads on instant agents, two at a time, from `run` to its exit",
        floor: "a shell loop of the same git commands, two at a time",
        judged: Judged::Ratio,
        gate: Some(1.2),
        ambition: Some(1.1),
        run: runs::two_hundred,
    },
    Row {
        name: "run_tbd",
        what: "a dry run of 80 beads in the real `tbd`, which changes each of them",
        floor: "of 40 beads",
        judged: Judged::Ratio,
        gate: Some(2.5),
        ambition: Some(2.0),
        run: beads::accept,
    },
    Row {
        name: "run_memory",
        what: "private dirty memory of a daemon with a run of 2,000 beads",
        floor: "",
        judged: Judged::Absolute("MB"),
        gate: Some(48.0),
        ambition: Some(24.0),
        run: runs::memory,
    },
    Row {
        name: "month_start",
        what: "a daemon's start beside 5,000 finished dispatches, until it answers",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(1000.0),
        ambition: Some(500.0),
        run: month::start,
    },
    Row {
        name: "month_memory",
        what: "the memory of a daemon there, after an answer",
        floor: "",
        judged: Judged::Absolute("MB"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::memory,
    },
    Row {
        name: "month_table",
        what: "`muleteer status` there",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::table,
    },
    Row {
        name: "month_status",
        what: "`muleteer status ID` there",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::status,
    },
    Row {
        name: "month_logs",
        what: "`muleteer logs ID` there",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::logs,
    },
    Row {
        name: "month_journal",
        what: "`muleteer journal` there",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::journal,
    },
    Row {
        name: "month_cost",
        what: "`muleteer cost` there",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::cost,
    },
    Row {
        name: "month_events_1h",
        what: "`muleteer events --since 1h` there",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: Some(100.0),
        ambition: Some(50.0),
        run: month::last_hour,
    },
    Row {
        name: "month_disk",
        what: "the state directory's size there, for each dispatch, when the log is compressed",
        floor: "",
        judged: Judged::Absolute("KB"),
        gate: Some(12.0),
        ambition: Some(8.0),
        run: month::disk,
    },
];

/// Returns all rows.
fn rows() -> impl Iterator<Item = &'static Row> {
    OTHER_ROWS.iter().chain(conversation_rows::ROWS)
}

const USAGE: &str = "\
cargo xtask bench [NAME…] [--json | --markdown] [--rounds N] [--many N]
                  [--month N [--at DIR]] [--threads N] [--bin-dir DIR]
  NAME         only these rows (a beginning will do); `list` lists them
  --rounds N   rounds of floor and subject in turns (default 9; slow rows take fewer)
  --many N     instead of 500 agents
  --month N    instead of 5,000 finished dispatches
  --at DIR     make the finished dispatches there once, keep them, and use them again
  --threads N  instead of 10,000 threads, of a hundred messages each
  --bin-dir D  measure the muleteer and muleteer-shim there, and build none; with the probes
               in D/examples, build nothing";

pub fn run(args: &[String]) -> Result<(), Failure> {
    // This runs alone: it builds for minutes, and does not use the binaries of the rows.
    if let Some((first, rest)) = args.split_first()
        && first == "build"
    {
        return build::run(rest);
    }
    let asked = Asked::read(args)?;
    if asked.list {
        for row in rows() {
            println!("{:<18} {}", row.name, row.what);
        }
        return Ok(());
    }
    let rows: Vec<&Row> = rows().filter(|row| asked.wants(row.name)).collect();
    if rows.is_empty() {
        return Err(format!("no row begins with {}\n\n{USAGE}", asked.names.join(" or ")).into());
    }
    let (bin, probes) = place::build(asked.bin.as_deref())?;
    let Asked { rounds, many, month, threads, at, .. } = asked;
    let options = Options { bin, probes, rounds, many, month, threads, at };
    let mut measured = Vec::new();
    for row in rows {
        eprintln!("xtask: {}: {}", row.name, row.what);
        let outcome = (row.run)(&options);
        if let Err(failure) = &outcome {
            eprintln!("xtask: {}: NOT MEASURED: {failure}", row.name);
        }
        measured.push((row, outcome));
    }
    month::end();
    threads::end();
    place::clear();
    table::print(&measured, asked.form, &options)
}

struct Asked {
    names: Vec<String>,
    list: bool,
    form: table::Form,
    rounds: usize,
    many: usize,
    month: usize,
    threads: usize,
    at: Option<std::path::PathBuf>,
    bin: Option<std::path::PathBuf>,
}

impl Asked {
    fn read(args: &[String]) -> Result<Self, Failure> {
        let mut asked = Self {
            names: vec![],
            list: false,
            form: table::Form::Text,
            rounds: 9,
            many: 500,
            month: 5_000,
            threads: 10_000,
            at: None,
            bin: None,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value =
                || args.next().cloned().ok_or_else(|| format!("{arg} wants a value\n\n{USAGE}"));
            match arg.as_str() {
                "--json" => asked.form = table::Form::Json,
                "--markdown" => asked.form = table::Form::Markdown,
                "--rounds" => asked.rounds = value()?.parse::<usize>()?.max(1),
                "--month" => asked.month = value()?.parse::<usize>()?.max(1),
                "--threads" => asked.threads = value()?.parse::<usize>()?.max(1),
                "--many" => asked.many = value()?.parse::<usize>()?.max(1),
                "--at" => asked.at = Some(value()?.into()),
                "--bin-dir" => asked.bin = Some(value()?.into()),
                "list" => asked.list = true,
                flag if flag.starts_with('-') => {
                    return Err(format!("no option `{flag}`\n\n{USAGE}").into());
                }
                name => asked.names.push(name.to_string()),
            }
        }
        Ok(asked)
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| name.starts_with(wanted.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked, Failure> {
        Asked::read(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn benchmark_rows_are_selected_by_prefix() {
        let all = asked("").expect("nothing");
        assert!(rows().all(|row| all.wants(row.name)));
        let some = asked("start_ append --rounds 3 --json").expect("some");
        let wanted: Vec<_> = rows().map(|row| row.name).filter(|name| some.wants(name)).collect();
        assert_eq!(
            (wanted, some.rounds),
            (
                vec![
                    "append",
                    "start_1",
                    "start_repository",
                    "start_sandboxed",
                    "start_100",
                    "start_500"
                ],
                3
            )
        );
        assert!(asked("--rounds").is_err() && asked("--fast").is_err());
    }

    #[test]
    fn names_are_unique_and_gates_are_within_reach_of_ambitions() {
        for (at, row) in rows().enumerate() {
            assert!(rows().take(at).all(|other| other.name != row.name), "{} twice", row.name);
            assert!(
                row.gate.zip(row.ambition).is_none_or(|(gate, ambition)| ambition <= gate),
                "{}",
                row.name
            );
            assert_eq!(
                row.floor.is_empty(),
                row.judged != Judged::Ratio,
                "{}: a ratio is to something",
                row.name
            );
        }
    }
}
