//! Reads a scenario and checks the rules that its types cannot express.

use crate::scenario::{Ask, Crash, Scenario, ScenarioFault, Step, VERSION};
use serde::Deserialize;
use serde_saphyr::Spanned;

/// Signals a scenario may crash with.
const SIGNALS: [&str; 5] = ["KILL", "SEGV", "ABRT", "TERM", "INT"];

/// A scenario's file, parsed a second time for the positions of its steps.
#[derive(Deserialize)]
struct Places {
    turns: Vec<TurnPlaces>,
    #[serde(default)]
    otherwise: Vec<Spanned<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct TurnPlaces {
    steps: Vec<Spanned<serde::de::IgnoredAny>>,
}

pub(super) fn parse(text: &str, file: &str) -> Result<Scenario, ScenarioFault> {
    let at = |line: u64, column: u64, message: String, hint: Option<String>| {
        let snippet = line.checked_sub(1).and_then(|n| text.lines().nth(usize::try_from(n).ok()?));
        // A very long line would hide the message. The position is reported anyway.
        let snippet = snippet.filter(|snippet| snippet.len() <= 200).map(str::to_string);
        ScenarioFault { file: file.to_string(), line, column, message, hint, snippet }
    };
    let yaml = muleteer_model::config::with_file_lines(text);
    let scenario: Scenario = serde_saphyr::from_str(&yaml).map_err(|error| {
        let (line, column) =
            error.location().map_or((0, 0), |place| (place.line(), place.column()));
        let (message, hint) = explain(error.without_snippet());
        at(line, column, message, hint)
    })?;
    if scenario.v != VERSION {
        let message = format!("unknown version {} of the format", scenario.v);
        return Err(at(0, 0, message, Some(format!("this build reads v: {VERSION}"))));
    }
    if scenario.turns.is_empty() {
        return Err(at(
            0,
            0,
            "the scenario has no turns".into(),
            Some("add a turn like `- steps: [...]`".into()),
        ));
    }
    // The file was parsed once, so it can be parsed again. Without positions the faults are still
    // reported.
    let places: Option<Places> = serde_saphyr::from_str(&yaml).ok();
    for (turn, steps) in
        scenario.turns.iter().map(|turn| &turn.steps).chain([&scenario.otherwise]).enumerate()
    {
        let Some((step, message, hint)) = wrong_step(steps) else {
            continue;
        };
        let place = places.as_ref().and_then(|places| {
            let steps = places.turns.get(turn).map_or(&places.otherwise, |turn| &turn.steps);
            Some(steps.get(step)?.referenced)
        });
        let (line, column) = place.map_or((0, 0), |place| (place.line(), place.column()));
        return Err(at(line, column, message, Some(hint)));
    }
    Ok(scenario)
}

/// Returns the first step that is well formed but makes no sense.
fn wrong_step(steps: &[Step]) -> Option<(usize, String, String)> {
    for (at, step) in steps.iter().enumerate() {
        let fault = |message: &str, hint: &str| Some((at, message.to_string(), hint.to_string()));
        match step {
            Step::Result(_) | Step::InvalidResult(_) | Step::Fail(_) | Step::Exit(_)
                if at + 1 < steps.len() =>
            {
                return fault(
                    "the turn ends here, so later steps never run",
                    "make it the last step",
                );
            }
            Step::Crash(Crash { code: Some(_), signal: Some(_), .. }) => {
                return fault("`crash` has both a code and a signal", "keep one of the two");
            }
            Step::Crash(Crash { signal: Some(signal), .. })
                if !SIGNALS.contains(&signal.as_str()) =>
            {
                return fault(
                    &format!("unknown signal {signal:?}"),
                    &format!("use one of {}", SIGNALS.join(", ")),
                );
            }
            Step::Crash(Crash { code: Some(0), .. }) => {
                return fault(
                    "a crash cannot have code 0",
                    "use `exit: 0` to end the agent normally",
                );
            }
            Step::Exit(code) | Step::Crash(Crash { code: Some(code), .. })
                if !(0..=255).contains(code) =>
            {
                return fault(&format!("code {code} is not an exit code"), "use 0 to 255");
            }
            Step::Ask(Ask { permission, question, .. })
                if permission.is_some() == question.is_some() =>
            {
                return fault(
                    "`ask` needs either `permission` or `question`",
                    "ask: {question: Which colour?}",
                );
            }
            _ => {}
        }
    }
    None
}

fn explain(error: &serde_saphyr::Error) -> (String, Option<String>) {
    use serde_saphyr::Error as E;
    match error {
        E::SerdeUnknownField { field, expected, .. } => {
            (format!("unknown key `{field}`"), Some(nearest(field, expected)))
        }
        E::SerdeUnknownVariant { variant, expected, .. } => {
            (format!("unknown word `{variant}`"), Some(nearest(variant, expected)))
        }
        E::SerdeMissingField { field, .. } => (format!("`{field}` is missing"), None),
        E::SerdeInvalidType { unexpected, expected, .. }
        | E::SerdeInvalidValue { unexpected, expected, .. } => {
            (format!("expected {expected}, not {unexpected}"), None)
        }
        E::Message { msg, .. } => (msg.clone(), None),
        E::DuplicateMappingKey { key: Some(key), .. } => (format!("`{key}` appears twice"), None),
        E::Eof { .. } => (
            "the file ends too early".to_string(),
            Some("read the page `rehearsal` of the documentation for the format".to_string()),
        ),
        other => {
            // The position is reported before the message.
            let text = other.to_string();
            let text = text.lines().next().unwrap_or_default();
            (text.split(" at line ").next().unwrap_or(text).to_string(), None)
        }
    }
}

fn nearest(word: &str, expected: &[&'static str]) -> String {
    let near = expected
        .iter()
        .map(|known| (strsim::damerau_levenshtein(word, known), known))
        .filter(|(distance, known)| *distance <= 3.min(known.len() / 2 + 1))
        .min();
    let all = format!("known: {}", expected.join(", "));
    match near {
        Some((_, known)) => format!("did you mean `{known}`? ({all})"),
        None => all,
    }
}
