//! Adds hooks to an agent CLI's settings file, and removes them, as text edits. All other text
//! stays the same byte for byte, and removal leaves no trace of an addition.

use crate::text::bom::unmarked;
use crate::text::foreign_json;
use serde_json::Value;

/// Values nested deeper than hooks can be are skipped.
const DEPTH: usize = 32;

/// Events, their matchers (if they take one), and the hooks.
pub const HOOKS: &[(&str, Option<&str>, &str)] = &[
    ("SessionStart", None, "session-start"),
    ("Stop", None, "stop"),
    ("Stop", None, "self-reflect-stop"),
    ("SubagentStop", None, "subagent-stop"),
    ("TeammateIdle", None, "teammate-idle"),
    ("PostToolUse", Some("*"), "renew"),
];

/// The reason why a file is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    pub line: u64,
    pub column: u64,
    pub message: String,
}

/// Adds each missing hook to the text. `program` is the shell's name for `muleteer`.
///
/// # Errors
/// The file is not a settings file.
pub fn install(text: &str, program: &str) -> Result<String, Refused> {
    let mut text =
        if unmarked(text).trim().is_empty() { "{}\n".to_string() } else { text.to_string() };
    check(&text)?;
    for (event, matcher, hook) in HOOKS {
        if !is_there(&text, event, hook) {
            text = enter(&text, event, &entry(program, *matcher, hook));
        }
    }
    Ok(text)
}

/// Removes Muleteer's hooks from the text.
///
/// # Errors
/// The file is not a settings file.
pub fn uninstall(text: &str) -> Result<String, Refused> {
    if unmarked(text).trim().is_empty() {
        return Ok(text.into());
    }
    check(text)?;
    let mut text = text.to_string();
    while let Some(range) = first_own(&text) {
        text.replace_range(range, "");
    }
    Ok(text)
}

/// Returns Muleteer's hooks in the text.
///
/// # Errors
/// As [`install`].
pub fn installed(text: &str) -> Result<Vec<&'static str>, Refused> {
    check(text)?;
    let there = HOOKS.iter().filter(|(event, _, hook)| is_there(text, event, hook));
    Ok(there.map(|(.., hook)| *hook).collect())
}

fn check(text: &str) -> Result<(), Refused> {
    let refuse = |line, column, message: String| Refused { line, column, message };
    let value = foreign_json::whole(text.as_bytes()).map_err(|damage| {
        let error = serde_json::from_str::<Value>(unmarked(text)).err();
        let place =
            error.as_ref().map_or((1, 1), |error| (error.line() as u64, error.column() as u64));
        let reason = error.map_or_else(|| damage.to_string(), |error| error.to_string());
        refuse(place.0, place.1, format!("it is not JSON: {reason}"))
    })?;
    let Some(object) = value.as_object() else {
        return Err(refuse(1, 1, "write an object".into()));
    };
    let Some(hooks) = object.get("hooks") else { return Ok(()) };
    let at = |path: &[crate::task_list::document::json_position::Step]| {
        crate::task_list::document::json_position::locate(text, path).unwrap_or((1, 1))
    };
    let Some(hooks) = hooks.as_object() else {
        let (line, column) = at(&["hooks".into()]);
        return Err(refuse(line, column, "`hooks` is not an object".into()));
    };
    for (event, ..) in HOOKS {
        if hooks.get(*event).is_some_and(|list| !list.is_array()) {
            let (line, column) = at(&["hooks".into(), (*event).into()]);
            return Err(refuse(line, column, format!("`hooks.{event}` is not a list")));
        }
    }
    Ok(())
}

fn entry(program: &str, matcher: Option<&str>, hook: &str) -> String {
    let command = Value::String(format!("{program} hook {hook}"));
    let matcher =
        matcher.map_or_else(String::new, |matcher| format!("\"matcher\": \"{matcher}\", "));
    format!("{{{matcher}\"hooks\": [{{\"type\": \"command\", \"command\": {command}}}]}}")
}

