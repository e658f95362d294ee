//! A spec run whose agents are one shell script, as in docs/guides/subprocess-agents.md.

use crate::{Muleteer, Repo, World, events, wait_until};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// The time limit of a whole run on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Three beads, two of which wait for the first; the judge finds something once.
pub const AGENT: &str = r#"#!/bin/sh
set -e
cat > /dev/null
case "$MULETEER_PURPOSE" in
acceptance)
  for f in user-stories edge-cases negative-tests; do
    echo "secret $f" > "$MULETEER_ACCEPTANCE_DIR/$f.md"
  done ;;
decompose)
  a=$(muleteer bead create --title Base --priority 1)
  b=$(muleteer bead create --title Left)
  c=$(muleteer bead create --title Right)
  muleteer bead dep add "$b" "$a" 2>/dev/null
  muleteer bead dep add "$c" "$a" 2>/dev/null ;;
implement)
  test -z "$MULETEER_ACCEPTANCE_DIR"
  muleteer bead show "$MULETEER_BEAD_ID" --json > /dev/null
  title=$(muleteer bead show "$MULETEER_BEAD_ID" --json | sed 's/.*"title":"\([^"]*\)".*/\1/')
  echo "$title" > "$title.txt"
  git add --all
  git commit --quiet --message "$title" || true
  for try in 1 2 3 4 5; do
    git fetch --quiet "$MULETEER_REMOTE" "$MULETEER_TARGET_BRANCH" &&
      git rebase --quiet FETCH_HEAD &&
      git push --quiet "$MULETEER_REMOTE" HEAD:"$MULETEER_TARGET_BRANCH" && break
  done
  test "$title" != Left || muleteer bead create --title "Observation: odd" --label observation
  muleteer bead close "$MULETEER_BEAD_ID" --reason done ;;
maintain) muleteer bead close "$MULETEER_BEAD_ID" --reason fine --no-change ;;
judge) grep -q secret "$MULETEER_ACCEPTANCE_DIR/user-stories.md"
  echo "observations: $MULETEER_OBSERVATIONS" ;;
structure)
  if test "$MULETEER_ITERATION" = 1; then
    echo '{"status":"success","specDrift":{"detected":true,"issues":[]},'\
'"acceptance":{"passed":true,"results":[]},"observations":[],'\
'"newBeads":[{"title":"Mended","description":"","type":"bug"}]}'
  else
    echo '{"status":"success","specDrift":{"detected":false,"issues":[]},'\
'"acceptance":{"passed":true,"results":[]},"observations":[],"newBeads":[]}'
  fi ;;
esac
"#;

#[derive(Debug)]
pub struct SpecStage {
    pub world: World,
    pub repo: Repo,
    pub agent: PathBuf,
}

impl SpecStage {
    /// The agents of the run may write `~/out`, also in a sandbox.
    pub fn new(agent: &str) -> Self {
        let world = World::new();
        std::fs::create_dir(world.home().join("out")).unwrap();
        world.configure("sandbox: {write: [~/out]}\n");
        let repo = world.repo("repo");
        repo.write("plan.md", "# The plan\n\nThree files.\n");
        let path = world.path().join("agent.sh");
        crate::program::write(&path, agent);
        Self { world, repo, agent: path }
    }

    pub fn muleteer(&self, args: &[&str]) -> Muleteer {
        self.world.muleteer(args).current_dir(&self.repo.path).deadline(PATIENCE)
    }

    pub fn begin(&self, more: &[&str]) -> Muleteer {
        let agent = self.agent.to_str().unwrap();
        let mut args =
            vec!["run", "--spec", "plan.md", "--backend", "subprocess", "--command", agent];
        args.extend(more);
        self.muleteer(&args)
    }

    /// Returns the names of the run's events, in order.
    pub fn names(&self, run: &str) -> Vec<String> {
        let name = |event: &Value| event["event"].as_str().unwrap_or_default().to_string();
        self.events(run).iter().map(name).collect()
    }

    /// Writes the repository's `.muleteer/config.yaml`, and trusts it if it is valid.
    pub fn configure(&self, yaml: &str) {
        std::fs::create_dir_all(self.repo.path.join(".muleteer")).unwrap();
        self.repo.write(".muleteer/config.yaml", yaml);
        self.world.muleteer(&["trust", self.repo.to_str()]).run();
    }

    /// Waits until the run has ended or rests, and returns its document.
    pub fn over(&self, run: &str) -> Value {
        wait_until("the run to be over", PATIENCE, || {
            let document = self.muleteer(&["run", "--status", run, "--json"]).json();
            (document["status"] != "in_progress").then_some(document)
        })
    }

    pub fn status(&self) -> Value {
        self.muleteer(&["run", "--status", "--json"]).json()
    }

    pub fn events(&self, run: &str) -> Vec<Value> {
        events::read(&self.repo.path.join(".muleteer/runs").join(run).join("events.jsonl"))
    }
}

/// Returns the document at the end of a run's `--json` output.
pub fn last(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

/// Returns whether this machine can confine agents. It tries the real sandbox, as `doctor` does.
pub fn confined() -> bool {
    let world = World::new();
    let output = std::process::Command::new(world.program())
        .args(["probe", "namespaces"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).starts_with("ok")
}
