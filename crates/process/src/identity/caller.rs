//! Finds the process that called this one: an agent CLI, skipping the shells that it starts for one
//! command.

use crate::host::host;
use crate::identity::{Ancestry, NONCE_VAR, ProcessId, ancestry, nonce_of};

/// Deeper than any real tree.
const DEEPEST: usize = 64;
/// How often the walk is tried: a process above may end during it, and its child gets another
/// parent.
const LOOKS: usize = 3;
/// The process name of a shim, as the system shows it.
const SHIM: &str = "muleteer-shim";
const SHELLS: [&str; 9] = ["sh", "bash", "dash", "zsh", "ash", "ksh", "mksh", "fish", "busybox"];
/// Programs that run another one and end with it.
const WRAPPERS: [&str; 14] = [
    "timeout", "env", "nice", "ionice", "nohup", "setsid", "stdbuf", "time", "flock", "xargs",
    "sudo", "doas", "su", "unshare",
];

/// A process above this one.
#[derive(Debug)]
struct Above {
    id: ProcessId,
    name: String,
}

impl Above {
    fn is_shell(&self) -> bool {
        SHELLS.contains(&self.name.trim_start_matches('-'))
    }

    fn runs_another(&self) -> bool {
        self.is_shell() || WRAPPERS.contains(&self.name.as_str())
    }

    /// Whether it ends with the command for which it was started.
    fn is_for_one_command(&self) -> bool {
        WRAPPERS.contains(&self.name.as_str()) || self.is_shell() && is_for_one_command(self.id.pid)
    }

    fn is_agent(&self, agents: &[&str]) -> bool {
        agents.contains(&self.name.as_str())
    }
}

/// Returns the agent CLI that called this process, directly or through shells; `None` if something
/// else called it. `agents` are the process names of the CLIs, as the system shows them.
pub fn agent(agents: &[&str]) -> Option<ProcessId> {
    above()
        .into_iter()
        .find(|one| !one.runs_another())
        .filter(|one| one.is_agent(agents))
        .map(|one| one.id)
}

/// Returns the process to which this hook belongs: the agent CLI that called it through shells,
/// else the nearest process that is not a shell for a single command.
pub fn session(agents: &[&str]) -> Option<ProcessId> {
    let above = above();
    let agent = above.iter().find(|one| !one.runs_another()).filter(|one| one.is_agent(agents));
    let caller = agent.or_else(|| above.iter().find(|one| !one.is_for_one_command()));
    caller.map(|one| one.id)
}

/// Whether this process works for an agent or a validation, as far as the system shows: it, or a
/// process above it, has [`NONCE_VAR`] or is a shim. A cleared environment, a new session or a
/// double fork cannot hide that, because an agent's orphans become children of its shim.
pub fn is_for_an_agent() -> bool {
    // In an agent's pid namespace, process 1 is the topmost, and the walk does not check it.
    let marked = std::env::var_os(NONCE_VAR).is_some() || is_marked(1);
    let above = |process: ProcessId| is_marked(process.pid) || is_shim(process.pid);
    marked
        || (0..LOOKS)
            .any(|_| matches!(ancestry(std::process::id(), None, above), Ancestry::Below(_)))
}

fn is_marked(pid: u32) -> bool {
    nonce_of(pid).is_some()
}

fn is_shim(pid: u32) -> bool {
    host().name(pid).is_some_and(|name| name.starts_with(SHIM))
}

/// Returns the processes above this one, nearest first.
fn above() -> Vec<Above> {
    let mut found = vec![];
    let mut at = host().stat(std::process::id()).map(|stat| stat.parent);
    while let Some(stat) =
        at.filter(|pid| *pid > 1 && found.len() < DEEPEST).and_then(|pid| host().stat(pid))
    {
        let name = host().name(stat.pid).unwrap_or_default();
        at = Some(stat.parent);
        found.push(Above { id: stat.into(), name });
    }
    found
}

/// Whether a shell was started for a single command, so that it ends with that command.
fn is_for_one_command(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |words| runs_one_command(&words))
}

/// Decides the same from the arguments of the shell.
fn runs_one_command(words: &[u8]) -> bool {
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let flag = words
        .iter()
        .position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
    let Some(text) = flag.and_then(|at| words.get(at + 1)) else { return false };
    !text.trim().contains(['\n', ';', '&', '|'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_of_a_test_is_another_living_process() {
        let found = session(&[]);
        assert_ne!(found, Some(ProcessId::current()));
        assert!(found.is_none_or(ProcessId::is_alive));
    }

    #[test]
    fn command_shell_is_distinguished_from_a_script_shell() {
        for (words, single) in [
            (&["sh", "-c", "'/opt/muleteer' hook stop\n"][..], true),
            (&["bash", "-lc", "muleteer hook stop"], true),
            (&["sh", "-c", "muleteer hook stop; sleep 9"], false),
            (&["sh", "-c", "a\nb"], false),
            (&["sh", "./work.sh", "-x"], false),
            (&["-bash"], false),
        ] {
            assert_eq!(runs_one_command(words.join("\0").as_bytes()), single, "{words:?}");
        }
    }
}
