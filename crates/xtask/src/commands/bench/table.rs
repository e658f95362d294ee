//! Prints the measured values for a person, a program, or `docs/guides/performance.md`.

use super::measure::{Judged, Samples, median, percentile};
use super::peers;
use super::row::{Options, Row};
use serde_json::{Value, json};
use std::fmt::Write as _;
use xtask::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
    Markdown,
}

pub type Measured<'a> = (&'a Row, Result<Samples, Failure>);

pub fn print(rows: &[Measured<'_>], form: Form, options: &Options) -> Result<(), Failure> {
    let machine = machine();
    match form {
        Form::Json => {
            let rows: Vec<_> = rows.iter().map(document).collect();
            println!("{}", json!({ "machine": machine, "rounds": options.rounds, "rows": rows }));
        }
        Form::Text => {
            println!("{machine}\n");
            for row in rows {
                println!("{}", line(row));
            }
        }
        Form::Markdown => {
            println!("{machine}\n");
            println!("| row | measured | ours | floor | peers | figure | gate | ambition |");
            println!("|---|---|---|---|---|---|---|---|");
            for row in rows {
                println!("{}", markdown(row));
            }
        }
    }
    Ok(())
}

/// Compares a figure with its gate and its ambition.
fn verdict(row: &Row, figure: f64) -> &'static str {
    match (row.gate, row.ambition) {
        (_, Some(ambition)) if figure <= ambition => "ambition",
        (Some(gate), _) if figure <= gate => "gate",
        (Some(_), _) => "BEYOND",
        _ => "-",
    }
}

fn document((row, outcome): &Measured<'_>) -> Value {
    let unit = unit(row.judged);
    let base = json!({
        "name": row.name, "what": row.what, "floor_is": row.floor, "unit": unit,
        "gate": row.gate, "ambition": row.ambition,
    });
    let more = match outcome {
        Err(failure) => json!({ "error": failure.to_string() }),
        Ok(samples) => {
            let figure = samples.figure(row.judged);
            let peers: serde_json::Map<_, _> = samples
                .peers
                .iter()
                .map(|(name, values)| (name.clone(), json!(median(values))))
                .collect();
            json!({
                "ours": median(&samples.ours), "floor": median(&samples.floor), "peers": peers,
                "figure": figure,
                "verdict": figure.map(|figure| verdict(row, figure)), "rounds": samples.ours.len(),
                "note": note(samples, unit), "daemon_ms": samples.daemon_ms,
                "percentile": samples.percentile.map(|percent| json!({
                    "percent": percent, "ours": percentile(&samples.ours, percent),
                    "floor": percentile(&samples.floor, percent),
                })),
            })
        }
    };
    let (Value::Object(mut base), Value::Object(more)) = (base, more) else { return Value::Null };
    base.extend(more);
    Value::Object(base)
}

fn unit(judged: Judged) -> &'static str {
    match judged {
        Judged::Ratio => "ms",
        Judged::Absolute(unit) => unit,
    }
}

/// Returns what is printed beside the figure: the tail of the values, the daemon's processor time,
/// and the remark of the row.
fn note(samples: &Samples, unit: &str) -> Option<String> {
    let tail = samples.percentile.and_then(|percent| {
        let ours = short(percentile(&samples.ours, percent)?);
        let floor = percentile(&samples.floor, percent).map(short);
        let floor = floor.map_or_else(String::new, |floor| format!(" (floor {floor} {unit})"));
        Some(format!("p{percent} {ours} {unit}{floor}"))
    });
    let daemon = samples.daemon_ms;
    let daemon = daemon.map(|ms| format!("the daemon's processor {} ms a start", short(ms)));
    let all: Vec<_> = [tail, daemon, samples.note.clone()].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Prints a value with three significant digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn line((row, outcome): &Measured<'_>) -> String {
    let samples = match outcome {
        Err(failure) => return format!("{:<18} not measured: {failure}", row.name),
        Ok(samples) => samples,
    };
    let unit = unit(row.judged);
    let mut text = format!("{:<18} ", row.name);
    if let Some(ours) = median(&samples.ours) {
        let _ = write!(text, "{} {unit}", short(ours));
    }
    if let (Some(floor), Some(figure)) = (median(&samples.floor), samples.figure(row.judged)) {
        let _ = write!(text, " = {} x {} {unit} ({})", short(figure), short(floor), row.floor);
    }
    for (name, values) in &samples.peers {
        let _ =
            write!(text, "; {name} {} {unit}", median(values).map_or_else(|| "-".into(), short));
    }
    let figure = samples.figure(row.judged);
    let _ = write!(
        text,
        "  [{}; gate {}, ambition {}]",
        figure.map_or("-", |figure| verdict(row, figure)),
        row.gate.map_or_else(|| "-".into(), short),
        row.ambition.map_or_else(|| "-".into(), short),
    );
    if let Some(note) = note(samples, unit) {
        let _ = write!(text, " {note}");
    }
    text
}

fn markdown((row, outcome): &Measured<'_>) -> String {
    let cells = match outcome {
        Err(failure) => {
            [format!("not measured: {failure}"), String::new(), String::new(), String::new()]
        }
        Ok(samples) => {
            let unit = unit(row.judged);
            let value = |values: &[f64]| {
                median(values).map_or_else(String::new, |value| format!("{} {unit}", short(value)))
            };
            let peers: Vec<_> = samples
                .peers
                .iter()
                .map(|(name, values)| format!("{name} {}", value(values)))
                .collect();
            let figure = samples.figure(row.judged);
            let shown = figure.map_or_else(String::new, |figure| {
                format!("{} ({})", short(figure), verdict(row, figure))
            });
            let ours = value(&samples.ours);
            let ours = match note(samples, unit) {
                Some(note) => format!("{ours} ({note})"),
                None => ours,
            };
            [ours, value(&samples.floor), peers.join(", "), shown]
        }
    };
    let goal = |goal: Option<f64>| goal.map_or_else(|| "-".into(), short);
    format!(
        "| `{}` | {} | {} | {} | {} |",
        row.name,
        row.what,
        cells.join(" | "),
        goal(row.gate),
        goal(row.ambition)
    )
}

/// Describes the machine and its load.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1))
        .unwrap_or("unknown cpu");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory: u64 = read("/proc/meminfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().trim_end_matches(" kB").parse().ok()
        })
        .unwrap_or(0);
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_string();
    let load = read("/proc/loadavg").split(' ').next().unwrap_or("?").to_string();
    let peers = peers::found().join(", ");
    let peers = if peers.is_empty() { "none" } else { peers.as_str() };
    format!(
        "{model}, {cores} cores, {} GiB, Linux {kernel}; load average {load}; peers on PATH: \
         {peers}",
        memory >> 20
    )
}
