//! Gathers the facts that `doctor` judges. Every check has a deadline, whatever a program, a daemon
//! or a network does, and all checks that may wait run at the same time.

mod agents;
pub(crate) mod ask;
mod host;
mod places;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::settings;
use ask::{Question, RunError, ask};
use jiff::Timestamp;
use muleteer_model::config::{Config, otlp_endpoint};
use muleteer_model::conversation::adapter::settings as adapter_settings;
use muleteer_model::doctor::{
    BackendFacts, ContainmentFacts, DaemonFacts, DirFacts, Exports, Facts, IdentityFacts,
    LimitFacts, NotifyFacts, Program, TelemetryFacts, There, TrustFacts,
};
use muleteer_supervisor::daemon::paths::PathError;
use muleteer_supervisor::notify::memory::Memory;
use muleteer_telemetry as telemetry;
use muleteer_telemetry::{Endpoint, Settings};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a program may take to print its version: a JavaScript CLI on a loaded machine takes
/// seconds.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(10);
/// How long a collector may take to accept a connection.
const COLLECTOR_DEADLINE: Duration = Duration::from_secs(3);
/// How long reading the log may take.
const STATE_DEADLINE: Duration = Duration::from_secs(10);

/// Returns all facts about this machine and this user's Muleteer.
pub async fn facts(context: &Context) -> Facts {
    let here = std::env::current_dir().ok();
    // `doctor` must be safe in a fresh clone, so it runs nothing that a repository names.
    let trust = trust(context, here.as_deref());
    let config = settings::config_that_runs_nothing(context, here.as_deref());
    let files = || settings::sources(context, here.as_deref());
    let config_facts = match &config {
        Ok(_) => files()
            .map(|sources| sources.into_iter().filter_map(|source| source.file).collect())
            .map_err(|failure| said(&failure).into()),
        Err(failure) => Err(said(failure).into()),
    };
    // An unreadable configuration must not prevent the other checks.
    let config = config.or_else(|_| Config::defaults()).ok();
    let own = crate::client::on_demand::own_program();
    let (
        backends,
        git,
        identity,
        (daemon, telemetry),
        (events, database),
        namespaces,
        overlays,
        landlock,
        service,
    ) = tokio::join!(
        backends(config.as_ref()),
        ask(Question::version("git"), PROGRAM_DEADLINE),
        identity(),
        daemon_and_telemetry(context, config.as_ref()),
        places::state(&context.paths, STATE_DEADLINE),
        host::namespaces(&own),
        host::overlays(&own, &context.paths.state_dir),
        host::landlock(&own),
        crate::service::state::facts(),
    );
    let mut state_dir = places::dir(&context.paths.state_dir);
    if let Some(error @ PathError::NoHome(_)) = &context.misplaced {
        state_dir = DirFacts {
            path: "the state directory".into(),
            there: There::Broken(error.to_string()),
            ..state_dir
        };
    }
    let too_long = match &context.misplaced {
        Some(PathError::SocketTooLong(socket)) => Some(socket.as_os_str().len()),
        _ => None,
    };
    let abilities = muleteer_process::host::host().abilities();
    Facts {
        os: std::env::consts::OS.into(),
        uid: rustix::process::getuid().as_raw(),
        version: env!("CARGO_PKG_VERSION").into(),
        backends,
        git,
        identity,
        config: config_facts,
        trust,
        state_dir,
        runtime_dir: places::own_dir(&context.paths.runtime_dir, too_long),
        runtime_parent: places::own_dir(
            context.paths.runtime_dir.parent().unwrap_or("/".as_ref()),
            None,
        ),
        events,
        database,
        operator_key: places::file(&context.paths.operator_key()),
        daemon,
        shim: places::shim(&own),
        sandbox: muleteer_model::doctor::SandboxFacts { namespaces, overlays, landlock },
        containment: ContainmentFacts {
            pidfd: abilities.pidfd,
            subreaper: abilities.subreaper,
            parent_death_signal: abilities.parent_death_signal,
            cgroup: muleteer_process::cgroup::probe()
                .map(|path| path.display().to_string())
                .map_err(|error| error.to_string().into()),
        },
        service,
        adapters: adapters(config.as_ref()),
        schedules: schedules(config.as_ref()),
        limits: LimitFacts {
            open_files: host::open_files(),
            processes: host::processes(),
            max_agents: config.as_ref().map_or(1, |config| config.pool.max_agents),
            inotify: host::inotify(),
        },
        telemetry,
        notify: notify(context, config.as_ref()),
    }
}

/// Returns the channels of notifications, with their newest errors.
fn notify(context: &Context, config: Option<&Config>) -> NotifyFacts {
    let channels = config.map(|config| config.notify.channels()).unwrap_or_default();
    let memory = Memory::read(&context.paths.notifications(), Timestamp::now());
    let failing = memory.map(|memory| memory.failing).unwrap_or_default();
    NotifyFacts {
        channels: channels.into_iter().map(String::from).collect(),
        failing: failing.into_iter().collect(),
    }
}

/// Returns the names of the adapters that the configuration enables.
fn adapters(config: Option<&Config>) -> Vec<String> {
    let all = config.into_iter().flat_map(|config| &config.adapters);
    let enabled = |name: &String, raw| {
        adapter_settings::read(name, raw).is_ok_and(|settings| settings.is_enabled())
    };
    all.filter(|(name, raw)| enabled(name, *raw)).map(|(name, _)| name.clone()).collect()
}

