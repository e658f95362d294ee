//! The work that came home from the clone of a dispatch, and its report. No work of an agent
//! vanishes, and no report names a place without it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::{Repo, World, program};
use serde_json::Value;

/// Runs one dispatch in a clone of its own until it ends. Returns its id and the report of its
/// work.
fn work(world: &World, repo: &Repo, script: &str) -> (String, Value) {
    let id = world.spawn(repo, script, &["--worktree", "--wait"]).ok();
    let work = world.dispatch(&id)["work"].clone();
    (id, work)
}

fn has(repo: &Repo, name: &str) -> bool {
    !repo.git(&["for-each-ref", name]).is_empty()
}

/// Makes the machine a fresh container, in which git knows no name.
fn forget_identity(world: &World) {
    std::fs::write(world.home().join(".gitconfig"), "[user]\n\tuseConfigOnly = true\n").unwrap();
}

#[test]
fn agent_without_git_identity_commits_in_clone_and_project() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    forget_identity(&world);
    let commit = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b'";
    let (id, work) = work(&world, &repo, commit);
    assert_eq!(
        (&work["branch"], &work["commits"]),
        (&format!("muleteer/{id}").into(), &1.into()),
        "{work}"
    );
    assert_eq!(repo.git(&["show", &format!("muleteer/{id}:b.txt")]), "new");
    let names =
        repo.git(&["log", "-1", "--format=%an <%ae>, %cn <%ce>", &format!("muleteer/{id}")]);
    assert_eq!(
        names,
        "Muleteer agent <agent@muleteer.invalid>, Muleteer agent <agent@muleteer.invalid>"
    );
    // The person's own directory has no configured name, and the agent can still commit there.
    world.spawn(&repo, commit, &["--wait"]).ok();
    assert_eq!(repo.git(&["log", "-1", "--format=%s by %an"]), "Add b by Muleteer agent");
    assert!(!repo.read(".git/config").contains("[user]"));
    world.finish(Some(daemon));
}

#[test]
fn agent_commits_as_the_person_where_git_knows_them() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let commit = "git commit --quiet --allow-empty -m made";
    let (id, _) = work(&world, &repo, commit);
    assert_eq!(repo.git(&["log", "-1", "--format=%an", &format!("muleteer/{id}")]), "Tester");
    let more = ["--worktree", "--wait", "--env", "GIT_AUTHOR_NAME=Other"];
    let id = world.spawn(&repo, commit, &more).ok();
    assert_eq!(
        repo.git(&["log", "-1", "--format=%an by %cn", &format!("muleteer/{id}")]),
        "Other by Tester"
    );
    world.finish(Some(daemon));
}

#[test]
fn uncommitted_work_is_saved_as_a_named_ref() {
    let world = World::new();
    let repo = world.repo("repo");
    repo.write(".gitignore", "ignored\n");
    repo.write("gone.txt", "gone\n");
    repo.git(&["add", "."]);
    repo.git(&["commit", "--quiet", "-m", "more"]);
    let daemon = world.daemon();
    let script = "echo staged > staged.txt; git add staged.txt; echo changed >> README.md; echo \
        new > new.txt; \
                  mkdir -p deep/er; echo x > deep/er/x; rm gone.txt; echo no > ignored; mkfifo \
                  pipe";
    let (id, work) = work(&world, &repo, script);
    let name = format!("refs/muleteer/left/{id}/uncommitted");
    assert_eq!(work["left"][0]["ref"], name, "{work}");
    assert_eq!(work["left"][0]["what"], "uncommitted changes in 5 files");
    assert_eq!(
        (&work["branch"], &work["commit"]),
        (&Value::Null, &Value::Null),
        "nothing was committed: {work}"
    );
    assert!(!has(&repo, &format!("refs/heads/muleteer/{id}")));
    for (path, text) in [("staged.txt", "staged"), ("new.txt", "new"), ("deep/er/x", "x")] {
        assert_eq!(repo.git(&["show", &format!("{name}:{path}")]), text);
    }
    assert!(repo.git(&["show", &format!("{name}:README.md")]).ends_with("changed"));
    let listed = repo.git(&["ls-tree", "-r", "--name-only", &name]);
    assert!(
        !listed.contains("ignored\n") && !listed.contains("gone.txt") && !listed.contains("pipe"),
        "{listed}"
    );
    assert_eq!(repo.git(&["rev-parse", &format!("{name}^")]), repo.git(&["rev-parse", "HEAD"]));
    assert_eq!(repo.git(&["status", "--porcelain"]), "", "the person's own directory is untouched");
    // Every report says the same.
    let text = world.muleteer(&["status", &id]).ok();
    assert!(text.contains(&name) && text.contains("no commits"), "{text}");
    let text = world.muleteer(&["wait", &id]).ok();
    assert!(text.contains(&name), "{text}");
    let text = world.muleteer(&["journal", &id]).ok();
    assert!(text.contains("no commits") && !text.contains("work fetched"), "{text}");
    world.finish(Some(daemon));
}

