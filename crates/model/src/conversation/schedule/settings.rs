//! One entry of `schedules` in the configuration.

use crate::config::key::is_file_name;
use crate::conversation::schedule::pattern;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most schedules of a configuration.
pub const MOST: usize = 1_000;

/// The most bytes of a prompt. It is in the event of each start.
pub const PROMPT_LIMIT: usize = 64 * 1024;

/// A message that Muleteer writes at configured times. Only the user's own file lists schedules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The times: minute, hour, day of the month, month and day of the week (`0 9 * * 1-5`), with
    /// seconds in front if there are six fields.
    pub cron: String,
    /// The time zone of these times, for example `Europe/Berlin`; null is that of the system.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// The role that gets the prompt.
    pub role: String,
    /// The text of the message.
    pub prompt: String,
    /// The directory, or the name of a configured project, of a thread of its own.
    #[serde(default)]
    pub project: Option<String>,
    /// The thread that gets the message: an id, or `ADAPTER:PLACE` with the adapter's id of the
    /// thread. Without it the schedule has a thread of its own.
    #[serde(default)]
    pub thread: Option<String>,
    /// The backend of the agents of its own thread.
    #[serde(default)]
    pub backend: Option<String>,
    /// Whether it is followed.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// The reaction to a due moment if the message of an earlier start has no answer yet.
    #[serde(default)]
    pub on_busy: OnBusy,
}

/// The reaction to a due moment while the message of an earlier start has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnBusy {
    /// Nothing is written this time.
    #[default]
    Skip,
    /// The message waits behind the earlier ones.
    Queue,
}

fn enabled() -> bool {
    true
}

/// An invalid entry: the name of the schedule, the key below it, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub schedule: String,
    /// Empty for the entry itself.
    pub key: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

/// Returns the faults of all entries.
pub fn faults(all: &BTreeMap<String, Schedule>) -> Vec<Fault> {
    let mut faults = vec![];
    if all.len() > MOST {
        let message = format!("there are {} schedules, and {MOST} are the most", all.len());
        let schedule = all.keys().nth(MOST).cloned().unwrap_or_default();
        faults.push(Fault { schedule, key: "", message, hint: Some("remove schedules".into()) });
    }
    for (name, schedule) in all {
        faults.extend(schedule.faults(name));
    }
    faults
}

impl Schedule {
    fn faults(&self, name: &str) -> Vec<Fault> {
        let mut faults = vec![];
        let mut wanted = |ok: bool, key: &'static str, message: &str, hint: Option<&str>| {
            if !ok {
                let (schedule, hint) = (name.to_string(), hint.map(String::from));
                faults.push(Fault { schedule, key, message: message.into(), hint });
            }
        };
        let message = "the name of a schedule has 1 to 64 letters, digits, `-` and `_`";
        wanted(is_file_name(name), "", message, None);
        if let Err(error) = pattern::Pattern::check(&self.cron) {
            let hint = "give minute, hour, day, month and weekday: 0 9 * * 1-5";
            wanted(false, "cron", &error.to_string(), Some(hint));
        }
        let zone = pattern::zone(self.time_zone.as_deref());
        wanted(zone.is_ok(), "time_zone", "expected a time zone like Europe/Berlin, or null", None);
        wanted(!self.role.trim().is_empty(), "role", "expected the name of a role", None);
        wanted(!self.prompt.trim().is_empty(), "prompt", "the prompt is empty", None);
        let message = format!("the prompt is longer than {} KiB", PROMPT_LIMIT >> 10);
        let hint = Some("put the text in a file of the project, and name the file");
        wanted(self.prompt.len() <= PROMPT_LIMIT, "prompt", &message, hint);
        let message = "a schedule needs `project` or `thread`";
        let hint = Some("set `project` to a directory or the name of a project");
        wanted(self.project.is_some() || self.thread.is_some(), "", message, hint);
        let place = self.thread.as_deref().is_none_or(|thread| !thread.trim().is_empty());
        wanted(place, "thread", "expected the id of a thread, or ADAPTER:PLACE", None);
        faults
    }

    /// Returns the adapter and its id of the thread, if `thread` has that form.
    pub fn place(&self) -> Option<(&str, &str)> {
        self.thread.as_deref()?.split_once(':')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, Source, load};

    fn found(text: &str) -> Vec<String> {
        let source = Source::new(Layer::User, "c.yaml", format!("schedules:\n  {text}\n"));
        let errors = load(&[source], &[]).expect_err(text);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_schedules_are_errors_with_their_place() {
        for (text, message) in [
            ("s: {cron: \"0 25 * * *\", role: r, prompt: p, project: /p}", "cron"),
            ("s: {cron: \"0 0 30 2 *\", role: r, prompt: p, project: /p}", "never"),
            ("s: {cron: \"0 9 * * *\", role: r, prompt: p}", "project"),
            ("s: {cron: \"0 9 * * *\", role: r, prompt: \" \", project: /p}", "prompt"),
            (
                "s: {cron: \"0 9 * * *\", time_zone: Mars/X, role: r, prompt: p, project: /p}",
                "time zone",
            ),
            ("\"a/b\": {cron: \"0 9 * * *\", role: r, prompt: p, project: /p}", "name"),
            ("s: {cron: \"0 9 * * *\", role: r, prompt: p, project: /p, on_busy: x}", "on_busy"),
            ("s: {role: r, prompt: p, project: /p}", "cron"),
        ] {
            let errors = found(text);
            assert!(errors.iter().any(|error| error.contains(message)), "{text}: {errors:?}");
        }
    }

    /// People copy the examples.
    #[test]
    fn examples_of_the_page_are_valid() {
        let page = include_str!("../../../../../docs/guides/conversations.md");
        let section = page.split("## Schedules").nth(1).expect("the section");
        let text = section.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
        let source = Source::new(Layer::User, "c.yaml", text.expect("an example"));
        let config = load(&[source], &[]).expect("a valid example");
        assert_eq!(config.schedules.keys().collect::<Vec<_>>(), ["end-of-day", "standup"]);
        for schedule in config.schedules.values() {
            let role = format!("{}/../../roles/{}.md", env!("CARGO_MANIFEST_DIR"), schedule.role);
            assert!(std::path::Path::new(&role).is_file(), "{role}");
        }
    }

    #[test]
    fn at_most_a_thousand_schedules_are_accepted() {
        let schedule = Schedule {
            cron: "0 9 * * *".into(),
            time_zone: None,
            role: "r".into(),
            prompt: "p".into(),
            project: Some("/p".into()),
            thread: None,
            backend: None,
            enabled: true,
            on_busy: OnBusy::Skip,
        };
        let all = |number: usize| {
            (0..number).map(|at| (format!("s{at}"), schedule.clone())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(faults(&all(MOST)), []);
        assert_eq!(faults(&all(MOST + 1)).len(), 1);
    }
}
