//! The commands that people write in threads, parsed from the text of a message.
//!
//! ```text
//! /spawn ROLE PROJECT PROMPT [--model M] [--title T]
//! /kill DISPATCH|ROLE   /stop   /status   /cost   /answer [QUESTION] TEXT
//! /model [NAME]   /role [NAME]   /set KEY [VALUE]   /cli COMMAND   /signoff PATH   /help
//! ```
//!
//! Text is a command only if one of these names follows the slash. Any other text goes to the
//! agent, also one that begins with a slash.

use crate::conversation::event::ThreadOpened;
pub mod confirm;
pub mod structured;

use std::fmt;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Spawn(Spawn),
    /// The target is a dispatch, or a role of the thread.
    Kill {
        target: String,
    },
    /// Stops the running turn of the thread's agent.
    Stop,
    Status,
    Cost,
    /// The text may begin with the id of a question.
    Answer {
        text: String,
    },
    /// Without a name the present model is shown.
    Model {
        name: Option<String>,
    },
    /// Without a name the present role is shown.
    Role {
        name: Option<String>,
    },
    /// Without a value the setting is withdrawn.
    Set {
        key: String,
        value: Option<String>,
    },
    /// A command of the CLI of the thread's agent.
    Cli {
        text: String,
    },
    /// Asks for the sign-off of a spec.
    SignOff {
        path: String,
    },
    Help,
    /// Writes to a dispatch of the thread. Only the output of a coordinator has it.
    Message {
        dispatch: String,
        text: String,
    },
}

/// The dispatch that `/spawn` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spawn {
    pub role: String,
    /// A directory, or the name of a configured project.
    pub project: String,
    pub prompt: String,
    pub model: Option<String>,
    pub title: Option<String>,
}

/// A known command with wrong arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}; usage: {usage}")]
pub struct Misuse {
    pub message: String,
    pub usage: &'static str,
}

/// The adapter whose people write `!` before commands, unless its settings say otherwise.
const SLACK: &str = "slack";

/// The marks before the name of a command. Each adapter has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// `!` or a mention too: Slack passes no slash command from a thread.
    pub bang_or_mention: bool,
}

impl Marks {
    /// Returns the marks in a thread.
    pub fn of(opened: &ThreadOpened) -> Self {
        let is_usual = opened.adapter == SLACK;
        Self { bang_or_mention: opened.bang.unwrap_or(is_usual) }
    }

    /// Returns the mark that people see in texts of Muleteer.
    pub fn usual(self) -> char {
        if self.bang_or_mention { '!' } else { '/' }
    }
}

/// The name of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Spawn,
    Kill,
    Stop,
    Status,
    Cost,
    Answer,
    Model,
    Role,
    Set,
    Cli,
    SignOff,
    Help,
}

/// The commands with their usage and purpose, in the order of `/help`.
const NAMES: [(Name, &str, &str, &str); 12] = [
    (
        Name::Spawn,
        "spawn",
        "/spawn ROLE PROJECT PROMPT [--model M] [--title T]",
        "dispatches another agent; its answer comes into this thread",
    ),
    (Name::Kill, "kill", "/kill DISPATCH|ROLE", "kills a dispatch"),
    (Name::Stop, "stop", "/stop", "stops the running turn of this thread's agent"),
    (Name::Status, "status", "/status", "shows the agents of this thread"),
    (Name::Cost, "cost", "/cost", "shows the cost of this thread"),
    (Name::Answer, "answer", "/answer [QUESTION] TEXT", "answers the question of an agent"),
    (Name::Model, "model", "/model [NAME]", "shows or changes the model of this thread's agent"),
    (Name::Role, "role", "/role [NAME]", "shows or changes the role that answers here"),
    (Name::Set, "set", "/set KEY [VALUE]", "changes a setting, or withdraws the change"),
    (Name::Cli, "cli", "/cli COMMAND", "gives a command to the CLI of this thread's agent"),
    (Name::SignOff, "signoff", "/signoff PATH", "asks for the sign-off of a spec of the project"),
    (Name::Help, "help", "/help", "shows this list"),
];

/// A command as people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The name without its slash.
    pub name: &'static str,
    /// The name with its slash and the arguments.
    pub usage: &'static str,
    pub purpose: &'static str,
}

/// Returns all commands, in the order of `/help`.
pub fn all() -> impl Iterator<Item = Listed> {
    NAMES.iter().map(|(_, name, usage, purpose)| Listed { name, usage, purpose })
}

