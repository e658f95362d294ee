//! The words of each agent: its names of tools, and its permission modes.
//!
//! Rules, monitors and people use the names of Claude Code. A message of an agent does not always
//! tell which agent it is from, so a word means the same for all agents. The tests assert that no
//! two agents contradict each other.

/// The words of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// The agent's name in [`crate::agent::capability`], or that of an agent without a preset.
    pub agent: &'static str,
    /// Claude Code's names of tools, each with this agent's names of the same tool.
    pub tools: &'static [(&'static str, &'static [&'static str])],
    pub modes: Modes,
}

/// The permission modes of an agent's sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// Modes in which it asks before it acts, the strictest first.
    pub asking: &'static [&'static str],
    /// Modes in which it takes some actions without asking.
    pub unasking: &'static [&'static str],
}

const NO_MODES: Modes = Modes { asking: &[], unasking: &[] };

pub static WORDS: [Words; 10] = [
    Words {
        agent: "claude-agent-acp",
        tools: &[],
        modes: Modes {
            asking: &["default", "manual"],
            unasking: &["bypassPermissions", "acceptEdits", "auto", "dontAsk"],
        },
    },
    Words {
        agent: "codex-acp",
        tools: &[
            ("Bash", &["exec_command", "shell"]),
            ("Edit", &["apply_patch"]),
            ("WebSearch", &["web_search"]),
        ],
        // Its `read-only` asks; another agent's mode of that name may forbid everything.
        modes: Modes {
            asking: &["read-only"],
            unasking: &["agent-full-access", "full-access", "auto"],
        },
    },
    Words {
        agent: "opencode",
        tools: &[
            ("Bash", &["bash"]),
            ("Write", &["write"]),
            ("Edit", &["edit", "multiedit", "apply_patch"]),
            ("Read", &["read"]),
            ("LS", &["list"]),
            ("Grep", &["grep"]),
            ("Glob", &["glob"]),
            ("WebFetch", &["webfetch"]),
            ("WebSearch", &["websearch"]),
            ("TodoWrite", &["todowrite"]),
            ("Task", &["task"]),
            ("ExitPlanMode", &["plan_exit"]),
        ],
        modes: NO_MODES,
    },
    Words {
        agent: "gemini",
        tools: &[
            ("Bash", &["run_shell_command"]),
            ("Write", &["write_file"]),
            ("Edit", &["replace"]),
            ("Read", &["read_file", "read_many_files"]),
            ("LS", &["list_directory"]),
            ("Grep", &["search_file_content", "grep_search"]),
            ("Glob", &["glob"]),
            ("WebFetch", &["web_fetch"]),
            ("WebSearch", &["google_web_search"]),
            ("TodoWrite", &["write_todos"]),
            ("ExitPlanMode", &["exit_plan_mode"]),
        ],
        modes: Modes { asking: &["default"], unasking: &["autoEdit", "auto_edit", "yolo"] },
    },
    Words {
        agent: "qwen",
        tools: &[
            ("Bash", &["run_shell_command", "shell"]),
            ("Write", &["write_file"]),
            ("Edit", &["edit", "edit_file"]),
            ("Read", &["read_file", "read_many_files"]),
            ("LS", &["list_directory"]),
            ("Grep", &["grep_search"]),
            ("Glob", &["glob"]),
            ("WebFetch", &["web_fetch"]),
            ("WebSearch", &["web_search"]),
            ("TodoWrite", &["todo_write"]),
            ("Task", &["agent", "task"]),
            ("ExitPlanMode", &["exit_plan_mode"]),
        ],
        modes: Modes { asking: &["default"], unasking: &["auto-edit", "auto", "yolo"] },
    },
    Words {
        agent: "copilot",
        tools: &[
            ("Bash", &["bash"]),
            ("Write", &["create"]),
            ("Edit", &["edit", "apply_patch"]),
            ("Read", &["view"]),
            ("Grep", &["grep"]),
            ("Glob", &["glob"]),
            ("WebFetch", &["web_fetch"]),
            ("Task", &["task"]),
        ],
        modes: Modes { asking: &[], unasking: &["autopilot"] },
    },
    Words {
        agent: "pi",
        tools: &[
            ("Bash", &["bash"]),
            ("Write", &["write"]),
            ("Edit", &["edit"]),
            ("Read", &["read"]),
            ("LS", &["ls"]),
            ("Grep", &["grep"]),
        ],
        modes: NO_MODES,
    },
    Words {
        agent: "cline",
        tools: &[
            ("Bash", &["execute_command", "run_commands"]),
            ("Write", &["write_to_file"]),
            ("Edit", &["replace_in_file"]),
            ("Read", &["read_file", "read_files"]),
            ("LS", &["list_files"]),
            ("Grep", &["search_files"]),
        ],
        modes: Modes { asking: &[], unasking: &["auto-approve"] },
    },
    Words {
        agent: "goose",
        tools: &[("Bash", &["shell"])],
        // `approve` asks about every tool, `smart_approve` about those that it finds risky.
        modes: Modes { asking: &["approve", "smart_approve"], unasking: &["auto"] },
    },
    // Agents without a preset, which were seen to use these words.
    Words {
        agent: "others",
        tools: &[
            ("Bash", &["run_command", "run_terminal_cmd", "terminal"]),
            ("Write", &["create_file"]),
            ("Glob", &["find_files"]),
            ("WebFetch", &["fetch"]),
        ],
        modes: Modes { asking: &[], unasking: &["full-auto"] },
    },
];

/// Returns Claude Code's name of the tool that an agent calls `own`.
pub fn tool(own: &str) -> Option<&'static str> {
    let own = own.trim();
    let all = WORDS.iter().flat_map(|words| words.tools);
    let named = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(own));
    all.into_iter().find(|(_, names)| named(names)).map(|(claude, _)| *claude)
}

/// Whether an agent in this mode is known to act without asking.
pub fn is_unasking(mode: &str) -> bool {
    // Some agents name their modes by address.
    let name = mode.rsplit('#').next().unwrap_or(mode);
    let mut all = WORDS.iter().flat_map(|words| words.modes.unasking);
    all.any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the modes in which an agent asks, in the order in which they are preferred.
pub fn asking() -> impl Iterator<Item = &'static str> {
    // A mode that an agent chooses by itself comes after `default`.
    let all = || WORDS.iter().flat_map(|words| words.modes.asking).copied();
    let is_of_codex = |mode: &&str| *mode == "read-only";
    all().filter(move |mode| !is_of_codex(mode)).chain(all().filter(is_of_codex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::capability;

    #[test]
    fn every_preset_has_its_words() {
        for agent in &capability::ACP {
            assert!(WORDS.iter().any(|words| words.agent == agent.name), "{}", agent.name);
        }
    }

    #[test]
    fn word_means_the_same_for_every_agent() {
        for words in &WORDS {
            for (claude, names) in words.tools {
                for name in *names {
                    assert_eq!(tool(name), Some(*claude), "{} of {}", name, words.agent);
                }
            }
            for mode in words.modes.asking {
                assert!(!is_unasking(mode), "{mode} of {}", words.agent);
            }
        }
        assert_eq!((tool("Shell"), tool("no_such_tool")), (Some("Bash"), None));
        assert!(is_unasking("https://x/modes#autopilot") && !is_unasking("plan"));
    }
}
