//! The texts that an agent receives: the addition to its system prompt, the prompt of a dispatch,
//! and the two prompts that Muleteer writes itself (repair, continue). The functions only assemble
//! text, so a snapshot shows exactly what is sent.

use crate::agent::ask::{Answer, Ask, Verdict};
use crate::agent::transcript::Standing;
use crate::config::{Span, Verbosity};
use crate::event::Limits;
use std::borrow::Cow;
use std::fmt::Write;

/// The way in which the result of a dispatch is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultForm {
    /// No result is requested.
    None,
    /// The CLI makes the agent return a result that fits the schema.
    Enforced,
    /// The agent is told to end with a JSON document.
    InText,
}

/// The facts about itself and its environment that an agent is told.
#[derive(Debug, Clone, Copy)]
pub struct Briefing<'a> {
    pub role: &'a str,
    /// The role file's body.
    pub body: &'a str,
    pub limits: &'a Limits,
    /// Its permissions and its place: [`Created::access`](crate::event::Created::access).
    pub access: &'a str,
    /// After how many seconds its requests are denied, if nobody watches it.
    pub unattended_s: Option<u64>,
    pub verbosity: Verbosity,
    /// The path of its journal.
    pub journal: &'a str,
    /// The private clone it works in; `None` if that is the person's own directory.
    pub worktree: Option<&'a str>,
    pub result: ResultForm,
}

