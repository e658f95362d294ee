//! A healthy machine, and machines with a single fault.

use crate::doctor::*;

fn dir(path: &str) -> DirFacts {
    let state = DirState {
        uid: 1000,
        mode: 0o700,
        writable: Ok(()),
        free_bytes: 50 << 30,
        doubtful_fs: None,
    };
    DirFacts { path: path.into(), there: There::Dir(state), socket_len: None }
}

fn answered(path: &str, said: &str) -> Program {
    Program::Answered { path: path.into(), said: said.into(), ms: 12 }
}

fn backend(name: &str, found: Program) -> BackendFacts {
    BackendFacts {
        name: name.into(),
        program: name.into(),
        get: format!("npm install -g {name}"),
        named_by: vec![],
        found,
    }
}

fn healthy() -> Facts {
    Facts {
        os: "linux".into(),
        uid: 1000,
        version: "0.1.0".into(),
        backends: vec![
            backend("claude", answered("/bin/claude", "2.1.0")),
            backend("codex", Program::Missing),
        ],
        git: answered("/usr/bin/git", "git version 2.39.5"),
        identity: IdentityFacts::Is("Ann <ann@example.com>".into()),
        config: Ok(vec![]),
        trust: TrustFacts::default(),
        state_dir: dir("/s/muleteer"),
        runtime_dir: DirFacts { socket_len: Some(60), ..dir("/r/muleteer/12345678") },
        runtime_parent: dir("/r/muleteer"),
        events: EventFacts::Read { records: 7 },
        database: DatabaseFacts::Read { applied: 7 },
        operator_key: Some(FileFacts {
            path: "/s/muleteer/operator.key".into(),
            uid: 1000,
            mode: 0o100_600,
        }),
        daemon: DaemonFacts::Answers {
            pid: 7,
            version: "0.1.0".into(),
            socket: "/r/daemon.sock".into(),
            exports: Some(Exports::To("http://127.0.0.1:4318".into())),
        },
        shim: Ok(ShimFacts { path: "/usr/bin/muleteer-shim".into(), own_binary: true }),
        sandbox: SandboxFacts {
            namespaces: Some(Ok("made".into())),
            overlays: Some(Ok("shown".into())),
            landlock: Some(Ok("fully enforced".into())),
        },
        containment: ContainmentFacts {
            pidfd: true,
            subreaper: true,
            parent_death_signal: true,
            cgroup: Ok("/sys/fs/cgroup/user.slice".into()),
        },
        service: ServiceFacts::Systemd {
            user: "u".into(),
            linger: true,
            unit: Some("active".into()),
        },
        adapters: vec![],
        schedules: vec![],
        limits: LimitFacts {
            open_files: (65_536, 65_536),
            processes: Some(100_000),
            max_agents: 8,
            inotify: Some(InotifyFacts {
                available: Ok(String::new()),
                max_instances: 128,
                max_watches: 65_536,
            }),
        },
        notify: NotifyFacts { channels: vec!["ntfy".into()], failing: vec![] },
        telemetry: TelemetryFacts::Reached {
            endpoint: "http://127.0.0.1:4318".into(),
            ms: 1,
            unheeded: vec![],
        },
    }
}

fn check(facts: &Facts, name: &str) -> Check {
    let checks = judge(facts);
    checks
        .iter()
        .find(|check| check.name == name)
        .unwrap_or_else(|| panic!("no check {name}: {checks:?}"))
        .clone()
}

/// Breaks one fact, and returns the check of that name. No other check may change.
fn broken(name: &str, breaks: impl FnOnce(&mut Facts)) -> Check {
    let mut facts = healthy();
    breaks(&mut facts);
    let others = |facts: &Facts| {
        judge(facts).into_iter().filter(|check| check.name != name).collect::<Vec<_>>()
    };
    assert_eq!(others(&facts), others(&healthy()), "what breaks {name} touches no other check");
    check(&facts, name)
}

