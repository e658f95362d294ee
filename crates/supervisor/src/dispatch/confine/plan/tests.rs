#![allow(clippy::unwrap_used)]
use super::*;
use crate::dispatch::confine::{file, outside, write};

/// The paths of a test: everything is below one directory, unless the test says otherwise.
struct Base {
    state: PathBuf,
    cache: PathBuf,
    config: PathBuf,
    runtime: PathBuf,
}

impl Base {
    fn of(root: &Path) -> Self {
        let [state, cache, config, runtime] =
            ["state", "cache", "config", "run"].map(|name| root.join(name));
        Self { state, cache, config, runtime }
    }

    fn ground(&self, repos: Vec<PathBuf>) -> Ground<'_> {
        let muleteer = Path::new("/usr/bin/muleteer");
        let project = repos.first().cloned().unwrap_or_else(|| self.state.join("nothing"));
        let Self { state, cache, config, runtime } = self;
        let (sockets, mounts) = (vec![], vec![]);
        let overlays = true;
        Ground {
            state,
            cache,
            config,
            runtime,
            identities: Path::new("/nothing"),
            muleteer,
            repos,
            sockets,
            project,
            mounts,
            overlays,
        }
    }
}

#[test]
fn parents_of_protected_paths_are_pinned_and_home_repository_is_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let (home, state, repo) =
        (root.join("home"), root.join("home/.local/state/muleteer"), root.join("home/src/repo"));
    let worktree = repo.join(".muleteer/worktrees/run/bead-1");
    for path in [&state, &worktree, &repo.join(".muleteer/runs")] {
        std::fs::create_dir_all(path).unwrap();
    }
    let base = Base {
        state: state.clone(),
        cache: home.join(".cache/muleteer"),
        config: home.join(".config/muleteer"),
        ..Base::of(&root)
    };
    let ground = base.ground(vec![repo.clone()]);
    let confined = Confined { write: vec![worktree.clone()], ..Confined::default() };
    let env = [("HOME".to_string(), home.display().to_string())];
    let plan = plan(&ground, &confined, "subprocess", &env, &[], &state.join("agents/a"));
    let what = |path: &Path| {
        plan.places.iter().find(|place| place.path == path).map(|place| place.what.clone())
    };
    assert_eq!(what(&home), Some(What::Write));
    assert_eq!(what(&state), Some(What::Hidden));
    for pinned in
        [home.join(".local"), home.join(".local/state"), home.join("src"), home.join(".cache")]
    {
        assert_eq!(what(&pinned), Some(What::Write), "{}", pinned.display());
    }
    assert_eq!(what(&repo), Some(What::Show));
    assert_eq!(what(&repo.join(".muleteer/worktrees")), Some(What::Hidden));
    assert_eq!(what(&worktree), Some(What::Write));
    assert_eq!(what(&state.join("agents/a/pub")), Some(What::Show));
    assert_eq!(what(&repo.join(".muleteer")), None, "nothing in a read-only tree needs a pin");
}

/// HOME may lie where the sandbox has folders of its own, as in a container or a test.
#[test]
fn files_of_a_command_are_shown_in_private_folders_and_folders_of_path_are_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let home = root.join("home");
    std::fs::create_dir_all(home.join("bin")).unwrap();
    std::fs::create_dir(root.join("tools")).unwrap();
    let (own, other) = (home.join("bin/notes"), root.join("tools/agent"));
    std::fs::write(&own, "").unwrap();
    std::fs::write(&other, "").unwrap();
    let base = Base::of(&root);
    let env = [
        ("HOME", home.display().to_string()),
        ("TMPDIR", root.display().to_string()),
        ("PATH", format!("{}:{}", home.join("bin").display(), root.join("tools").display())),
    ]
    .map(|(name, value)| (name.to_string(), value));
    let argv = [format!("{} < {}", other.display(), own.display())];
    let (ground, agent) = (base.ground(vec![]), base.state.join("agents/a"));
    let plan = plan(&ground, &Confined::default(), "subprocess", &env, &argv, &agent);
    let what = |path: &Path| {
        plan.places.iter().find(|place| place.path == path).map(|place| place.what.clone())
    };
    assert_eq!(what(&home), Some(What::Write));
    assert_eq!(what(&home.join("bin")), Some(What::Show), "the daemon runs programs from PATH");
    assert_eq!(what(&own), None, "it is in a folder that is read-only");
    assert_eq!(what(&other), None, "it is in a folder that is shown");
    assert_eq!(what(&root.join("tools")), Some(What::Show));
}

