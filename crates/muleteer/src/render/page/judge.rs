//! The section with the judge's findings.

use crate::render::page::{Clock, PROSE, Setting, TITLE, cut};
use maud::{Markup, html};
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::Verdict;
use muleteer_model::spec_run::judge::JudgeResult;
use muleteer_model::spec_run::report::history::{Chronicle, Judgement};

/// The number of judgements that are shown, the last ones. The parser of a judgement bounds its
/// findings.
const WORDS: usize = 50;

pub fn section(chronicle: &Chronicle, clock: Clock<'_>, setting: &Setting) -> Markup {
    let run = &chronicle.run;
    let skipped = chronicle.judgements.len().saturating_sub(WORDS);
    // The criteria stay secret while the run is open: a coding agent must not learn them, and could
    // read this page.
    let secret = run.outcome().is_none();
    html! {
        section #judge aria-labelledby="judge-title" {
            h2 #judge-title { "Findings of the judge" }
            @if !run.settings.judge {
                p.empty { "The judge is switched off." }
            } @else if chronicle.judgements.is_empty() {
                p.empty { "The judge has not reported yet." }
            }
            @if skipped > 0 {
                p.dim { "The " (WORDS) " last of " (chronicle.judgements.len()) "." }
            }
            @for word in chronicle.judgements.iter().skip(skipped) {
                (verdict(run, word, clock, secret))
            }
            @if !chronicle.judgements.is_empty() {
                @if let Some(path) = &setting.judge_results {
                    p.dim { "Its full text is in " code { (cut(path, PROSE)) } "." }
                }
            }
        }
    }
}

fn verdict(run: &Run, word: &Judgement, clock: Clock<'_>, secret: bool) -> Markup {
    let end = &word.end;
    let class = match end.verdict {
        Verdict::Pass => "completed",
        Verdict::Fail => "failed",
        _ => "partial",
    };
    html! {
        article.verdict {
            h3 {
                "Iteration " (end.iteration) ": "
                span class={ "badge " (class) } { (end.verdict.as_str()) }
                " " small { (clock.short(word.at)) }
            }
            @if !end.reason.is_empty() { p { (cut(&end.reason, PROSE)) } }
            @if let Some(result) = &end.result { (findings(run, result, secret)) }
            @if end.new_beads > 0 {
                p {
                    (end.new_beads)
                    @if end.new_beads == 1 { " bead" } @else { " beads" }
                    " made of it."
                }
            }
        }
    }
}

fn findings(run: &Run, result: &JudgeResult, secret: bool) -> Markup {
    let accepted = result.criteria().iter().filter(|one| one.passed).count();
    html! {
        @if !result.issues().is_empty() {
            h4 { "Drift from the spec" }
            ul.findings {
                @for issue in result.issues() {
                    li {
                        span class={ "severity " (severity(&issue.severity)) } {
                            (cut(&issue.severity, 20))
                        }
                        " " strong { (cut(&issue.section, TITLE)) }
                        " " (cut(&issue.description, PROSE))
                    }
                }
            }
        }
        @if !result.criteria().is_empty() {
            h4 { "Acceptance: " (accepted) " of " (result.criteria().len()) }
            @if secret {
                p.dim {
                    "The criteria are omitted until the run has ended, because its agents must not \
                     read them."
                }
            } @else {
                ul.findings {
                    @for one in result.criteria() {
                        li {
                            span class=(if one.passed { "passed" } else { "missed" }) {
                                @if one.passed { "✓ passed" } @else { "✗ missed" }
                            }
                            " " (cut(&one.criterion, PROSE))
                            @if !one.evidence.is_empty() {
                                span.evidence { (cut(&one.evidence, PROSE)) }
                            }
                        }
                    }
                }
            }
        }
        @if !result.observations.is_empty() {
            h4 { "Observations of the agents" }
            ul.findings {
                @for one in &result.observations {
                    li {
                        code { (cut(&one.bead_id, 80)) } " "
                        @if let Some(title) = run.title_of(&one.bead_id) { (cut(title, TITLE)) " " }
                        strong { (cut(&one.action, 20)) } " " (cut(&one.reason, PROSE))
                    }
                }
            }
        }
        @if !result.new_beads.is_empty() {
            h4 { "New beads" }
            ul.findings {
                @for bead in &result.new_beads {
                    li {
                        strong { (cut(&bead.title, TITLE)) }
                        @if !secret { " " (cut(&bead.description, PROSE)) }
                    }
                }
            }
        }
    }
}

/// Returns the CSS class for the judge's name of a severity.
fn severity(word: &str) -> &'static str {
    match word.to_ascii_lowercase().as_str() {
        "critical" | "blocker" | "high" | "major" => "high",
        "low" | "minor" | "trivial" => "low",
        _ => "medium",
    }
}
