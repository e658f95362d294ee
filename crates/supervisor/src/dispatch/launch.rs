//! The effects around an agent's start and end, each with its probe: the lock, the worktree, the
//! spool. Actors call them, and every one may be repeated.

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::trust::claude;
use crate::dispatch::request::Saved;
use crate::dispatch::shim_watchdog::Stuck;
use crate::ledger::{append, entry};
use crate::ports::agent::JournalMsg;
use crate::vcs::worktree::NewClone;
use muleteer_backends::Briefed;
use muleteer_backends::Collector;
use muleteer_backends::LaunchSpec;
use muleteer_backends::ProjectSettings;
use muleteer_backends::StdinMode;
use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::agent::prompt;
use muleteer_model::agent::result;
use muleteer_model::dispatch::life::{self, Input};
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Created, Event, PromptKind};
use muleteer_process::fault;
use muleteer_process::group::{self, Before};
use muleteer_process::lock::LockGuard;
use muleteer_protocol::shim::v1::{FromShim, HEADER, MAX_BODY, ToShim};
use muleteer_shim::attach::{self, Liveness};
use muleteer_shim::launch::Launch;
use muleteer_shim::{meta, spool, start};
use muleteer_telemetry::Context;
use muleteer_telemetry::settings::Target;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The timeout for a frame, which is small and local: a slower shim is stuck or stopped.
const PORT_DEADLINE: Duration = Duration::from_secs(5);
/// The time for an earlier shim to terminate what its agent left (TERM, 10 s, KILL, 30 s).
const PREDECESSOR: Duration = Duration::from_secs(90);
/// The timeout of a sweep after a dead shim; then the dispatch is `blocked`
/// (docs/design/adoption-and-recovery.md).
const SWEEP: Duration = Duration::from_secs(30);

/// The state of an epoch's shim.
#[derive(Debug)]
pub enum Standing {
    /// It runs. `adopted` has its pid if an earlier daemon started it.
    Alive { adopted: Option<u32> },
    /// It ran, or may have run, and is dead. Nobody can start another one while `lock` is held.
    Dead { lock: LockGuard },
    /// Nothing was started, because it failed.
    CannotStart { error: String, permanent: bool },
    /// Processes of an earlier attempt could not be terminated, so nothing may start beside them.
    Unswept { killed: u32 },
}