/// As `stow` makes it, with a link on the way to the target.
#[test]
fn configuration_links_and_targets_are_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let (home, state, config) =
        (root.join("home"), root.join("state"), root.join("home/.config/muleteer"));
    for path in [&home.join("dot/v2/roles"), &home.join("lone"), &config, &state] {
        std::fs::create_dir_all(path).unwrap();
    }
    for file in ["dot/v2/config.yaml", "dot/v2/roles/a.md", "lone/b.md"] {
        std::fs::write(home.join(file), "").unwrap();
    }
    let link = |to: &Path, at: &Path| std::os::unix::fs::symlink(to, at).unwrap();
    link(Path::new("v2"), &home.join("dot/current"));
    link(Path::new("../../dot/current/config.yaml"), &config.join("config.yaml"));
    link(&home.join("dot/current/roles"), &config.join("roles"));
    link(&home.join("lone/b.md"), &home.join("dot/v2/roles/b.md"));
    let base = Base { config: config.clone(), ..Base::of(&root) };
    let ground = base.ground(vec![]);
    let env = [("HOME".to_string(), home.display().to_string())];
    let plan =
        plan(&ground, &Confined::default(), "subprocess", &env, &[], &state.join("agents/a"));
    let what = |path: &str| {
        let path = home.join(path);
        plan.places.iter().find(|place| place.path == path).map(|place| place.what.clone())
    };
    for shown in
        ["dot/v2/config.yaml", "dot/current", "dot/v2/roles", "lone/b.md", ".config/muleteer"]
    {
        assert_eq!(what(shown), Some(What::Show), "{shown}");
    }
    for pinned in ["dot", "dot/v2", "lone", ".config"] {
        assert_eq!(what(pinned), Some(What::Write), "{pinned}");
    }
    assert_eq!(what(".config/muleteer/config.yaml"), None, "it lies in what is read-only");
}

#[test]
fn shared_files_of_a_home_repository_are_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let (home, state) = (root.join("home"), root.join("state"));
    let (linked, worktree) = (home.join("src/linked"), home.join(".muleteer/worktrees/run/bead-1"));
    let shared = home.join("src/main/.git");
    let own = shared.join("worktrees/linked");
    for path in
        [&home.join(".git/hooks"), &home.join(".muleteer/runs"), &linked, &own, &worktree, &state]
    {
        std::fs::create_dir_all(path).unwrap();
    }
    std::fs::write(linked.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
    std::fs::write(own.join("commondir"), "../..\n").unwrap();
    let (moved, link) = (home.join("elsewhere"), home.join("src/moved/.git"));
    std::fs::create_dir_all(home.join("src/moved")).unwrap();
    let dots = home.join("dots");
    for path in [&moved, &dots] {
        std::fs::create_dir(path).unwrap();
    }
    std::os::unix::fs::symlink(&moved, &link).unwrap();
    std::os::unix::fs::symlink(&dots, home.join(".muleteer/guidelines")).unwrap();
    let base = Base { config: home.join(".config/muleteer"), ..Base::of(&root) };
    let ground = base.ground(vec![home.clone(), linked.clone(), home.join("src/moved")]);
    let confined = Confined { write: vec![worktree.clone()], ..Confined::default() };
    let env = [("HOME".to_string(), home.display().to_string())];
    let plan = plan(&ground, &confined, "subprocess", &env, &[], &state.join("agents/a"));
    let what = |path: &Path| {
        plan.places.iter().find(|place| place.path == path).map(|place| place.what.clone())
    };
    assert_eq!(what(&home), Some(What::Write));
    for shown in [
        home.join(".git"),
        home.join(".muleteer"),
        home.join(".config/muleteer"),
        linked,
        shared,
        moved,
        dots,
    ] {
        assert_eq!(what(&shown), Some(What::Show), "{}", shown.display());
    }
    assert_eq!(what(&home.join("src/main")), Some(What::Write), "pinned");
    assert_eq!(what(&home.join(".muleteer/runs")), Some(What::Hidden));
    assert_eq!(what(&worktree), Some(What::Write));
}

