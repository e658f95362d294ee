//! Makes the record of a dispatch, and the private file with which it is started.

use crate::daemon::context::Daemon;
use crate::dispatch::acp_program;
use crate::dispatch::backend_choice::{choice_of, from_config, from_wire};
use crate::dispatch::error::fault;
use crate::dispatch::request::resolve::{self, Means, permissions, terms};
use crate::dispatch::request::sandbox;
use crate::dispatch::request::workplace::{Workplace, workplace};
use crate::dispatch::request::{Asker, Part, check_model};
use crate::dispatch::saved::{SAVED_VERSION, Saved};
use muleteer_backends::Command;
use muleteer_backends::variables::is_of_another;
use muleteer_model::admission;
use muleteer_model::admission::api_error::Terms;
use muleteer_model::agent::acp_handshake::Calls;
use muleteer_model::agent::event::cut;
use muleteer_model::agent::permission::Policy;
use muleteer_model::agent::prompt::{self, Briefing, ResultForm};
use muleteer_model::agent::role::Role;
use muleteer_model::config::{self, Category, Pool};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::child_limits;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{self, Created, Limits, mcp};
use muleteer_model::monitor;
use muleteer_model::monitor::healing;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use std::path::Path;
use std::sync::Arc;

/// The limit of the path of a spec, in bytes.
const SPEC_LIMIT: usize = 1000;
/// The limit of the fault of a role's file, in bytes.
const FAULT_LIMIT: usize = 1000;

/// The name of Muleteer's MCP server.
const SERVER: &str = "muleteer";
/// The category of roles that talk with people.
const CONVERSATION: &str = "conversational";

/// A request, with the requesting agent if there is one.
pub(super) struct Asked<'a> {
    pub daemon: &'a Daemon,
    pub id: &'a DispatchId,
    pub spawn: &'a Spawn,
    pub asker: &'a Asker,
    pub fleet: &'a Fleet,
    /// The dispatch of the requesting agent.
    pub above: Option<&'a Arc<Dispatch>>,
    /// The permission policy that holds the requesting agent, if it is not open.
    pub held: Option<Policy>,
}

/// How the agent is started.
pub(super) struct Setup {
    means: Means,
    category: Category,
    command: Option<Command>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    withheld: Vec<(String, String)>,
}

