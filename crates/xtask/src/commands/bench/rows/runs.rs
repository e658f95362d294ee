//! Rows about the spec run: its schedule, its log and snapshots, and whole runs.

use super::memory;
use crate::commands::bench::measure::{Samples, in_turns, probed, timed, until};
use crate::commands::bench::peers;
use crate::commands::bench::place::{PATIENCE, Place};
use crate::commands::bench::row::Options;
use std::path::Path;
use std::process::Command;
use xtask::Failure;

const MANY: usize = 100_000;

pub fn schedule_small(options: &Options) -> Result<Samples, Failure> {
    let rounds = (options.rounds * 20).to_string();
    let samples = probe(options, &["schedule", "wide", "500", &rounds])?;
    Ok(Samples { percentile: Some(95), ..samples })
}

pub fn schedule_wide(options: &Options) -> Result<Samples, Failure> {
    probe(options, &["schedule", "wide", &MANY.to_string(), &options.rounds.to_string()])
}

pub fn schedule_deep(options: &Options) -> Result<Samples, Failure> {
    probe(options, &["schedule", "deep", &MANY.to_string(), &options.rounds.to_string()])
}

pub fn schedule_step(options: &Options) -> Result<Samples, Failure> {
    probe(options, &["step", "wide", &MANY.to_string(), &(options.rounds * 100).to_string()])
}

pub fn fold(options: &Options) -> Result<Samples, Failure> {
    in_a_place(options, &["fold", "DIR", "2000", &options.rounds.to_string()])
}

pub fn snapshots(options: &Options) -> Result<Samples, Failure> {
    let rounds = (options.rounds * 10).to_string();
    let samples = in_a_place(options, &["checkpoint", "DIR", "2000", &rounds])?;
    Ok(Samples { percentile: Some(95), ..samples })
}

pub fn transitions(options: &Options) -> Result<Samples, Failure> {
    in_a_place(options, &["transitions", "DIR", "200"])
}

fn in_a_place(options: &Options, args: &[&str]) -> Result<Samples, Failure> {
    let place = options.place()?;
    let dir = place.path("pipeline").display().to_string();
    std::fs::create_dir_all(&dir)?;
    let args: Vec<&str> =
        args.iter().map(|arg| if *arg == "DIR" { dir.as_str() } else { arg }).collect();
    probe(options, &args)
}

fn probe(options: &Options, args: &[&str]) -> Result<Samples, Failure> {
    probed(Command::new(options.probes.join("pipeline")).args(args))
}

/// Measures `muleteer bead ready` with 100,000 beads, from exec to exit. The floor is ninja, which
/// finds nothing to do in as many targets.
pub fn load(options: &Options) -> Result<Samples, Failure> {
    let place = options.place()?;
    repository(&place)?;
    let store = place.project().join(".muleteer/beads");
    beads(options, &store, MANY)?;
    let ours = || -> Result<f64, Failure> {
        let mut command = place.muleteer(&["bead", "ready", "--json"]);
        let (status, took) = timed(|| Ok(command.status()?))?;
        if status.success() { Ok(took) } else { Err(format!("bead ready: {status}").into()) }
    };
    if !peers::has("ninja") {
        return Err("ninja is not on PATH, and it is what this is measured beside".into());
    }
    let dir = place.path("ninja");
    std::fs::create_dir_all(&dir)?;
    ninja(&dir, MANY)?;
    let nothing_to_do = move || -> Result<f64, Failure> {
        let mut command = Command::new("ninja");
        command.current_dir(&dir).stdout(std::process::Stdio::null());
        let (status, took) = timed(|| Ok(command.status()?))?;
        if status.success() { Ok(took) } else { Err(format!("ninja: {status}").into()) }
    };
    in_turns(options.rounds, Box::new(nothing_to_do), Box::new(ours), vec![])
}

