//! Hubs that an agent has removed or damaged.

use super::*;

/// Breaks the hub, after one push was gathered, and looks whether another agent can work with it.
async fn survives(what: &str, harm: impl Fn(&Path)) {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    assert_eq!(guard(&stage.hosted, TARGET, None).await.unwrap(), None);
    let gathered = commit(&stage.hosted, TARGET).await.unwrap();
    // This push nobody has gathered.
    stage.commit(&dir, "late");
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    harm(&stage.hub());
    unlock(&stage.hosted, TARGET).await;
    assert_eq!(guard(&stage.hosted, TARGET, None).await.unwrap(), None, "{what}");
    let noted = stage.hosted.take_repairs();
    assert_eq!(noted.len(), 1, "{what}: {noted:?}");
    // Trusted is what was gathered; the agent's clone still has what was not.
    let now = commit(&stage.hosted, TARGET).await.unwrap();
    assert!(now == gathered || noted[0].contains("put back"), "{what}: {noted:?}");
    if now == gathered {
        assert_eq!(work(&stage.hosted, &dir, TARGET).await.unwrap(), Work::new(2, false), "{what}");
    }
    assert_eq!(git_in(&stage.hub(), &["rev-parse", &format!("refs/heads/{TARGET}")]), now, "{what}");
    let next = stage.bead("two").await;
    assert_eq!(guard(&stage.hosted, TARGET, None).await.unwrap(), None, "{what}");
    let pushed = git_in(&next, &["rev-parse", "HEAD"]);
    assert_eq!(commit(&stage.hosted, TARGET).await, Some(pushed), "{what}");
    assert_eq!(stage.hosted.take_repairs(), Vec::<String>::new(), "{what}");
    let refused = Command::new("git")
        .arg("-C")
        .arg(&next)
        .args(["push", "--quiet", "--force", stage.hub().to_str().unwrap(), &format!("HEAD~1:{TARGET}")])
        .output();
    assert!(!refused.unwrap().status.success(), "{what}: the hub is configured as before");
    assert!(!stage.root.join("victim/HEAD").exists(), "{what}");
}

fn fifo(path: &Path) {
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
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
    for name in ["refs", "objects"] {
        survives(name, |hub| std::fs::remove_dir_all(hub.join(name)).unwrap()).await;
        survives(name, |hub| {
            std::fs::remove_dir_all(hub.join(name)).unwrap();
            fifo(&hub.join(name));
        })
        .await;
    }
    survives("packed-refs", |hub| fifo(&hub.join("packed-refs"))).await;
    survives("the branch", |hub| std::fs::write(hub.join("refs/heads").join(TARGET), "garbage").unwrap()).await;
    survives("a commit that is not there", |hub| {
        std::fs::write(hub.join("refs/heads").join(TARGET), format!("{}\n", "a".repeat(40))).unwrap();
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
        survives(name, |hub| std::fs::write(hub.join(name), "garbage").unwrap()).await;
        survives(name, |hub| std::fs::remove_file(hub.join(name)).unwrap()).await;
        survives(name, |hub| {
            std::fs::remove_file(hub.join(name)).unwrap();
            fifo(&hub.join(name));
        })
        .await;
    }
}

#[tokio::test]
async fn watch_repairs_a_hub_while_agents_work() {
    let stage = Stage::new().await;
    let dir = stage.hosted.places.worktrees.join("bead-one-1");
    worktree(&stage.hosted, &dir, TARGET, Some("one"), false).await.unwrap();
    std::fs::remove_dir_all(stage.hub()).unwrap();
    watch(&stage.hosted, TARGET).await.unwrap();
    stage.commit(&dir, "one");
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    assert_eq!(stage.hosted.take_repairs().len(), 1);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
}
