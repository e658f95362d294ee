//! Makes the launch file of an agent: its command line, environment, directory and limits.

use crate::daemon::container;
use crate::daemon::context::{Daemon, random_key};
use crate::dispatch::backend_choice::USUAL_PATH;
use crate::dispatch::confine;
use crate::dispatch::launch::login_shell;
use crate::dispatch::launch::model_ports::model_ports;
use crate::dispatch::launch::obeyed::blinded;
use crate::dispatch::launch::private_home;
use crate::dispatch::launch::sealed_home::seal;
use crate::dispatch::launch::start_error::StartError;
use crate::dispatch::prompt_files::write_first_prompt;
use crate::dispatch::saved::Saved;
use muleteer_backends::Collector;
use muleteer_backends::CommandLine;
use muleteer_backends::LaunchSpec;
use muleteer_backends::ProjectSettings;
use muleteer_backends::StdinMode;
use muleteer_backends::ToolServer;
use muleteer_backends::sealed::program;
use muleteer_backends::{home_path, homes};
use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::agent::result;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::Created;
use muleteer_model::event::mcp::{self, LONG_CALLS};
use muleteer_model::event::mcp_pace::Periods;
use muleteer_model::event::trace_ids;
use muleteer_process::fault;
use muleteer_shim::launch::Launch;
use muleteer_store::atomic;
use muleteer_telemetry::Context;
use muleteer_telemetry::settings::Target;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes the launch file of one process, and writes the files that it names.
pub(super) fn launch_of(
    daemon: &Daemon,
    dispatch: &Dispatch,
    saved: &Saved,
    (epoch, resume): (u32, Option<&str>),
    project_settings: ProjectSettings,
) -> Result<Launch, StartError> {
    let created = &dispatch.created;
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let cwd = working_directory(created);
    let backend = muleteer_backends::by_name(&created.backend)?;
    let path = search_path(daemon, saved);
    let spec = spec_of(daemon, dispatch, saved, (&cwd, &path), resume, project_settings);
    let line = backend.command_line(&spec)?;
    let prompt = write_first_prompt(&dir, dispatch, saved)?;
    let mut env = environment(daemon, dispatch, saved, (&line, &prompt));
    set(&mut env, "PATH", &path);
    if backend.uses_login_shells() {
        let own = env.iter().rev().find(|(name, _)| name == login_shell::VARIABLE);
        let file = login_shell::write(&dir, &bin(daemon), own.map(|(_, value)| value.as_str()))?;
        set(&mut env, login_shell::VARIABLE, &file.display().to_string());
    }
    if let Some(trace) = &created.trace {
        // The agent's own spans become children of its attempt's span.
        let below = Context::parse(trace)
            .map(|context| trace_ids::of_agent(context, &dispatch.id, epoch).to_string());
        set(&mut env, "TRACEPARENT", below.as_deref().unwrap_or(trace));
    }
    let mut confined = saved.confined.clone();
    if let Some(homes) = &saved.home {
        let chosen = (saved.agent.as_deref(), saved.command.as_ref());
        let program = program(backend, chosen, &saved.args, &line.argv);
        if let Some(program) = &program {
            let loaded = backend.repository_settings(chosen.0, chosen.1);
            let user = env.iter().rev().find(|(name, _)| name == "HOME");
            let user = user.map(|(_, home)| Path::new(home));
            let agent = (program.as_str(), loaded);
            confined = blinded(daemon, confined.as_ref(), agent, Path::new(&cwd), user)?;
        }
        seal(homes, &mut env, program.as_deref())?;
    }
    for file in &line.files {
        if let Some(folder) = file.path.parent() {
            atomic::create_dir_durable(folder, 0o700)?;
        }
        // Each start writes them again, so they need not survive a power failure.
        atomic::write_if_new(&file.path, file.contents.as_bytes(), 0o600)?;
    }
    debug_assert!(matches!(line.stdin, StdinMode::Open | StdinMode::CloseAfterPrompt));
    let argv = match &confined {
        Some(confined) => {
            // The sandbox can only show existing files, and a hidden file cannot be made from
            // inside.
            if let Some(own) = backend.own_folder() {
                atomic::create_dir_durable(&dir.join(own), 0o700)?;
            }
            if confined.talk.is_some() || confined.private_home {
                hide_databases(&mut env);
            }
            let work = (created.project.as_str(), created.backend.as_str());
            let mut plan = confine::plan_of(daemon, confined, work, &env, &line.argv, &dir);
            if confined.only_model {
                let is_usual = saved.command.is_none();
                plan.ports = model_ports(backend, is_usual, &saved.args, &env);
            }
            private_home::prepare(&dir, &plan, &env, saved.home.is_none())?;
            let file = confine::file(&dir, epoch);
            confine::write(&file, &plan)?;
            let confining = daemon.shims.program().confining(&file, Path::new(&cwd));
            [confining, line.argv].concat()
        }
        None => line.argv,
    };
    let mut launch = Launch::new(epoch, daemon.settings.generation, random_key(), argv, cwd.into());
    launch.env = env;
    launch.timing.lease_ms = daemon.settings.lease_ms;
    launch.spool.retain_bytes = daemon.settings.retention.output_bytes();
    if let Some(confined) = &confined {
        launch.limits.max_procs = confined.max_processes;
        launch.limits.max_memory_bytes = confine::memory_limit(confined);
        launch.limits.max_private_bytes = confine::home_limit(confined, &dir);
        launch.limits.hard = true;
    }
    launch.limits.deadline_ms =
        created.limits.timeout_s.map_or(0, |timeout| left(timeout, dispatch.usage.awake_ms));
    Ok(launch)
}