/// Returns the text of `/help`.
pub fn help() -> String {
    let width = NAMES.iter().map(|(_, _, usage, _)| usage.len()).max().unwrap_or_default();
    let lines = NAMES.iter().map(|(_, _, usage, purpose)| format!("{usage:width$}  {purpose}"));
    let lines: Vec<_> = lines.collect();
    format!("{}\n\n`@ROLE TEXT` writes to another role of this thread.", lines.join("\n"))
}

/// Parses a text. `None` if it is no command.
pub fn parse(text: &str, marks: Marks) -> Option<Result<Command, Misuse>> {
    let text = text.trim();
    let marked = match text.strip_prefix('/') {
        Some(rest) => rest,
        None if marks.bang_or_mention => {
            let rest = text.strip_prefix('!').or_else(|| after_mention(text))?;
            rest.strip_prefix('/').unwrap_or(rest)
        }
        None => return None,
    };
    let (word, rest) = first_word(marked);
    let (name, _, usage, _) = NAMES.iter().find(|(_, name, ..)| *name == word)?;
    Some(command(*name, rest).map_err(|message| Misuse { message: message.0, usage }))
}

/// Returns the role and the text of a message that begins with `@ROLE`.
pub fn addressed(text: &str) -> Option<(&str, &str)> {
    let (role, rest) = first_word(text.trim().strip_prefix('@')?);
    let role = role.trim_end_matches([':', ',']);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (!role.is_empty() && role.chars().all(is_name) && !rest.is_empty()).then_some((role, rest))
}

/// Returns the text after a mention at its beginning: `<@U0123>` or `<@U0123|name>`.
fn after_mention(text: &str) -> Option<&str> {
    let (id, rest) = text.strip_prefix("<@")?.split_once('>')?;
    let is_id = !id.is_empty() && !id.contains(char::is_whitespace);
    is_id.then(|| rest.trim_start_matches([':', ',']).trim_start())
}

/// Splits the first word off, with the space after it.
fn first_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim()),
        None => (text, ""),
    }
}

/// The reason of a misuse.
struct Wrong(String);

fn command(name: Name, rest: &str) -> Result<Command, Wrong> {
    let none = |command: Command| match rest.is_empty() {
        true => Ok(command),
        false => Err(Wrong(format!("unexpected `{}`", shortened(rest)))),
    };
    let given = || (!rest.is_empty()).then(|| rest.to_string());
    let needed = |what: &str| given().ok_or_else(|| Wrong(format!("{what} is missing")));
    let one = |what: &str| match rest.split_whitespace().count() {
        0 | 1 => Ok(given()),
        _ => Err(Wrong(format!("expected one {what}, not `{}`", shortened(rest)))),
    };
    match name {
        Name::Spawn => spawn(rest).map(Command::Spawn),
        Name::Kill => match one("dispatch or role")? {
            Some(target) => Ok(Command::Kill { target }),
            None => Err(Wrong("the dispatch or role is missing".into())),
        },
        Name::Stop => none(Command::Stop),
        Name::Status => none(Command::Status),
        Name::Cost => none(Command::Cost),
        Name::Answer => Ok(Command::Answer { text: needed("the answer")? }),
        Name::Model => Ok(Command::Model { name: one("model")? }),
        Name::Role => Ok(Command::Role { name: one("role")? }),
        Name::Set => {
            let (key, value) = first_word(rest);
            if key.is_empty() {
                return Err(Wrong("the key is missing".into()));
            }
            let value = (!value.is_empty()).then(|| value.to_string());
            Ok(Command::Set { key: key.into(), value })
        }
        Name::Cli => Ok(Command::Cli { text: needed("the command")? }),
        Name::SignOff => Ok(Command::SignOff { path: needed("the path")? }),
        Name::Help => none(Command::Help),
    }
}

/// The options of `/spawn`.
#[derive(Default)]
struct Options {
    model: Option<String>,
    title: Option<String>,
}

const OPTIONS: [&str; 2] = ["--model", "--title"];

