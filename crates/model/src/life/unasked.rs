//! Tools that an agent uses without having asked, though its policy would have asked about them or refused
//! them: a policy that is not kept is a fault, and its agent is stopped.
//!
//! Agents need not ask for everything: they read, and run commands that only look. So where nothing but the
//! policy's mode speaks, what changes nothing does not count. A rule that names the tool always does.

use crate::agent_event::{AgentEvent, cut};
use crate::ask::Ask;
use crate::dispatch::{Dispatch, ToldCall};
use crate::event::Event;
use crate::opening::CallAnswer;
use crate::permission::{EDITING, absolute, is_harmless};

/// What is known of how an agent asks, by the name it gives itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It may ask for nothing at all.
    Unknown,
    /// It asks about whatever it does not find harmless itself.
    Asks,
    /// It says that a call runs before it asks for it.
    Early,
    /// It tries commands in a sandbox in which they can change nothing, before it asks.
    Sandboxed,
}

fn manner(agent: &str) -> Manner {
    let name = agent.to_ascii_lowercase();
    let is = |part: &str| name.contains(part);
    match () {
        () if is("codex-acp") => Manner::Sandboxed,
        () if is("opencode") => Manner::Early,
        () if ["claude-agent-acp", "gemini", "qwen", "copilot", "cline"].into_iter().any(is) => Manner::Asks,
        () => Manner::Unknown,
    }
}

/// A call that was not asked for has begun, or has come to an end, and counts.
pub(super) fn ran(d: &Dispatch, event: &AgentEvent) -> Option<Event> {
    if d.created.calls.is_none() || d.created.permissions.is_open() || d.stop.is_some() {
        return None;
    }
    let manner = manner(&d.agent);
    let id = match event {
        AgentEvent::CallAnswer(CallAnswer::ToolRuns { id }) if matches!(manner, Manner::Unknown | Manner::Asks) => id,
        AgentEvent::ToolResult { id, ok: true, .. } => id,
        // What was refused before it ran has no exit code.
        AgentEvent::ToolResult { id, exit_code: Some(_), .. } if manner != Manner::Sandboxed => id,
        _ => return None,
    };
    let id = cut(id, 200);
    let call = d.told.iter().rev().find(|call| call.id == id)?;
    let rule = held(d, call, manner)?;
    Some(Event::PolicyBroken { call_id: id, tool: call.tool.clone(), target: call.target.clone(), rule })
}

/// The rule or the mode that would have asked about this call or refused it, if it was not asked for.
fn held(d: &Dispatch, call: &ToldCall, manner: Manner) -> Option<String> {
    let same = |asked: &ToldCall| {
        asked.id == call.id || (!call.target.is_empty() && asked.tool == call.tool && asked.target == call.target)
    };
    if d.asked.iter().any(same) || d.leaves.contains(&call.tool) {
        return None;
    }
    let (policy, cwd) = (&d.created.permissions, d.created.directory());
    let ask = Ask { tool: call.tool.clone(), target: call.target.clone(), ..Ask::default() };
    if let Some(rule) = policy.names_call(&ask, cwd) {
        return Some(rule);
    }
    let known = manner != Manner::Unknown;
    let counts = match call.tool.as_str() {
        tool if is_harmless(tool) && tool != "WebFetch" => false,
        // What it runs is not told.
        "Bash" if call.target.trim().is_empty() => !known,
        "Bash" if known => writes(&call.target),
        "Bash" => !only_looks(&call.target),
        tool if EDITING.contains(&tool) => !known || is_inside(&call.target, cwd),
        _ => !known,
    };
    counts.then(|| policy.mode_holds(&ask, cwd)).flatten()
}

fn is_inside(path: &str, cwd: &str) -> bool {
    let inside = |path: String| path.strip_prefix(cwd.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'));
    !path.is_empty() && absolute(path, cwd).is_some_and(inside)
}

/// Commands that change nothing, whatever their arguments.
const LOOKING: [&str; 38] = [
    "[", "basename", "cat", "cd", "cmp", "cut", "date", "df", "diff", "dirname", "du", "echo", "egrep", "env", "expr",
    "false", "file", "fgrep", "grep", "head", "hostname", "id", "ls", "nl", "printf", "ps", "pwd", "readlink",
    "realpath", "rg", "stat", "tail", "test", "true", "uname", "wc", "which", "whoami",
];
const GIT_LOOKING: [&str; 11] =
    ["blame", "cat-file", "describe", "diff", "grep", "log", "ls-files", "ls-tree", "rev-parse", "show", "status"];
/// Commands that change something, whatever their arguments.
const WRITING: [&str; 17] = [
    "chmod", "chown", "cp", "dd", "install", "kill", "ln", "mkdir", "mkfifo", "mv", "pkill", "rm", "rmdir", "rsync",
    "tee", "touch", "truncate",
];
const GIT_WRITING: [&str; 12] =
    ["add", "am", "apply", "checkout", "cherry-pick", "clean", "commit", "merge", "push", "rebase", "reset", "rm"];

fn parts(line: &str) -> impl Iterator<Item = Vec<&str>> {
    let parts = line.split(['\n', ';', '|', '&', '(', ')', '{', '}', '`']);
    parts
        .map(|part| part.split_whitespace().collect::<Vec<_>>())
        .filter(|words| !words.is_empty())
}

fn named(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// It writes to a file: what is thrown away, or sent to another stream, is not.
fn redirects(line: &str) -> bool {
    let quiet = ["2>&1", "1>&2", ">&2", "2>/dev/null", ">/dev/null", "2> /dev/null", "> /dev/null"];
    let rest = quiet.iter().fold(line.to_string(), |line, known| line.replace(known, " "));
    rest.contains('>')
}

fn only_looks(line: &str) -> bool {
    let unseen = ['$', '`'].iter().any(|sign| line.contains(*sign));
    !unseen
        && !redirects(line)
        && parts(line).all(|words| match words.as_slice() {
            ["git", second, ..] => GIT_LOOKING.contains(second),
            [first, ..] => LOOKING.contains(&named(first)),
            [] => true,
        })
}

fn writes(line: &str) -> bool {
    redirects(line)
        || parts(line).any(|words| match words.as_slice() {
            ["git", second, ..] => GIT_WRITING.contains(second),
            ["sed", rest @ ..] => rest.iter().any(|word| word.starts_with("-i")),
            ["sudo" | "env" | "command" | "nohup" | "time", first, ..] => WRITING.contains(&named(first)),
            [first, ..] => WRITING.contains(&named(first)),
            [] => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_looks_or_writes_or_nobody_can_tell() {
        for (line, looks, surely_writes) in [
            ("ls -la src", true, false),
            ("git status && git diff | head -5", true, false),
            ("cat a 2>/dev/null", true, false),
            ("echo hi > f", false, true),
            ("touch one", false, true),
            ("ls; /bin/rm -rf x", false, true),
            ("git commit -m x", false, true),
            ("sed -i s/a/b/ f", false, true),
            ("sudo rm x", false, true),
            ("make", false, false),
            ("ls $(make)", false, false),
        ] {
            assert_eq!((only_looks(line), writes(line)), (looks, surely_writes), "{line}");
        }
    }
}
