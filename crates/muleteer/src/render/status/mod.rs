//! `status`: the table, the details of one dispatch, and one line about its end.

pub mod where_work_is;

use crate::render::table::{Align, Cell, fit};
use crate::render::terminal;
use crate::render::{BOLD, DIM, RESET, age, clip, count, in_local_time, safe, state_color, usd};
use jiff::Timestamp;
use muleteer_model::spec_run::judge::readable;
use muleteer_protocol::v1::{DispatchStatus, QuestionDoc};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

/// The width of a reason or summary at the end of a line, if no terminal limits it.
const TAIL: usize = 60;
/// The width of the title of a task.
const TITLE: usize = 40;
/// The width to which a narrow terminal shortens the title before it leaves out columns.
const READABLE: usize = 24;
/// The columns that a narrow terminal leaves out, the first one first. The details of a dispatch
/// have them all.
const EXPENDABLE: [&str; 6] = ["STARTS", "LAST SEEN", "TURNS", "TOKENS", "PROJECT", "COST"];

/// Returns the table of `dispatches` within the width of the terminal.
pub fn table(dispatches: &[DispatchStatus], now: Timestamp) -> String {
    table_within(dispatches, now, terminal::width())
}

/// Returns the table of `dispatches` within `width` columns.
pub fn table_within(dispatches: &[DispatchStatus], now: Timestamp, width: Option<usize>) -> String {
    if dispatches.is_empty() {
        return "no dispatches\n".into();
    }
    let heads = [
        ("ID", Align::Left),
        ("STATE", Align::Left),
        ("AGE", Align::Right),
        ("ROLE", Align::Left),
        ("PROJECT", Align::Left),
        ("TURNS", Align::Right),
        ("STARTS", Align::Right),
        ("LAST SEEN", Align::Right),
        ("TOKENS", Align::Right),
        ("COST", Align::Right),
        ("TASK", Align::Main(READABLE)),
        ("", Align::Left),
    ];
    let tail = width.unwrap_or_default().max(TAIL);
    let rows: Vec<_> = dispatches.iter().map(|dispatch| row(dispatch, now, tail)).collect();
    fit(&heads, &rows, width, &EXPENDABLE)
}

/// Returns whether an agent works on the dispatch, or will.
pub fn is_under_way(state: &str) -> bool {
    matches!(state, "queued" | "starting" | "running" | "waiting")
}

/// Sorts for a screen that shows the top: those with an agent, those in the queue, then those that
/// have ended, the newest first.
pub fn running_first(dispatches: &mut [DispatchStatus]) {
    dispatches.sort_by_key(|dispatch| match dispatch.state.as_str() {
        "running" | "waiting" | "starting" => (0, Reverse(Timestamp::MIN)),
        "queued" => (1, Reverse(Timestamp::MIN)),
        _ => (2, Reverse(dispatch.since.parse::<Timestamp>().unwrap_or_default())),
    });
}

/// Returns the table of all active dispatches and the `most` that ended last. It also says how many
/// more ended earlier.
pub fn newest(dispatches: &[DispatchStatus], archived: u64, most: usize, now: Timestamp) -> String {
    let ended_at =
        |dispatch: &DispatchStatus| dispatch.since.parse::<Timestamp>().unwrap_or_default();
    let ended =
        dispatches.iter().enumerate().filter(|(_, dispatch)| !is_under_way(&dispatch.state));
    let mut ended: Vec<_> = ended.map(|(at, dispatch)| (ended_at(dispatch), at)).collect();
    ended.sort_unstable();
    let before = ended.len().saturating_sub(most);
    let hidden: HashSet<usize> = ended[..before].iter().map(|(_, at)| *at).collect();
    let shown = dispatches.iter().enumerate().filter(|(at, _)| !hidden.contains(at));
    let shown: Vec<_> = shown.map(|(_, dispatch)| dispatch.clone()).collect();
    let mut text = table(&shown, now);
    let before = u64::try_from(before).unwrap_or(u64::MAX).saturating_add(archived);
    if before > 0 {
        let _ = writeln!(text, "{DIM}{before} more that ended earlier: --all shows them{RESET}");
    }
    text
}

/// Returns a line for each open question of a run, with the command that answers it.
pub fn run_questions(questions: &[QuestionDoc]) -> String {
    let mut text = String::new();
    for question in questions {
        let first = question.text.trim().lines().next().unwrap_or_default();
        let options: Vec<_> = question.options.iter().map(|one| one.id.as_str()).collect();
        let _ = writeln!(
            text,
            "{BOLD}{}{RESET} asks: {}\n  muleteer answer {} {}",
            clip(&question.asked_by, 60),
            clip(first, 120),
            clip(&question.id, 40),
            clip(&options.join("|"), 80),
        );
    }
    text
}