/// Parses `ROLE PROJECT PROMPT` with options before the prompt or at the end of it.
fn spawn(rest: &str) -> Result<Spawn, Wrong> {
    let mut options = Options::default();
    let mut rest = leading_options(rest, &mut options)?;
    let mut words = vec![];
    for what in ["role", "project"] {
        let (word, after) = quoted_word(rest);
        if word.is_empty() {
            return Err(Wrong(format!("the {what} is missing")));
        }
        words.push(word.to_string());
        rest = leading_options(after, &mut options)?;
    }
    let prompt = trailing_options(rest, &mut options)?;
    let inner = prompt.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
    let prompt = inner.filter(|inner| !inner.contains('"')).unwrap_or(prompt).trim();
    if prompt.is_empty() {
        return Err(Wrong("the prompt is missing".into()));
    }
    let [role, project] = words.try_into().unwrap_or_default();
    let Options { model, title } = options;
    Ok(Spawn { role, project, prompt: prompt.into(), model, title })
}

/// Takes the options at the beginning of a text.
fn leading_options<'a>(text: &'a str, options: &mut Options) -> Result<&'a str, Wrong> {
    let mut text = text.trim_start();
    loop {
        let (word, rest) = first_word(text);
        let Some(option) = OPTIONS.into_iter().find(|option| *option == word) else {
            return Ok(text);
        };
        let (value, after) = quoted_word(rest);
        options.set(option, value)?;
        text = after;
    }
}

/// Takes the options in the last line of a text. There a title may have several words without
/// quotes. An option in the middle of a prompt is part of the prompt.
fn trailing_options<'a>(text: &'a str, options: &mut Options) -> Result<&'a str, Wrong> {
    let mut text = text.trim_end();
    loop {
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let found = OPTIONS.into_iter().filter_map(|option| {
            let at = text[line..].rfind(option)? + line;
            let (before, after) = (&text[..at], &text[at + option.len()..]);
            let is_word = before.is_empty() || before.ends_with(char::is_whitespace);
            (is_word && after.starts_with(char::is_whitespace)).then_some((at, option))
        });
        let Some((at, option)) = found.max() else { return Ok(text) };
        let value = text[at + option.len()..].trim();
        let is_one = !value.contains(char::is_whitespace) || value.starts_with('"');
        if !is_one && option == "--model" {
            return Ok(text);
        }
        let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        options.set(option, unquoted.unwrap_or(value))?;
        text = text[..at].trim_end();
    }
}

/// Splits a word off, which may be in double quotes.
fn quoted_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    match text.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => first_word(text),
    }
}

