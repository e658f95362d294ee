//! Hubs that an agent has removed or damaged.

use crate::spec_run::hub::tests::*;

/// Breaks the hub after one push was gathered, and checks that another agent can still work with
/// it. Only a push that cannot be read any more may be lost.
async fn survives(what: &str, harm: impl Fn(&Path)) {
    let (gathered, _, now) = survive(what, harm).await;
    assert_eq!(now, gathered, "{what}");
}

/// Does the same as [`survives`], and checks that the push which was not gathered is not lost.
async fn loses_nothing(what: &str, harm: impl Fn(&Path)) {
    let (_, late, now) = survive(what, harm).await;
    assert_eq!(now, late, "{what}");
}

/// Returns the commit gathered before, the commit pushed since, and the target's commit afterwards.
async fn survive(what: &str, harm: impl Fn(&Path)) -> (String, String, String) {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    let gathered = commit(&stage.repos, TARGET).await.unwrap();
    // This push is not gathered yet.
    stage.commit(&dir, "late");
    let late = git_in(&dir, &["rev-parse", "HEAD"]);
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    harm(&stage.hub());
    unlock(&stage.repos, TARGET).await;
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None, "{what}");
    let noted = stage.repos.take_repairs();
    assert_eq!(noted.len(), 1, "{what}: {noted:?}");
    // The agent's clone still has the commits that were not gathered.
    let now = commit(&stage.repos, TARGET).await.unwrap();
    if now == gathered {
        assert_eq!(work(&stage.repos, &dir, TARGET).await.unwrap(), Work::new(2, false), "{what}");
    }
    assert_eq!(
        git_in(&stage.hub(), &["rev-parse", &format!("refs/heads/{TARGET}")]),
        now,
        "{what}"
    );
    let next = stage.bead("two").await;
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None, "{what}");
    let pushed = git_in(&next, &["rev-parse", "HEAD"]);
    assert_eq!(commit(&stage.repos, TARGET).await, Some(pushed), "{what}");
    assert_eq!(stage.repos.take_repairs(), Vec::<String>::new(), "{what}");
    let refused = Command::new("git")
        .arg("-C")
        .arg(&next)
        .args([
            "push",
            "--quiet",
            "--force",
            stage.hub().to_str().unwrap(),
            &format!("HEAD~1:{TARGET}"),
        ])
        .output();
    assert!(!refused.unwrap().status.success(), "{what}: the hub is configured as before");
    assert!(!stage.root.join("victim/HEAD").exists(), "{what}");
    assert!(!stage.root.join("ran").exists(), "{what}: a hook ran");
    (gathered, late, now)
}

fn fifo(path: &Path) {
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
}

#[tokio::test]
async fn removed_or_replaced_hub_is_built_again() {
    survives("removed", |hub| std::fs::remove_dir_all(hub).unwrap()).await;
    survives("emptied", |hub| {
        std::fs::remove_dir_all(hub).unwrap();
        std::fs::create_dir(hub).unwrap();
    })
    .await;
    survives("a file", |hub| {
        std::fs::remove_dir_all(hub).unwrap();
        std::fs::write(hub, "none").unwrap();
    })
    .await;
    survives("a pipe", |hub| {
        std::fs::remove_dir_all(hub).unwrap();
        fifo(hub);
    })
    .await;
    survives("a link", |hub| {
        let victim = hub.ancestors().find(|dir| dir.join("repo").is_dir()).unwrap().join("victim");
        std::fs::create_dir(&victim).unwrap();
        std::fs::remove_dir_all(hub).unwrap();
        symlink(victim, hub).unwrap();
    })
    .await;
}