/// Recognizes an entry of Muleteer's: one command, a program called muleteer, `hook`, a known name.
fn own_hook(entry: &Value) -> Option<&'static str> {
    let commands = entry.get("hooks")?.as_array()?;
    let [only] = commands.as_slice() else { return None };
    let (program, hook) = only.get("command")?.as_str()?.rsplit_once(" hook ")?;
    let program = program.trim_matches(['\'', '"']);
    let is_ours = program == "muleteer" || program.ends_with("/muleteer");
    HOOKS.iter().map(|(.., name)| *name).find(|name| is_ours && *name == hook)
}

fn is_there(text: &str, event: &str, hook: &str) -> bool {
    let value = foreign_json::read(text.as_bytes()).value;
    let entries = value.get("hooks").and_then(|hooks| hooks.get(event)).and_then(Value::as_array);
    entries.into_iter().flatten().any(|entry| own_hook(entry) == Some(hook))
}

/// Adds an entry before the existing ones, and creates the list and object around it if necessary.
fn enter(text: &str, event: &str, entry: &str) -> String {
    let Some(root) = Node::parse(text) else { return text.into() };
    let Some(hooks) = root.get("hooks") else {
        let new = format!("\n  \"hooks\": {{\n    \"{event}\": [\n      {entry}\n    ]\n  }}");
        return insert(text, &root, &new);
    };
    match hooks.get(event) {
        None => insert(text, hooks, &format!("\n    \"{event}\": [\n      {entry}\n    ]")),
        Some(list) => insert(text, list, &format!("\n      {entry}")),
    }
}

/// Inserts `new` at the start of an object or list.
fn insert(text: &str, into: &Node, new: &str) -> String {
    let at = into.start + 1;
    let comma = if into.children.is_empty() { "" } else { "," };
    format!("{}{new}{comma}{}", &text[..at], &text[at..])
}

/// Returns the range to remove for the first of Muleteer's entries, with containers that it leaves
/// empty.
fn first_own(text: &str) -> Option<std::ops::Range<usize>> {
    let root = Node::parse(text)?;
    let (hooks_at, hooks) = root.position("hooks")?;
    for (event_at, list) in hooks.children.iter().enumerate() {
        let own = |node: &&Node| {
            foreign_json::whole(&text.as_bytes()[node.start..node.end])
                .is_ok_and(|value| own_hook(&value).is_some())
        };
        let Some(at) = list.children.iter().position(|node| own(&node)) else { continue };
        // Containers that `enter` created are removed too; those of others stay, even if they are
        // empty.
        let made = |node: &Node, before: &str| {
            node.children.len() == 1 && text[..node.end - 1].ends_with(before)
        };
        if !made(list, "\n    ") {
            return Some(list.cut(text, at));
        }
        if !made(hooks, "\n  ") {
            return Some(hooks.cut(text, event_at));
        }
        return Some(root.cut(text, hooks_at));
    }
    None
}

/// A JSON value with its position in the text.
#[derive(Debug)]
struct Node {
    /// The range of the value.
    start: usize,
    end: usize,
    key: Option<String>,
    children: Vec<Node>,
}

impl Node {
    /// Parses a valid text.
    fn parse(text: &str) -> Option<Self> {
        let mut at = text.len() - unmarked(text).len();
        Self::read(text, &mut at, 0)
    }

    fn read(text: &str, at: &mut usize, depth: usize) -> Option<Self> {
        let bytes = text.as_bytes();
        space(bytes, at);
        let start = *at;
        let mut node = Self { start, end: start, key: None, children: vec![] };
        match bytes.get(*at)? {
            b'{' | b'[' if depth == DEPTH => pass(bytes, at),
            open @ (b'{' | b'[') => {
                let is_object = *open == b'{';
                *at += 1;
                loop {
                    space(bytes, at);
                    match bytes.get(*at)? {
                        b'}' | b']' => break,
                        b',' => *at += 1,
                        _ => node.children.push(Self::member(text, at, is_object, depth + 1)?),
                    }
                }
                *at += 1;
            }
            b'"' => string(bytes, at),
            _ => {
                while bytes
                    .get(*at)
                    .is_some_and(|b| !matches!(b, b',' | b'}' | b']') && !b.is_ascii_whitespace())
                {
                    *at += 1;
                }
            }
        }
        node.end = *at;
        Some(node)
    }