/// Returns the addition to the CLI's own system prompt: the role, then the terms of work.
pub fn system_append(briefing: &Briefing<'_>) -> String {
    let mut text = briefing.body.trim().to_string();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    let _ = writeln!(text, "## How you work here\n");
    let _ = writeln!(
        text,
        "You are the `{}` agent of a dispatch supervised by Muleteer. No person watches your \
         screen: people read your journal and your result.\n",
        briefing.role
    );
    if let Some(worktree) = briefing.worktree {
        let _ = writeln!(
            text,
            "Your working directory `{worktree}` is a private clone. Commit what you want to keep: \
             commits are fetched from it when you finish, uncommitted changes are not.\n"
        );
    }
    text.push_str(&limits(briefing));
    text.push_str(&journal(briefing));
    text.push_str(match briefing.result {
        ResultForm::None => "",
        ResultForm::Enforced => ENFORCED,
        ResultForm::InText => IN_TEXT,
    });
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn limits(briefing: &Briefing<'_>) -> String {
    let limits = briefing.limits;
    let mut text = String::from("### Limits\n\n");
    let _ = writeln!(text, "- Access: you {}.", briefing.access);
    if let Some(seconds) = briefing.unattended_s {
        let _ = writeln!(
            text,
            "- Requests: nobody watches you. A request for permission is denied after {}, a \
             question at once.",
            Span::from_secs(seconds)
        );
    }
    let silence = Span::from_secs(limits.inactivity_timeout_s);
    let _ = writeln!(
        text,
        "- Inactivity: {silence} without any output or tool call counts as a stall. Write into the \
         journal before an action that may take longer."
    );
    if let Some(budget) = limits.budget_usd {
        let _ = writeln!(text, "- Budget: ${budget:.2} for the whole dispatch.");
    }
    if let Some(turns) = limits.max_turns {
        let _ = writeln!(text, "- Turns: at most {turns}.");
    }
    if let Some(timeout) = limits.timeout_s {
        let _ = writeln!(text, "- Time: {} in all.", Span::from_secs(timeout));
    }
    if limits.max_restarts > 0 {
        let times = match limits.max_restarts {
            1 => "once".to_string(),
            most => format!("{most} times"),
        };
        let _ = writeln!(text, "- Restarts: after crashes you are restarted {times} at most.");
    }
    if limits.budget_usd.is_some() || limits.max_turns.is_some() || limits.timeout_s.is_some() {
        text.push_str(
            "\nYou are stopped at a limit without warning, so finish in small, complete steps.\n",
        );
    }
    text.push('\n');
    text
}

fn journal(briefing: &Briefing<'_>) -> String {
    let path = briefing.journal;
    let when = match briefing.verbosity {
        Verbosity::Low => {
            "Append one line when you have finished, have decided something that others must \
             know, or are blocked"
        }
        Verbosity::Normal => {
            "Append one line when you start or finish a step, decide something, or are blocked, \
             and at least every 15 minutes"
        }
        Verbosity::High => {
            "Append one line when you start or finish a step, before each command that may take \
             longer than a minute, when you learn or decide something, or are blocked, and at \
             least every 5 minutes"
        }
    };
    format!(
        "### Journal\n\nYour journal is `{path}` (also in `$MULETEER_JOURNAL`). It exists already; \
         if it has earlier entries, read them first: another agent began this work. \
         {when}:\n\n```\n\
         - HH:MM — [agent] what happened, and why if it is not obvious\n```\n\nAppend only. \
         Muleteer writes the header, the `Status:` line and the `[harness]` lines, and restores \
         them when they are changed. If you die, the next agent has only these lines and your commits.\n\n"
    )
}

const ENFORCED: &str = "### Result\n\n\
    End with the result you are asked for. `success` means everything asked is done and checked; \
    use `partial`, `failed` or `blocked` otherwise, and say in `issues` or `questions` what is \
    missing.\n";

const IN_TEXT: &str = "### Result\n\n\
    Make your final message one JSON object and nothing else:\n\n\
    ```json\n\
    {\n\
    \x20 \"status\": \"success | partial | failed | blocked\",\n\
    \x20 \"summary\": \"what was done, in a few sentences\",\n\
    \x20 \"changes\": [\"path/of/a/changed/file\"],\n\
    \x20 \"issues\": [\"what is wrong or missing\"],\n\
    \x20 \"questions\": [\"what a person must decide\"],\n\
    \x20 \"pr_url\": null\n\
    }\n\
    ```\n\n\
    `status` (one of the four words) and `summary` are required. `success` means everything asked \
    is done and checked.\n";

/// Returns the prompt of a dispatch as the CLI receives it: the task word for word. `system`
/// precedes it if the CLI has no system prompt to append to.
pub fn dispatch(task: &str, system: Option<&str>) -> String {
    match system {
        Some(system) => format!("{}\n\n## Your task\n\n{}\n", system.trim_end(), task.trim_end()),
        None => task.to_string(),
    }
}

/// Returns the text that tells an agent what people answered while its process was gone.
pub fn answers(given: &[(&Ask, &Answer)]) -> String {
    let mut text = String::from(
        "You had asked a person, and your process ended before the answer came. These are the \
         answers:\n",
    );
    for (ask, answer) in given {
        let said = match (answer.verdict, answer.text.as_str()) {
            (Verdict::Allow, "") => "allowed".to_string(),
            (Verdict::Allow, text) => format!("allowed: {text}"),
            (Verdict::Deny, "") => "denied".to_string(),
            (Verdict::Deny, text) => format!("denied: {text}"),
            (Verdict::Text, text) => match ask.option(text) {
                Some(option) => option.name.clone(),
                None => text.to_string(),
            },
        };
        let _ = write!(text, "\n- Question: {}\n  Answer: {said}\n", ask.describe());
    }
    text.push_str(
        "\nContinue from there. If you need the same permission, ask for it again: it gets the \
         same answer at once.",
    );
    text
}

/// Returns a prompt that asks once more for the result and names every fault of the last one.
pub fn repair(faults: &[String]) -> String {
    let mut text = String::from("Your work is fine, but the form of its result is not valid:\n\n");
    for fault in faults.iter().take(20) {
        let _ = writeln!(text, "- {fault}");
    }
    if faults.is_empty() {
        text.push_str("- no JSON object with a `status` was found in your final message\n");
    }
    text.push_str(
        "\nDo no further work. Reply with the corrected result only: one JSON object with `status` \
         (success, partial, failed or blocked), `summary`, `changes`, `issues`, `questions` (lists \
         of texts) and `pr_url` (text or null).\n",
    );
    text
}

/// Returns the prompt for the session that is resumed after a crash; the text depends on where its
/// turn was cut. The last tool call may or may not have taken effect, and only the agent can check.
/// `unsynced`: the machine itself went down, and data that was not yet on its disk is lost.
pub fn go_on(journal: &str, cut_at: Option<Standing>, unsynced: bool) -> String {
    let what = match cut_at {
        Some(Standing::Unanswered) => {
            format!("You had not started to answer. Do the last task; your journal is `{journal}`.")
        }
        Some(Standing::Answered) => {
            "Your answer was complete, but it was lost: do no further work, and give the same \
             final answer again, in the requested form."
                .into()
        }
        _ => format!(
            "Your last tool call may have run fully, partly or not at all: check the files (and \
             `git status`) before you repeat it. Your journal is `{journal}`. Then continue the \
             task."
        ),
    };
    let lost = if unsynced && cut_at != Some(Standing::Answered) {
        " The whole machine restarted: files that were written shortly before may be empty, old or \
         missing, so check the last changes before you build on them."
    } else {
        ""
    };
    format!(
        "The process you ran in ended unexpectedly; this is the same session, resumed.{lost} \
         {what}\n"
    )
}

const MARK: &str = "[muleteer:prompt:";

/// Returns the prompt in a form that a CLI with slash commands passes to its model.
///
/// Such a CLI runs a prompt that begins with a slash as a command of its own, or rejects it, and no
/// model sees it: "/login returns 500" would end as a success. Some CLIs trim white space first. So
/// a line of text is put in front, and the prompt itself stays unchanged.
pub fn literal(prompt: &str) -> Cow<'_, str> {
    let first = prompt.chars().find(|c| !c.is_whitespace() && !c.is_control() && *c != '\u{feff}');
    match first {
        Some('/') => Cow::Owned(format!("The prompt is:\n\n{prompt}")),
        _ => Cow::Borrowed(prompt),
    }
}

