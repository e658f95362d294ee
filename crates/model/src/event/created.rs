//! The decisions that are fixed when a dispatch is created.

use crate::admission::api_error::Terms;
use crate::agent::acp_handshake::Calls;
use crate::agent::backend::Traits;
use crate::agent::capability::{Agent, Tells};
use crate::agent::permission::Policy;
use crate::config::types::verbosity::ThreadVerbosity;
use crate::event::id::DispatchId;
use crate::event::mcp;
use crate::monitor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Everything that is decided when a dispatch is created. Later configuration changes do not affect
/// it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Created {
    /// The name of the role.
    pub role: String,
    /// The category of the role.
    pub category: String,
    /// The absolute path of the directory in which the agent works.
    pub project: String,
    /// The repository that the work is for, if `project` is a clone that was made for it and does
    /// not outlast it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The name of the piece of work, which also names the journal.
    pub feature: String,
    /// The title of the task, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The file that the task is from: a spec, or the file of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// The name of the backend.
    pub backend: String,
    /// The requested model; null leaves the choice to the CLI.
    #[serde(default)]
    pub model: Option<String>,
    /// The origin of the model: `flag`, `role`, `category` or `default`.
    #[serde(default)]
    pub model_source: Option<String>,
    /// The limits.
    pub limits: Limits,
    /// The shared budget that it spends from beside its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purse: Option<Purse>,
    /// The absolute path of the dispatch's own clone; null if it has none.
    #[serde(default)]
    pub worktree: Option<String>,
    /// The branch that receives its commits, as known at creation.
    #[serde(default)]
    pub branch: Option<String>,
    /// The absolute path of the agent's journal.
    pub journal: String,
    /// The dispatch whose agent asked for this one.
    #[serde(default)]
    pub parent: Option<DispatchId>,
    /// The user or agent that created the dispatch.
    pub by: String,
    /// The CLI takes further turns on stdin.
    pub multi_turn: bool,
    /// The CLI can resume a session after its process died.
    pub resumable: bool,
    /// The CLI speaks a protocol of calls. A session is opened before the first prompt, and the
    /// agent's messages arrive in pieces.
    #[serde(default)]
    pub calls: Option<Calls>,
    /// The agent is asked for a validated result.
    pub wants_result: bool,
    /// After a crash a person is asked; the session is not resumed automatically.
    #[serde(default)]
    pub ask_on_crash: bool,
    /// The policy: what the agent may do without asking.
    #[serde(default)]
    pub permissions: Policy,
    /// A sandbox limits the files that the agent can see and write.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confined: bool,
    /// The CLI accepts an answer while it waits for one.
    #[serde(default)]
    pub can_ask: bool,
    /// The longest wait for an answer, in seconds. Set for a dispatch of a run, of a task list, or
    /// of an agent of one: nobody watches those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unattended_s: Option<u64>,
    /// The longest time that its process waits for an answer before it is ended, in seconds.
    /// Absent in records of versions that kept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_s: Option<u64>,
    /// The longest time that its process stays after a turn for a further message of its thread, in
    /// seconds. Absent if the process ends at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_hold_s: Option<u64>,
    /// The fault of the file of its role, if the role is that of the last valid file and its thread
    /// is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_fault: Option<String>,
    /// How much its thread is told of its work. Absent in records of versions that told nothing,
    /// and without a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_verbosity: Option<ThreadVerbosity>,
    /// The name of the agent's program, if it speaks by calls and the name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The CLI keeps a transcript that tells what became of a prompt.
    #[serde(default)]
    pub transcripts: bool,
    /// The CLI folds a prompt that arrives during a turn into that turn.
    #[serde(default)]
    pub folds: bool,
    /// The W3C trace context of the caller.
    #[serde(default)]
    pub trace: Option<String>,
    /// The credential and channel by which it reaches the model API.
    #[serde(default)]
    pub api: Terms,
    /// The monitors that watch it while it works.
    #[serde(default)]
    pub watched: monitor::Terms,
    /// The tools of Muleteer's MCP server that the agent has. Absent in records of versions without
    /// that server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<mcp::Access>,
    /// A fingerprint of the request. It tells a repeated request from another one with the same id.
    pub fingerprint: String,
}

