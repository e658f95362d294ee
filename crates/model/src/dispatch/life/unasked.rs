//! Detects tool calls that the agent made without asking although its policy asks about them or
//! refuses them, and calls that it made although they were denied. Such an agent breaks its policy
//! and is stopped.
//!
//! Agents need not ask about everything: they read, and run commands that only read. So if only the
//! mode of the policy asks or refuses, a call that changes nothing does not count. A rule that
//! names the tool always counts. A denial always counts too: a denied call that is executed is a
//! fault, whatever it does.

use crate::agent::acp_handshake::CallAnswer;
use crate::agent::ask::Ask;
use crate::agent::capability::{Agent, Manner};
use crate::agent::event::{AgentEvent, cut};
use crate::agent::permission::{EDITING, READING, absolute, is_harmless};
use crate::dispatch::life::looking::{only_looks, writes};
use crate::dispatch::{Dispatch, ToldCall};
use crate::event::Event;

/// Whether the program that was started is the agent's own, as far as it is known.
///
/// Any program can give itself any name, so only the agent's own may run commands of unknown effect
/// and write its own files without asking. A wrapper or a container can hide that program, so the
/// name alone decides when a call counts.
fn is_genuine(d: &Dispatch, agent: &Agent) -> bool {
    d.created.program.as_deref().is_none_or(|program| program == agent.program)
}

/// The answer to the request for a call.
enum Asked {
    No,
    /// The call was allowed.
    Yes,
    /// Nobody has answered.
    Open,
    /// The one who denied it, or the rule.
    Denied(String),
}

/// Returns a fault if a call that was not asked for, or was denied, has begun or ended, and counts.
pub(super) fn ran(d: &Dispatch, event: &AgentEvent) -> Option<Event> {
    if d.created.calls.is_none() || d.created.permissions.is_open() || d.stop.is_some() {
        return None;
    }
    let agent = d.agent();
    let manner = agent.map_or(Manner::Unknown, |agent| agent.manner);
    let id = match event {
        AgentEvent::CallAnswer(CallAnswer::ToolRuns { id })
            if matches!(manner, Manner::Unknown | Manner::Asks) =>
        {
            id
        }
        AgentEvent::CallAnswer(CallAnswer::ToolOutput { id }) if manner != Manner::Sandboxed => id,
        AgentEvent::ToolResult { id, ok: true, .. } => id,
        // A call that was refused before it ran has no exit code.
        AgentEvent::ToolResult { id, exit_code: Some(_), .. } if manner != Manner::Sandboxed => id,
        _ => return None,
    };
    let id = cut(id, 200);
    let call = d.process().calls.reported.iter().rev().find(|call| call.id == id)?;
    let (rule, denied) = match asked(d, call) {
        Asked::Yes => return None,
        Asked::Denied(by) if was_executed(event) => (by, true),
        Asked::Denied(_) => return None,
        Asked::Open if !matches!(event, AgentEvent::CallAnswer(_)) && was_executed(event) => {
            (held(d, call, agent)?, false)
        }
        Asked::Open => return None,
        Asked::No => (held(d, call, agent)?, false),
    };
    let (tool, target) =
        (call.tool.clone(), cut(call.target.lines().next().unwrap_or_default(), 200));
    Some(Event::PolicyBroken { call_id: id, tool, target, rule, denied })
}

/// Returns the newest answer for a call. A person may later allow a call that was denied before.
fn asked(d: &Dispatch, call: &ToldCall) -> Asked {
    let newest = |same: &dyn Fn(&ToldCall) -> bool| {
        d.process().calls.asked.iter().rev().find(|asked| same(&asked.call))
    };
    let alike = |asked: &ToldCall| {
        !call.target.is_empty() && asked.tool == call.tool && asked.target == call.target
    };
    let own = newest(&|asked| !asked.id.is_empty() && asked.id == call.id);
    let left = d.session.allowed_tools.contains(&call.tool);
    match own.or_else(|| newest(&alike).filter(|_| !left)) {
        Some(asked) => match &asked.answer {
            Some(answer) if answer.allowed => Asked::Yes,
            Some(answer) if own.is_some() || !does_no_harm(call) => {
                Asked::Denied(answer.by.clone())
            }
            Some(_) => Asked::Yes,
            None => Asked::Open,
        },
        None if left => Asked::Yes,
        None => Asked::No,
    }
}

