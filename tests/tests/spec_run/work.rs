//! The place of a run's work, however the run ends: its branch is in the repository, every report
//! says so, and a hub that an agent destroyed costs one attempt and no run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage, last};
use muleteer_tests::{program, wait_until};
use serde_json::Value;

const UNJUDGED: &str = "run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n";

/// One attempt for each bead, and neither criteria nor a judge.
const ALONE: &str = "run: {acceptance: {generate: false}, agent: {max_retries_per_bead: 0}, \
                     phases: {judge: {enabled: false}}}\n";

fn events<'a>(all: &'a [Value], name: &str) -> Vec<&'a Value> {
    all.iter().filter(|event| event["event"] == name).collect()
}

/// Checks that every report names the branch, which has the work of the bead `Base`, and the next
/// step.
fn is_told(stage: &Stage, document: &Value, branch: &str, stdout: &str) {
    let run = document["run_id"].as_str().unwrap();
    assert_eq!(stage.repo.git(&["show", &format!("{branch}:Base.txt")]), "Base");
    let resume = format!("muleteer run --resume {run}");
    let report = stage.muleteer(&["run", "report", run, "--json"]).json();
    let status = stage.muleteer(&["run", "--status", run, "--json"]).json();
    for told in [document, &report, &status] {
        assert_eq!(
            (&told["work"]["branch"], &told["branch"]),
            (&branch.into(), &branch.into()),
            "{told}"
        );
        assert_eq!(
            (&told["work"]["next"], &told["work"]["commits"]),
            (&resume.clone().into(), &1.into()),
            "{told}"
        );
    }
    let report = stage.muleteer(&["run", "report", run]).ok();
    let status = stage.muleteer(&["run", "--status", run]).ok();
    for text in [stdout, &report, &status] {
        assert!(
            text.contains(&format!("branch {branch} with 1 commit")) && text.contains(&resume),
            "{text}"
        );
    }
}

/// Returns an agent that completes `Base` and fails `Left`; `Right` waits for `Left`.
fn stuck() -> String {
    let agent = AGENT.replace("bead dep add \"$c\" \"$a\"", "bead dep add \"$c\" \"$b\"");
    agent.replace(
        "  echo \"$title\" > \"$title.txt\"\n",
        "  test \"$title\" = Base || exit 3\n  echo \"$title\" > \"$title.txt\"\n",
    )
}

#[test]
fn failed_run_leaves_its_branch_and_names_it() {
    let stage = Stage::new(&stuck());
    stage.configure(ALONE);
    let daemon = stage.world.daemon();
    let output = stage.begin(&[]).run().expect_code(4).stdout;
    let document = stage.status();
    assert_eq!(document["error"]["code"], "E_DEADLOCK", "{document}");
    let run = document["run_id"].as_str().unwrap().to_string();
    is_told(&stage, &document, &format!("muleteer/{run}"), &output);
    let clones = document["work"]["clones"].as_str().unwrap();
    assert!(std::path::Path::new(clones).is_dir() && output.contains(clones), "{output}");
    assert_eq!(stage.repo.git(&["status", "--porcelain", "--untracked-files=no"]), "");
    // When the run is resumed, the branch only moves forward, and at last it is the result.
    program::write(&stage.agent, AGENT);
    for bead in stage
        .muleteer(&["bead", "list", "--status", "blocked", "--json"])
        .json()
        .as_array()
        .unwrap()
    {
        stage.muleteer(&["bead", "reopen", bead["id"].as_str().unwrap()]).run().expect_code(0);
    }
    let done =
        last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["branch"]),
        (&"completed".into(), &format!("muleteer/{run}").into()),
        "{done}"
    );
    assert_eq!(done["work"]["next"], format!("git checkout main && git merge muleteer/{run}"));
    assert_eq!(stage.repo.git(&["show", &format!("muleteer/{run}:Right.txt")]), "Right");
    stage.world.finish(Some(daemon));
}

#[test]
fn stopped_run_leaves_its_branch_and_names_it() {
    let stage = Stage::new(&AGENT.replace(
        "  echo \"$title\" > \"$title.txt\"\n",
        "  test \"$title\" = Base || { : > \"$HOME/out/waits\"; sleep 600; }\n  echo \"$title\" > \
         \"$title.txt\"\n",
    ));
    stage.configure(UNJUDGED);
    let daemon = stage.world.daemon();
    let run = stage.begin(&["--detach"]).ok();
    wait_until("the second bead", PATIENCE, || {
        stage.world.home().join("out/waits").exists().then_some(())
    });
    let output = stage.muleteer(&["run", "stop", &run]).ok();
    is_told(&stage, &stage.status(), &format!("muleteer/{run}"), &output);
    stage.world.finish(Some(daemon));
}