impl Created {
    /// Returns the thread that the dispatch belongs to, if it belongs to a conversation.
    pub fn thread(&self) -> Option<&str> {
        self.by.strip_prefix(crate::conversation::thread::limits::BY)
    }

    /// Returns the repository that the work is for, or the directory of the work.
    pub fn directory_of_work(&self) -> &str {
        self.repository.as_deref().unwrap_or(&self.project)
    }

    /// Whether turns are separate from the process: the CLI takes several, or a new process resumes
    /// the session. For any other agent, the process is the turn.
    pub fn has_turns(&self) -> bool {
        self.multi_turn || self.resumable
    }

    /// The directory that the paths of its calls are relative to.
    pub fn directory(&self) -> &str {
        self.worktree.as_deref().unwrap_or(&self.project)
    }

    /// The project's name for people: clones come and go, and people do not know them.
    pub fn project_name(&self) -> &str {
        self.repository.as_deref().unwrap_or(&self.project)
    }

    /// The clone that the agent works in, if there is one. It was made for the dispatch alone, or
    /// as a part of a run or a task list.
    pub fn clone_of_its_own(&self) -> Option<&str> {
        let in_one = self.repository.as_ref().is_some_and(|repository| *repository != self.project);
        self.worktree.as_deref().or_else(|| in_one.then_some(self.project.as_str()))
    }

    /// The repository that a child dispatch in `dir` works for, if `dir` is in this dispatch's own
    /// clone or its run's.
    pub fn repository_of(&self, dir: &Path) -> Option<&str> {
        let own = self.directory();
        Some(self.project_name()).filter(|name| dir.starts_with(own) && *name != own)
    }

    /// A message for people about a limit that cannot be enforced for this dispatch, whose CLI has
    /// these traits. `asked` says that the request itself sets the limit.
    pub fn unkept(&self, traits: Traits, asked: bool) -> Option<String> {
        let (tells, is_known) = self.tells(traits);
        let is_priced = tells == Tells::Tokens && self.api.price.is_some();
        if !is_known {
            // A budget of the category is no news with each command.
            let budget = self.limits.budget_usd.filter(|_| asked)?;
            return Some(format!(
                "the budget of ${budget:.2} cannot be enforced unless the agent reports what it \
                 costs; Muleteer does not know this {} agent",
                self.backend
            ));
        }
        let agent = self.program.as_deref().unwrap_or(&self.backend);
        if tells == Tells::CostOnly && self.api.price.is_some() {
            let budget = self.limits.budget_usd?;
            return Some(format!(
                "the budget of ${budget:.2} holds only if {agent} itself knows the price of its \
                 model: over ACP it reports the tokens of the last request of a turn only, so \
                 models.prices misses the others (use `--backend {agent}`)"
            ));
        }
        let tells_cost = matches!(tells, Tells::Cost | Tells::CostOnly);
        let budget = self.limits.budget_usd.filter(|_| !tells_cost && !is_priced)?;
        if tells == Tells::Nothing {
            return Some(format!(
                "the budget of ${budget:.2} cannot be enforced: {agent} reports neither a cost nor \
                 tokens"
            ));
        }
        let model = match self.model.as_deref() {
            Some(model) => format!("the model {model}"),
            None => "this model".to_string(),
        };
        Some(format!(
            "the budget of ${budget:.2} cannot be enforced: {agent} reports tokens and no cost, \
             and no price is configured for {model} (models.prices)"
        ))
    }

    /// A message for people about a rule for tools of MCP servers, of which the agent has none.
    pub fn useless_rule(&self, traits: Traits) -> Option<String> {
        let agent = self.known_agent(traits).or(traits.agent).filter(|agent| !agent.mcp)?;
        let rules = self.permissions.allow.iter().chain(&self.permissions.only);
        let mut rules = rules.map(ToString::to_string);
        let rule = rules.find(|rule| rule.starts_with("mcp__"))?;
        Some(format!("the rule `{rule}` has no effect: {} uses no MCP servers", agent.name))
    }