/// Writes a build file of as many targets, each depending on the one before it and one far back,
/// all up to date.
fn ninja(dir: &Path, count: usize) -> Result<(), Failure> {
    use std::fmt::Write as _;
    let mut text = String::from("rule touch\n  command = touch $out\nbuild n0: phony\n");
    for at in 1..count {
        let _ = writeln!(text, "build n{at}: phony n{} n{}", at - 1 - (at - 1) % 100, at / 2);
    }
    let _ = writeln!(
        text,
        "build all: phony {}",
        (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>().join(" ")
    );
    text.push_str("default all\n");
    Ok(std::fs::write(dir.join("build.ninja"), text)?)
}

/// Measures a chain of beads, one of which is ready.
fn beads(options: &Options, store: &Path, count: usize) -> Result<Samples, Failure> {
    probe(options, &["beads", &store.display().to_string(), "deep", &count.to_string()])
}

/// Makes the place's project a repository with a first commit.
fn repository(place: &Place) -> Result<(), Failure> {
    std::fs::write(place.project().join("plan.md"), "# A benchmark\n\nNothing is to be built.\n")?;
    std::fs::write(place.project().join("seed.txt"), "seed\n")?;
    for args in [
        &["init", "--quiet", "--initial-branch=main"][..],
        &["config", "user.name", "Bench"],
        &["config", "user.email", "bench@muleteer.invalid"],
        &["add", "plan.md", "seed.txt"],
        &["commit", "--quiet", "-m", "The first"],
    ] {
        let mut git = Command::new("git");
        place.environment(&mut git);
        if !git.args(args).status()?.success() {
            return Err(format!("git {} fails", args.join(" ")).into());
        }
    }
    Ok(())
}

const NO_FRILLS: &str = "\
run:
  agent: {max_concurrency: 2}
  acceptance: {generate: false}
  phases:
    judge: {enabled: false}
    maintain: {trigger: never}
";

/// The work of one bead's agent and of the floor's loop: one commit, brought to the target.
const WORK: &str = r#"n=${MULETEER_BEAD_ID}
echo "$n" > "$n.txt"
git add "$n.txt"
git commit --quiet -m "$n"
until git pull --quiet --rebase "${MULETEER_REMOTE}" "${MULETEER_TARGET_BRANCH}" \
  && git push --quiet "${MULETEER_REMOTE}" "HEAD:${MULETEER_TARGET_BRANCH}" 2>/dev/null; do :; done
"#;

/// The git commands of a run as a loop with two workers, as many as the run has.
const LOOP: &str = r#"
set -e
repo=$1; work=$2; count=$3; export MULETEER_TARGET_BRANCH=main
rm -rf "$work"; mkdir -p "$work/clones"
git init --quiet --bare "$work/hub.git"
git -C "$repo" push --quiet "$work/hub.git" HEAD:refs/heads/main
export MULETEER_REMOTE="$work/hub.git" work
one() {
  MULETEER_BEAD_ID=$1; export MULETEER_BEAD_ID; dir=$work/clones/$1
  cd "$work/hub.git"
  git rev-parse --verify --quiet refs/heads/main >/dev/null
  git clone --quiet --shared --no-hardlinks --no-checkout --branch main . "$dir.partial"
  git -C "$dir.partial" checkout --quiet -B "bead-$1"
  for key in user.name user.email; do
    git -C "$dir.partial" config "$key" bench@muleteer.invalid
  done
  git -C "$dir.partial" rev-parse HEAD >"$dir.base"
  mv "$dir.partial" "$dir"
  (cd "$dir" && sh -c "$WORK")
  now=$(git rev-parse --verify --quiet refs/heads/main)
  git merge-base --is-ancestor "$(cat "$dir.base")" "$now"
  git fetch --quiet --no-tags --no-write-fetch-head "$dir" "+HEAD:refs/muleteer/work/$1"
  head=$(git rev-parse "refs/muleteer/work/$1")
  git merge-base --is-ancestor "$head" refs/heads/main
  git rev-list --count "$(cat "$dir.base")..$head" >/dev/null
  export GIT_INDEX_FILE="$work/index-$1"
  git -c core.bare=false --git-dir "$work/hub.git" --work-tree "$dir" read-tree "$head"
  (cd "$dir" && git -c core.bare=false --git-dir "$work/hub.git" --work-tree "$dir" \
    status --porcelain >/dev/null)
  rm -rf "$dir" "$work/index-$1"
}
half() { for n in $(seq "$1" 2 "$count"); do (one "b$n"); done; }
half 1 & half 2 & wait
test "$(git -C "$work/hub.git" rev-list --count main)" -gt "$count"
"#;

/// Measures a run of 200 beads whose agents commit one file each. The floor is a loop of the same
/// git commands.
pub fn two_hundred(options: &Options) -> Result<Samples, Failure> {
    let count = 200;
    let mut place = options.place()?;
    repository(&place)?;
    place.configure(NO_FRILLS)?;
    let pid = place.daemon()?;
    let script = place.path("work.sh");
    std::fs::write(
        &script,
        format!("set -e\n{WORK}exec muleteer bead close \"$n\" --reason done >/dev/null\n"),
    )?;
    let command = format!("sh {}", script.display());
    let flat = place.path("flat.jsonl");
    let ours = || -> Result<f64, Failure> {
        let label = format!("b{}", std::process::id() as usize + rand(&place));
        import(&place, &flat, &label, count)?;
        let args = [
            "run",
            "--spec",
            "plan.md",
            "--bead-label",
            &label,
            "--backend",
            "subprocess",
            "--command",
        ];
        let (_, took) = timed(|| place.ok(&[&args[..], &[&command, "--yes", "--json"]].concat()))?;
        Ok(took)
    };
    let floor = || -> Result<f64, Failure> {
        let mut shell = Command::new("sh");
        place.environment(&mut shell);
        shell.env("WORK", format!("set -e\nn=x\n{WORK}"));
        shell
            .args(["-c", LOOP, "loop"])
            .arg(place.project())
            .arg(place.path("loop"))
            .arg(count.to_string());
        let (output, took) = timed(|| Ok(shell.output()?))?;
        if output.status.success() {
            Ok(took)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
        }
    };
    let rounds = options.rounds.div_ceil(4);
    let mut samples = in_turns(rounds, Box::new(floor), Box::new(ours), vec![])?;
    samples.note = Some(format!("two agents at a time; daemon {pid} serves all rounds"));
    Ok(samples)
}

fn rand(place: &Place) -> usize {
    std::fs::read_dir(place.project().join(".muleteer/runs"))
        .map(Iterator::count)
        .unwrap_or_default()
}

/// Imports independent beads with a label of their own.
fn import(place: &Place, file: &Path, label: &str, count: usize) -> Result<(), Failure> {
    let line = |at: usize| {
        serde_json::json!({
            "id": format!("{label}-{at}"), "title": format!("Bead {at}"), "description": "",
            "status": "open",
            "priority": 2, "issue_type": "task", "labels": [label], "dependencies": [],
            "created_at": "2026-02-12T10:00:00Z", "updated_at": "2026-02-12T10:00:00Z",
        })
        .to_string()
    };
    std::fs::write(file, (0..count).map(|at| line(at) + "\n").collect::<String>())?;
    place.ok(&["bead", "import", &file.display().to_string()])?;
    Ok(())
}

/// Makes a run of 2,000 beads that waits in its first agents, and kills its daemon.
fn long_run(place: &mut Place) -> Result<String, Failure> {
    repository(place)?;
    place.configure(NO_FRILLS)?;
    place.daemon()?;
    import(place, &place.path("flat.jsonl"), "long", 2000)?;
    let args = [
        "run",
        "--spec",
        "plan.md",
        "--bead-label",
        "long",
        "--backend",
        "subprocess",
        "--command",
    ];
    let document =
        place.json(&[&args[..], &["sleep 100000", "--yes", "--detach", "--json"]].concat())?;
    let id = document["run_id"].as_str().ok_or("no run id")?.to_string();
    agents_work(place, &id)?;
    Ok(id)
}

fn agents_work(place: &Place, id: &str) -> Result<(), Failure> {
    until("two agents at work", PATIENCE, || {
        let document = place.json(&["run", "--status", id, "--json"]).ok()?;
        (document["beads"]["in_progress"] == 2 && place.count("running") == 2).then_some(())
    })
}

/// Measures from the start of a daemon until it hosts the run of 2,000 beads that its predecessor
/// left.
pub fn resume(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    let id = long_run(&mut place)?;
    let mut taken = vec![];
    for _ in 0..=options.rounds {
        place.kill_daemon()?;
        let (_, took) = timed(|| {
            place.daemon()?;
            agents_work(&place, &id)
        })?;
        taken.push(took);
    }
    taken.remove(0);
    Ok(Samples::absolute(taken))
}

pub fn memory(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    long_run(&mut place)?;
    let status = place.json(&["status", "--json"])?;
    let pid = status["daemon"]["pid"].as_u64().ok_or("no daemon")?;
    let kb = memory::private_dirty_kb(u32::try_from(pid)?)
        .ok_or("the daemon's memory cannot be read")?;
    Ok(Samples::absolute(vec![kb / 1024.0]))
}