#[test]
fn healthy_machine_passes_every_check() {
    let checks = judge(&healthy());
    assert!(is_well(&checks));
    for check in &checks {
        assert!(matches!(check.status, Status::Ok | Status::Skip), "{check:?}");
        assert_eq!((&check.hint, &check.best_effort), (&None, &None), "{check:?}");
    }
    let mut names: Vec<_> = checks.iter().map(|check| &check.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "every check has a name of its own");
}

/// A fault of one fact: the check that finds it, its status, a part of its message.
type Fault = (&'static str, Status, &'static str, fn(&mut Facts));

const FAULTS: &[Fault] = &[
    ("git", Status::Fail, "not on PATH", |f| f.git = Program::Missing),
    ("git", Status::Fail, "too old", |f| f.git = answered("/usr/bin/git", "git version 2.17.1")),
    ("git", Status::Fail, "within 5 s", |f| {
        f.git = Program::Silent { path: "/g".into(), after_s: 5 }
    }),
    ("git_identity", Status::Warn, "has no name or address", |f| {
        f.identity = IdentityFacts::None("empty ident".into())
    }),
    ("config", Status::Fail, "unknown key", |f| f.config = Err("x.yaml:3: unknown key".into())),
    ("state_dir", Status::Fail, "belongs to uid 0", |f| state(&mut f.state_dir).uid = 0),
    ("state_dir", Status::Fail, "accessible to other users (mode 755)", |f| {
        state(&mut f.state_dir).mode = 0o40_755
    }),
    ("state_dir", Status::Fail, "cannot be written", |f| {
        state(&mut f.state_dir).writable = denied()
    }),
    ("state_dir", Status::Fail, "10 MiB", |f| state(&mut f.state_dir).free_bytes = 10 << 20),
    ("state_dir", Status::Warn, "500 MiB", |f| state(&mut f.state_dir).free_bytes = 500 << 20),
    ("state_dir", Status::Warn, "nfs", |f| {
        state(&mut f.state_dir).doubtful_fs = Some("nfs".into())
    }),
    ("state_dir", Status::Fail, "not a directory", |f| {
        f.state_dir.there = There::Broken("not a directory".into())
    }),
    ("state_dir", Status::Fail, "cannot create /s/muleteer: / cannot be written", |f| {
        f.state_dir.there = There::Missing(denied_by("/ cannot be written"));
    }),
    ("runtime_dir", Status::Fail, "cannot be created: / cannot be written", |f| {
        f.runtime_dir.there = There::Missing(denied_by("/ cannot be written"));
    }),
    ("runtime_dir", Status::Fail, "/r/muleteer is accessible to other users", |f| {
        state(&mut f.runtime_parent).mode = 0o777
    }),
    ("events", Status::Fail, "line 3", |f| {
        f.events = EventFacts::Broken { error: "line 3: no".into(), hint: "mend it".into() };
    }),
    ("events", Status::Warn, "10 s", |f| f.events = EventFacts::Slow { after_s: 10 }),
    ("database", Status::Warn, "damaged", |f| {
        f.database = DatabaseFacts::Damaged("damaged".into())
    }),
    ("database", Status::Fail, "newer", |f| {
        f.database = DatabaseFacts::Broken { error: "newer".into(), hint: "update".into() };
    }),
    ("runtime_dir", Status::Fail, "mode 777", |f| state(&mut f.runtime_dir).mode = 0o777),
    ("runtime_dir", Status::Fail, "108 bytes", |f| f.runtime_dir.socket_len = Some(108)),
    ("operator_key", Status::Fail, "mode 644", |f| {
        f.operator_key.as_mut().expect("key").mode = 0o644
    }),
    ("operator_key", Status::Fail, "uid 5", |f| f.operator_key.as_mut().expect("key").uid = 5),
    ("daemon", Status::Warn, "version 0.0.9", |f| {
        let exports = None;
        f.daemon =
            DaemonFacts::Answers { pid: 1, version: "0.0.9".into(), socket: "/s".into(), exports };
    }),
    ("daemon", Status::Fail, "timed out", |f| {
        f.daemon = DaemonFacts::Mute { socket: "/s".into(), error: "timed out".into() };
    }),
    ("shim", Status::Warn, "no muleteer-shim", |f| {
        f.shim.as_mut().expect("shim").own_binary = false
    }),
    ("shim", Status::Fail, "no such file", |f| f.shim = Err("no such file".into())),
    ("sandbox.namespaces", Status::Warn, "EPERM", |f| {
        f.sandbox.namespaces = Some(Err("unshare: EPERM".into()))
    }),
    ("sandbox.overlays", Status::Warn, "EINVAL", |f| {
        f.sandbox.overlays = Some(Err("mount: EINVAL".into()))
    }),
    ("sandbox.landlock", Status::Warn, "ENOSYS", |f| {
        f.sandbox.landlock = Some(Err("ENOSYS".into()))
    }),
    ("containment", Status::Warn, "no pidfd, no subreaper", |f| {
        (f.containment.pidfd, f.containment.subreaper) = (false, false);
    }),
    ("service", Status::Warn, "schedules need a daemon: standup", |f| {
        f.schedules = vec!["standup".into()];
        f.service = ServiceFacts::None;
    }),
    ("service", Status::Warn, "adapters need a daemon: slack", |f| {
        f.adapters = vec!["slack".into()];
        f.service = ServiceFacts::None;
    }),
    ("service", Status::Warn, "logs out", |f| {
        f.service =
            ServiceFacts::Systemd { user: "u".into(), linger: false, unit: Some("active".into()) };
    }),
    ("service", Status::Fail, "failed", |f| {
        f.service =
            ServiceFacts::Systemd { user: "u".into(), linger: true, unit: Some("failed".into()) };
    }),
    ("inotify", Status::Warn, "EMFILE", |f| inotify(f).available = Err("EMFILE".into())),
    ("inotify", Status::Warn, "only 8 instances", |f| inotify(f).max_instances = 8),
    ("inotify", Status::Warn, "only 3 watches", |f| inotify(f).max_watches = 3),
    ("open_files", Status::Warn, "64 open files", |f| f.limits.open_files = (64, 65_536)),
    ("processes", Status::Warn, "100 processes", |f| f.limits.processes = Some(100)),
    ("notify", Status::Warn, "ntfy fails: refused", |f| {
        f.notify.failing.push(("ntfy".into(), "refused".into()));
    }),
    ("telemetry", Status::Warn, "refused", |f| {
        let endpoint = "http://127.0.0.1:4318".into();
        f.telemetry = TelemetryFacts::Unreachable { endpoint, error: "refused".into() };
    }),
    ("telemetry", Status::Fail, "not a valid endpoint", |f| {
        f.telemetry =
            TelemetryFacts::BadEndpoint { endpoint: "x".into(), error: "no scheme".into() };
    }),
];