#[tokio::test]
async fn hub_with_parts_removed_or_replaced_is_built_again() {
    survives("objects", |hub| std::fs::remove_dir_all(hub.join("objects")).unwrap()).await;
    survives("objects", |hub| {
        std::fs::remove_dir_all(hub.join("objects")).unwrap();
        fifo(&hub.join("objects"));
    })
    .await;
    loses_nothing("refs", |hub| std::fs::remove_dir_all(hub.join("refs")).unwrap()).await;
    loses_nothing("refs", |hub| {
        std::fs::remove_dir_all(hub.join("refs")).unwrap();
        fifo(&hub.join("refs"));
    })
    .await;
    loses_nothing("packed-refs", |hub| fifo(&hub.join("packed-refs"))).await;
    loses_nothing("the branch", |hub| {
        std::fs::write(hub.join("refs/heads").join(TARGET), "garbage").unwrap()
    })
    .await;
    survives("a commit that is not there", |hub| {
        std::fs::write(hub.join("refs/heads").join(TARGET), format!("{}\n", "a".repeat(40)))
            .unwrap();
    })
    .await;
    survives("objects", |hub| {
        for folder in std::fs::read_dir(hub.join("objects")).unwrap().map(Result::unwrap) {
            for object in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
                if folder.file_name() != "info" {
                    std::fs::remove_file(object.path()).unwrap();
                    std::fs::write(object.path(), "garbage").unwrap();
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn changed_fixed_files_of_the_hub_are_put_back() {
    for name in ["HEAD", "config", "objects/info/alternates"] {
        loses_nothing(name, |hub| std::fs::write(hub.join(name), "garbage").unwrap()).await;
        loses_nothing(name, |hub| std::fs::remove_file(hub.join(name)).unwrap()).await;
        loses_nothing(name, |hub| {
            std::fs::remove_file(hub.join(name)).unwrap();
            fifo(&hub.join(name));
        })
        .await;
    }
}

#[tokio::test]
async fn hub_with_garbage_in_a_list_of_refs_is_built_again_and_loses_no_push() {
    for name in ["packed-refs", "shallow"] {
        loses_nothing(name, |hub| std::fs::write(hub.join(name), "garbage\n").unwrap()).await;
        loses_nothing(name, |hub| std::fs::write(hub.join(name), "cut off").unwrap()).await;
        loses_nothing(name, |hub| std::fs::create_dir(hub.join(name)).unwrap()).await;
    }
    loses_nothing("a name without a commit", |hub| {
        std::fs::write(hub.join("packed-refs"), format!("{} \n", "a".repeat(40))).unwrap();
    })
    .await;
    // Another history's shallow commits.
    loses_nothing("shallow", |hub| {
        std::fs::write(hub.join("shallow"), format!("{}\n", "a".repeat(40))).unwrap()
    })
    .await;
    loses_nothing("grafts", |hub| {
        std::fs::create_dir_all(hub.join("info")).unwrap();
        std::fs::write(hub.join("info/grafts"), format!("{}\n", "a".repeat(40))).unwrap();
    })
    .await;
    // Refs and objects that git packs itself are fine.
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    git_in(&stage.hub(), &["pack-refs", "--all"]);
    git_in(&stage.hub(), &["repack", "-a", "-d", "--quiet"]);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
    assert_eq!(stage.repos.take_repairs(), Vec::<String>::new());
}

async fn loses_nothing_by_directories(names: &[&str]) {
    for name in names {
        loses_nothing(name, |hub| std::fs::create_dir(hub.join(name)).unwrap()).await;
        loses_nothing(name, |hub| {
            std::fs::create_dir(hub.join(name)).unwrap();
            std::fs::write(hub.join(name).join("full"), "").unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn hub_with_a_directory_in_place_of_a_lock_is_built_again_and_loses_no_push() {
    loses_nothing_by_directories(&["packed-refs.lock", "index.lock", "HEAD.lock"]).await;
}

#[tokio::test]
async fn hub_with_a_directory_in_place_of_a_config_or_ref_lock_is_built_again_and_loses_no_push() {
    let branch = format!("refs/heads/{TARGET}.lock");
    loses_nothing_by_directories(&["config.lock", "refs/heads/any.lock", &branch]).await;
}

#[tokio::test]
async fn hub_with_a_directory_or_a_link_in_place_of_a_file_is_built_again_and_loses_no_push() {
    loses_nothing("a ref", |hub| {
        symlink(format!("{TARGET}-none"), hub.join("refs/heads/other")).unwrap()
    })
    .await;
    loses_nothing("the branch", |hub| {
        let branch = hub.join("refs/heads").join(TARGET);
        std::fs::rename(&branch, hub.join("aside")).unwrap();
        symlink(hub.join("aside"), branch).unwrap();
    })
    .await;
    loses_nothing("the branch", |hub| {
        let branch = hub.join("refs/heads").join(TARGET);
        std::fs::remove_file(&branch).unwrap();
        std::fs::create_dir_all(branch.join("below")).unwrap();
    })
    .await;
    survives("objects", |hub| {
        std::fs::rename(hub.join("objects"), hub.join("aside")).unwrap();
        symlink("aside", hub.join("objects")).unwrap();
    })
    .await;
    survives("a folder of objects", |hub| {
        let folders = std::fs::read_dir(hub.join("objects")).unwrap().map(|entry| entry.unwrap());
        for folder in folders.filter(|entry| entry.file_name().len() == 2) {
            std::fs::remove_dir_all(folder.path()).unwrap();
            std::fs::write(folder.path(), "").unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn hub_hook_is_moved_aside_before_it_runs_without_lost_pushes() {
    for name in ["pre-receive", "update", "post-update", "proc-receive"] {
        loses_nothing(name, |hub| {
            let root = hub.ancestors().find(|dir| dir.join("repo").is_dir()).unwrap();
            std::fs::create_dir_all(hub.join("hooks")).unwrap();
            let hook = hub.join("hooks").join(name);
            std::fs::write(&hook, format!("#!/bin/sh\ntouch {}/ran\n", root.display())).unwrap();
            std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
        })
        .await;
    }
}

/// A push during the judge's work is undone, even if the hub was damaged with it.
#[tokio::test]
async fn push_in_a_damaged_hub_is_undone_while_the_target_is_judged_and_stays_undone() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    let judged = commit(&stage.repos, TARGET).await.unwrap();
    stage.commit(&dir, "late");
    let late = git_in(&dir, &["rev-parse", "HEAD"]);
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    std::fs::write(stage.hub().join("packed-refs"), "garbage\n").unwrap();
    watch(&stage.repos, TARGET).await.unwrap();
    assert_eq!(commit(&stage.repos, TARGET).await, Some(judged.clone()), "nobody has looked at it");
    let said = hold(&stage.repos, TARGET, None).await.unwrap().unwrap();
    assert!(said.contains(&format!("refs/muleteer/undone/{late}")), "{said}");
    // The hub's reflog still names it.
    std::fs::remove_dir_all(stage.hub().join("refs")).unwrap();
    assert_eq!(hold(&stage.repos, TARGET, None).await.unwrap(), None);
    assert_eq!(commit(&stage.repos, TARGET).await, Some(judged.clone()));
    assert_eq!(git_in(&stage.hub(), &["rev-parse", &format!("refs/heads/{TARGET}")]), judged);
}

/// A stop of the run does not wait for a check of objects that an agent made.
#[tokio::test]
async fn stopped_run_does_not_check_objects() {
    let stage = Stage::new().await;
    stage.bead("one").await;
    let odd = stage.hub().join("objects/aa");
    std::fs::create_dir_all(&odd).unwrap();
    std::fs::write(odd.join("b".repeat(38)), "garbage").unwrap();
    let halt = tokio_util::sync::CancellationToken::new();
    assert!(structure::broken_object(&stage.hub(), &halt).is_some());
    halt.cancel();
    assert_eq!(structure::broken_object(&stage.hub(), &halt), None);
}

#[tokio::test]
async fn watch_repairs_a_hub_while_agents_work() {
    let stage = Stage::new().await;
    let dir = stage.worktrees().join("bead-one-1");
    worktree(&stage.repos, &dir, TARGET, Some("one"), false).await.unwrap();
    std::fs::remove_dir_all(stage.hub()).unwrap();
    watch(&stage.repos, TARGET).await.unwrap();
    stage.commit(&dir, "one");
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    assert_eq!(stage.repos.take_repairs().len(), 1);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
}