    /// Returns the known agent that its program starts.
    pub fn known_agent(&self, traits: Traits) -> Option<&'static Agent> {
        let program = self.program.as_deref()?;
        traits.agents.iter().find(|agent| agent.is_started_by(program))
    }

    /// Returns what the agent reports of its use, and whether that is known: any agent can be
    /// behind some backends.
    fn tells(&self, traits: Traits) -> (Tells, bool) {
        let of_backend = if traits.reports_cost { Tells::Cost } else { Tells::Tokens };
        match self.known_agent(traits) {
            Some(agent) => (agent.tells, true),
            None => (of_backend, traits.agents.is_empty()),
        }
    }

    /// The last message is the answer of a turn: no result line need repeat it.
    pub fn said_is_answer(&self) -> bool {
        self.calls.is_some() || !self.multi_turn
    }
}

/// A budget that several dispatches and all their descendants share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Purse {
    /// The id of the run that owns the purse.
    pub of: String,
    /// The sum in US dollars that all of them may spend together.
    pub usd: f64,
}

/// The limits of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// The most that the dispatch may cost, in US dollars; null has no limit.
    pub budget_usd: Option<f64>,
    /// The most turns; null has no limit.
    pub max_turns: Option<u32>,
    /// The most awake seconds of all attempts together; null has no limit.
    pub timeout_s: Option<u64>,
    /// The awake seconds without a sign of life after which the agent is stopped.
    pub inactivity_timeout_s: u64,
    /// The most restarts after attempts that count.
    pub max_restarts: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::capability;
    use crate::agent::permission::Rule;
    use crate::config::types::Price;
    use crate::dispatch::tests as testing;

    #[test]
    fn budget_of_an_agent_that_tells_no_cost_is_warned_about_unless_priced() {
        let acp = Traits { agents: &capability::ACP, ..Traits::default() };
        let commands = Traits { agents: &capability::COMMANDS, ..Traits::default() };
        let price = Price { input: 1.0, output: 1.0, cache_read: None, cache_write: None };
        for (traits, program, is_priced, warns) in [
            (acp, Some("opencode"), false, false),
            (acp, Some("opencode"), true, true),
            (acp, Some("qwen"), false, true),
            (acp, Some("qwen"), true, false),
            (acp, Some("cline"), true, true),
            (acp, Some("pi-coding-agent"), true, true),
            (acp, None, false, false),
            (commands, Some("mini"), true, true),
            (commands, None, false, false),
        ] {
            let mut created = testing::created();
            created.program = program.map(str::to_string);
            created.limits.budget_usd = Some(1.0);
            created.api.price = is_priced.then_some(price);
            assert_eq!(created.unkept(traits, false).is_some(), warns, "{program:?} {is_priced}");
            let asked = created.unkept(traits, true);
            assert_eq!(asked.is_some(), warns || program.is_none(), "{program:?} {is_priced}");
            created.limits.budget_usd = None;
            assert_eq!(created.unkept(traits, true), None);
        }
        let mut created = testing::created();
        created.permissions.allow =
            vec![Rule::try_from("mcp__docs__find".to_string()).expect("a rule")];
        for (program, warns) in [("cline", true), ("gemini", false), ("my-agent", false)] {
            created.program = Some(program.into());
            assert_eq!(created.useless_rule(acp).is_some(), warns, "{program}");
        }
        created.program = None;
        for (agent, warns) in [(&capability::PI_JSON, true), (&capability::OPENCODE_RUN, false)] {
            let always = Traits { agent: Some(agent), ..Traits::default() };
            assert_eq!(created.useless_rule(always).is_some(), warns, "{}", agent.backend);
        }
        let mut created = testing::created();
        created.limits.budget_usd = Some(1.0);
        let costless = Traits { reports_cost: false, ..Traits::default() };
        assert!(created.unkept(costless, false).is_some());
        assert_eq!(created.unkept(Traits::default(), true), None);
    }
}