#[test]
fn failed_run_moves_no_branch_that_a_person_chose() {
    let stage = Stage::new(&stuck());
    stage.configure(ALONE);
    let daemon = stage.world.daemon();
    let main = stage.repo.git(&["rev-parse", "main"]);
    let document = last(&stage.begin(&["--target", "main", "--json"]).run().expect_code(4).stdout);
    let run = document["run_id"].as_str().unwrap();
    assert_eq!(stage.repo.git(&["rev-parse", "main"]), main);
    assert_eq!(document["work"]["branch"], format!("muleteer/{run}"), "{document}");
    assert_eq!(stage.repo.git(&["show", &format!("muleteer/{run}:Base.txt")]), "Base");
    // If git has no room for that name, Muleteer takes and reports another one.
    stage.repo.git(&["branch", "-D", &format!("muleteer/{run}")]);
    stage.repo.git(&["branch", "muleteer"]);
    let again =
        last(&stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(4).stdout);
    assert_eq!(again["work"]["branch"], format!("muleteer-{run}"), "{again}");
    stage.world.finish(Some(daemon));
}

#[test]
fn run_without_a_commit_reports_no_commit() {
    let stage = Stage::new(&AGENT.replace("implement)\n", "implement)\n  exit 3\n"));
    stage.configure(ALONE);
    let daemon = stage.world.daemon();
    let output = stage.begin(&[]).run().expect_code(4).stdout;
    let document = stage.status();
    assert_eq!(
        (&document["work"]["branch"], &document["work"]["commits"]),
        (&Value::Null, &0.into()),
        "{document}"
    );
    assert!(output.contains("branch has no commit"), "{output}");
    assert_eq!(stage.repo.git(&["branch", "--list", "muleteer/*"]), "");
    stage.world.finish(Some(daemon));
}

/// Adds a remote that is a directory, under an address that git redirects there.
fn remote(stage: &Stage, url: &str) {
    let origin = stage.world.path().join("origin.git");
    stage.repo.git(&[
        "init",
        "--quiet",
        "--bare",
        "--initial-branch=main",
        origin.to_str().unwrap(),
    ]);
    stage.repo.git(&["remote", "add", "origin", url]);
    let own = stage.world.home().join(".gitconfig");
    let known = std::fs::read_to_string(&own).unwrap();
    let leads = format!("[url \"{}\"]\n\tinsteadOf = {url}\n", origin.display());
    std::fs::write(own, known + &leads).unwrap();
    stage.repo.git(&["push", "--quiet", "origin", "main"]);
}

#[test]
fn passed_run_without_gh_is_pushed_and_names_the_page() {
    let stage = Stage::new(AGENT);
    stage.configure(UNJUDGED);
    remote(&stage, "https://someone:secret@gitlab.example.org/group/repo.git");
    let daemon = stage.world.daemon();
    let done = stage.begin(&[]).run().expect_code(0);
    let document = stage.status();
    let run = document["run_id"].as_str().unwrap();
    let page = format!(
        "https://gitlab.example.org/group/repo/-/merge_requests/new?merge_request%5Bsource_branch%5D=muleteer%2F{run}\
         &merge_request%5Btarget_branch%5D=main"
    );
    assert_eq!(
        (&document["work"]["page"], &document["work"]["pushed"]),
        (&page.clone().into(), &format!("muleteer/{run}").into())
    );
    assert_eq!(document["work"]["next"], format!("make a pull request: {page}"), "{document}");
    assert!(done.stdout.contains(&page) && done.stderr.contains(&page), "{done:?}");
    assert!(!done.stdout.contains("secret") && !document.to_string().contains("secret"));
    assert!(
        !stage.repo.git(&["ls-remote", "origin", &format!("refs/heads/muleteer/{run}")]).is_empty()
    );
    stage.world.finish(Some(daemon));
}

