//! The names of the commands that people write in threads.

/// A command of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandName {
    /// The name without its slash.
    pub name: &'static str,
    /// The arguments.
    pub arguments: &'static str,
    pub description: &'static str,
}

const fn command(
    name: &'static str,
    arguments: &'static str,
    description: &'static str,
) -> CommandName {
    CommandName { name, arguments, description }
}

/// All commands, by their names.
pub const COMMANDS: [CommandName; 11] = [
    command("answer", "TEXT", "answer the open question"),
    command("cli", "COMMAND", "send a command of the agent's own CLI"),
    command("cost", "", "show the cost"),
    command("help", "", "list the commands"),
    command("kill", "DISPATCH|ROLE", "end an agent"),
    command("model", "MODEL", "switch the agent to another model"),
    command("role", "ROLE", "let another role answer"),
    command("set", "KEY VALUE", "change a setting"),
    command("spawn", "ROLE PROJECT PROMPT", "dispatch an agent"),
    command("status", "", "show the agents of the thread"),
    command("stop", "", "interrupt the agent's turn"),
];