/// Returns the PATH of an agent. The folder with `muleteer` comes first, wherever the rest is from:
/// the requester's `--env`, the backend's configuration, or the requester's environment.
fn search_path(daemon: &Daemon, saved: &Saved) -> String {
    let chosen = [&saved.extra_env, &saved.backend_env, &saved.env];
    let path = chosen.into_iter().find_map(|env| env.iter().rev().find(|(name, _)| name == "PATH"));
    let path = path.map_or(USUAL_PATH, |(_, value)| value);
    format!("{}:{path}", bin(daemon).display())
}

/// Returns the folder with `muleteer`.
fn bin(daemon: &Daemon) -> PathBuf {
    daemon.paths.state_dir.join("bin")
}

/// Returns the specification of a process, for its backend.
fn spec_of(
    daemon: &Daemon,
    dispatch: &Dispatch,
    saved: &Saved,
    (cwd, path): (&str, &str),
    resume: Option<&str>,
    project_settings: ProjectSettings,
) -> LaunchSpec {
    let created = &dispatch.created;
    let budget_left =
        created.limits.budget_usd.map(|budget| (budget - dispatch.spend.cost_usd).max(0.01));
    LaunchSpec {
        cwd: cwd.into(),
        agent_dir: daemon.paths.agent(dispatch.id.as_str()),
        muleteer: daemon.settings.muleteer.clone(),
        path: Some(program_path(saved, path)),
        model: dispatch.model().cloned(),
        max_turns: created
            .limits
            .max_turns
            .map(|most| most.saturating_sub(dispatch.usage.model_turns).max(1)),
        budget_usd: budget_left,
        system_prompt_append: saved.system_prompt.clone(),
        resume: resume.map(String::from),
        session_id: Some(muleteer_model::dispatch::life::new_session_id(dispatch)),
        agent: saved.agent.clone(),
        command: saved.command.clone(),
        args: saved.args.clone(),
        env: saved.backend_env.clone(),
        inherited: saved.env.iter().chain(&saved.extra_env).map(|(name, _)| name.clone()).collect(),
        permissions: created.permissions.clone(),
        project_settings,
        result_schema: saved.schema.clone().or_else(|| created.wants_result.then(result::schema)),
        sandboxed_root: rustix::process::geteuid().is_root()
            && (saved.confined.is_some() || container::is_container()),
        scenario: saved.scenario.clone().map(Into::into),
        tools: tool_server(daemon, dispatch, saved),
        telemetry: daemon.settings.telemetry.as_ref().map(|settings| Collector {
            base: settings.base.as_ref().map(ToString::to_string),
            traces: settings.traces.as_ref().map(Target::url),
            metrics: settings.metrics.as_ref().map(Target::url),
        }),
    }
}

/// Returns Muleteer's MCP server for an agent that has tools of it.
fn tool_server(daemon: &Daemon, dispatch: &Dispatch, saved: &Saved) -> Option<ToolServer> {
    let access = dispatch.created.mcp?;
    if !mcp::Tool::all().any(|tool| tool.is_allowed(access)) {
        return None;
    }
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let own = saved.env.iter().filter(|(name, _)| name.starts_with("XDG_") || name == "HOME");
    let mut env: Vec<_> = own.cloned().collect();
    set(&mut env, "MULETEER_SOCKET", &dir.join("pub/sock").display().to_string());
    set(&mut env, "MULETEER_DISPATCH_ID", dispatch.id.as_str());
    set(&mut env, LONG_CALLS, "1");
    if let Some(periods) = fault::periods() {
        set(&mut env, fault::PERIODS_VAR, &periods);
    }
    let longest_call = fault::period("longest", Periods::default().longest);
    Some(ToolServer { program: bin(daemon).join("muleteer"), env, longest_call })
}