#[test]
fn home_in_the_repository_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let home = root.join("home");
    std::fs::create_dir_all(home.join("repo")).unwrap();
    std::os::unix::fs::symlink(&home, root.join("link")).unwrap();
    let text = |path: &Path| path.display().to_string();
    for (repo, named, expected) in [
        (home.clone(), text(&home), true),
        (home.clone(), text(&root.join("link")), true),
        (root.clone(), text(&home), true),
        (PathBuf::from("/"), text(&home), true),
        (home.join("repo"), text(&home), false),
        (home.clone(), text(&root.join("home2")), false),
        (home.clone(), String::new(), false),
    ] {
        assert_eq!(holds(&repo, &named), expected, "{named} in {}", repo.display());
    }
}

#[test]
fn a_socket_that_the_environment_names_is_closed_unless_the_configuration_shows_it() {
    use std::os::unix::net::UnixListener;
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let (home, state) = (root.join("home"), root.join("state"));
    let (docker, keys, signing) =
        (home.join("engine/docker.sock"), home.join("keys.sock"), home.join(".gnupg/S.gpg-agent"));
    for path in [&home.join("engine"), &home.join(".gnupg"), &state] {
        std::fs::create_dir_all(path).unwrap();
    }
    let _listening = [&docker, &keys, &signing].map(|path| UnixListener::bind(path).unwrap());
    std::fs::write(home.join("file"), "").unwrap();
    std::os::unix::fs::symlink(&docker, home.join("link")).unwrap();
    let base = Base::of(&root);
    let ground = Ground { sockets: vec![keys.clone()], ..base.ground(vec![]) };
    let env = |docker: &str| {
        let docker = format!("unix://{}", home.join(docker).display());
        [("HOME".to_string(), home.display().to_string()), ("DOCKER_HOST".to_string(), docker)]
    };
    let what = |env: &[(String, String)], confined: &Confined, path: &Path| {
        let plan = plan(&ground, confined, "subprocess", env, &[], &state.join("agents/a"));
        plan.places.into_iter().find(|place| place.path == path).map(|place| place.what)
    };
    let none = Confined::default();
    for named in ["engine/docker.sock", "link"] {
        assert_eq!(what(&env(named), &none, &docker), Some(What::Closed), "{named}");
        assert_eq!(
            what(&env(named), &none, &home.join("engine")),
            Some(What::Write),
            "pinned, so that it stays"
        );
    }
    assert_eq!(what(&env("file"), &none, &home.join("file")), None, "only what is a socket");
    assert_eq!(
        what(&env("file"), &none, &keys),
        Some(What::Closed),
        "the daemon's environment counts too"
    );
    assert_eq!(what(&env("file"), &none, &signing), Some(What::Closed));
    let shown = Confined { show: vec![docker.clone()], ..Confined::default() };
    assert_eq!(what(&env("link"), &shown, &docker), Some(What::Show));
}

/// A judge's conversations are separate, even on a machine where its CLI was never used. Its
/// transcript must be searched there: a missing one would mean that its prompt was not
/// accepted.
#[test]
fn sealed_agent_transcript_has_its_own_place() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let (home, state, talk) = (root.join("home"), root.join("state"), root.join("sealed/talk"));
    let agent = state.join("agents/a");
    for path in [&home, &agent] {
        std::fs::create_dir_all(path).unwrap();
    }
    let base = Base::of(&root);
    let ground = base.ground(vec![]);
    let confined = Confined { talk: Some(talk.clone()), ..Confined::default() };
    let codex = root.join("elsewhere/codex");
    let env = [("HOME", &home), ("CODEX_HOME", &codex)]
        .map(|(name, path)| (name.into(), path.display().to_string()));
    let projects = home.join(".claude/projects");
    let before = outside(&agent, 1, &projects).unwrap();
    assert_eq!(before, projects, "it has no sandbox yet");
    write(&file(&agent, 1), &plan(&ground, &confined, "claude-code", &env, &[], &agent)).unwrap();
    let found = outside(&agent, 1, &projects).unwrap();
    assert!(found.starts_with(&talk) && found.is_dir(), "{}", found.display());
    assert!(!codex.exists(), "what it does not use is left alone");
    let plan = plan(&ground, &confined, "codex", &env, &[], &agent);
    let what = |path: &Path| {
        plan.places.iter().find(|place| place.path == path).map(|place| place.what.clone())
    };
    assert_eq!(what(&codex), Some(What::Write));
    assert!(matches!(what(&codex.join("sessions")), Some(What::Instead(_))));
}

