//! The row about the beads of a run in the real `tbd`, which has a process for each change: a run
//! of eighty beads, divided by one of forty. A ratio of two is linear growth.

use crate::commands::bench::measure::{Samples, in_turns, timed};
use crate::commands::bench::place::Place;
use crate::commands::bench::row::Options;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::Failure;
use xtask::agents::{self, Agents};

const FEW: usize = 40;
const MANY: usize = 80;

/// Measures a dry run, which gives all beads the label of the run.
pub fn accept(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    // Without network and cache the row says so, and the other rows are measured.
    let skipped = |failure| format!("SKIPPED, the real `tbd` cannot be installed: {failure}");
    let tools = agents::install().map_err(skipped)?;
    let command = [tools.node(), tools.tbd()].map(|path| path.display().to_string());
    place.configure(&format!(
        "run:\n  acceptance: {{generate: false}}\n  beads: {{store: tbd, command: {}}}\n",
        serde_json::to_string(&command)?
    ))?;
    place.daemon()?;
    let (few, many) = (repository(&place, &tools, FEW)?, repository(&place, &tools, MANY)?);
    let (mut of_few, mut of_many) = (0, 0);
    in_turns(
        options.rounds.div_ceil(4),
        Box::new(|| run(&place, &few, FEW, &mut of_few)),
        Box::new(|| run(&place, &many, MANY, &mut of_many)),
        vec![],
    )
}

fn repository(place: &Place, tools: &Agents, count: usize) -> Result<PathBuf, Failure> {
    let root = place.path(&format!("tbd-{count}"));
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join("plan.md"), "# A benchmark\n\nNothing is to be built.\n")?;
    let (node, tbd) = (tools.node().display().to_string(), tools.tbd().display().to_string());
    for words in [
        &["git", "init", "--quiet", "--initial-branch=main"][..],
        &["git", "config", "user.name", "Bench"],
        &["git", "config", "user.email", "bench@muleteer.invalid"],
        &["git", "add", "plan.md"],
        &["git", "commit", "--quiet", "-m", "The first"],
        &[node.as_str(), &tbd, "init", "--prefix=sup", "--quiet"],
    ] {
        let mut command = Command::new(words[0]);
        place.environment(&mut command);
        if !command.args(&words[1..]).current_dir(&root).status()?.success() {
            return Err(format!("{} fails", words.join(" ")).into());
        }
    }
    Ok(root)
}

/// Makes beads with a label of their own, which does not count, and measures the run.
fn run(place: &Place, root: &Path, count: usize, round: &mut usize) -> Result<f64, Failure> {
    *round += 1;
    let label = format!("round{round}");
    let line = |at: usize| {
        let bead = serde_json::json!({
            "id": format!("sup-{label}x{at}"), "title": format!("Bead {at}"), "status": "open",
            "priority": 2, "issue_type": "task", "labels": [label], "dependencies": [],
            "created_at": "2026-02-12T10:00:00Z", "updated_at": "2026-02-12T10:00:00Z",
        });
        format!("{bead}\n")
    };
    let file = root.join(".git/beads.jsonl");
    std::fs::write(&file, (0..count).map(line).collect::<String>())?;
    let muleteer = |args: &[&str]| -> Result<(), Failure> {
        let output = place.muleteer(args).current_dir(root).stderr(Stdio::piped()).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
    };
    muleteer(&["bead", "import", &file.display().to_string()])?;
    let plan = ["run", "plan.md", "--dry-run", "--json", "--bead-label", &label];
    let agent = ["--backend", "subprocess", "--command", "true"];
    let (_, took) = timed(|| muleteer(&[&plan[..], &agent].concat()))?;
    Ok(took)
}