#[test]
fn each_fault_has_a_message_and_a_hint() {
    for (name, status, says, breaks) in FAULTS {
        let check = broken(name, breaks);
        assert_eq!(check.status, *status, "{check:?}");
        assert!(check.message.contains(says), "{says}: {check:?}");
        assert!(check.hint.is_some(), "what is wrong is told with what to do: {check:?}");
    }
}

fn denied() -> Result<(), Barred> {
    denied_by("cannot be written")
}

fn denied_by(why: &str) -> Result<(), Barred> {
    Err(Barred { why: why.into(), read_only: false })
}

fn read_only(why: &str) -> Result<(), Barred> {
    Err(Barred { why: why.into(), read_only: true })
}

fn state(dir: &mut DirFacts) -> &mut DirState {
    match &mut dir.there {
        There::Dir(state) => state,
        other => panic!("{other:?}"),
    }
}

fn inotify(facts: &mut Facts) -> &mut InotifyFacts {
    facts.limits.inotify.as_mut().expect("linux")
}

#[test]
fn missing_cli_fails_only_if_needed() {
    let with = |claude: Program, named: bool| {
        let mut facts = healthy();
        facts.backends[0].found = claude;
        facts.backends[1].named_by = if named { vec!["run.agent.backend".into()] } else { vec![] };
        [check(&facts, "backend.claude").status, check(&facts, "backend.codex").status]
    };
    let there = || answered("/bin/claude", "2.1");
    assert_eq!(with(there(), false), [Status::Ok, Status::Skip], "another one will do");
    assert_eq!(with(there(), true), [Status::Ok, Status::Fail], "the configuration names it");
    assert_eq!(with(Program::Missing, false), [Status::Fail, Status::Fail], "there is none at all");
    let mut none = healthy();
    none.backends[0].found = Program::Missing;
    let found = check(&none, "backend.claude");
    assert_eq!(found.message, "no agent CLI found (claude, codex): nothing can run");
    let mute = || Program::Silent { path: "/c".into(), after_s: 5 };
    assert_eq!(
        with(mute(), false),
        [Status::Warn, Status::Fail],
        "one that hangs is no other to use"
    );
    let unknown = || Program::Unknown("no ACP agent is on PATH".into());
    assert_eq!(with(unknown(), false), [Status::Warn, Status::Fail]);
}