/// Finds the shim of `epoch`, or starts it if it certainly never ran.
pub async fn stand(
    daemon: &Arc<Daemon>,
    dispatch: &Arc<Dispatch>,
    epoch: u32,
    resume: Option<&str>,
) -> Result<Standing, String> {
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let deadline = tokio::time::Instant::now() + PREDECESSOR;
    let mut pause = Duration::from_millis(2);
    let mut started = None;
    let mut stuck = Stuck::new();
    loop {
        match attach::probe(&dir)
            .map_err(|error| format!("the agent's lock cannot be probed: {error}"))?
        {
            Liveness::Alive => match meta::read(&dir).map_err(|error| error.to_string())? {
                Some(meta) if meta.epoch == epoch => {
                    let adopted = (meta.generation != daemon.generation).then_some(meta.shim.pid);
                    return Ok(Standing::Alive { adopted });
                }
                _ if tokio::time::Instant::now() > deadline => {
                    return Err(format!(
                        "the shim of an earlier attempt still holds {}",
                        dir.join(attach::LOCK).display()
                    ));
                }
                // The shim has just started and not written its file yet, or an earlier one still
                // terminates its agent's processes, which takes time.
                meta if stuck.due() <= tokio::time::Instant::now() => {
                    let killed = || {
                        daemon.snapshot().get(&dispatch.id).is_some_and(|now| now.stop.is_some())
                    };
                    stuck.look(daemon, &dispatch.id, meta.is_none() && killed()).await?;
                }
                _ => {}
            },
            Liveness::Dead(lock) if was_tried(&dir, dispatch, epoch)? => {
                return Ok(Standing::Dead { lock });
            }
            Liveness::Dead(lock) => {
                if epoch > 1 {
                    let swept = sweep(daemon, &dispatch.id, None).await?;
                    if !swept.clean {
                        return Ok(Standing::Unswept { killed: swept.killed });
                    }
                }
                if let Err(error) = begin(daemon, dispatch, epoch, resume, &lock).await {
                    return Ok(Standing::CannotStart {
                        error: error.message,
                        permanent: error.permanent,
                    });
                }
                pause = started.insert(daemon.shims.starting()).due();
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Whether a shim of this epoch may have run: by the ledger, its launch file, or its spool. A power
/// cut may have removed the files.
fn was_tried(dir: &Path, dispatch: &Dispatch, epoch: u32) -> Result<bool, String> {
    let told = dispatch.rebooted || matches!(dispatch.phase, Phase::Working { .. });
    if told && dispatch.epoch == epoch {
        return Ok(true);
    }
    if Launch::path(dir, epoch).exists() {
        return Ok(true);
    }
    let newest = spool::newest_epoch(&dir.join("spool")).map_err(|error| error.to_string())?;
    Ok(newest >= epoch)
}

struct StartError {
    message: String,
    permanent: bool,
}

impl From<String> for StartError {
    fn from(message: String) -> Self {
        Self { message, permanent: true }
    }
}

impl From<io::Error> for StartError {
    /// A temporary failure of the machine (no space, no more processes), which is retried.
    fn from(error: io::Error) -> Self {
        Self { message: error.to_string(), permanent: false }
    }
}

async fn begin(
    daemon: &Arc<Daemon>,
    dispatch: &Arc<Dispatch>,
    epoch: u32,
    resume: Option<&str>,
    lock: &LockGuard,
) -> Result<(), StartError> {
    if let Some(stop) = &dispatch.stop {
        return Err(StartError { message: format!("not started: {stop:?}"), permanent: false });
    }
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let saved = Saved::read(&dir)?;
    if let Some(worktree) = &dispatch.created.worktree {
        let (project, worktree) = (Path::new(&dispatch.created.project), Path::new(worktree));
        let again = dispatch.distrusts_clone() && discard(worktree).await?;
        if again {
            let message =
                "the machine was started anew before anybody worked in it, so it is made again";
            daemon.fault(&dispatch.id, format!("the clone of {}", dispatch.id), message);
        }
        let branch =
            dispatch.created.branch.clone().unwrap_or_else(|| format!("muleteer/{}", dispatch.id));
        let given = saved.env.iter().chain(&saved.extra_env).chain(&saved.backend_env);
        let has_email = given.into_iter().any(|(name, value)| name == "EMAIL" && !value.is_empty());
        let new = NewClone { id: dispatch.id.as_str(), branch: &branch, has_email };
        crate::vcs::worktree::ensure(project, worktree, new).await?;
        fault::point("clone.made");
        tell_clone(daemon, &dispatch.id, worktree, again).await?;
    }
    let settings = project_settings(daemon, dispatch, &saved).await?;
    let mut launch = launch_of(daemon, dispatch, &saved, (epoch, resume), settings)?;
    if dispatch.created.clone_of_its_own().is_none() {
        // A clone has the identity in its configuration. A confined agent could not read the file.
        let file = saved.confined.is_none().then(|| dir.join("gitconfig"));
        let project = Path::new(&dispatch.created.project);
        let missing = daemon.identities.missing(project, &launch.env, file.as_deref()).await;
        for (name, value) in missing {
            set(&mut launch.env, &name, &value);
        }
    }
    start::prepare(&dir, &launch)?;
    fault::point("start.before_shim");
    daemon.shims.start(&dir, lock, epoch).await?;
    fault::point("start.after_shim");
    Ok(())
}

/// Removes an incomplete clone. An agent decides how long that takes, so it must not block the
/// runtime.
async fn discard(worktree: &Path) -> Result<bool, String> {
    let worktree = worktree.to_owned();
    let discarding = tokio::task::spawn_blocking(move || crate::vcs::worktree::discard(&worktree));
    discarding.await.map_err(|error| error.to_string())?
}

/// Records the clone that an agent will work in, unless that was done. A clone that somebody has
/// worked in is not recorded: its checkout has changed since, and its configuration is its agent's.
async fn tell_clone(
    daemon: &Daemon,
    id: &DispatchId,
    worktree: &Path,
    again: bool,
) -> Result<(), StartError> {
    let Some(dispatch) = daemon.snapshot().get(id).cloned() else { return Ok(()) };
    if dispatch.containment.is_some() || (dispatch.cloned && !again) {
        return Ok(());
    }
    let base = crate::vcs::worktree::head(worktree).await.unwrap_or_default();
    let made = Input::WorktreeMade { path: worktree.display().to_string(), base, again };
    let entries: Vec<_> = life::decide(&dispatch, made)
        .into_iter()
        .map(|(at, event)| entry(id, at, event))
        .collect();
    let records = append(daemon, entries)
        .await
        .map_err(|error| StartError { message: error.to_string(), permanent: false })?;
    daemon.agent(id).journal.cast(JournalMsg::Records(records));
    Ok(())
}

/// Whether the repository's Claude Code settings count for this agent; records once in each attempt
/// that they do not. Each start checks again, because an agent may have changed them in its clone.
async fn project_settings(
    daemon: &Daemon,
    dispatch: &Dispatch,
    saved: &Saved,
) -> Result<ProjectSettings, StartError> {
    let Some(variant) = claude::Variant::of(&dispatch.created.backend, saved) else {
        return Ok(ProjectSettings::Count);
    };
    let (paths, dir) = (daemon.paths.clone(), working_directory(&dispatch.created));
    let looking =
        tokio::task::spawn_blocking(move || claude::note(&paths, Path::new(&dir), variant));
    let Some(text) = looking.await.map_err(|error| error.to_string())? else {
        return Ok(ProjectSettings::Count);
    };
    let is_recorded =
        daemon.snapshot().get(&dispatch.id).is_some_and(|now| now.notices.contains(&text));
    if !is_recorded {
        let records = append(daemon, vec![entry(&dispatch.id, None, Event::AgentNotice { text })])
            .await
            .map_err(|error| StartError { message: error.to_string(), permanent: false })?;
        daemon.agent(&dispatch.id).journal.cast(JournalMsg::Records(records));
    }
    Ok(ProjectSettings::Ignored)
}

/// Returns whether the settings count in the directory that a session is opened in.
pub async fn settings_for(daemon: &Daemon, call: &Call) -> ProjectSettings {
    let Call::Open { cwd, .. } = call else { return ProjectSettings::Count };
    let (paths, cwd) = (daemon.paths.clone(), cwd.clone());
    let looking = tokio::task::spawn_blocking(move || {
        claude::settings_in(&paths, Path::new(&cwd), claude::Variant::Acp)
    });
    looking.await.unwrap_or(ProjectSettings::Ignored)
}

/// The PATH of an agent whose requester has none.
pub const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the agent's directory: the project, or its place in the clone if there is one.
fn working_directory(created: &Created) -> String {
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

fn launch_of(
    daemon: &Daemon,
    dispatch: &Dispatch,
    saved: &Saved,
    (epoch, resume): (u32, Option<&str>),
    project_settings: ProjectSettings,
) -> Result<Launch, StartError> {
    let created = &dispatch.created;
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let cwd = &working_directory(created);
    let backend =
        muleteer_backends::by_name(&created.backend).map_err(|error| error.to_string())?;
    let mut env: Vec<(String, String)> = saved.env.clone();
    // The folder with `muleteer` comes first, wherever the PATH is from: the requester's `--env`,
    // the backend's configuration, or the requester's environment.
    let bin = daemon.paths.state_dir.join("bin");
    let chosen = [&saved.extra_env, &saved.backend_env, &saved.env];
    let path = chosen.into_iter().find_map(|env| env.iter().rev().find(|(name, _)| name == "PATH"));
    let path = path.map_or(USUAL_PATH, |(_, value)| value);
    let path = format!("{}:{path}", bin.display());
    let budget_left =
        created.limits.budget_usd.map(|budget| (budget - dispatch.spend.cost_usd).max(0.01));
    let spec = LaunchSpec {
        cwd: cwd.into(),
        agent_dir: dir.clone(),
        muleteer: daemon.muleteer.clone(),
        path: Some(program_path(saved, &path)),
        model: dispatch.model().cloned(),
        max_turns: created
            .limits
            .max_turns
            .map(|most| most.saturating_sub(dispatch.model_turns).max(1)),
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
            && (saved.confined.is_some() || crate::daemon::container::is_container()),
        scenario: saved.scenario.clone().map(Into::into),
        telemetry: daemon.telemetry.as_ref().map(|settings| Collector {
            base: settings.base.as_ref().map(ToString::to_string),
            traces: settings.traces.as_ref().map(Target::url),
            metrics: settings.metrics.as_ref().map(Target::url),
        }),
    };
    let line = backend.command_line(&spec).map_err(|error| error.to_string())?;
    for name in &line.env_remove {
        env.retain(|(known, _)| known != name);
    }
    for (name, value) in &line.env {
        set(&mut env, name, value);
    }
    for (name, value) in &saved.extra_env {
        set(&mut env, name, value);
    }
    set(&mut env, "PATH", &path);
    let first = dispatch.prompts.first().map(|prompt| prompt.key.as_str()).unwrap_or_default();
    let prompt_file = dir.join("prompt").join(format!("{first}.md"));
    for (name, value) in [
        ("MULETEER_SOCKET", dir.join("pub/sock").display().to_string()),
        ("MULETEER_DISPATCH_ID", dispatch.id.to_string()),
        ("MULETEER_ROLE", created.role.clone()),
        ("MULETEER_JOURNAL", created.journal.clone()),
        ("MULETEER_PROMPT_FILE", prompt_file.display().to_string()),
    ] {
        set(&mut env, name, &value);
    }
    if let Some(trace) = &created.trace {
        // The agent's own spans become children of its attempt's span.
        let below = Context::parse(trace)
            .map(|context| trace_ids::of_agent(context, &dispatch.id, epoch).to_string());
        set(&mut env, "TRACEPARENT", below.as_deref().unwrap_or(trace));
    }
    for file in &line.files {
        if let Some(folder) = file.path.parent() {
            muleteer_store::atomic::create_dir_durable(folder, 0o700)
                .map_err(|error| chain(&error))?;
        }
        muleteer_store::atomic::write_atomic(&file.path, file.contents.as_bytes(), 0o600)
            .map_err(|error| chain(&error))?;
    }
    let mut argv = line.argv;
    if let Some(confined) = &saved.confined {
        // The sandbox can only show existing files, and a hidden file cannot be made from inside.
        let own = dir.join(created.backend.split('-').next().unwrap_or_default());
        muleteer_store::atomic::create_dir_durable(&own, 0o700).map_err(|error| chain(&error))?;
        let plan = crate::dispatch::confine::plan_of(
            daemon,
            confined,
            &created.backend,
            &env,
            &argv,
            &dir,
        );
        let file = crate::dispatch::confine::file(&dir, epoch);
        crate::dispatch::confine::write(&file, &plan).map_err(|error| chain(&error))?;
        argv = [daemon.shims.program().confining(&daemon.muleteer, &file, Path::new(cwd)), argv]
            .concat();
    }
    let mut launch = Launch::new(epoch, daemon.generation, random_key(), argv, cwd.into());
    launch.env = env;
    launch.timing.lease_ms = daemon.lease_ms;
    launch.spool.retain_bytes = daemon.retention.output_bytes();
    launch.limits.deadline_ms =
        created.limits.timeout_s.map_or(0, |timeout| left(timeout, dispatch.used_ms));
    debug_assert!(matches!(line.stdin, StdinMode::Open | StdinMode::CloseAfterPrompt));
    Ok(launch)
}

/// Formats an error with all its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Returns the part of a dispatch's time that earlier attempts did not use. Never 0, which would
/// mean no limit.
pub fn left(timeout_s: u64, used_ms: u64) -> u64 {
    timeout_s.saturating_mul(1000).saturating_sub(used_ms).max(1)
}

fn set(env: &mut Vec<(String, String)>, name: &str, value: &str) {
    env.retain(|(known, _)| known != name);
    env.push((name.into(), value.into()));
}

/// Terminates the processes that a dead shim left, by its nonce, and by its cgroup if it had one.
/// `of` has the epoch of a shim that died early, and whether the machine has restarted since. Its
/// nonce is in two of its files; without them nobody can say that no process lives, unless the
/// machine restarted. Without `of` this is the search before the next attempt, the second of two
/// that must find nothing.
pub async fn sweep(
    daemon: &Daemon,
    id: &DispatchId,
    of: Option<(u32, bool)>,
) -> Result<Swept, String> {
    let dir = daemon.paths.agent(id.as_str());
    let (swept, faults) = tokio::task::spawn_blocking(move || {
        let mut faults = vec![];
        let meta = meta::read(&dir).unwrap_or_else(|error| {
            faults.push(chain(&error));
            None
        });
        let newest = spool::newest_epoch(&dir.join("spool")).map_err(|error| error.to_string())?;
        let mut nonces: Vec<String> = meta.iter().map(|meta| meta.nonce.clone()).collect();
        for epoch in 1..=newest.max(meta.as_ref().map_or(0, |meta| meta.epoch)) + 1 {
            if let Ok(launch) = Launch::read(&dir, epoch)
                && !nonces.contains(&launch.nonce)
            {
                nonces.push(launch.nonce);
            }
        }
        let said = of.and_then(|(epoch, _)| start::last_words(&dir, epoch)).unwrap_or_default();
        let mut swept = Swept { killed: 0, clean: true, said };
        if let Some((epoch, false)) = of
            && meta.as_ref().is_none_or(|meta| meta.epoch != epoch)
            && let Err(error) = Launch::read(&dir, epoch)
        {
            faults.push(format!("{}; what it started cannot be looked for", chain(&error)));
            swept.clean = false;
        }
        let cgroup = meta.and_then(|meta| meta.cgroup);
        // An attempt starts only after the one before it was swept, by its own shim or by a sweep.
        let before = if of.is_some() { Before::Nobody } else { Before::FoundNothing };
        let nonces: Vec<&str> = nonces.iter().map(String::as_str).collect();
        let report = group::sweep(&nonces, cgroup.as_deref(), before, SWEEP);
        swept.killed += report.killed;
        swept.clean &= report.clean;
        Ok::<_, String>((swept, faults))
    })
    .await
    .map_err(|error| error.to_string())??;
    for message in faults {
        daemon.fault(id, format!("the dead shim of {id}"), message);
    }
    Ok(swept)
}

#[derive(Debug, Clone)]
pub struct Swept {
    pub killed: u32,
    pub clean: bool,
    /// The dead shim's last message about its end; empty if there was none.
    pub said: String,
}

/// Returns the text of a prompt, or of a command for the CLI. A person's text was on disk before it
/// was durable in the ledger. The harness's own prompts follow from the state, and are written when
/// they are first needed.
pub async fn prompt_text(daemon: &Daemon, dispatch: &Dispatch, key: &str) -> Result<Said, String> {
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let command = dir.join("prompt").join(command_file(key));
    match tokio::fs::read_to_string(&command).await {
        Ok(text) => return Ok(Said::CliCommand(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", command.display())),
    }
    let path = dir.join("prompt").join(format!("{key}.md"));
    let kind = dispatch.prompt(key).map(|prompt| prompt.kind);
    match tokio::fs::read_to_string(&path).await {
        Ok(task)
            if kind == Some(PromptKind::Initial)
                && is_briefed_in_prompt(&dispatch.created.backend) =>
        {
            let saved = Saved::read(&dir)?;
            return Ok(Said::Prompt(prompt::dispatch(&task, saved.system_prompt.as_deref())));
        }
        Ok(text) => return Ok(Said::Prompt(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", path.display())),
    }
    let text = match kind {
        Some(PromptKind::Repair) => prompt::repair(&dispatch.result_faults),
        Some(PromptKind::Continue) => {
            prompt::go_on(&dispatch.created.journal, dispatch.cut_at(), dispatch.unsynced)
        }
        _ => return Err(format!("the prompt {} is missing", path.display())),
    };
    muleteer_store::atomic::write_atomic(&path, text.as_bytes(), 0o600)
        .map_err(|error| error.to_string())?;
    Ok(Said::Prompt(text))
}

/// The input for an agent's stdin.
#[derive(Debug)]
pub enum Said {
    /// Text for the model, whatever it begins with.
    Prompt(String),
    /// A command for the CLI itself.
    CliCommand(String),
}

/// Returns the name of the file for a command of the CLI, in the folder of prompts.
pub fn command_file(key: &str) -> String {
    format!("{key}.command")
}

fn is_briefed_in_prompt(backend: &str) -> bool {
    muleteer_backends::by_name(backend)
        .is_ok_and(|backend| backend.capabilities().briefed == Briefed::InFirstPrompt)
}

/// A connection to a shim that has proven the nonce of its `meta.json`.
#[derive(Debug)]
pub struct ShimPort {
    stream: UnixStream,
    generation: u64,
    buffer: Vec<u8>,
}

impl ShimPort {
    /// Connects and greets the shim. Every step has a deadline, because a stopped shim must not
    /// block the daemon.
    pub async fn connect(dir: &Path, generation: u64) -> Result<Self, String> {
        let hello = async {
            let (stream, meta) = attach::greet(dir, generation)?;
            let mut port =
                Self::of(stream, generation, vec![]).map_err(|error| error.to_string())?;
            let answer = port.receive().await.map_err(|error| error.to_string())?;
            attach::check(answer, &meta)?;
            Ok(port)
        };
        tokio::time::timeout(PORT_DEADLINE, hello)
            .await
            .map_err(|_| "the shim does not answer".to_string())?
    }

    /// Continues a connection after the greeting; `heard` has the bytes since the answer.
    pub fn of(
        stream: std::os::unix::net::UnixStream,
        generation: u64,
        heard: Vec<u8>,
    ) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::from_std(stream)?, generation, buffer: heard })
    }

    pub async fn send(&mut self, frame: &ToShim) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame.encode(self.generation, &mut bytes);
        match tokio::time::timeout(PORT_DEADLINE, self.stream.write_all(&bytes)).await {
            Ok(sent) => sent,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Returns the next frame. Cancel-safe: bytes that were read stay in the buffer.
    pub async fn receive(&mut self) -> io::Result<FromShim> {
        loop {
            let decoded = FromShim::decode(&self.buffer)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some(decoded) = decoded {
                self.buffer.drain(..decoded.used);
                return Ok(decoded.frame);
            }
            if self.buffer.len() > MAX_BODY + HEADER {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Renews the lease and waits for the answer.
    pub async fn heartbeat(&mut self, lease_ms: u64) -> io::Result<()> {
        self.heartbeat_nowait(lease_ms).await?;
        let answer = async {
            loop {
                if let FromShim::Status { .. } = self.receive().await? {
                    return Ok(());
                }
            }
        };
        tokio::time::timeout(PORT_DEADLINE, answer)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    pub async fn heartbeat_nowait(&mut self, lease_ms: u64) -> io::Result<()> {
        self.send(&ToShim::Heartbeat { lease_ms }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    #[test]
    fn an_agent_works_where_its_project_is_in_its_clone_also_of_a_clone() {
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

    #[tokio::test]
    async fn an_agent_that_was_killed_before_it_began_is_not_started() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        let past =
            ["dispatch_created", "attempt_started", "kill_requested"].map(test_daemon::sample);
        past.into_iter().for_each(|event| daemon.fold(&id, event));
        std::fs::create_dir_all(daemon.paths.agent(id.as_str())).expect("a directory");
        let dispatch = daemon.snapshot().get(&id).cloned().expect("it is there");
        let standing = stand(&daemon, &dispatch, 1, None).await;
        let Ok(Standing::CannotStart { error, permanent: false }) = standing else {
            panic!("{standing:?}")
        };
        assert!(error.starts_with("not started: Kill"), "{error}");
    }
}