impl Asked<'_> {
    /// Returns the record of the requesting agent, if a permission policy holds it.
    pub fn holder(&self) -> Option<&Created> {
        self.above.map(|above| &*above.created).filter(|_| self.held.is_some())
    }

    /// Derives how the agent is started.
    ///
    /// # Errors
    /// Its category is invalid, or it would be too deep in the tree.
    pub fn setup(&self, means: Means) -> Result<Setup, WireError> {
        let Means { config, role, backend, configured, .. } = &means;
        let category = config
            .category(&role.category)
            .map_err(|error| fault(ErrorCode::ConfigInvalid, &error.to_string(), &error.hint))?
            .clone();
        self.check_depth(config.pool)?;
        let command = self.spawn.command.clone().map(from_wire).or_else(|| {
            configured.as_ref().and_then(|backend| backend.command.clone()).map(from_config)
        });
        let mut args = config
            .backends
            .get(choice_of(*backend))
            .map(|backend| backend.args)
            .unwrap_or_default();
        if self.asker.only_reads() {
            backend.keep_from_writing(&mut args);
        }
        let mut own = passed(self.daemon, self.spawn, self.asker);
        own.retain(|(name, _)| !name.starts_with(config::ENV_PREFIX));
        let keeps = |name: &str| {
            config.env.pass.iter().any(|named| named == name) || !is_of_another(*backend, name)
        };
        let (env, withheld) = own.into_iter().partition(|(name, _)| keeps(name));
        Ok(Setup { means, category, command, args, env, withheld })
    }

    /// Returns the fault of the role's file, unless the thread was told of it before.
    fn role_fault(&self, means: &Means) -> Option<String> {
        let Asker::Thread(thread) = self.asker else { return None };
        let fault = cut(means.role_fault.as_deref()?, FAULT_LIMIT);
        let is_known = self.fleet.iter().any(|other| {
            other.created.thread() == Some(thread)
                && other.created.role_fault.as_ref() == Some(&fault)
        });
        (!is_known).then_some(fault)
    }

    fn check_depth(&self, pool: Pool) -> Result<(), WireError> {
        // The configuration comes with the request, so an agent could choose it. It can only lower
        // the daemon's limit.
        let limits = self.daemon.settings.pool_limits;
        let max_depth = pool.max_depth.min(limits.max_depth);
        let parent_of = |id: &DispatchId| self.fleet.get(id)?.created.parent.clone();
        admission::depth(Pool { max_depth, ..limits }, self.asker.parent(), parent_of)
            .map(drop)
            .map_err(|error| {
                let hint = "do the task without another dispatch, or raise pool.max_depth in the \
                            daemon's configuration";
                fault(ErrorCode::TooDeep, &error.to_string(), hint)
            })
    }

    /// Makes the record of the dispatch.
    ///
    /// # Errors
    /// The request cannot be fulfilled.
    pub async fn created(
        &self,
        setup: &Setup,
        trace: Option<String>,
        fingerprint: String,
    ) -> Result<Created, WireError> {
        let Setup { means, category, command, args, env, .. } = setup;
        let Means { config, role, backend, configured, agent, .. } = means;
        let (spawn, part, backend) = (self.spawn, self.asker.part(), *backend);
        let (model, source) = config::resolve_model(
            spawn.model.as_deref(),
            role.model.as_deref(),
            &role.category,
            config,
        );
        let limits = self.limits(category);
        let held = self.held.clone();
        let mut permissions = permissions(backend, role, config, category, (spawn, *agent), held)?;
        // A role without any tool has none of these either.
        let mcp = match permissions.has_no_tools() {
            true => mcp::Access::None,
            false => self.mcp(role),
        };
        if mcp != mcp::Access::None && !permissions.is_open() {
            permissions.add_server(SERVER);
        }
        let feature = spawn.feature.clone().unwrap_or_else(|| self.id.to_string());
        check_feature(&feature)?;
        // A run's agents have their models from the configuration that the run began with.
        if part.is_none() {
            check_model(spawn.model.as_deref())?;
        }
        let Workplace { journal, clone, branch } =
            workplace(self.daemon, spawn, part, self.id, &feature).await?;
        if spawn.sandbox {
            sandbox::prepare(self.daemon, &journal).await?;
        }
        let capabilities = backend.capabilities();
        // The work of a clone comes home when its process has ended, so that process ends at once.
        // A time limit counts the time of the process, idle or not.
        let holds = capabilities.multi_turn
            && capabilities.resumable
            && clone.is_none()
            && limits.timeout_s.is_none()
            && self.is_of_its_thread(role);
        let idle_hold = Some(category.idle_hold.as_secs());
        let idle_hold_s = idle_hold.filter(|seconds| holds && *seconds > 0);
        let price = model.as_ref().and_then(|model| config.models.prices.get(model)).copied();
        let own = (args.as_slice(), command.as_ref());
        let api = terms(backend, (spawn, env), configured.as_ref(), category, own);
        Ok(Created {
            role: role.name.clone(),
            category: role.category.clone(),
            project: spawn.project.clone(),
            repository: repository_of(self.asker, self.fleet, Path::new(&spawn.project)),
            feature,
            title: event::title(spawn.title.as_deref(), &spawn.prompt),
            spec: spawn.spec.as_deref().map(|spec| cut(spec, SPEC_LIMIT)),
            backend: backend.name().into(),
            model_source: model.is_some().then(|| source.as_str().to_string()),
            model,
            limits,
            purse: self.purse(),
            worktree: clone,
            branch,
            journal,
            parent: self.asker.parent().cloned(),
            by: self.asker.name(),
            multi_turn: capabilities.multi_turn,
            resumable: capabilities.resumable,
            calls: backend
                .by_calls()
                .then(|| Calls { timeout_s: acp_program::call_timeout_s(config) }),
            program: muleteer_backends::acp::program(*agent, command.as_ref(), args).filter(
                |program| {
                    let agents = backend.traits().agents;
                    backend.by_calls() || agents.iter().any(|agent| agent.is_started_by(program))
                },
            ),
            // A person talks with the agent of a thread, and reads what it writes.
            wants_result: part.is_none()
                && self.asker.light().is_none()
                && !matches!(self.asker, Asker::Thread(_))
                && category.result
                && (capabilities.multi_turn || capabilities.resumable),
            transcripts: backend.transcripts().is_some(),
            folds: capabilities.folds,
            trace,
            api: Terms { price, prices: config.models.prices.clone(), ..api },
            watched: watched(category, &role.scope, part.is_some()),
            ask_on_crash: part.is_none()
                && self.asker.light().is_none()
                && category.on_crash == config::OnCrash::Ask,
            permissions,
            confined: spawn.sandbox || part.is_some_and(|part| part.confined.is_some()),
            can_ask: capabilities.asks,
            unattended_s: self.is_unattended().then(|| category.answer_timeout.as_secs()),
            hold_s: Some(config.questions.hold.as_secs()),
            idle_hold_s,
            role_fault: self.role_fault(means),
            thread_verbosity: matches!(self.asker, Asker::Thread(_))
                .then(|| role.thread_verbosity.unwrap_or(category.thread_verbosity)),
            mcp: Some(mcp),
            fingerprint,
        })
    }

    /// Returns the shared budget that the dispatch spends from.
    fn purse(&self) -> Option<event::Purse> {
        match (self.asker.part(), self.asker.light()) {
            (Some(part), _) => part.purse.clone(),
            (None, Some(light)) => Some(light.clone()),
            (None, None) => self.above.and_then(|above| above.created.purse.clone()),
        }
    }

    /// Whether the agent has the role of its thread, so that its conversation goes on. The thread
    /// is told of the end of other agents once their processes have ended.
    fn is_of_its_thread(&self, role: &Role) -> bool {
        let Asker::Thread(id) = self.asker else { return false };
        self.fleet.conversations.get(id).is_some_and(|thread| thread.opened.role == role.name)
    }

    /// Decides the MCP tools of the agent.
    fn mcp(&self, role: &Role) -> mcp::Access {
        let purpose = match self.asker {
            Asker::Run(part) if part.home.is_some() => mcp::Purpose::Sealed,
            Asker::Run(_) => mcp::Purpose::SpecRun,
            Asker::Tasks(_) => mcp::Purpose::TaskList,
            // It reads what other agents wrote, and decides about them.
            Asker::Healing(care) if care.light.is_some() => mcp::Purpose::Sealed,
            Asker::Operator | Asker::Agent(_) | Asker::Thread(_) | Asker::Healing(_) => {
                mcp::Purpose::Own
            }
        };
        let talks = role.category == CONVERSATION;
        let above = self.above.map(|above| above.created.mcp.unwrap_or(mcp::Access::ReadOnly));
        mcp::access(purpose, role.mcp, talks, above)
    }

    fn limits(&self, category: &Category) -> Limits {
        let spawn = self.spawn;
        let mut limits = category.limits();
        limits.budget_usd = match self.asker {
            // The run's remaining budget. The category's limit also applies, so that one agent does
            // not use all of it.
            Asker::Run(_) => spawn.budget_usd.into_iter().chain(limits.budget_usd).reduce(f64::min),
            Asker::Operator
            | Asker::Agent(_)
            | Asker::Thread(_)
            | Asker::Tasks(_)
            | Asker::Healing(_) => spawn.budget_usd.or(limits.budget_usd),
        };
        limits.max_turns = spawn.max_turns.or(limits.max_turns);
        limits.timeout_s = spawn.timeout_s.or(limits.timeout_s);
        if let Some(above) = self.above {
            let asked = limits.budget_usd;
            limits.budget_usd = child_limits::budget(self.fleet, &above.id, asked);
            if limits.budget_usd != asked {
                tracing::info!(
                    dispatch = %self.id,
                    parent = %above.id,
                    ?asked,
                    left = ?limits.budget_usd,
                    "raise the parent's budget: a child can only use the rest of it"
                );
            }
        }
        if self.asker.part().is_some() || self.asker.light().is_some() {
            // The run restarts its agents by its own rules, and nobody waits for a light one.
            limits.max_restarts = 0;
        }
        limits
    }

    /// Makes the private file with which the recorded dispatch is started.
    pub fn saved(&self, setup: Setup, created: &Created) -> Saved {
        let Setup { means, category, command, args, env, withheld } = setup;
        let (spawn, part) = (self.spawn, self.asker.part());
        let structured = means.backend.capabilities().structured;
        let access = created.access();
        let briefing = Briefing {
            access: &access,
            unattended_s: created.unattended_s,
            verbosity: category.verbosity,
            role: &created.role,
            body: &means.role.body,
            limits: &created.limits,
            journal: &created.journal,
            worktree: created.worktree.as_deref(),
            result: match (created.wants_result, structured) {
                (false, _) => ResultForm::None,
                (true, true) => ResultForm::Enforced,
                (true, false) => ResultForm::InText,
            },
        };
        Saved {
            v: SAVED_VERSION,
            env,
            withheld,
            extra_env: spawn.extra_env.clone(),
            program_path: self
                .holder()
                .and_then(|_| resolve::program_path(resolve::path_of(spawn))),
            backend_env: means
                .configured
                .map(|backend| backend.env.into_iter().collect())
                .unwrap_or_default(),
            agent: means.agent.map(|agent| agent.name.to_string()),
            command,
            args,
            scenario: spawn.scenario.clone(),
            system_prompt: Some(system_prompt(&briefing, part)),
            confined: match part {
                Some(part) => part.confined.clone(),
                None => spawn.sandbox.then(|| sandbox::confined(created, spawn, &means.config)),
            },
            schema: match part {
                Some(part) => part.schema.clone(),
                None => self.asker.light().map(|_| healing::prompt::schema()),
            },
            home: part.and_then(|part| part.home.clone()),
            removed: vec![],
            prompt: Some(spawn.prompt.clone()),
        }
    }

    /// Whether nobody watches the agent, because it or an ancestor belongs to a run or a task list.
    fn is_unattended(&self) -> bool {
        match self.asker {
            Asker::Run(_) | Asker::Tasks(_) => true,
            Asker::Healing(_) if self.asker.light().is_some() => true,
            Asker::Operator | Asker::Agent(_) | Asker::Thread(_) | Asker::Healing(_) => {
                self.above.is_some_and(|above| above.created.unattended_s.is_some())
            }
        }
    }
}

