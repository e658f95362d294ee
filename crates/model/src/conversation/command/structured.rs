//! The structured output of a coordinator or an analyst: a response for people, and commands that
//! Muleteer carries out with the rights of the person whose message the turn answers.
//!
//! ```json
//! {"response": "I start the tests.", "commands": [
//!   {"action": "spawn", "role": "tester", "project": "shop", "prompt": "Test the export"}]}
//! ```

use crate::agent::event::cut;
use crate::conversation::command::{Command, Misuse, Spawn};
use crate::conversation::event::AgentCommand;
use serde::Deserialize;
use serde_json::Value;

/// The role whose output may have all commands. The output of other agents is text, because any
/// text that they read could make them write commands.
pub const COORDINATOR: &str = "project-coordinator";
/// The role whose output may ask for the sign-off of its spec, and nothing else.
pub const ANALYST: &str = "product-analyst";
/// The most commands of one turn. The others are left out, and the response says so.
pub const MOST: usize = 16;
/// The most bytes of an unknown action in a refusal.
const NAME_LIMIT: usize = 40;
/// The most bytes of a fault in a refusal.
const FAULT_LIMIT: usize = 500;

const USAGE: &str = "{\"action\": spawn|kill|status|message|ask|sign_off, \"role\", \"project\", \
                     \"prompt\", \"model\", \"title\", \"dispatch_id\", \"text\", \"path\"}";
const SIGN_OFF: &str = "sign_off";

/// The parsed output of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structured {
    /// The text for people, with the questions of `ask`.
    pub response: String,
    pub commands: Vec<AgentCommand>,
}

#[derive(Deserialize)]
struct Output {
    response: String,
    #[serde(default)]
    commands: Value,
}

/// Parses the last text of a turn of this role. Returns `None` if it is a text like any other: a
/// role that gives no commands wrote it, or an analyst that asks for no sign-off, who may show a
/// person any JSON.
pub fn of_role(role: &str, text: &str) -> Option<Structured> {
    let parsed = match role {
        COORDINATOR => return parse(text),
        ANALYST => parse(text)?,
        _ => return None,
    };
    let refused = |command: AgentCommand| match command.action.as_str() {
        SIGN_OFF => command,
        _ => AgentCommand { fault: Some(format!("a {ANALYST} may only `{SIGN_OFF}`")), ..command },
    };
    let asks = parsed.commands.iter().any(|command| command.action == SIGN_OFF);
    let commands = parsed.commands.into_iter().map(refused).collect();
    asks.then_some(Structured { commands, ..parsed })
}

/// Parses the last text of a turn. Returns `None` if it is a text like any other. A command that
/// cannot be read does not hide the others: it is refused when it is carried out.
fn parse(text: &str) -> Option<Structured> {
    let text = text.trim();
    let fenced = text.strip_prefix("```json").and_then(|rest| rest.strip_suffix("```"));
    let Output { response, commands } = serde_json::from_str(fenced.unwrap_or(text)).ok()?;
    let commands = match commands {
        Value::Null => vec![],
        Value::Array(commands) => commands,
        other => vec![other],
    };
    let is_asked = |command: &AgentCommand| command.action == "ask" && command.fault.is_none();
    let (asked, commands): (Vec<_>, Vec<_>) =
        commands.into_iter().map(AgentCommand::read).partition(is_asked);
    let questions = asked.iter().filter_map(|command| command.text.as_deref());
    let left_out = commands.len().saturating_sub(MOST);
    let left_out = (left_out > 0).then(|| format!("{left_out} further commands are left out."));
    let parts = std::iter::once(response.trim()).chain(questions.map(str::trim));
    let parts: Vec<_> = parts.chain(left_out.as_deref()).filter(|part| !part.is_empty()).collect();
    let response = parts.join("\n\n");
    Some(Structured { response, commands: commands.into_iter().take(MOST).collect() })
}

impl AgentCommand {
    /// Reads a command; one of another form becomes a command with its fault.
    fn read(value: Value) -> Self {
        let action = value.get("action").and_then(Value::as_str).unwrap_or("?").to_string();
        let read = serde_json::from_value(value).map(|command| Self { fault: None, ..command });
        read.unwrap_or_else(|error| {
            let fault = Some(format!("the command cannot be read: {error}"));
            Self { action: cut(&action, NAME_LIMIT), fault, ..Self::default() }
        })
    }

    /// Returns the command as people would write it.
    pub fn describe(&self) -> String {
        let name = match self.action.as_str() {
            SIGN_OFF => "signoff",
            name => name,
        };
        let words = [&self.role, &self.project, &self.dispatch_id, &self.prompt, &self.text];
        let words = words.into_iter().chain([&self.path]);
        let words = words.flatten().map(|word| word.trim());
        let model = self.model.iter().map(|model| format!(" --model {model}"));
        let title = self.title.iter().map(|title| format!(" --title {title:?}"));
        let options: String = model.chain(title).collect();
        let all: Vec<_> = std::iter::once(name).chain(words).collect();
        format!("/{}{options}", all.join(" "))
    }