fn row(dispatch: &DispatchStatus, now: Timestamp, tail: usize) -> Vec<Cell> {
    let tokens = &dispatch.tokens;
    let all = [tokens.input, tokens.output, tokens.cache_read, tokens.cache_write];
    let total = all.into_iter().fold(0, u64::saturating_add);
    vec![
        Cell::colored(dispatch.id.as_str(), BOLD),
        Cell::colored(dispatch.state.as_str(), state_color(&dispatch.state)),
        age(Some(&dispatch.since), now).into(),
        clip(&dispatch.role, 20).into(),
        clip(&place(dispatch), 20).into(),
        dispatch.turns.to_string().into(),
        dispatch.attempts.to_string().into(),
        age(dispatch.last_activity.as_deref(), now).into(),
        if total == 0 { "-".into() } else { count(total).into() },
        usd(dispatch.cost_usd).into(),
        clip(dispatch.title.as_deref().unwrap_or_default(), TITLE).into(),
        Cell::colored(why(dispatch, tail), DIM),
    ]
}

/// Returns the directory's own name; the details show the whole path.
fn place(dispatch: &DispatchStatus) -> String {
    let name = Path::new(&dispatch.project).file_name();
    name.map_or_else(|| dispatch.project.clone(), |name| name.to_string_lossy().into_owned())
}

fn why(dispatch: &DispatchStatus, tail: usize) -> String {
    let summary = || dispatch.result.as_ref().map(|result| result.summary.as_str());
    let text = dispatch.reason.as_deref().filter(|reason| !reason.is_empty()).or_else(summary);
    let text = plain(text.unwrap_or_default());
    clip(&in_local_time(text.lines().next().unwrap_or_default()), tail)
}