#[test]
fn machine_without_a_usable_agent_cli_is_not_well() {
    let broken = || Program::Failed { path: "/c".into(), error: "exit status: 1".into() };
    for found in
        [[Program::Missing, Program::Missing], [broken(), Program::Missing], [broken(), broken()]]
    {
        let mut facts = healthy();
        for (backend, found) in facts.backends.iter_mut().zip(found) {
            backend.found = found;
        }
        assert!(!is_well(&judge(&facts)), "{facts:?}");
    }
}

#[test]
fn trust_check_appears_only_for_repositories_with_settings() {
    let trust = |ignored: &[&str], not_run: &[&str]| {
        let [ignored, not_run] =
            [ignored, not_run].map(|keys| keys.iter().map(|key| (*key).to_string()).collect());
        let checks = judge(&Facts { trust: TrustFacts { ignored, not_run }, ..healthy() });
        checks
            .into_iter()
            .find(|check| check.name == "trust")
            .map(|check| (check.status, check.message))
    };
    assert_eq!(trust(&[], &[]), None);
    let (status, message) = trust(&["sandbox"], &["backends.codex.command"]).expect("a check");
    assert!(status == Status::Warn && message.ends_with("ignoring sandbox"), "{message}");
    let (status, message) = trust(&[], &["backends.codex.command"]).expect("a check");
    assert!(
        status == Status::Ok && message.ends_with("this check does not run backends.codex.command"),
        "{message}"
    );
}

#[test]
fn missing_program_is_named_as_it_was_looked_up() {
    let missing = |program: &str, named_by: &[&str]| {
        let mut facts = healthy();
        let named_by = named_by.iter().map(|key| (*key).to_string()).collect();
        facts.backends[1] = BackendFacts {
            program: program.into(),
            named_by,
            ..backend("codex", Program::Missing)
        };
        check(&facts, "backend.codex").message
    };
    assert_eq!(missing("codex", &[]), "`codex` is not on PATH");
    assert_eq!(missing("codex", &["backend"]), "`codex` is not on PATH, and backend names it");
    let said = missing("/nope/codex", &["backends.codex.command"]);
    assert_eq!(
        said,
        "`/nope/codex` is missing or not executable, and backends.codex.command names it"
    );
}

#[test]
fn program_without_a_version_is_a_warning() {
    for (said, status) in [
        ("2.1.3 (Claude Code)", Status::Ok),
        ("codex-cli 0.46.0-alpha.4", Status::Ok),
        ("hello world", Status::Warn),
        ("\u{fffd}9\u{fffd}.", Status::Warn),
    ] {
        let mut facts = healthy();
        facts.backends[0] = BackendFacts {
            named_by: vec!["backend".into()],
            ..backend("claude", answered("/bin/claude", said))
        };
        let found = check(&facts, "backend.claude");
        assert_eq!(
            (found.status, found.hint.is_some()),
            (status, status == Status::Warn),
            "{found:?}"
        );
    }
}

