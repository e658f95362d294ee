//! The descriptions and the arguments of the tools, for the models that call them.

use muleteer_model::event::mcp::Tool;
use rmcp::model::{JsonObject, ToolAnnotations};
use serde_json::{Value, json};

/// Returns the definition of a tool.
pub(super) fn definition(tool: Tool) -> rmcp::model::Tool {
    let schema = match schema(tool) {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    };
    rmcp::model::Tool::new(tool.name(), description(tool), schema)
        .with_annotations(ToolAnnotations::new().read_only(tool.reads()))
}

fn description(tool: Tool) -> &'static str {
    match tool {
        Tool::AskHuman => {
            "Ask a person, and wait for the answer. Use it where a wrong guess costs more than \
             the wait. Returns {answer}, or {question_id, state: \"open\"}: then call \
             await_answer, or do other work and get the answer as a message."
        }
        Tool::AwaitAnswer => "Wait further for the answer to a question of ask_human.",
        Tool::Note => {
            "Write a note into this agent's journal: a decision with its reason, a finding, a risk."
        }
        Tool::ReportProgress => "Report where the work is, for the people who watch.",
        Tool::GetBudget => "Return what this agent has spent and may still spend.",
        Tool::DraftAgent => {
            "Start another agent for a part of the work. It gets only `prompt`, so say everything \
             that it needs to know. Returns {dispatch_id, state}; await_agent returns its result. \
             An equal call while the first one is under way is the same agent."
        }
        Tool::AwaitAgent => {
            "Wait until agents have ended, all of them or `any`, and return their results. \
             Returns {done: false} if the time is over: call it again."
        }
        Tool::KillAgent => "End an agent that this agent started.",
        Tool::MessageAgent => {
            "Send a message to an agent that this agent started. Its state says whether the agent \
             gets it now or after its turn."
        }
        Tool::ListAgents => "List the agents that this agent started, newest first.",
        Tool::GetStatus => "Return the state of this agent, or of another one by its id.",
        Tool::ListTasks => "List the tasks of this agent's thread.",
        Tool::GetTaskContext => {
            "Return what is known of this agent's task: its title, its text, the spec, earlier \
             agents with their results."
        }
        Tool::ReadJournal => "Return the end of an agent's journal.",
        Tool::ReadThread => "Return the newest messages of this agent's thread.",
        Tool::SendMessage => {
            "Write a message into this agent's thread before the turn ends. The answer of a turn \
             goes there by itself."
        }
    }
}

fn schema(tool: Tool) -> Value {
    let text = |says: &str| json!({"type": "string", "description": says});
    let number = |says: &str| json!({"type": "number", "minimum": 0, "description": says});
    let flag = |says: &str| json!({"type": "boolean", "description": says});
    let dispatch = || text("the id of a dispatch, or a unique beginning of it");
    let (properties, required): (Value, &[&str]) = match tool {
        Tool::AskHuman => (
            json!({
                "question": text("the question, with everything that the person has to know"),
                "options": {
                    "type": "array",
                    "description": "answers to choose from; the person may also answer in words",
                    "items": {"anyOf": [
                        {"type": "string"},
                        {
                            "type": "object",
                            "properties": {
                                "id": text("a short name"),
                                "label": text("the text that the person sees"),
                                "description": text("what follows from this choice"),
                            },
                            "required": ["label"],
                        },
                    ]},
                },
                "multi": flag("several options may be chosen"),
                "default": text("the answer that counts after the deadline"),
                "deadline_s": number("seconds until the default is taken; without it the question \
                    waits for ever"),
            }),
            &["question"],
        ),
        Tool::AwaitAnswer => {
            (json!({"question_id": text("the id that ask_human returned")}), &["question_id"])
        }
        Tool::Note => (json!({"text": text("the note")}), &["text"]),
        Tool::ReportProgress => (
            json!({
                "text": text("one sentence"),
                "percent": {"type": "number", "minimum": 0, "maximum": 100},
            }),
            &["text"],
        ),
        Tool::DraftAgent => (
            json!({
                "role": text("the role, for example developer, reviewer or tester"),
                "prompt": text("the task"),
                "project": text("a configured project, or a directory; default: your own"),
                "title": text("a short title of the task"),
                "model": text("the model; default: the role's"),
                "feature": text("the name of the piece of work"),
                "budget_usd": number("the most that it may spend, in US dollars"),
                "worktree": flag("it works in a clone of its own, and its commits come back"),
            }),
            &["role", "prompt"],
        ),
        Tool::AwaitAgent => (
            json!({
                "dispatch_ids": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "any": flag("return when one of them has ended"),
                "timeout_s": number("the longest wait, in seconds"),
            }),
            &["dispatch_ids"],
        ),
        Tool::KillAgent => {
            (json!({"dispatch_id": dispatch(), "reason": text("the reason")}), &["dispatch_id"])
        }
        Tool::MessageAgent => (
            json!({"dispatch_id": dispatch(), "text": text("the message")}),
            &["dispatch_id", "text"],
        ),
        Tool::GetStatus => (json!({"dispatch_id": dispatch()}), &[]),
        Tool::ListTasks => (json!({"thread": text("the id of a thread; default: your own")}), &[]),
        Tool::ReadJournal => (
            json!({"dispatch_id": dispatch(), "tail": number("the most lines; default 50")}),
            &["dispatch_id"],
        ),
        Tool::ReadThread => (json!({"limit": number("the most messages; default 20")}), &[]),
        Tool::SendMessage => (
            json!({
                "text": text("the message, in Markdown"),
                "files": {
                    "type": "array",
                    "description": "paths of files to attach, 4 MiB together",
                    "items": {"type": "string"},
                },
            }),
            &["text"],
        ),
        Tool::GetBudget | Tool::ListAgents | Tool::GetTaskContext => (json!({}), &[]),
    };
    json!({"type": "object", "properties": properties, "required": required})
}
