//! Interprets one message of an agent: an answer to one of our calls, a notification, or a call of
//! the agent.
//!
//! It reads field by field, like the other parsers, because agents add fields and updates with
//! every version.

use crate::acp::{BY_CALL, BY_OPTION, ask, id, result, update};
use crate::stream::lines::{Before, Meaning, Text, Understood};
use muleteer_model::agent::acp_handshake::{self, CallAnswer};
use muleteer_model::agent::ask::ID_LIMIT;
use muleteer_model::agent::event::{AgentEvent, cut};
use muleteer_model::agent::session_mode::Modes;
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) struct Messages;

impl Meaning for Messages {
    fn read(&self, mut line: Text<'_>) -> Understood {
        if line.is_blank() {
            return Understood::default();
        }
        let document = line.document();
        if document.damage.is_some() && (!line.ended || line.is_no_object()) {
            return Understood::unknown(line.bytes);
        }
        let told = match (document.damage, document.fault()) {
            (Some(_), Some(fault)) => damaged(&document.value, &fault),
            _ => events(&document.value),
        };
        let mut told = told.map_or_else(|| Understood::unknown(line.bytes), Understood::from);
        for timed in &mut told.events {
            match (&mut timed.event, document.fault()) {
                (AgentEvent::Permission { ask, .. }, Some(_)) => ask.input_cut = true,
                (AgentEvent::Result(result), Some(fault)) if document.damage.is_some() => {
                    *result = std::mem::take(result).spoilt(&fault);
                }
                _ => {}
            }
        }
        told.with_fault(&document)
    }

    /// An agent may log the messages that it sends and receives. Behind other text an answer or a
    /// request of the agent still counts, because one side waits for it and a repetition changes
    /// nothing. A notification would count twice.
    fn knows(&self, object: &Value, before: Before) -> bool {
        let method = object.get("method").and_then(Value::as_str);
        match (before, method) {
            (Before::Nothing, _) => {
                ["jsonrpc", "method", "id"].iter().any(|key| object.get(key).is_some())
            }
            (Before::Text, Some(method)) => {
                let asks = method == "session/request_permission" || method.starts_with('_');
                let is_asked = asks || method.starts_with("fs/") || method.starts_with("terminal/");
                is_asked && object.get("id").is_some()
            }
            (Before::Text, None) => {
                let answers = object.get("result").is_some() || object.get("error").is_some();
                answers && object.get("id").and_then(Value::as_str).is_some_and(is_ours)
            }
        }
    }
}

/// Whether an answer belongs to one of our calls. On stdout the agent answers only us, but its log
/// may quote other answers.
fn is_ours(id: &str) -> bool {
    [id::GREET, id::NEW, id::LOAD, id::MODE, id::MODEL].contains(&id)
        || id.starts_with(id::CHANGE)
        || id.starts_with(id::PROMPT)
}

/// Interprets a message whose end is missing. An answer to one of our calls fails the call, and a
/// call of the agent is rejected, so that neither side waits for it.
fn damaged(message: &Value, fault: &str) -> Option<Vec<AgentEvent>> {
    let id = message.get("id").filter(|id| !id.is_null());
    match (message.get("method").and_then(Value::as_str), id) {
        (Some(_), Some(id)) => Some(vec![ask::read(id, "an invalid request", &Value::Null)]),
        (Some(method), None) => notified(method, message.get("params")?),
        (None, Some(id)) => {
            let error = json!({
                "code": -32700,
                "message": format!("the agent's answer is invalid: {fault}"),
            });
            answered(id.as_str().unwrap_or_default(), &json!({"error": error}))
        }
        (None, None) => None,
    }
}

/// Returns `None` for a message of a kind that this version does not know.
fn events(message: &Value) -> Option<Vec<AgentEvent>> {
    let id = message.get("id").filter(|id| !id.is_null());
    match (message.get("method").and_then(Value::as_str), id) {
        (Some(method), Some(id)) => {
            let params = message.get("params").unwrap_or(&Value::Null);
            let asked = ask::read(id, method, params);
            // Some agents report a call only by their request for permission.
            let call = params.get("toolCall").and_then(update::asked);
            let call = call.filter(|_| matches!(asked, AgentEvent::Permission { .. }));
            Some(call.into_iter().chain([asked]).collect())
        }
        (Some(method), None) => notified(method, message.get("params")?),
        (None, Some(id)) => answered(id.as_str().unwrap_or_default(), message),
        // An error about a message that the agent could not read at all.
        (None, None) => None,
    }
}