impl Options {
    fn set(&mut self, option: &str, value: &str) -> Result<(), Wrong> {
        let slot = if option == "--model" { &mut self.model } else { &mut self.title };
        if value.is_empty() {
            return Err(Wrong(format!("{option} needs a value")));
        }
        match slot.replace(value.into()) {
            None => Ok(()),
            Some(_) => Err(Wrong(format!("{option} is given twice"))),
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spawn(_) => "/spawn",
            Self::Kill { .. } => "/kill",
            Self::Stop => "/stop",
            Self::Status => "/status",
            Self::Cost => "/cost",
            Self::Answer { .. } => "/answer",
            Self::Model { .. } => "/model",
            Self::Role { .. } => "/role",
            Self::Set { .. } => "/set",
            Self::Cli { .. } => "/cli",
            Self::Message { .. } => "message",
            Self::SignOff { .. } => "/signoff",
            Self::Help => "/help",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PLAIN: Marks = Marks { bang_or_mention: false };
    const BANG: Marks = Marks { bang_or_mention: true };

    fn ok(text: &str) -> Command {
        parse(text, PLAIN).unwrap().unwrap()
    }

    fn spawned(text: &str) -> (String, String, String, Option<String>, Option<String>) {
        let Command::Spawn(it) = ok(text) else { panic!("{text}") };
        (it.role, it.project, it.prompt, it.model, it.title)
    }

    #[test]
    fn known_names_after_a_slash_are_commands() {
        assert_eq!(ok("/status"), Command::Status);
        assert_eq!(ok("  /stop \n"), Command::Stop);
        assert_eq!(ok("/kill reviewer"), Command::Kill { target: "reviewer".into() });
        assert_eq!(ok("/model"), Command::Model { name: None });
        assert_eq!(ok("/role tester"), Command::Role { name: Some("tester".into()) });
        let set = |value: Option<&str>| Command::Set {
            key: "models.default".into(),
            value: value.map(String::from),
        };
        assert_eq!(ok("/set models.default a b"), set(Some("a b")));
        assert_eq!(ok("/set models.default"), set(None));
        assert_eq!(ok("/cli /compact now"), Command::Cli { text: "/compact now".into() });
        assert_eq!(ok("/answer 2"), Command::Answer { text: "2".into() });
        assert_eq!(ok("/signoff a b.md"), Command::SignOff { path: "a b.md".into() });
        assert_eq!(ok("/help"), Command::Help);
    }

    #[test]
    fn other_text_goes_to_the_agent() {
        for text in [
            "/statuses",
            "/ status",
            "//status",
            "/Status",
            "/compact",
            "/usr/bin/env",
            "status",
            "!status",
            "<@U1> status",
            "please /status",
            "",
            "/",
        ] {
            assert_eq!(parse(text, PLAIN), None, "{text}");
        }
    }

    #[test]
    fn slack_has_a_mention_or_a_bang_before_a_known_name() {
        for text in ["!status", "<@U012> status", "<@U012|mule>: status", "/status", "!/status"] {
            assert_eq!(parse(text, BANG), Some(Ok(Command::Status)), "{text}");
        }
        for text in ["!!status", "! status", "<@U012> hello", "<@ > status", "well !status"] {
            assert_eq!(parse(text, BANG), None, "{text}");
        }
    }

    #[test]
    fn spawn_takes_its_options_before_and_after_the_prompt() {
        let text = |text: &str| Some(text.to_string());
        let (role, project, prompt, model, title) =
            spawned("/spawn developer shop Fix it\nand test --model is a word\n--title The fix");
        assert_eq!((role.as_str(), project.as_str()), ("developer", "shop"));
        assert_eq!(prompt, "Fix it\nand test --model is a word");
        assert_eq!((model, title), (None, text("The fix")));
        let all = spawned("/spawn --model m1 dev \"my shop\" \"do it\" --title \"a b\"");
        let expected = ("dev".into(), "my shop".into(), "do it".into(), text("m1"), text("a b"));
        assert_eq!(all, expected);
        let both = spawned("/spawn dev . do it --title a b --model m2");
        assert_eq!((both.2.as_str(), both.3, both.4), ("do it", text("m2"), text("a b")));
        let none = spawned("/spawn dev . explain --model to me");
        assert_eq!((none.2.as_str(), none.3), ("explain --model to me", None));
    }

    #[test]
    fn misuse_says_what_is_wrong_and_the_usage() {
        let wrong = |text: &str| parse(text, PLAIN).unwrap().unwrap_err().to_string();
        let usage = "usage: /spawn ROLE PROJECT PROMPT [--model M] [--title T]";
        assert_eq!(wrong("/spawn"), format!("the role is missing; {usage}"));
        assert_eq!(wrong("/spawn dev"), format!("the project is missing; {usage}"));
        assert_eq!(wrong("/spawn dev . --model x"), format!("the prompt is missing; {usage}"));
        assert_eq!(
            wrong("/spawn dev . --model a --model b x"),
            format!("--model is given twice; {usage}")
        );
        assert_eq!(wrong("/kill"), "the dispatch or role is missing; usage: /kill DISPATCH|ROLE");
        assert_eq!(wrong("/stop now"), "unexpected `now`; usage: /stop");
        assert_eq!(wrong("/answer"), "the answer is missing; usage: /answer [QUESTION] TEXT");
        assert_eq!(wrong("/set"), "the key is missing; usage: /set KEY [VALUE]");
    }

    #[test]
    fn a_role_is_addressed_by_its_name() {
        assert_eq!(addressed("@reviewer: look at\nthis"), Some(("reviewer", "look at\nthis")));
        assert_eq!(addressed(" @dev-2 go"), Some(("dev-2", "go")));
        for text in ["@reviewer", "@types/node is broken", "mail@reviewer go", "@ x", "@: x"] {
            assert_eq!(addressed(text), None, "{text}");
        }
    }

    #[test]
    fn help_lists_every_command() {
        let help = help();
        for (_, name, usage, _) in NAMES {
            assert!(usage.starts_with(&format!("/{name}")) && help.contains(usage), "{help}");
            assert!(parse(&format!("/{name} "), PLAIN).is_some(), "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}", name in "/(spawn|set|kill|answer) ") {
            for text in [text.clone(), format!("{name}{text}"), format!("/spawn a b {text}")] {
                let _ = parse(&text, PLAIN);
                let _ = parse(&text, BANG);
                let _ = addressed(&text);
            }
        }
    }
}