    fn member(text: &str, at: &mut usize, is_object: bool, depth: usize) -> Option<Self> {
        let from = *at;
        let mut key = None;
        if is_object {
            string(text.as_bytes(), at);
            key = foreign_json::typed(&text.as_bytes()[from..*at]).ok();
            space(text.as_bytes(), at);
            *at += 1;
        }
        let node = Self::read(text, at, depth)?;
        Some(Self { key, ..node })
    }

    /// Of several members with one name the last counts, as in every reader of such files.
    fn position(&self, key: &str) -> Option<(usize, &Self)> {
        self.children.iter().enumerate().rfind(|(_, child)| child.key.as_deref() == Some(key))
    }

    fn get(&self, key: &str) -> Option<&Self> {
        self.position(key).map(|(_, child)| child)
    }

    /// Returns the range of a child with its separators: from the preceding bracket or comma to its
    /// own comma. For the last child, the range includes the preceding comma.
    fn cut(&self, text: &str, at: usize) -> std::ops::Range<usize> {
        let before = if at == 0 { self.start + 1 } else { self.children[at - 1].end };
        let end = self.children[at].end;
        // `[` X `,` Y: through the comma, before which there is only white space.
        let comma = if at == 0 && self.children.len() > 1 {
            text[end..].find(',').map(|comma| end + comma + 1)
        } else {
            None
        };
        before..comma.unwrap_or(end)
    }
}

fn space(bytes: &[u8], at: &mut usize) {
    while bytes.get(*at).is_some_and(|byte| byte.is_ascii_whitespace() || *byte == 0) {
        *at += 1;
    }
}

/// Skips a list or object with everything nested in it.
fn pass(bytes: &[u8], at: &mut usize) {
    let mut open = 0_usize;
    while let Some(byte) = bytes.get(*at) {
        match byte {
            b'"' => {
                string(bytes, at);
                continue;
            }
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            _ => {}
        }
        *at += 1;
        if open == 0 {
            return;
        }
    }
}

/// Decodes a settings file. A byte that is not UTF-8 becomes a private-use character, which
/// [`encode`] turns back into the byte. Otherwise such a byte would prevent the installation or
/// would be lost.
pub fn decode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(
            chunk.invalid().iter().filter_map(|byte| char::from_u32(PRIVATE + u32::from(*byte))),
        );
    }
    text
}

