//! Checkpoints and errors of tasks as other harnesses write them.
//!
//! They are notes for the next worker, and no decision depends on their fields. So a list is read
//! whatever shape they have, and items that are not changed are written back as they were.

use crate::task_list::document::equivalence::whole;
use crate::task_list::document::reader::short;
use crate::task_list::document::{Checkpoint, put};
use serde_json::{Map, Value, json};

/// The names of a checkpoint's text, the first of which is Muleteer's.
const TEXTS: [&str; 6] = ["description", "message", "text", "note", "summary", "name"];
/// The names of a checkpoint's time, the first of which is Muleteer's.
const TIMES: [&str; 5] = ["timestamp", "ts", "time", "at", "created_at"];

/// Reads the checkpoints of a task.
pub(super) fn checkpoints(value: Option<&Value>) -> Vec<Checkpoint> {
    items(value).iter().map(checkpoint).collect()
}

/// Reads a list of texts. An item of another type is read as its JSON.
pub(super) fn texts(value: Option<&Value>) -> Vec<String> {
    items(value).iter().map(text).collect()
}

/// Sets the checkpoints of a task. One that is there already keeps its shape.
pub(super) fn put_checkpoints(raw: &mut Map<String, Value>, checkpoints: &[Checkpoint]) {
    put_items(raw, "checkpoints", checkpoints, checkpoint, |new| {
        let mut value = json!({
            "step": new.step, "total": new.total, "description": new.description,
            "timestamp": new.timestamp,
        });
        if let Some(tree) = &new.tree {
            value["tree"] = json!(tree);
        }
        value
    });
}

/// Sets a list of texts. An item that is there already keeps its shape.
pub(super) fn put_texts(raw: &mut Map<String, Value>, key: &str, texts: &[String]) {
    put_items(raw, key, texts, text, |new| json!(new));
}

fn put_items<T: PartialEq>(
    raw: &mut Map<String, Value>,
    key: &str,
    wanted: &[T],
    read: impl Fn(&Value) -> T,
    write: impl Fn(&T) -> Value,
) {
    let there = items(raw.get(key));
    let is_same = |at: usize, item: &T| there.get(at).is_some_and(|old| read(old) == *item);
    if there.len() == wanted.len() && wanted.iter().enumerate().all(|(at, item)| is_same(at, item))
    {
        // A foreign value that is no list stays as it is.
        return;
    }
    let merged = wanted
        .iter()
        .enumerate()
        .map(|(at, item)| if is_same(at, item) { there[at].clone() } else { write(item) });
    let merged = Value::Array(merged.collect());
    put(raw, key, merged, Some(&json!([])));
}

/// Returns the items of a list. Any other value is the only item.
fn items(value: Option<&Value>) -> &[Value] {
    match value {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) => items,
        Some(one) => std::slice::from_ref(one),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| short(value), String::from)
}

fn checkpoint(item: &Value) -> Checkpoint {
    let field =
        |names: &[&str]| names.iter().find_map(|name| item.get(*name)?.as_str()).map(String::from);
    let number = |name: &str| {
        let value = item.get(name)?;
        whole(value).or_else(|| value.as_str()?.trim().parse().ok())
    };
    Checkpoint {
        step: number("step").unwrap_or(0),
        total: number("total").unwrap_or(0),
        // Muleteer's own checkpoints may have no text.
        description: field(&TEXTS).unwrap_or_else(|| match item {
            Value::Object(item) if item.contains_key("step") => String::new(),
            other => text(other),
        }),
        timestamp: field(&TIMES).unwrap_or_default(),
        tree: field(&["tree"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_list::document::TaskList;

    fn list(fields: &str) -> String {
        format!(
            r#"{{"version":2,"tasks":[{{"id":"a","title":"A","status":"completed",{fields}}}]}}"#
        )
    }

    #[test]
    fn checkpoints_and_errors_of_any_shape_are_read_and_written_back_unchanged() {
        for (fields, count) in [
            (r#""checkpoints":[{"ts":"2026-03-22T15:06:05Z","message":"task claimed"}]"#, 1),
            (r#""checkpoints":["half done",{"step":"1/2"},3,null,[]]"#, 5),
            (r#""checkpoints":[{"step":"2","total":"4","description":7}]"#, 1),
            (r#""checkpoints":[{"step":1,"total":2,"description":"d","timestamp":9}]"#, 1),
            (r#""checkpoints":{"1":"claimed"}"#, 1),
            (r#""checkpoints":"claimed""#, 1),
            (r#""checkpoints":null"#, 0),
            (r#""error_log":[{"ts":"2026-03-22T15:06:05Z","error":"E"},"[TASK_EXEC] no"]"#, 0),
            (r#""error_log":"it failed""#, 0),
        ] {
            let text = list(fields);
            let read = TaskList::parse(&text).expect(fields);
            assert_eq!(read.tasks[0].checkpoints.len(), count, "{fields}");
            let before: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(read.to_value()["tasks"], before["tasks"], "{fields}");
        }
    }

    #[test]
    fn foreign_checkpoints_are_shown_and_keep_their_shape_when_one_is_added() {
        let foreign = r#"{"ts":"t","message":"task claimed"}"#;
        let mut read =
            TaskList::parse(&list(&format!(r#""checkpoints":[{foreign}]"#))).expect("a list");
        let task = &mut read.tasks[0];
        assert_eq!(
            (task.checkpoints[0].description.as_str(), task.checkpoints[0].timestamp.as_str()),
            ("task claimed", "t")
        );
        task.checkpoints.push(Checkpoint {
            step: 1,
            total: 2,
            description: "d".into(),
            timestamp: "u".into(),
            tree: None,
        });
        let written = task.to_value();
        assert_eq!(written["checkpoints"][0].to_string(), foreign);
        assert_eq!(written["checkpoints"][1]["step"], 1);
        task.checkpoints.remove(0);
        assert_eq!(task.to_value()["checkpoints"].as_array().map(Vec::len), Some(1));
    }
}