/// Returns the briefing, with the rules of the run that the agent belongs to.
fn system_prompt(briefing: &Briefing<'_>, part: Option<&Part>) -> String {
    let append = prompt::system_append(briefing);
    match part.map(|part| part.rules.trim()).filter(|rules| !rules.is_empty()) {
        Some(rules) => format!("{}\n\n## Guidelines\n\n{rules}\n", append.trim_end()),
        None => append,
    }
}

/// Returns the monitors for an agent of this category and scope.
fn watched(category: &Category, scope: &[String], in_a_run: bool) -> monitor::Terms {
    let mut responses = category.monitors;
    if in_a_run && scope.is_empty() {
        // The agent also gets files outside of its directory, and the sandbox hides everything
        // else.
        responses.drift = monitor::Response::Ignore;
    }
    monitor::Terms { responses, scope: scope.to_vec() }
}

/// Returns the repository that a directory is a clone of, if it was made for the work.
fn repository_of(asker: &Asker, fleet: &Fleet, dir: &Path) -> Option<String> {
    let whole = match asker {
        Asker::Operator | Asker::Thread(_) => None,
        Asker::Agent(id) => fleet.get(id)?.created.repository_of(dir).map(String::from),
        Asker::Healing(care) => fleet.get(&care.of)?.created.repository_of(dir).map(String::from),
        Asker::Tasks(repo) => Some(repo.display().to_string()),
        Asker::Run(part) => Some(part.repo.display().to_string()),
    };
    whole.filter(|whole| Path::new(whole) != dir)
}

/// Returns the requester's environment, with the keys that were withheld from a requesting agent.
fn passed(daemon: &Daemon, spawn: &Spawn, asker: &Asker) -> Vec<(String, String)> {
    let mut env = spawn.env.clone();
    if let Asker::Agent(parent) = asker
        && let Ok(saved) = Saved::read(&daemon.paths.agent(parent.as_str()))
    {
        let has = |name: &str| spawn.env.iter().any(|(known, _)| known == name);
        env.extend(saved.withheld.into_iter().filter(|(name, _)| !has(name)));
    }
    env
}

/// Checks a feature name, which becomes a directory's name.
fn check_feature(feature: &str) -> Result<(), WireError> {
    let ok = !feature.is_empty()
        && feature.len() <= 100
        && !feature.starts_with('.')
        && feature.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if ok {
        return Ok(());
    }
    Err(fault(
        ErrorCode::BadInput,
        &format!("`{feature}` cannot be the name of a feature"),
        "use letters, digits, `-`, `_` and `.`, at most 100, not beginning with `.`",
    ))
}