/// Encodes a changed text that [`decode`] made from the file `old`.
pub fn encode(text: &str, old: &[u8]) -> Vec<u8> {
    if std::str::from_utf8(old).is_ok() {
        return text.as_bytes().to_vec();
    }
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match u32::from(character).checked_sub(PRIVATE).map(u8::try_from) {
            Some(Ok(byte @ 0x80..)) => bytes.push(byte),
            _ => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// U+10FF80 and the following characters represent the bytes 0x80 to 0xff.
const PRIVATE: u32 = 0x0010_ff00;

fn string(bytes: &[u8], at: &mut usize) {
    *at += 1;
    while let Some(byte) = bytes.get(*at) {
        *at += if *byte == b'\\' { 2 } else { 1 };
        if *byte == b'"' {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[&str] = &[
        "{}",
        "{}\n",
        "{ }",
        "{\"model\":\"opus\"}",
        "{\r\n\t\"model\" : \"opus\",\r\n\t\"x\": [ 1,2 ]\r\n}\r\n",
        "{\n  \"hooks\": {}\n}\n",
        "{\n  \"hooks\": {\n    \"Stop\": []\n  },\n  \"b\": 1\n}\n",
        "{\"hooks\":{\"Stop\":[{\"hooks\":[{\"type\":\"command\",\"command\":\"notify.sh\"}]}],\
         \"PreToolUse\":[]}}",
        "{\n  \"permissions\": {\"allow\": [\"Bash(ls)\"]},\n  \"hooks\": {\
         \n    \"SessionStart\": [\
         \n      {\"matcher\": \"startup\", \"hooks\": [{\"type\": \"command\", \"command\": \
         \"say hook stop\"}]}\n    ]\n  }\n}\n",
        "{\"a\\\"hooks\": {\"hooks\": 1}, \"text\": \"{[,\\\\\\\"\"}",
        "\u{feff}{\"a\":1}\n",
        "{\"a\":\"\\ud83d\",\"b\":1e999,\"hooks\":{\"Stop\":[{\"x\":\"\\ude00\"}]}}",
        "{\"hooks\": \"x\", \"hooks\": {\"Stop\": 1, \"Stop\": []}}",
    ];

    fn read(text: &str) -> Value {
        foreign_json::whole(text.as_bytes()).expect("JSON")
    }

    #[test]
    fn settings_keep_bytes_that_are_not_utf8() {
        let old = b"{\"name\": \"caf\xe9 \xf0\x9f\", \"b\": \"\xc3\xa9\"}\n";
        let with = encode(&install(&decode(old), "muleteer").expect("installs"), old);
        assert!(with.ends_with(&old[1..]) && with.windows(5).any(|bytes| bytes == b"hooks"));
        assert_eq!(encode(&uninstall(&decode(&with)).expect("uninstalls"), &with), old);
    }

    #[test]
    fn deeply_nested_settings_accept_and_release_hooks() {
        let old = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        let with = install(&old, "muleteer").expect("installs");
        assert_eq!(installed(&with).expect("JSON").len(), HOOKS.len());
        assert_eq!(uninstall(&with).expect("uninstalls"), old);
    }

    #[test]
    fn install_and_uninstall_restore_every_byte() {
        for file in FILES {
            let with = install(file, "muleteer").expect("installs");
            assert_eq!(installed(&with).unwrap().len(), HOOKS.len(), "{with}");
            assert_eq!(
                install(&with, "muleteer").expect("again"),
                with,
                "installing again changes nothing"
            );
            assert_eq!(uninstall(&with).expect("uninstalls"), *file);
            assert_eq!(uninstall(file).expect("nothing to do"), *file);
            let before = read(file);
            let after = read(&with);
            for (key, value) in
                before.as_object().expect("an object").iter().filter(|(key, _)| *key != "hooks")
            {
                assert_eq!(after.get(key), Some(value));
            }
        }
    }

    #[test]
    fn uninstall_keeps_entries_of_the_user() {
        let with = install("{\"hooks\": {\"Stop\": []}}", "/opt/x/muleteer").expect("installs");
        let mut value = read(&with);
        let theirs = serde_json::json!({"hooks": [{"type": "command", "command": "theirs"}]});
        value["hooks"]["Stop"].as_array_mut().expect("a list").insert(1, theirs.clone());
        value["hooks"]["SessionStart"].as_array_mut().expect("a list").push(theirs.clone());
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("text")] {
            let left = read(&uninstall(&text).expect("uninstalls"));
            assert_eq!(left["hooks"]["Stop"], serde_json::json!([theirs]));
            assert_eq!(left["hooks"]["SessionStart"], serde_json::json!([theirs]));
        }
    }

    #[test]
    fn missing_settings_are_created_and_invalid_ones_rejected() {
        assert!(serde_json::from_str::<Value>(&install("", "muleteer").expect("installs")).is_ok());
        for (text, line) in [
            ("{\n  // no JSON\n}", 2),
            ("[]", 1),
            ("{\n\"hooks\": 3}", 2),
            ("{\"hooks\":{\n\n\"Stop\": {}}}", 3),
        ] {
            assert_eq!(install(text, "muleteer").expect_err("refused").line, line, "{text}");
        }
    }
}