/// Returns the text, or a verdict's document as text.
fn plain(text: &str) -> Cow<'_, str> {
    readable(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Describes how a dispatch ended: `k3f9abcd: success, 3 turns, $0.42: Fixed the test`.
pub fn ending(dispatch: &DispatchStatus) -> String {
    let color = state_color(&dispatch.state);
    let mut line = format!("{}: {color}{}{RESET}", dispatch.id, dispatch.state);
    if dispatch.turns > 0 {
        let _ =
            write!(line, ", {} turn{}", dispatch.turns, if dispatch.turns == 1 { "" } else { "s" });
    }
    if dispatch.cost_usd > 0.0 {
        let _ = write!(line, ", {}", usd(dispatch.cost_usd));
    }
    let summary = dispatch
        .result
        .as_ref()
        .map(|result| result.summary.as_str())
        .filter(|text| !text.is_empty());
    if let Some(text) = summary.or(dispatch.reason.as_deref()) {
        let text = plain(text);
        let text = in_local_time(text.lines().next().unwrap_or_default());
        let _ = write!(line, ": {}", clip(&text, 200));
    }
    line.push_str(&where_work_is::lines(dispatch));
    line
}

/// Returns the details of one dispatch, with what terminates its agent together with the shim.
pub fn verbose_detail(dispatch: &DispatchStatus, now: Timestamp) -> String {
    let mut text = detail(dispatch, now);
    if let Some(containment) = &dispatch.containment {
        let _ = writeln!(text, "{DIM}{:<14}{RESET}{}", "containment", safe(containment));
    }
    text
}

/// Returns the details of one dispatch.
pub fn detail(dispatch: &DispatchStatus, now: Timestamp) -> String {
    let mut text = String::new();
    let mut put = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{DIM}{name:<14}{RESET}{value}");
        }
    };
    let color = state_color(&dispatch.state);
    let opt = |value: &Option<String>| value.as_deref().map(safe).unwrap_or_default();
    put("id", format!("{BOLD}{}{RESET}", dispatch.id));
    put(
        "state",
        format!("{color}{}{RESET} for {}", dispatch.state, age(Some(&dispatch.since), now)),
    );
    put("reason", in_local_time(&opt(&dispatch.reason)));
    put("title", opt(&dispatch.title));
    put("role", safe(&dispatch.role));
    put("project", safe(&dispatch.project));
    put("feature", safe(&dispatch.feature));
    put("spec", opt(&dispatch.spec));
    put("backend", safe(&dispatch.backend));
    let source = dispatch
        .model_source
        .as_deref()
        .map(|source| format!(" (from {source})"))
        .unwrap_or_default();
    put(
        "model",
        dispatch
            .model
            .as_ref()
            .map(|model| format!("{}{source}", safe(model)))
            .unwrap_or_default(),
    );
    put("session", opt(&dispatch.session_id));
    put("turns", dispatch.turns.to_string());
    put("starts", dispatch.attempts.to_string());
    if dispatch.last_activity.is_some() {
        put("last activity", format!("{} ago", age(dispatch.last_activity.as_deref(), now)));
    }
    put("cost", if dispatch.cost_usd > 0.0 { usd(dispatch.cost_usd) } else { String::new() });
    let tokens = &dispatch.tokens;
    let cached = format!(
        "{} read and {} written in cache",
        count(tokens.cache_read),
        count(tokens.cache_write)
    );
    put("tokens", format!("{} in, {} out, {cached}", count(tokens.input), count(tokens.output)));
    put("worktree", opt(&dispatch.worktree));
    put("work", dispatch.work.as_ref().map(|work| safe(&work.summary)).unwrap_or_default());
    put("access", opt(&dispatch.access));
    put("journal", opt(&dispatch.journal));
    put("pid", dispatch.pid.map(|pid| pid.to_string()).unwrap_or_default());
    if let Some(result) = &dispatch.result {
        put("result", format!("{}{}{RESET}", state_color(&result.status), result.status));
        let indented = safe(&plain(&result.summary)).trim_end().replace('\n', "\n              ");
        put("summary", indented);
        for (name, list) in [
            ("changes", &result.changes),
            ("issues", &result.issues),
            ("questions", &result.questions),
        ] {
            for (at, item) in list.iter().enumerate() {
                put(if at == 0 { name } else { "" }, format!("- {}", clip(item, 200)));
            }
        }
        put("pull request", opt(&result.pr_url));
    }
    // A title that is the whole task is not repeated.
    let task = dispatch.task.as_deref().filter(|task| Some(*task) != dispatch.title.as_deref());
    put("task", task.map(|task| safe(task).replace('\n', "\n              ")).unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch(id: &str, state: &str, since: &str) -> DispatchStatus {
        DispatchStatus {
            id: id.into(),
            state: state.into(),
            since: since.into(),
            ..DispatchStatus::default()
        }
    }

    #[test]
    fn table_has_active_and_newest_ended_dispatches() {
        let all = [
            dispatch("old", "success", "2026-01-01T10:00:00Z"),
            dispatch("late", "failed", "2026-01-01T12:00:00.25Z"),
            dispatch("lives", "running", "2026-01-01T09:00:00Z"),
            dispatch("waits", "queued", "2026-01-01T09:00:00Z"),
            dispatch("later", "stalled", "2026-01-01T12:00:00.3Z"),
            dispatch("first", "killed", "2026-01-01T12:00:00.25Z"),
        ];
        let shown = |most: usize| -> Vec<String> {
            let text = newest(&all, 0, most, Timestamp::UNIX_EPOCH)
                .replace(BOLD, "")
                .replace(DIM, "")
                .replace(RESET, "");
            text.lines()
                .skip(1)
                .filter_map(|line| line.split(' ').next())
                .map(String::from)
                .collect()
        };
        assert_eq!(shown(4), ["old", "late", "lives", "waits", "later", "first"]);
        assert_eq!(shown(3), ["late", "lives", "waits", "later", "first", "1"]);
        assert_eq!(shown(2), ["lives", "waits", "later", "first", "2"]);
        assert_eq!(shown(0), ["lives", "waits", "4"]);
        let told = newest(&all, 2, 1, Timestamp::UNIX_EPOCH);
        assert!(told.contains("5 more that ended earlier: --all shows them"), "{told}");
    }

    #[test]
    fn running_agents_come_first_and_the_newest_end_before_older_ones() {
        let mut all = [
            dispatch("old", "success", "2026-01-01T10:00:00Z"),
            dispatch("late", "failed", "2026-01-01T12:00:00.25Z"),
            dispatch("waits", "queued", "2026-01-01T09:00:00Z"),
            dispatch("lives", "running", "2026-01-01T09:00:00Z"),
            dispatch("asks", "waiting", "2026-01-01T08:00:00Z"),
        ];
        running_first(&mut all);
        let ids: Vec<_> = all.iter().map(|dispatch| dispatch.id.as_str()).collect();
        assert_eq!(ids, ["lives", "asks", "waits", "late", "old"]);
    }

    #[test]
    fn containment_is_shown_only_with_verbose() {
        let one = DispatchStatus {
            containment: Some("cgroup+sweep".into()),
            ..dispatch("one", "running", "2026-01-01T10:00:00Z")
        };
        let now = Timestamp::UNIX_EPOCH;
        assert!(!detail(&one, now).contains("cgroup+sweep"));
        assert!(verbose_detail(&one, now).contains("cgroup+sweep"));
    }
}