/// The remedy must fit the cause: a read-only file system needs no permission, and a wrong mode
/// needs no removal.
#[test]
fn hint_for_a_directory_matches_its_fault() {
    type Break = fn(&mut DirState);
    let read_only_fs: Break = |dir| dir.writable = read_only("is on a read-only file system");
    let table: &[(Break, &str, &str)] = &[
        (
            read_only_fs,
            "is on a read-only file system",
            "set XDG to a directory that you own, or mount its file system",
        ),
        (
            |dir| (dir.uid, dir.writable) = (0, read_only("is read-only")),
            "is read-only",
            "set XDG to a directory",
        ),
        (
            |dir| dir.uid = 0,
            "belongs to uid 0",
            "set XDG to a directory that you own, or change its owner to you",
        ),
        (|dir| dir.mode = 0o40_777, "mode 777", "`chmod 700 PATH`"),
        (
            |dir| (dir.mode, dir.writable) = (0o40_500, denied()),
            "cannot be written",
            "`chmod 700 PATH`",
        ),
        (|dir| dir.writable = denied(), "cannot be written", "set XDG to a directory that you own"),
    ];
    for (breaks, says, cure) in table {
        for name in ["state_dir", "runtime_dir"] {
            let (variable, path) = match name {
                "state_dir" => ("XDG_STATE_HOME", "/s/muleteer"),
                _ => ("XDG_RUNTIME_DIR", "/r/muleteer/12345678"),
            };
            let found = broken(name, |facts| match name {
                "state_dir" => breaks(state(&mut facts.state_dir)),
                _ => breaks(state(&mut facts.runtime_dir)),
            });
            let cure = cure.replace("XDG", variable).replace("PATH", path);
            let hint = found.hint.clone().unwrap_or_default();
            assert!(found.message.contains(says) && hint.starts_with(&cure), "{cure}: {found:?}");
            assert!(
                !hint.contains("remove")
                    && (!says.contains("read-only") || !hint.contains("chmod")),
                "{found:?}"
            );
        }
    }
    let found = broken("state_dir", |facts| {
        facts.state_dir.there = There::Missing(read_only("/ is read-only"))
    });
    assert_eq!(found.hint.as_deref(), Some("set XDG_STATE_HOME to a directory that you own"));
}

#[test]
fn telemetry_check_reports_the_running_daemon() {
    const HERE: &str = "http://127.0.0.1:4318";
    let with = |telemetry: TelemetryFacts, exports: Option<Exports>| {
        let found = broken("telemetry", |facts| {
            let DaemonFacts::Answers { exports: of_the_daemon, .. } = &mut facts.daemon else {
                panic!("a daemon")
            };
            (*of_the_daemon, facts.telemetry) = (exports, telemetry);
        });
        (found.status, found.message, found.hint.unwrap_or_default())
    };
    let reached = || TelemetryFacts::Reached { endpoint: HERE.into(), ms: 1, unheeded: vec![] };
    let to = |endpoint: &str| Some(Exports::To(endpoint.into()));
    for exports in [None, to(HERE)] {
        assert_eq!(with(reached(), exports).0, Status::Ok, "one that does not say is believed");
    }
    let (status, message, hint) = with(reached(), Some(Exports::Nothing));
    assert!(status == Status::Warn && message.contains("exports nothing"), "{message}");
    assert!(
        hint.starts_with("run `muleteer daemon stop`: the next verb starts a daemon"),
        "{hint}"
    );
    let (status, message, _) = with(reached(), to("http://elsewhere:4318"));
    assert!(
        status == Status::Warn && message.contains("exports to http://elsewhere:4318"),
        "{message}"
    );
    let (status, message, _) = with(TelemetryFacts::Disabled, to(HERE));
    assert!(status == Status::Warn && message.contains(HERE), "{message}");
    let unheeded =
        vec!["OTEL_EXPORTER_OTLP_PROTOCOL=grpc: only http/json is supported".to_string()];
    let (status, message, _) =
        with(TelemetryFacts::Reached { endpoint: HERE.into(), ms: 1, unheeded }, to(HERE));
    assert!(status == Status::Warn && message.contains("=grpc"), "{message}");
    for (telemetry, exports) in
        [(TelemetryFacts::Off, Some(Exports::Nothing)), (TelemetryFacts::Disabled, None)]
    {
        assert_eq!(with(telemetry, exports).0, Status::Skip);
    }
}