/// Returns the names of the schedules that are enabled.
fn schedules(config: Option<&Config>) -> Vec<String> {
    let all = config.into_iter().flat_map(|config| &config.schedules);
    all.filter(|(_, schedule)| schedule.enabled).map(|(name, _)| name.clone()).collect()
}

/// Asks git for the identity it would use in a commit. git must not derive an address from the name
/// of the machine.
async fn identity() -> IdentityFacts {
    let Some(git) = find("git") else { return IdentityFacts::Unknown };
    let args = ["-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT"];
    match ask::run(&git, &args, PROGRAM_DEADLINE).await {
        // `Ann <ann@example.com> 1700000000 +0000`
        Ok(said) => match said.trim().rsplit_once('>') {
            Some((who, _)) => IdentityFacts::Is(crate::render::clip(&format!("{who}>"), 120)),
            None => IdentityFacts::Unknown,
        },
        Err(RunError::Failed(why)) => IdentityFacts::None(why),
        Err(RunError::Late) => IdentityFacts::Unknown,
    }
}

/// Lists the keys of the repository's configuration that would run a program or loosen a
/// restriction.
fn trust(context: &Context, here: Option<&Path>) -> TrustFacts {
    let keys = |config: Result<Config, _>| -> Vec<String> {
        config.map_or_else(
            |_: Failure| vec![],
            |config| config.ignored().iter().map(|one| one.key.clone()).collect(),
        )
    };
    let ignored = keys(settings::config(context, here));
    let mut not_run = keys(settings::config_that_runs_nothing(context, here));
    not_run.retain(|key| !ignored.contains(key));
    TrustFacts { ignored, not_run }
}

fn said(failure: &crate::cli::failure::Failure) -> String {
    let document = failure.document();
    let text = |key: &str| document["error"][key].as_str().unwrap_or_default().to_string();
    let line =
        document["error"]["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
    let file = text("file");
    if file.is_empty() { text("message") } else { format!("{file}{line}: {}", text("message")) }
}

/// Checks the agent CLIs, and the backends that are used only if the configuration names them.
async fn backends(config: Option<&Config>) -> Vec<BackendFacts> {
    let path = std::env::var_os("PATH");
    let sought = agents::sought(config, path.as_deref());
    futures_util::future::join_all(sought.into_iter().map(async |sought| {
        let (program, found) = match sought.question {
            Ok(question) => (question.program.clone(), ask(question, PROGRAM_DEADLINE).await),
            Err(error) => (String::new(), Program::Unknown(error.to_string())),
        };
        BackendFacts {
            name: sought.name.into(),
            program,
            get: sought.get,
            named_by: sought.named_by,
            found,
        }
    }))
    .await
}

/// Checks the telemetry endpoint of this environment, or else the one with which the daemon was
/// started.
async fn telemetry(config: Option<&Config>, daemon: &DaemonFacts) -> TelemetryFacts {
    let configured = config.and_then(|config| config.telemetry.endpoint.clone());
    let said = std::env::var(telemetry::VARIABLE).ok().filter(|text| !text.trim().is_empty());
    let named = said.or_else(|| configured.clone());
    let (endpoint, unheeded) =
        match Settings::with_default(configured.as_deref(), &|name| std::env::var(name).ok()) {
            Ok(Some(settings)) => (settings.endpoint, settings.unheeded),
            Ok(None) if named.is_some() => return TelemetryFacts::Disabled,
            Ok(None) => match daemon {
                DaemonFacts::Answers { exports: Some(Exports::To(text)), .. } => {
                    match Endpoint::parse(text) {
                        Ok(endpoint) => (endpoint, vec![]),
                        Err(_) => return TelemetryFacts::Off,
                    }
                }
                _ => return TelemetryFacts::Off,
            },
            Err(error) => {
                // The address may have a password, and people send this report to others.
                let endpoint = named.map_or_else(
                    || "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or …_METRICS_ENDPOINT".into(),
                    |named| otlp_endpoint::without_secrets(&named),
                );
                return TelemetryFacts::BadEndpoint { endpoint, error: error.to_string() };
            }
        };
    let began = Instant::now();
    let connect = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port));
    let error = match tokio::time::timeout(COLLECTOR_DEADLINE, connect).await {
        Ok(Ok(_)) => {
            let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            return TelemetryFacts::Reached { endpoint: endpoint.to_string(), ms, unheeded };
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", COLLECTOR_DEADLINE.as_secs()),
    };
    TelemetryFacts::Unreachable { endpoint: endpoint.to_string(), error }
}

/// Asks the daemon first and then the endpoint, because the daemon's settings may determine the
/// endpoint.
async fn daemon_and_telemetry(
    context: &Context,
    config: Option<&Config>,
) -> (DaemonFacts, TelemetryFacts) {
    let daemon = places::daemon(context).await;
    let telemetry = telemetry(config, &daemon).await;
    (daemon, telemetry)
}

/// Returns the path of a program, as an agent would find it.
fn find(program: &str) -> Option<std::path::PathBuf> {
    muleteer_backends::find_program(program, std::env::var_os("PATH").as_deref())
}

/// Returns `Missing` for a program that is not on PATH.
fn program_at(path: Option<&Path>) -> Program {
    path.map_or(Program::Missing, |path| Program::NotAsked {
        path: path.into(),
        why: String::new(),
    })
}