fn notified(method: &str, params: &Value) -> Option<Vec<AgentEvent>> {
    match method {
        "session/update" => update::read(params.get("update")?),
        // The login state. If it has consequences, an error reports them.
        "_auth/status_update" => Some(vec![]),
        _ => None,
    }
}

fn answered(id: &str, message: &Value) -> Option<Vec<AgentEvent>> {
    let key = id.strip_prefix(id::PROMPT);
    if let Some(change) = id.strip_prefix(id::CHANGE) {
        let refused = message.get("error").map(result::message);
        let (ok, text) = (refused.is_none(), refused.map(|(said, _)| said).unwrap_or_default());
        return Some(vec![AgentEvent::Reply { id: change.to_string(), ok, text }]);
    }
    if let Some(error) = message.get("error") {
        let call = match id {
            id::GREET => acp_handshake::GREET,
            id::NEW => acp_handshake::NEW,
            id::LOAD => acp_handshake::LOAD,
            id::MODE => acp_handshake::MODE,
            id::MODEL => acp_handshake::MODEL,
            // Whichever call it was, the turn cannot happen.
            _ => return Some(vec![AgentEvent::Result(result::refused(key, error))]),
        };
        let (message, auth) = result::message(error);
        let missing = id == id::LOAD && is_missing(error, &message);
        let call = call.into();
        let refused = CallAnswer::Refused { call, message, auth, missing };
        return Some(vec![AgentEvent::CallAnswer(refused)]);
    }
    let result = message.get("result")?;
    if result.get("stopReason").is_some() {
        return Some(vec![AgentEvent::Result(result::read(key, result))]);
    }
    Some(match id {
        id::MODE => vec![AgentEvent::CallAnswer(CallAnswer::ModeSet {})],
        id::MODEL => vec![AgentEvent::CallAnswer(CallAnswer::ModelSet { model: model(result).0 })],
        id::LOAD => vec![AgentEvent::CallAnswer(opened(result))],
        _ if result.get("protocolVersion").is_some() => {
            vec![AgentEvent::CallAnswer(greeted(result))]
        }
        _ if result.get("sessionId").is_some() => {
            let reply = opened(result);
            let CallAnswer::Opened { session_id, model, .. } = &reply else { return None };
            let session = AgentEvent::Session {
                model: model.clone(),
                cwd: None,
                session_id: session_id.clone(),
            };
            vec![session, AgentEvent::CallAnswer(reply)]
        }
        // The answer to another client's call, whose effect shows elsewhere.
        _ => vec![],
    })
}

/// Whether the error of `session/load` says that the session does not exist: by the protocol's code
/// for a missing resource, or in the agents' own words.
fn is_missing(error: &Value, said: &str) -> bool {
    const RESOURCE_NOT_FOUND: i64 = -32002;
    const WORDS: [&str; 4] = [
        "no previous sessions found",
        "invalid session identifier",
        "session not found",
        "resource not found",
    ];
    let said = said.to_lowercase();
    error.get("code").and_then(Value::as_i64) == Some(RESOURCE_NOT_FOUND)
        || WORDS.iter().any(|words| said.contains(words))
}

fn greeted(result: &Value) -> CallAnswer {
    let info = |field: &str| result.get("agentInfo")?.get(field)?.as_str();
    let name = info("name").unwrap_or("agent");
    let agent = match info("version") {
        Some(version) => format!("{name} {version}"),
        None => name.to_string(),
    };
    let loads = result
        .get("agentCapabilities")
        .and_then(|can| can.get("loadSession"))
        .and_then(Value::as_bool);
    CallAnswer::Greeted { agent, loads: loads.unwrap_or_default() }
}

fn opened(result: &Value) -> CallAnswer {
    let session_id = result.get("sessionId").and_then(Value::as_str).map(str::to_string);
    let (model, model_by) = model(result);
    CallAnswer::Opened { session_id, model, model_by, modes: modes(result) }
}