#[test]
fn git_without_fsync_is_best_effort() {
    for (version, best_effort) in [("2.35.9", true), ("2.36.0", false), ("3.0", false)] {
        let facts =
            Facts { git: answered("/usr/bin/git", &format!("git version {version}")), ..healthy() };
        let found = check(&facts, "git");
        assert_eq!(
            (found.status, found.best_effort.is_some()),
            (Status::Ok, best_effort),
            "{version}"
        );
    }
}

#[test]
fn missing_linux_features_are_best_effort_elsewhere() {
    let mut facts = healthy();
    facts.os = "macos".into();
    facts.sandbox = SandboxFacts { namespaces: None, overlays: None, landlock: None };
    facts.containment.pidfd = false;
    facts.containment.parent_death_signal = false;
    facts.containment.cgroup = Err("macos has none".into());
    facts.limits.inotify = None;
    facts.service = ServiceFacts::Launchd { loaded: false };
    let checks = judge(&facts);
    assert!(is_well(&checks));
    assert!(checks.iter().all(|check| check.status != Status::Warn), "{checks:?}");
    for name in ["sandbox.namespaces", "containment", "cgroup"] {
        assert!(check(&facts, name).best_effort.is_some(), "{name} says what is done instead");
    }
}

#[test]
fn overlays_are_tried_only_where_they_can_be() {
    let mut facts = healthy();
    facts.sandbox.overlays = None;
    let skipped = check(&facts, "sandbox.overlays");
    assert!(skipped.message.contains("no state directory"), "{skipped:?}");
    facts.sandbox.overlays = Some(Err("unshare: EPERM".into()));
    facts.sandbox.namespaces = Some(Err("unshare: EPERM".into()));
    assert_eq!(check(&facts, "sandbox.overlays").status, Status::Skip, "one warning is enough");
}

#[test]
fn directories_not_created_yet_are_ok() {
    let mut facts = healthy();
    facts.state_dir.there = There::Missing(Ok(()));
    facts.runtime_dir.there = There::Missing(Ok(()));
    facts.operator_key = None;
    facts.daemon = DaemonFacts::None;
    facts.telemetry = TelemetryFacts::Off;
    let checks = judge(&facts);
    assert!(
        checks.iter().all(|check| matches!(check.status, Status::Ok | Status::Skip)),
        "{checks:?}"
    );
}

#[test]
fn versions_of_git() {
    for (said, wanted) in [
        ("git version 2.39.5", Some((2, 39))),
        ("git version 2.39.5 (Apple Git-154)", Some((2, 39))),
        ("git version 2.47.0.windows.2", Some((2, 47))),
        ("git", None),
        ("hello world", None),
        ("2024-01-02 codex-cli 0.46.0", Some((0, 46))),
        ("v1.2.3", Some((1, 2))),
        ("1.3-beta", Some((1, 3))),
        ("1.beta", None),
    ] {
        assert_eq!(agents::version(said), wanted, "{said}");
    }
}

#[test]
fn version_is_read_from_the_matching_line() {
    for (said, wanted) in [
        ("\n 1.2.3 \n", Some("1.2.3")),
        ("a newer one is there\n1.2.3 (Claude Code)\n", Some("1.2.3 (Claude Code)")),
        ("hello\nworld", Some("hello")),
        (" \n", None),
    ] {
        assert_eq!(answer(said), wanted, "{said}");
    }
}