/// `gh` is not logged in, or the remote takes no push: neither is a failure of the run.
#[test]
fn passed_run_with_a_failed_pull_request_completes_with_the_reason() {
    let stage = Stage::new(AGENT);
    stage.configure(UNJUDGED);
    remote(&stage, "git@github.com:o/r.git");
    let gh = "#!/bin/sh\necho \"To get started with GitHub CLI, please run: gh auth login\" \
        >&2\nexit 4\n";
    program::write(&stage.world.bin().join("gh"), gh);
    let daemon = stage.world.daemon();
    let done = stage.begin(&[]).run().expect_code(0);
    let document = stage.status();
    let run = document["run_id"].as_str().unwrap().to_string();
    let page = format!("https://github.com/o/r/compare/main...muleteer/{run}?expand=1");
    assert_eq!(
        (&document["status"], &document["work"]["page"]),
        (&"completed".into(), &page.clone().into())
    );
    assert_eq!(document["work"]["next"], format!("make a pull request: {page}"), "{document}");
    assert!(
        document["work"]["pr_trouble"].as_str().unwrap().contains("gh auth login"),
        "{document}"
    );
    for text in [&done.stdout, &done.stderr, &stage.muleteer(&["run", "report", &run]).ok()] {
        assert!(text.contains(&page) && text.contains("gh auth login"), "{text}");
    }
    assert!(
        !stage.repo.git(&["ls-remote", "origin", &format!("refs/heads/muleteer/{run}")]).is_empty()
    );

    let hook = stage.world.path().join("origin.git/hooks/pre-receive");
    std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
    program::write(&hook, "#!/bin/sh\necho protected >&2\nexit 1\n");
    let document = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    let run = document["run_id"].as_str().unwrap();
    assert_eq!(
        (&document["status"], &document["work"]["pushed"]),
        (&"completed".into(), &Value::Null),
        "{document}"
    );
    assert_eq!(
        document["work"]["next"],
        format!("git checkout main && git merge muleteer/{run}"),
        "{document}"
    );
    let text = stage.muleteer(&["run", "report", run]).ok();
    assert!(text.contains("not pushed: ") && text.contains("protected"), "{text}");
    stage.world.finish(Some(daemon));
}

#[test]
fn on_complete_pushes_or_leaves_the_branch_as_configured() {
    let stage = Stage::new(AGENT);
    remote(&stage, "git@github.com:o/r.git");
    let gh = "#!/bin/sh\necho \"$@\" >> \"$HOME/out/gh\"\nexit 1\n";
    program::write(&stage.world.bin().join("gh"), gh);
    let daemon = stage.world.daemon();
    let page = |on_complete: &str| {
        stage.configure(
            &UNJUDGED
                .replace("enabled: false", &format!("enabled: false, on_complete: {on_complete}")),
        );
        let document = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
        let run = document["run_id"].as_str().unwrap().to_string();
        let there = !stage
            .repo
            .git(&["ls-remote", "origin", &format!("refs/heads/muleteer/{run}")])
            .is_empty();
        // The beads of this run are done; the next run has its own.
        (there, document["work"]["page"].as_str().map(|page| page.replace(&run, "RUN")))
    };
    let wanted = "https://github.com/o/r/compare/main...muleteer/RUN?expand=1".to_string();
    assert_eq!(page("push"), (true, Some(wanted)));
    assert_eq!(page("none"), (false, None));
    assert!(!stage.world.home().join("out/gh").exists(), "nobody asked for a pull request");
    stage.world.finish(Some(daemon));
}

/// An agent that "tidies up" removes the whole hub, with its own push.
#[test]
fn hub_that_an_agent_removed_costs_no_run() {
    let harm = "implement)\n  test -e \"$HOME/out/harmed\" || { : > \"$HOME/out/harmed\"; rm -rf \
        \"$MULETEER_REMOTE\"; exit 3; }\n";
    let stage = Stage::new(&AGENT.replace("implement)\n", harm));
    stage.configure(UNJUDGED);
    let daemon = stage.world.daemon();
    let done = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    let all = stage.world.events();
    let told = events(&all, "fault")
        .iter()
        .any(|fault| fault["message"].as_str().unwrap().contains("rebuilt it"));
    assert!(told, "{:?}", events(&all, "fault"));
    stage.world.finish(Some(daemon));
}

#[test]
fn missing_hub_is_rebuilt_on_resume() {
    let wait = "implement)\n  test -e \"$HOME/out/go\" || { : > \"$HOME/out/waits\"; sleep 600; \
                }\n";
    let stage = Stage::new(&AGENT.replace("implement)\n", wait));
    stage.configure(UNJUDGED);
    let daemon = stage.world.daemon();
    let run = stage.begin(&["--detach"]).ok();
    wait_until("a bead", PATIENCE, || stage.world.home().join("out/waits").exists().then_some(()));
    stage.muleteer(&["run", "stop", &run]).ok();
    let hub = stage.world.state().join("runs").join(&run).join("hub.git");
    std::fs::remove_dir_all(&hub).unwrap();
    std::fs::write(&hub, "no directory").unwrap();
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let done =
        last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(done["status"], "completed", "{done}");
    assert!(hub.join("HEAD").is_file());
    stage.world.finish(Some(daemon));
}
