//! `cargo xtask agents`: installs the agent CLIs and runs the conformance suite (the example
//! `conformance` of the crate `muleteer-tests`), with the pinned versions or with the newest.
//!
//! `tests/conformance.json` has the results of the last accepted run; the table in
//! `docs/guides/agents.md` is made from it.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::agents::{self, Agents, Set};
use xtask::{Failure, binaries, workspace};

#[derive(Debug, Default)]
struct Options {
    install: bool,
    latest: bool,
    update: bool,
    names: Vec<String>,
    passed_on: Vec<String>,
}

pub fn run(args: &[String]) -> Result<(), Failure> {
    let options = parse(args)?;
    // An installation takes minutes, so a wrong name is reported before it.
    let suite = if options.install { None } else { Some(Suite::build(&options)?) };
    let agents = if options.latest {
        agents::install_latest(Set::Conformance)?
    } else {
        agents::install_set(Set::Conformance)?
    };
    let Some(suite) = suite else {
        print_places(&agents);
        return Ok(());
    };
    let found = suite.run(&agents)?;
    let accepted = accepted()?;
    let differences = differences(&accepted, &found);
    for difference in &differences {
        println!("{difference}");
    }
    if options.update {
        return write(merged(accepted, &found));
    }
    let worse = differences.iter().filter(|difference| difference.worse).count();
    println!("{} results differ from tests/conformance.json, {worse} are worse", differences.len());
    if worse == 0 { Ok(()) } else { Err("the agents conform less than they did".into()) }
}

fn parse(args: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--install" => options.install = true,
            "--latest" => options.latest = true,
            "--update" => options.update = true,
            "--jobs" | "--scenario" => {
                let value = args.next().ok_or(format!("{arg} needs a value"))?;
                options.passed_on.extend([arg.clone(), value.clone()]);
            }
            name if !name.starts_with('-') => options.names.push(name.into()),
            other => return Err(format!("agents: no option {other}").into()),
        }
    }
    Ok(options)
}

fn print_places(agents: &Agents) {
    for (name, path) in [
        ("claude", agents.claude()),
        ("codex", agents.codex()),
        ("claude-agent-acp", agents.claude_acp()),
        ("codex-acp", agents.codex_acp()),
        ("opencode", agents.opencode()),
        ("gemini", agents.gemini()),
        ("qwen", agents.qwen()),
        ("copilot", agents.copilot()),
        ("pi", agents.pi()),
        ("pi-acp", agents.pi_acp()),
        ("cline", agents.cline()),
        ("node", agents.node()),
    ] {
        println!("{name} {}", path.display());
    }
}

/// The program of the suite, with the agents and scenarios that were chosen.
struct Suite {
    program: PathBuf,
    bin_dir: PathBuf,
    words: Vec<String>,
}

impl Suite {
    /// Builds the suite, and checks the names of the agents and scenarios.
    fn build(options: &Options) -> Result<Self, Failure> {
        let bin_dir = binaries::build_workspace()?;
        let mut cargo = workspace::cargo();
        cargo.args(["build", "--workspace", "--features", binaries::FEATURE]);
        cargo.args(["--example", "conformance"]);
        workspace::run(&mut cargo)?;
        let program = workspace::target_dir()?.join("debug/examples/conformance");
        let names = options.names.iter().flat_map(|name| ["--agent".to_string(), name.clone()]);
        let words = options.passed_on.iter().cloned().chain(names).collect();
        let suite = Self { program, bin_dir, words };
        let checked = suite.command(Path::new(".")).arg("--check").status()?;
        if checked.success() { Ok(suite) } else { Err("nothing was installed or run".into()) }
    }

    fn command(&self, agents: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--agents").arg(agents).args(&self.words);
        command.env(binaries::DIR_VARIABLE, &self.bin_dir).stdin(Stdio::null());
        command
    }

    /// Runs the suite and returns its results. Its progress goes to stderr.
    fn run(&self, agents: &Agents) -> Result<Value, Failure> {
        let output = self.command(&agents.dir).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let results = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
        match results.filter(|_| output.status.success()) {
            Some(results) => Ok(results),
            None => Err(format!("the suite ended with {}", output.status).into()),
        }
    }
}

fn file() -> PathBuf {
    workspace::root().join("tests/conformance.json")
}

fn accepted() -> Result<Value, Failure> {
    let file = file();
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(serde_json::from_str(&text)?)
}

fn write(results: Value) -> Result<(), Failure> {
    std::fs::write(file(), serde_json::to_string_pretty(&results)? + "\n")?;
    println!("tests/conformance.json is written; run UPDATE_DOCS=1 cargo test for the table");
    Ok(())
}

/// One result that is not the accepted one.
struct Difference {
    agent: String,
    probe: String,
    before: String,
    now: String,
    why: String,
    worse: bool,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { agent, probe, before, now, why, worse } = self;
        let mark = if *worse { "WORSE" } else { "other" };
        write!(out, "{mark}: {agent}, {probe}: {now} (was {before}){why}")
    }
}

fn differences(accepted: &Value, found: &Value) -> Vec<Difference> {
    let mut differences = vec![];
    for (agent, entry) in found["agents"].as_object().into_iter().flatten() {
        for (probe, outcome) in entry["results"].as_object().into_iter().flatten() {
            let before = accepted["agents"][agent]["results"][probe].as_str().unwrap_or("unknown");
            let now = word(outcome);
            if now != before {
                let why = outcome["fails"].as_str().map_or(String::new(), |why| format!(": {why}"));
                differences.push(Difference {
                    agent: agent.clone(),
                    probe: probe.clone(),
                    before: before.into(),
                    now: now.into(),
                    why,
                    worse: now == "no" || before == "yes",
                });
            }
        }
    }
    differences
}

/// Returns an outcome as the file has it: without its reason, which names ids.
fn word(outcome: &Value) -> &str {
    match outcome.as_str() {
        Some("holds") => "yes",
        Some(other) => other,
        None => "no",
    }
}

fn merged(mut accepted: Value, found: &Value) -> Value {
    for (agent, entry) in found["agents"].as_object().into_iter().flatten() {
        let place = &mut accepted["agents"][agent];
        let mut results = place["results"].as_object().cloned().unwrap_or_default();
        let new = entry["results"].as_object().into_iter().flatten();
        results.extend(new.map(|(probe, outcome)| (probe.clone(), json!(word(outcome)))));
        let mut whole = Map::new();
        whole.insert("version".into(), entry["version"].clone());
        whole.insert("results".into(), results.into());
        *place = whole.into();
    }
    accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_that_no_longer_holds_is_worse() {
        let accepted =
            json!({"agents": {"pi": {"results": {"edit": "yes", "hang": "no", "MCP": "yes"}}}});
        let found = json!({"agents": {"pi": {"version": "2", "results":
            {"edit": {"fails": "why"}, "hang": "holds", "MCP": "absent"}}}});
        let differences = differences(&accepted, &found);
        let worse: Vec<(&str, bool)> =
            differences.iter().map(|one| (one.probe.as_str(), one.worse)).collect();
        assert_eq!(worse, [("edit", true), ("hang", false), ("MCP", true)]);
        assert!(differences[0].to_string().contains("no (was yes): why"), "{}", differences[0]);
        let merged = merged(accepted, &found);
        assert_eq!(
            merged["agents"]["pi"],
            json!({"version": "2", "results": {"MCP": "absent", "edit": "no", "hang": "yes"}})
        );
    }
}