    /// Returns the command to carry out.
    ///
    /// # Errors
    /// The action is unknown, or a field that it needs is missing.
    pub fn command(&self) -> Result<Command, Misuse> {
        let missing = |name: &str| Misuse { message: format!("`{name}` is missing"), usage: USAGE };
        let given = |value: &Option<String>, name: &str| {
            let value = value.as_deref().map(str::trim).filter(|value| !value.is_empty());
            value.map(String::from).ok_or_else(|| missing(name))
        };
        if let Some(fault) = &self.fault {
            return Err(Misuse { message: cut(fault, FAULT_LIMIT), usage: USAGE });
        }
        match self.action.as_str() {
            "spawn" => Ok(Command::Spawn(Spawn {
                role: given(&self.role, "role")?,
                project: given(&self.project, "project").unwrap_or_else(|_| ".".into()),
                prompt: given(&self.prompt, "prompt")?,
                model: self.model.clone(),
                title: self.title.clone(),
            })),
            "kill" => {
                let target = given(&self.dispatch_id, "dispatch_id");
                let target =
                    target.or_else(|error| given(&self.role, "role").map_err(|_| error))?;
                Ok(Command::Kill { target })
            }
            "status" => Ok(Command::Status),
            "message" => Ok(Command::Message {
                dispatch: given(&self.dispatch_id, "dispatch_id")?,
                text: given(&self.text, "text")?,
            }),
            SIGN_OFF => Ok(Command::SignOff { path: given(&self.path, "path")? }),
            other => {
                let action = cut(other, NAME_LIMIT);
                Err(Misuse { message: format!("there is no action `{action}`"), usage: USAGE })
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn output_with_commands_is_parsed_and_other_text_is_not() {
        let text = r#"{"response": "Go.", "commands": [
            {"action": "spawn", "role": "tester", "prompt": "test"},
            {"action": "ask", "text": "Which port?"},
            {"action": "kill", "role": "developer"},
            {"action": "message", "dispatch_id": "id000001"},
            {"action": "dance"}]}"#;
        for text in [text.to_string(), format!("```json\n{text}\n```")] {
            let parsed = parse(&text).unwrap();
            assert_eq!(parsed.response, "Go.\n\nWhich port?");
            let commands: Vec<_> = parsed.commands.iter().map(AgentCommand::command).collect();
            assert!(matches!(&commands[0], Ok(Command::Spawn(spawn)) if spawn.project == "."));
            assert_eq!(commands[1], Ok(Command::Kill { target: "developer".into() }));
            assert_eq!(commands[2].as_ref().unwrap_err().message, "`text` is missing");
            assert_eq!(commands[3].as_ref().unwrap_err().message, "there is no action `dance`");
            assert_eq!(parsed.commands[0].describe(), "/spawn tester test");
        }
        for text in ["Go.", "{}", "{\"commands\": []}", "see {\"response\": \"x\"}"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn analyst_asks_for_a_sign_off_and_gives_no_other_command() {
        let text = r#"{"response": "It is ready.", "commands": [
            {"action": "sign_off", "path": "docs/plan.md"},
            {"action": "sign_off"},
            {"action": "spawn", "role": "developer", "prompt": "build"}]}"#;
        let parsed = of_role(ANALYST, text).unwrap();
        let commands: Vec<_> = parsed.commands.iter().map(AgentCommand::command).collect();
        assert_eq!(commands[0], Ok(Command::SignOff { path: "docs/plan.md".into() }));
        assert_eq!(commands[1].as_ref().unwrap_err().message, "`path` is missing");
        let refusal = &commands[2].as_ref().unwrap_err().message;
        assert_eq!(refusal, "a product-analyst may only `sign_off`");
        assert_eq!(parsed.commands[0].describe(), "/signoff docs/plan.md");
        assert!(of_role(COORDINATOR, text).unwrap().commands[2].command().is_ok());
        assert_eq!(of_role("developer", text), None);
        let data = r#"{"response": "an example of the interface"}"#;
        assert_eq!(of_role(ANALYST, data), None, "a person sees the JSON that was asked for");
    }

    #[test]
    fn command_of_a_wrong_form_is_refused_and_hides_no_other() {
        let text = r#"{"response": "Go.", "commands": [
            {"action": "spawn", "role": "tester", "prompt": 7},
            {"action": "status"},
            {"action": "ask", "text": ["Which port?"]},
            "status"]}"#;
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.response, "Go.");
        let commands: Vec<_> = parsed.commands.iter().map(AgentCommand::command).collect();
        assert_eq!(commands[1], Ok(Command::Status));
        for at in [0, 2, 3] {
            let message = &commands[at].as_ref().unwrap_err().message;
            assert!(message.starts_with("the command cannot be read: invalid type"), "{message}");
        }
        assert_eq!(parsed.commands[0].describe(), "/spawn");
        let one = parse(r#"{"response": "Go.", "commands": {"action": "status"}}"#).unwrap();
        assert_eq!(one.commands[0].command(), Ok(Command::Status));
        assert_eq!(parse(r#"{"response": "Go.", "commands": null}"#).unwrap().commands, []);
    }
}
