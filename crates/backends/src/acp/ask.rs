//! Reads the agent's requests to us and writes our answers.
//!
//! The id of an ask is the call's own id, so that it can be returned unchanged: agents count from
//! 0, or use names. The id is written as JSON, but a name that is not itself valid JSON has no
//! quotes, so that people can type it.

use crate::acp::{names, update};
use muleteer_model::agent::acp_handshake::INTERRUPTED;
use muleteer_model::agent::ask::{Answer, Ask, AskKind, AskOption, Verdict};
use muleteer_model::agent::event::{AgentEvent, cut};
use serde_json::{Value, json};

/// The protocol's error code for an unknown method.
const NO_SUCH_METHOD: i64 = -32601;

pub(super) fn read(id: &Value, method: &str, params: &Value) -> AgentEvent {
    let id = key(id);
    match method {
        "session/request_permission" => match permission(params).bound() {
            // No option could be chosen: allowing it would only cancel the turn.
            ask if ask.options.is_empty() => {
                AgentEvent::Request { id, what: format!("{method} without options") }
            }
            ask => AgentEvent::Permission { id, ask: Box::new(ask) },
        },
        // File and terminal requests end here. The daemon is outside of the agent's sandbox and
        // does nothing there on the agent's behalf. The agent gets an error and can do it itself.
        _ => AgentEvent::Request { id, what: cut(method, 200) },
    }
}

fn key(id: &Value) -> String {
    match id.as_str() {
        Some(name) if !name.is_empty() && serde_json::from_str::<Value>(name).is_err() => {
            name.into()
        }
        _ => id.to_string(),
    }
}

fn permission(params: &Value) -> Ask {
    let call = params.get("toolCall").unwrap_or(&Value::Null);
    let string =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_string);
    let options = params.get("options").and_then(Value::as_array).into_iter().flatten();
    let options = options.filter_map(|option| {
        Some(AskOption {
            id: string(option, "optionId")?,
            name: string(option, "name").unwrap_or_default(),
            kind: string(option, "kind"),
        })
    });
    Ask {
        call_id: string(call, "toolCallId"),
        text: string(call, "title").unwrap_or_default(),
        options: options.collect(),
        ..Ask::tool(&names::tool(call), Value::Object(update::input(call)))
    }
}

/// Returns the response to an ask.
pub(super) fn answer(id: &str, ask: &Ask, answer: &Answer) -> Value {
    // The id was JSON when it came, or else a name.
    let id: Value = serde_json::from_str(id).unwrap_or_else(|_| id.into());
    if ask.kind != AskKind::Permission {
        let message = format!("this client does not support {}", ask.tool);
        return json!({
            "jsonrpc": "2.0",
            "id": id,
            "error": {"code": NO_SUCH_METHOD, "message": message},
        });
    }
    let outcome = match chosen(ask, answer) {
        Some(option) => json!({"outcome": "selected", "optionId": option}),
        None => json!({"outcome": "cancelled"}),
    };
    json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": outcome}})
}

/// Whether an option expresses the answer. An answer that no option expresses only cancels the
/// turn.
pub(super) fn can_say(ask: &Ask, answer: &Answer) -> bool {
    ask.kind != AskKind::Permission
        || answer.verdict != Verdict::Allow
        || chosen(ask, answer).is_some()
}

/// Returns the option that expresses the answer. A permission is given for one time if there is
/// such an option, so that the policy decides about the next ask. If no option denies, the turn is
/// cancelled.
fn chosen<'a>(ask: &'a Ask, answer: &Answer) -> Option<&'a str> {
    let of_kind =
        |kind: &str| ask.options.iter().find(|option| option.kind.as_deref() == Some(kind));
    let option = match answer.verdict {
        _ if answer.text == INTERRUPTED => None,
        Verdict::Allow => of_kind("allow_once").or_else(|| of_kind("allow_always")),
        Verdict::Deny => of_kind("reject_once").or_else(|| of_kind("reject_always")),
        Verdict::Text => ask.option(&answer.text).or_else(|| of_kind("reject_once")),
    };
    option.map(|option| option.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(message: &Value) -> (String, Ask) {
        let AgentEvent::Permission { id, ask } = read(
            &message["id"],
            message["method"].as_str().unwrap_or_default(),
            &message["params"],
        ) else {
            panic!("an ask");
        };
        (id, *ask)
    }

    fn permission() -> Value {
        json!({"id": 0, "method": "session/request_permission", "params": {
            "sessionId": "s",
            "toolCall": {"toolCallId": "t", "name": "Bash", "kind": "execute", "title": "ls",
                "rawInput": {"command": "ls"}},
            "options": [
                {"optionId": "always", "name": "Always", "kind": "allow_always"},
                {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                {"optionId": "no", "name": "No", "kind": "reject_once"},
            ],
        }})
    }

    #[test]
    fn a_permission_is_given_once_denied_or_named() {
        let (id, ask) = asked(&permission());
        assert_eq!((id.as_str(), ask.tool.as_str(), ask.target.as_str()), ("0", "Bash", "ls"));
        assert_eq!(ask.call_id.as_deref(), Some("t"));
        let outcome = |given: Answer| answer(&id, &ask, &given)["result"]["outcome"].clone();
        let selected = |option: &str| json!({"outcome": "selected", "optionId": option});
        assert_eq!(outcome(Answer::allow()), selected("yes"));
        assert_eq!(outcome(Answer::deny("no")), selected("no"));
        assert_eq!(
            outcome(Answer { verdict: Verdict::Text, text: "always".into() }),
            selected("always")
        );
        assert_eq!(outcome(Answer::deny(INTERRUPTED)), json!({"outcome": "cancelled"}));
    }

    #[test]
    fn request_without_an_allow_option_is_never_allowed() {
        let mut message = permission();
        message["params"]["options"] = json!([]);
        let event = read(&message["id"], "session/request_permission", &message["params"]);
        assert!(matches!(event, AgentEvent::Request { .. }), "refused by itself: {event:?}");
        message["params"]["options"] =
            json!([{"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let (_, ask) = asked(&message);
        assert!(!can_say(&ask, &Answer::allow()) && can_say(&ask, &Answer::deny("")));
    }

    #[test]
    fn unsupported_call_is_rejected_with_the_callers_id() {
        for (id, shown, method) in [
            (json!("a b"), "a b", "terminal/create"),
            (json!(7), "7", "fs/write_text_file"),
            (json!("7"), "\"7\"", "fs/read_text_file"),
            (json!("\"7\""), "\"\\\"7\\\"\"", "fs/read_text_file"),
            (json!(""), "\"\"", "fs/read_text_file"),
            (json!("s-1"), "s-1", "_x/y"),
        ] {
            let AgentEvent::Request { id: key, what } = read(&id, method, &json!({})) else {
                panic!("a request")
            };
            assert_eq!(key, shown, "as people are to type it");
            let ask = Ask { kind: AskKind::Other, tool: what, ..Ask::default() };
            let back = answer(&key, &ask, &Answer::deny(""));
            assert_eq!(
                (&back["id"], &back["error"]["code"]),
                (&id, &json!(NO_SUCH_METHOD)),
                "{back}"
            );
        }
    }
}