/// Adds the line by which a prompt is found again in a CLI's transcript, for CLIs that have no
/// message id of their own (docs/design/dispatch-lifecycle.md).
pub fn mark(prompt: &str, key: &str) -> String {
    format!("{}\n\n{MARK}{key}]\n", prompt.trim_end())
}

/// Returns the key of a text whose last line is a [`mark`].
pub fn marked(text: &str) -> Option<&str> {
    text.trim_end().lines().next_back()?.strip_prefix(MARK)?.strip_suffix(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_with_a_leading_slash_gets_a_line_before_it() {
        for text in
            ["/login returns 500", " /status", "\n\t/compact", "\u{feff}/x", "\u{a0}/clear", "/"]
        {
            let literal = literal(text);
            assert!(
                literal.ends_with(text) && literal.starts_with("The prompt is:"),
                "{text:?}: {literal:?}"
            );
        }
        for text in ["Fix /login", "", "a\n/login", "./run"] {
            assert_eq!(literal(text), text);
        }
    }

    const LIMITS: Limits = Limits {
        budget_usd: Some(10.0),
        max_turns: Some(100),
        timeout_s: Some(5400),
        inactivity_timeout_s: 300,
        max_restarts: 3,
    };

    fn briefing(limits: &Limits, result: ResultForm) -> Briefing<'_> {
        Briefing {
            role: "developer",
            body: "You write code.\n",
            limits,
            access: "may do everything without asking, in /repo, without a sandbox",
            unattended_s: None,
            verbosity: Verbosity::Normal,
            journal: "/repo/.agents/journals/login/developer.md",
            worktree: Some("/repo/.muleteer/worktrees/abcd2345"),
            result,
        }
    }

    #[test]
    fn coding_prompt_has_the_limits() {
        insta::assert_snapshot!(system_append(&briefing(&LIMITS, ResultForm::InText)));
    }

    #[test]
    fn conversational_prompt_is_shorter() {
        let limits = Limits {
            budget_usd: None,
            max_turns: None,
            timeout_s: None,
            inactivity_timeout_s: 180,
            max_restarts: 3,
        };
        let briefing = Briefing { worktree: None, body: "", ..briefing(&limits, ResultForm::None) };
        insta::assert_snapshot!(system_append(&briefing));
    }

    #[test]
    fn agents_are_told_their_limits_and_when_to_write() {
        let plain = briefing(&LIMITS, ResultForm::None);
        let text = system_append(&Briefing { unattended_s: Some(600), ..plain });
        for told in [
            "you may do everything without asking, in /repo, without a sandbox.",
            "denied after 10m",
            "5m without any output",
            "$10.00",
            "at most 100",
            "1h30m",
            "restarted 3 times at most",
        ] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert!(!system_append(&plain).contains("nobody watches you"));
        for (verbosity, told) in [
            (Verbosity::Low, "when you have finished, have decided"),
            (Verbosity::Normal, "at least every 15 minutes:"),
            (Verbosity::High, "at least every 5 minutes:"),
        ] {
            let text = system_append(&Briefing { verbosity, ..plain });
            assert!(text.contains(told), "{text}");
        }
    }

    #[test]
    fn enforced_result_needs_no_schema_in_the_prompt() {
        let text = system_append(&briefing(&LIMITS, ResultForm::Enforced));
        assert!(text.contains("### Result") && !text.contains("```json"), "{text}");
    }

    #[test]
    fn task_text_is_passed_on_unchanged() {
        assert_eq!(dispatch("  fix it\n", None), "  fix it\n");
        assert_eq!(
            dispatch("fix it\n", Some("You are.\n")),
            "You are.\n\n## Your task\n\nfix it\n"
        );
    }

    #[test]
    fn the_harness_asks_precisely() {
        let faults =
            vec!["`status` is \"done\": expected success, partial, failed or blocked".to_string()];
        insta::assert_snapshot!("repair", repair(&faults));
        let unsynced = go_on("/repo/.agents/journals/login/developer.md", None, true);
        let go_on = |cut_at| go_on("/repo/.agents/journals/login/developer.md", cut_at, false);
        let known: Vec<String> = go_on(None).split(". ").map(String::from).collect();
        assert!(known.iter().all(|sentence| unsynced.contains(sentence.trim())), "{unsynced}");
        insta::assert_snapshot!("go_on_unsynced", unsynced);
        insta::assert_snapshot!("go_on", go_on(Some(Standing::MidTool)));
        assert_eq!(go_on(None), go_on(Some(Standing::MidTool)), "the careful words");
        insta::assert_snapshot!("go_on_unanswered", go_on(Some(Standing::Unanswered)));
        insta::assert_snapshot!("go_on_answered", go_on(Some(Standing::Answered)));
        assert!(repair(&[]).contains("no JSON object"));
    }

    #[test]
    fn prompt_marker_is_found_in_a_transcript() {
        assert_eq!(marked(&mark("do it\n", "p-1")), Some("p-1"));
        assert_eq!(marked("[muleteer:prompt:p-1]\nmore"), None);
        assert_eq!(marked(""), None);
    }
}