/// Whether the agent may repeat the call after a denial, because it finds the call harmless.
fn does_no_harm(call: &ToldCall) -> bool {
    is_harmless(&call.tool) || (call.tool == "Bash" && only_looks(&call.target))
}

/// Whether a denied call was executed. Some agents report a call that they did not make as ended,
/// with the refusal as its output.
fn was_executed(event: &AgentEvent) -> bool {
    match event {
        AgentEvent::CallAnswer(_) => true,
        // Codex reports a code below 0 for a command that was not started.
        AgentEvent::ToolResult { ok: true, exit_code: Some(code), .. } => *code >= 0,
        AgentEvent::ToolResult { exit_code: Some(code), text, .. } => {
            *code >= 0 && !is_refusal(text)
        }
        AgentEvent::ToolResult { ok: true, text, .. } => !is_refusal(text),
        _ => false,
    }
}

fn is_refusal(text: &str) -> bool {
    const REFUSALS: [&str; 14] = [
        "abort",
        "block",
        "cancel",
        "declin",
        "denied",
        "deny",
        "disallow",
        "interrupt",
        "not allowed",
        "permission",
        "policy",
        "refus",
        "reject",
        "skipped",
    ];
    let text = text.to_lowercase();
    text.len() <= 2000 && REFUSALS.iter().any(|word| text.contains(word))
}

/// Returns the rule or the mode that asks about this call or refuses it.
fn held(d: &Dispatch, call: &ToldCall, agent: Option<&Agent>) -> Option<String> {
    let (policy, cwd) = (&d.created.permissions, d.created.directory());
    let ask = Ask { tool: call.tool.clone(), target: call.target.clone(), ..Ask::default() };
    if let Some(rule) = policy.names_call(&ask, cwd) {
        return Some(rule);
    }
    let genuine = agent.filter(|agent| is_genuine(d, agent));
    let counts = match call.tool.as_str() {
        // If rules limit the files that may be read, a file outside of the directory may not.
        tool if READING.contains(&tool) => {
            policy.limits_reading() && !call.target.is_empty() && !is_inside(&call.target, cwd)
        }
        tool if is_harmless(tool) && tool != "WebFetch" => false,
        // The agent did not report the command.
        "Bash" if call.target.trim().is_empty() => agent.is_none(),
        // A command that ended may have run in the agent's own sandbox.
        "Bash" if genuine.or(agent.filter(|agent| agent.manner == Manner::Sandboxed)).is_some() => {
            writes(&call.target)
        }
        "Bash" => !only_looks(&call.target),
        tool if EDITING.contains(&tool) => match genuine {
            Some(agent) => {
                !call.target.is_empty()
                    && (is_inside(&call.target, cwd) || !is_own(agent, &call.target))
            }
            None => true,
        },
        _ => agent.is_none(),
    };
    counts.then(|| policy.mode_holds(&ask, cwd)).flatten()
}

fn is_inside(path: &str, cwd: &str) -> bool {
    let inside = |path: String| {
        path.strip_prefix(cwd.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
    };
    !path.is_empty() && absolute(path, cwd).is_some_and(inside)
}

/// Whether a file outside of its directory is one that the agent stores for itself.
fn is_own(agent: &Agent, path: &str) -> bool {
    let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    let fits = |[first, second]: &[&str; 2]| {
        path.split_once(first).is_some_and(|(_, rest)| rest.contains(second))
    };
    is_plain && agent.own.iter().any(fits)
}