/// The person's folders and files of the following tests.
fn furnished(home: &Path) {
    for name in [
        ".cargo/bin/tool",
        ".cargo/credentials.toml",
        ".cargo/registry/index",
        ".claude/.credentials.json",
        ".claude/projects/old.jsonl",
        ".claude/settings.json",
        ".rustup/settings.toml",
        ".ssh/id_ed25519",
        ".ssh/known_hosts",
        "dot/gitconfig",
        "src/other/.git/HEAD",
        "src/repo/.git/HEAD",
    ] {
        let path = home.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    std::os::unix::fs::symlink("dot/gitconfig", home.join(".gitconfig")).unwrap();
}

#[test]
fn private_home_shows_settings_and_tools_and_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let home = root.join("home");
    furnished(&home);
    let base = Base::of(&root);
    let (repo, other) = (home.join("src/repo"), home.join("src/other"));
    let agent = base.state.join("agents/a");
    let own = agent.join("private");
    let env = [
        ("HOME", home.display().to_string()),
        ("PATH", format!("{}:/usr/bin", home.join(".cargo/bin").display())),
    ]
    .map(|(name, value)| (name.to_string(), value));
    let confined = Confined { private_home: true, ..Confined::default() };
    for overlays in [true, false] {
        let ground = Ground { overlays, ..base.ground(vec![repo.clone(), other.clone()]) };
        let plan = plan(&ground, &confined, "claude-code", &env, &[], &agent);
        let what = |path: &str| {
            let path = home.join(path);
            plan.places.iter().find(|place| place.path == path).map(|place| place.what.clone())
        };
        let instead = |path: &str| Some(What::Instead(own.join(path)));
        assert_eq!(what(""), instead("home"));
        for shown in [".cargo/bin", ".rustup", ".ssh/known_hosts", "dot/gitconfig", "src/repo"] {
            assert_eq!(what(shown), Some(What::Show), "{shown}");
        }
        assert_eq!(what(".gitconfig"), Some(What::Link("dot/gitconfig".into())));
        for absent in [".cargo", ".cargo/credentials.toml", ".ssh", "dot", "src/other"] {
            assert_eq!(what(absent), None, "{absent}");
        }
        assert_eq!(what(".claude/projects"), instead("home/.claude/projects"));
        assert_eq!(what(".claude/.credentials.json"), None, "it is copied");
        let changes = |path: &str| match what(path) {
            Some(What::Overlay { changes, .. }) => Some(changes),
            _ => None,
        };
        if overlays {
            assert_eq!(changes(".claude"), Some(own.join("home/.claude")));
            assert!(changes(".cargo/registry").unwrap().starts_with(own.join("caches")));
        } else {
            assert_eq!(what(".claude/settings.json"), Some(What::Show));
            let Some(What::Instead(cache)) = what(".cargo/registry") else { panic!("{plan:?}") };
            assert!(cache.starts_with(own.join("caches")), "{}", cache.display());
        }
        assert!(!own.exists(), "a plan makes nothing in HOME");
    }
    // A repository that is HOME is shown, so that HOME cannot be another folder.
    let at_home = base.ground(vec![home.clone()]);
    let shared = plan(&at_home, &confined, "claude-code", &env, &[], &agent);
    assert!(shared.places.iter().any(|place| place.path == home && place.what == What::Write));
}