/// Returns Muleteer's MCP server for a call that opens a session.
pub(crate) async fn tool_server_for(
    daemon: &Arc<Daemon>,
    dispatch: &Arc<Dispatch>,
    call: &Call,
) -> Option<ToolServer> {
    let is_known = dispatch.known_agent().is_some_and(|agent| agent.mcp);
    if !matches!(call, Call::Open { .. }) || !is_known {
        return None;
    }
    let (daemon, dispatch) = (daemon.clone(), dispatch.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let saved = match Saved::read(&daemon.paths.agent(dispatch.id.as_str())) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(id = %dispatch.id, %error, "failed to give an agent its tools");
                return None;
            }
        };
        let mut server = tool_server(&daemon, &dispatch, &saved)?;
        // The longest call of its client is not known.
        server.env.retain(|(name, _)| name != LONG_CALLS);
        Some(server)
    });
    reading.await.ok().flatten()
}

/// Returns the environment of an agent, without its PATH. Later variables replace earlier ones: the
/// requester's, the CLI's, the requester's `--env`, and Muleteer's.
fn environment(
    daemon: &Daemon,
    dispatch: &Dispatch,
    saved: &Saved,
    (line, prompt_file): (&CommandLine, &Path),
) -> Vec<(String, String)> {
    let created = &dispatch.created;
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let mut env = saved.env.clone();
    env.retain(|(known, _)| !line.env_remove.contains(known));
    for (name, value) in line.env.iter().chain(&saved.extra_env) {
        set(&mut env, name, value);
    }
    for (name, value) in [
        ("MULETEER_SOCKET", dir.join("pub/sock").display().to_string()),
        ("MULETEER_DISPATCH_ID", dispatch.id.to_string()),
        ("MULETEER_ROLE", created.role.clone()),
        ("MULETEER_JOURNAL", created.journal.clone()),
        ("MULETEER_PROMPT_FILE", prompt_file.display().to_string()),
    ] {
        set(&mut env, name, &value);
    }
    env
}

/// Moves each CLI's database of conversations into a folder that nobody else may read. Otherwise
/// the database would stand beside those folders.
fn hide_databases(env: &mut Vec<(String, String)>) {
    for home in homes() {
        let value = |name: &str| {
            let found = env.iter().rev().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).filter(|value| value.starts_with('/'))
        };
        if let (Some(variable), Some(path), Some(folder)) =
            (home.database, home_path(home, &value), home.conversations.first())
        {
            set(env, variable, &path.join(folder).display().to_string());
        }
    }
}

/// Returns the agent's directory: the project, or its place in the clone if there is one.
pub(super) fn working_directory(created: &Created) -> String {
    let Some(clone) = &created.worktree else { return created.project.clone() };
    // The last match counts, because an agent in a clone may request a clone within its own.
    let top = clone.rsplit_once("/.muleteer/worktrees/").map(|(top, _)| Path::new(top));
    let below = top.and_then(|top| Path::new(&created.project).strip_prefix(top).ok());
    let there = below.map(|below| Path::new(clone).join(below)).filter(|dir| dir.is_dir());
    there.map_or_else(|| clone.clone(), |dir| dir.display().to_string())
}

/// Returns the search path for the agent's program: its PATH, unless its parent could choose that.
/// A PATH of the person's configuration comes first.
fn program_path(saved: &Saved, path: &str) -> String {
    let Some(held) = &saved.program_path else { return path.into() };
    let configured = saved.backend_env.iter().rev().find(|(name, _)| name == "PATH");
    configured.map_or_else(|| held.clone(), |(_, first)| format!("{first}:{held}"))
}

/// Returns the part of a dispatch's time that earlier attempts did not use. Never 0, which would
/// mean no limit.
pub fn left(timeout_s: u64, used_ms: u64) -> u64 {
    timeout_s.saturating_mul(1000).saturating_sub(used_ms).max(1)
}

pub(super) fn set(env: &mut Vec<(String, String)>, name: &str, value: &str) {
    env.retain(|(known, _)| known != name);
    env.push((name.into(), value.into()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::event::Event;

    #[test]
    fn agent_starts_in_its_project_folder_of_the_clone() {
        let dir = tempfile::tempdir().expect("a directory");
        let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created") else {
            panic!("another sample")
        };
        let within = dir.path().join(".muleteer/worktrees/abcd2345");
        for top in [dir.path(), &within] {
            let (project, clone) = (top.join("web"), top.join(".muleteer/worktrees/bcde2345"));
            created.project = project.display().to_string();
            created.worktree = Some(clone.display().to_string());
            assert_eq!(
                Path::new(&working_directory(&created)),
                clone,
                "it is not in what was committed"
            );
            std::fs::create_dir_all(clone.join("web")).expect("a directory");
            assert_eq!(Path::new(&working_directory(&created)), clone.join("web"));
        }
        created.worktree = None;
        assert_eq!(working_directory(&created), created.project);
    }
}
