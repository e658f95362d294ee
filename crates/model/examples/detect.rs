//! `cargo xtask detect [--dir DIR] [--json]` runs recorded streams through the monitors
//! (docs/monitors.md).

#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

use muleteer_model::monitor::replay::{self, Decision, Duty, Header, Label, Report, Stream, Tally};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most bytes of a stream, because a stream is read whole.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Serialize)]
struct Judged<'a> {
    id: &'a str,
    label: Label,
    archetype: &'a str,
    decisions: &'a [Decision],
}

/// An error in the input, with the file and the line if the error is about a file.
#[derive(Debug, Default, Serialize)]
struct Fault {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

impl Fault {
    fn of(message: impl ToString) -> Self {
        Self { code: "E_BAD_INPUT", message: message.to_string(), ..Self::default() }
    }

    fn in_file(file: &Path, message: impl ToString, line: Option<usize>) -> Self {
        Self { file: Some(file.display().to_string()), line, ..Self::of(message) }
    }
}

fn main() -> ExitCode {
    let mut dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/corpus"));
    let mut json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--dir" => match args.next() {
                Some(given) => dir = given.into(),
                None => return refuse(&Fault::of("--dir wants a directory"), json),
            },
            _ => match arg.strip_prefix("--dir=") {
                Some(given) => dir = given.into(),
                None => {
                    return refuse(
                        &Fault::of(format!("unknown argument `{arg}`: [--dir DIR] [--json]")),
                        json,
                    );
                }
            },
        }
    }
    match run(&dir, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => refuse(&fault, json),
    }
}

fn refuse(fault: &Fault, json: bool) -> ExitCode {
    let Fault { message, file, line, .. } = fault;
    if json {
        print_json(&serde_json::json!({ "error": fault }));
    } else {
        let place = file.as_ref().map_or(String::new(), |file| format!("{file}: "));
        let line = line.map_or(String::new(), |line| format!("line {line}: "));
        eprintln!("detect: {place}{line}{message}");
    }
    ExitCode::from(2)
}

fn run(dir: &Path, json: bool) -> Result<(), Fault> {
    let mut files = Vec::new();
    below(dir, &mut files)?;
    files.sort();
    if files.is_empty() {
        return Err(Fault::of(format!("no *.jsonl below {}", dir.display())));
    }
    // All files are read before anything is printed, so that an invalid file prints no partial
    // report.
    let streams: Vec<Stream> = files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
    let mut report = Report::default();
    for stream in &streams {
        let decisions = stream.decisions();
        report.add(&stream.header, &decisions);
        if json {
            let Header { id, label, archetype, .. } = &stream.header;
            print_json(&Judged { id, label: *label, archetype, decisions: &decisions });
        } else {
            print_plain(&stream.header, &decisions);
        }
    }
    if json {
        print_json(&serde_json::json!({ "summary": report }))
    } else {
        print_table(&report)
    }
    Ok(())
}

fn below(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), Fault> {
    let fault = |error: std::io::Error| Fault::in_file(dir, error, None);
    for entry in std::fs::read_dir(dir).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "jsonl") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<Stream, Fault> {
    let fault = |error: std::io::Error| Fault::in_file(file, error, None);
    let size = std::fs::metadata(file).map_err(fault)?.len();
    if size > MOST_BYTES {
        return Err(Fault::in_file(
            file,
            format!("{size} bytes: a stream has at most {MOST_BYTES}"),
            None,
        ));
    }
    let text = std::fs::read_to_string(file).map_err(fault)?;
    Stream::parse(&text).map_err(|bad| Fault::in_file(file, bad.fault, Some(bad.line)))
}

fn print_json(value: &impl Serialize) {
    println!("{}", serde_json::to_string(value).unwrap_or_default());
}

fn print_plain(header: &Header, decisions: &[Decision]) {
    let verdict = replay::score(header, decisions);
    println!("{:?} {} ({:?}, {})", verdict, header.id, header.label, header.archetype);
    for Decision { t, finding } in decisions {
        let after = header.onset.map_or(String::new(), |onset| format!(" ({:+.0})", t - onset));
        println!(
            "    {t:>8.1}{after}  {} {:?}: {}",
            finding.monitor, finding.action, finding.reason
        );
    }
}

fn print_table(report: &Report) {
    println!(
        "\n{:<34} {:>7} {:>6} {:>7} {:>12} {:>9}",
        "", "streams", "right", "missed", "false alarms", "delay"
    );
    let all = [("all".to_string(), &report.all)];
    let labels =
        report.labels.iter().map(|(label, tally)| (format!("{label:?}").to_lowercase(), tally));
    let archetypes = report.archetypes.iter().map(|(name, tally)| (format!("  {name}"), tally));
    for (name, Tally { streams, right, missed, false_alarms, delay_s, .. }) in
        all.into_iter().chain(labels).chain(archetypes)
    {
        let delay = delay_s.map_or(String::new(), |delay| format!("{delay:.0} s"));
        println!("{name:<34} {streams:>7} {right:>6} {missed:>7} {false_alarms:>12} {delay:>9}");
    }
    println!("\n{:<10} {:>4} {:>6} {:>13}", "monitor", "due", "found", "false alarms");
    for (monitor, Duty { due, found, false_alarms, .. }) in &report.monitors {
        println!("{:<10} {due:>4} {found:>6} {false_alarms:>13}", monitor.to_string());
    }
}