#[test]
fn commits_on_other_branches_stashes_and_detached_head_are_fetched() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let commit = |text: &str| format!("git commit --quiet --allow-empty -m {text}");
    let script = format!(
        "{main}; git checkout -q -b side HEAD~1; {side}; git checkout -q --detach HEAD~1; {loose}; \
         echo one > README.md; git stash -q; echo two > README.md; git stash -q; git checkout -q -",
        main = commit("main"),
        side = commit("side"),
        loose = commit("loose"),
    );
    // The agent ends on the branch `side`.
    let (id, work) = work(&world, &repo, &script);
    let told: Vec<_> = work["left"]
        .as_array()
        .unwrap()
        .iter()
        .map(|left| left["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        repo.git(&["log", "-1", "--format=%s", &format!("muleteer/{id}")]),
        "side",
        "{work}"
    );
    assert_eq!(
        told,
        [&format!("branch muleteer/{id}"), "stash", "stash", "commits on no branch"],
        "{work}"
    );
    let all = repo.git(&["log", "--format=%s", &format!("--glob=refs/muleteer/left/{id}")]);
    assert!(all.contains("main") && all.contains("loose"), "{all}");
    let stashed = |number: u32| {
        repo.git(&["show", &format!("refs/muleteer/left/{id}/stash/{number}:README.md")])
    };
    assert_eq!([stashed(1), stashed(2)], ["two", "one"]);
    world.finish(Some(daemon));
}

#[test]
fn saving_work_runs_no_code_of_the_clone() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "touch=\"touch $HOME/ran\"; git config filter.x.clean \"$touch; cat\"; git config \
        filter.x.required true; \
                  echo '* filter=x' > .gitattributes; git config core.fsmonitor \"$touch\"; \
                  for hook in pre-commit post-index-change reference-transaction; do \
                  printf '#!/bin/sh\\n%s\\n' \"$touch\" > .git/hooks/$hook; chmod +x \
                  .git/hooks/$hook; done; echo left > left.txt";
    let (id, work) = work(&world, &repo, script);
    assert_eq!(
        repo.git(&["show", &format!("refs/muleteer/left/{id}/uncommitted:left.txt")]),
        "left",
        "{work}"
    );
    assert!(!world.home().join("ran").exists());
    world.finish(Some(daemon));
}

#[test]
fn too_large_files_and_repositories_stay_in_the_clone_and_are_named() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "truncate -s 300G sparse; truncate -s 300G README.md; git init -q inner; echo \
        left > left.txt";
    let (id, work) = work(&world, &repo, script);
    let skipped = work["skipped"].to_string();
    for name in ["sparse (too large)", "README.md (too large)", "inner/ (a repository of its own)"]
    {
        assert!(skipped.contains(name), "{name}: {work}");
    }
    let name = format!("refs/muleteer/left/{id}/uncommitted");
    assert_eq!(repo.git(&["diff", "--name-only", &format!("{name}^"), &name]), "left.txt");
    let clone = world.dispatch(&id)["worktree"].as_str().unwrap().to_string();
    assert!(
        work["summary"].as_str().unwrap().contains(&format!("the clone remains at {clone}")),
        "{work}"
    );
    world.finish(Some(daemon));
}

