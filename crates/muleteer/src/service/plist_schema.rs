//! The keys of `launchd.plist(5)` that we may use, and the type of each value. launchd silently
//! ignores unknown keys, so without this check nobody would notice a misspelt key.

use plist::{Dictionary, Value};

/// Returns a description of each fault.
pub fn faults(text: &str) -> Vec<String> {
    let value = match Value::from_reader_xml(text.as_bytes()) {
        Ok(value) => value,
        Err(error) => return vec![format!("no property list: {error}")],
    };
    let Some(top) = value.as_dictionary() else { return vec!["no dictionary".into()] };
    let mut faults: Vec<_> = top.iter().filter_map(|(key, value)| fault(key, value)).collect();
    for wanted in ["Label", "ProgramArguments"] {
        if !top.contains_key(wanted) {
            faults.push(format!("no {wanted}"));
        }
    }
    faults
}

fn fault(key: &str, value: &Value) -> Option<String> {
    let is_string = |value: &Value| value.as_string().is_some_and(|text| !text.is_empty());
    let is_path = |value: &Value| value.as_string().is_some_and(|text| text.starts_with('/'));
    let all = |value: &Value, is: &dyn Fn(&Value) -> bool| {
        value.as_dictionary().is_some_and(|all| all.values().all(is))
    };
    let good = match key {
        "Label" | "UserName" => is_string(value),
        "StandardOutPath" | "StandardErrorPath" => is_path(value),
        "ProgramArguments" => value
            .as_array()
            .is_some_and(|words| words.iter().all(is_string) && words.first().is_some_and(is_path)),
        "EnvironmentVariables" => all(value, &is_string),
        "RunAtLoad" | "AbandonProcessGroup" => value.as_boolean().is_some(),
        "KeepAlive" => {
            value.as_boolean().is_some() || value.as_dictionary().is_some_and(keep_alive)
        }
        "ThrottleInterval" | "ExitTimeOut" => value.as_unsigned_integer().is_some(),
        "ProcessType" => value.as_string().is_some_and(|word| {
            ["Background", "Standard", "Adaptive", "Interactive"].contains(&word)
        }),
        "SoftResourceLimits" | "HardResourceLimits" => value.as_dictionary().is_some_and(limits),
        _ => return Some(format!("{key} is not a known key of launchd")),
    };
    (!good).then(|| format!("{key} holds {value:?}"))
}

fn keep_alive(conditions: &Dictionary) -> bool {
    conditions.iter().all(|(key, value)| {
        ["SuccessfulExit", "Crashed"].contains(&key.as_str()) && value.as_boolean().is_some()
    })
}

fn limits(limits: &Dictionary) -> bool {
    let known = ["NumberOfFiles", "NumberOfProcesses", "Core", "Stack"];
    limits
        .iter()
        .all(|(key, value)| known.contains(&key.as_str()) && value.as_unsigned_integer().is_some())
}