/// Returns the model of the session, and the method that changes it, if there is one. A list whose
/// only model is the current one changes nothing.
fn model(result: &Value) -> (Option<String>, Option<String>) {
    let string =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_string);
    let listed = result.get("models").filter(|models| models.is_object());
    let current = listed.and_then(|models| string(models, "currentModelId"));
    let options = result.get("configOptions").and_then(Value::as_array).into_iter().flatten();
    let options = options.filter_map(|option| {
        let id = option.get("id")?.as_str()?;
        let category = option.get("category").and_then(Value::as_str).unwrap_or(id);
        let name = id.to_ascii_lowercase();
        let is_model = category == "model" && !name.contains("provider");
        let value = string(option, "currentValue");
        // Other settings of the model have the same category.
        let rank = match name.as_str() {
            "model" => 0,
            _ if value.is_some() && value == current => 1,
            _ if name.contains("model") => 2,
            _ => 3,
        };
        is_model.then(|| (rank, format!("{BY_OPTION}{id}"), value, offered(option.get("options"))))
    });
    let option = options.min_by_key(|(rank, ..)| *rank);
    let option = option.map(|(_, by, value, offered)| (by, value, offered));
    let call = listed.map(|models| {
        let offered = models.get("availableModels").and_then(Value::as_array);
        let ids = offered.into_iter().flatten().filter_map(|model| string(model, "modelId"));
        (BY_CALL.to_string(), current, ids.collect::<Vec<_>>())
    });
    let ways: Vec<_> = option.into_iter().chain(call).collect();
    let changes = |(_, current, offered): &&(String, Option<String>, Vec<String>)| {
        offered.is_empty() || offered.iter().any(|model| Some(model) != current.as_ref())
    };
    let by = ways.iter().find(changes).map(|(by, ..)| by.clone());
    (ways.into_iter().find_map(|(_, current, _)| current), by)
}

/// Returns the values of an option, which may be in groups.
fn offered(options: Option<&Value>) -> Vec<String> {
    let options = options.and_then(Value::as_array).into_iter().flatten();
    let values = options.flat_map(|option| match option.get("value").and_then(Value::as_str) {
        Some(value) => vec![value.to_string()],
        None => offered(option.get("options")),
    });
    values.collect()
}

/// The most modes that are kept of those an agent offers.
const MOST_MODES: usize = 64;

/// Reads the session's modes: from their own list, or from a configuration option for them.
pub(super) fn modes(result: &Value) -> Option<Modes> {
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).map(|text| cut(text, ID_LIMIT))
    };
    let listed = |list: Option<&Value>, key: &str| -> Vec<String> {
        let list = list.and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|one| text(one, key)).take(MOST_MODES).collect()
    };
    if let Some(modes) = result.get("modes").filter(|modes| modes.is_object()) {
        let offered = listed(modes.get("availableModes"), "id");
        return Some(Modes { current: text(modes, "currentModeId"), offered, by: BY_CALL.into() });
    }
    let options = result.get("configOptions").and_then(Value::as_array).into_iter().flatten();
    options.into_iter().find_map(|option| {
        let id = text(option, "id")?;
        let is_mode = text(option, "category").unwrap_or_else(|| id.clone()) == "mode";
        let offered = listed(option.get("options"), "value");
        is_mode.then(|| Modes {
            current: text(option, "currentValue"),
            offered,
            by: format!("{BY_OPTION}{id}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are those of gemini 0.61.0, and cline 3.0.65 uses the protocol's code.
    #[test]
    fn error_about_a_session_that_does_not_exist_is_recognised() {
        let refused = |id: &str, error: Value| {
            let told = answered(id, &json!({"id": id, "error": error}));
            match told.as_deref() {
                Some([AgentEvent::CallAnswer(CallAnswer::Refused { missing, .. })]) => *missing,
                other => panic!("{other:?}"),
            }
        };
        let internal = |details: &str| {
            let data = json!({"details": details});
            json!({"code": -32603, "message": "Internal error", "data": data})
        };
        let gone = json!({"code": -32002, "message": "Resource not found: s1"});
        assert!(refused(id::LOAD, internal("No previous sessions found for this project.")));
        assert!(refused(id::LOAD, internal("Invalid session identifier \"s1\".")));
        assert!(refused(id::LOAD, gone.clone()));
        assert!(!refused(id::NEW, gone), "there is no session to miss");
        assert!(!refused(id::LOAD, internal("the disk is full")));
    }

    /// The words are those of codex-acp 2.6.0.
    #[test]
    fn prompt_in_a_session_that_does_not_exist_reports_a_lost_session() {
        let refused = |details: &str| {
            let data = json!({"details": details});
            let error = json!({"code": -32603, "message": "Internal error", "data": data});
            let id = format!("{}k", id::PROMPT);
            match answered(&id, &json!({"id": id, "error": error})).as_deref() {
                Some([AgentEvent::Result(result)]) => result.session_lost,
                other => panic!("{other:?}"),
            }
        };
        assert!(refused("thread not found: 01a21ec8-59d0-7cd1-83d2-b7826c466a6a"));
        assert!(!refused("the model is overloaded"));
    }
}