#[test]
fn branch_in_the_way_is_refused_before_the_work() {
    let world = World::new();
    let repo = world.repo("repo");
    repo.git(&["branch", "muleteer"]);
    let daemon = world.daemon();
    let refused = world.spawn(&repo, "true", &["--worktree", "--json"]).run().expect_code(2).stdout;
    assert!(
        refused.contains("E_BRANCH_IN_THE_WAY") && refused.contains("git branch -m muleteer"),
        "{refused}"
    );
    repo.git(&["branch", "-m", "muleteer", "other"]);
    repo.git(&["pack-refs", "--all"]);
    repo.git(&["branch", "muleteer"]);
    repo.git(&["pack-refs", "--all"]);
    world.spawn(&repo, "true", &["--worktree", "--json"]).run().expect_code(2);
    world.spawn(&repo, "true", &["--wait"]).ok();
    world.finish(Some(daemon));
}

#[test]
fn conflicting_branch_leads_to_another_name() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script =
        format!("git commit -q --allow-empty -m made; git -C {} branch muleteer", repo.to_str());
    let (id, found) = work(&world, &repo, &script);
    assert_eq!(found["branch"], format!("muleteer-{id}"), "{found}");
    assert_eq!(repo.git(&["log", "-1", "--format=%s", &format!("muleteer-{id}")]), "made");
    repo.git(&["branch", "-D", "muleteer"]);
    // A branch of exactly that name that another process made stays unchanged.
    let script = format!(
        "git commit -q --allow-empty -m made; git -C {} branch muleteer/$MULETEER_DISPATCH_ID \
         $(git -C {0} commit-tree -m other \
         HEAD^{{tree}})",
        repo.to_str()
    );
    let (id, found) = work(&world, &repo, &script);
    assert_eq!(repo.git(&["log", "-1", "--format=%s", &format!("muleteer/{id}")]), "other");
    assert_eq!(found["branch"], format!("muleteer-{id}"), "{found}");
    world.finish(Some(daemon));
}

#[test]
fn failed_fetch_of_work_is_partial_and_names_the_clone() {
    let world = World::new();
    let repo = world.repo("repo");
    program::write(&world.bin().join("git"), &program::failing_always("git", " fetch "));
    let daemon = world.daemon();
    let id = world
        .spawn(&repo, "git commit -q --allow-empty -m precious", &["--worktree", "--wait"])
        .run()
        .expect_code(4)
        .stdout;
    let entry = world.dispatch(id.trim());
    let clone = entry["worktree"].as_str().unwrap();
    assert_eq!(entry["state"], "partial", "{entry}");
    assert!(entry["reason"].as_str().unwrap().contains(clone), "{entry}");
    assert!(entry["work"]["trouble"].as_str().unwrap().contains("it is locked"), "{entry}");
    assert!(std::path::Path::new(clone).join(".git").is_dir());
    world.finish(Some(daemon));
}

#[test]
fn clone_that_an_agent_removed_is_no_success() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    for script in ["rm -rf .git; echo left > left.txt", "rm -rf \"$PWD\""] {
        let id = world.spawn(&repo, script, &["--worktree", "--wait"]).run().expect_code(4).stdout;
        let entry = world.dispatch(id.trim());
        assert!(entry["work"]["trouble"].as_str().unwrap().contains("removed"), "{entry}");
        if script.contains("left.txt") {
            let name = format!("refs/muleteer/left/{}/uncommitted", id.trim());
            assert_eq!(repo.git(&["show", &format!("{name}:left.txt")]), "left");
        }
    }
    world.finish(Some(daemon));
}
