//! The run in numbers: the totals of each phase and bead, the problems, and every agent.

use crate::render::page::{Clock, PROSE, TITLE, cut, exact, stage_words};
use crate::render::usd;
use maud::{Markup, html};
use muleteer_model::event::Outcome;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::report::history::{Chronicle, Stint, Tally, TroubleKind};
use std::collections::HashMap;
use std::time::Duration;

/// The number of rows that are shown; further rows are only counted.
const ROWS: usize = 5000;
const TROUBLES: usize = 300;
/// A table with at most this many rows is open from the start.
const SHORT: usize = 40;

/// Returns the name of an agent's purpose, for people.
pub fn part(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Review => "spec review",
        Purpose::Acceptance => "acceptance criteria",
        Purpose::Decompose => "decompose",
        Purpose::Implement => "implement",
        Purpose::Maintain => "maintain",
        Purpose::Judge => "judge: reason",
        Purpose::Structure => "judge: verdict",
        Purpose::Unknown => "unknown",
    }
}

/// The width of a title beside an id.
const SHORT_TITLE: usize = 40;

/// The anchors of beads on the page. They use the bead's number, because an id may contain
/// anything.
#[derive(Debug)]
pub struct Anchors<'a>(HashMap<&'a str, usize>);

impl<'a> Anchors<'a> {
    pub fn of(run: &'a Run) -> Self {
        Self(run.order.iter().map(String::as_str).take(ROWS).zip(1..).collect())
    }

    pub fn name(&self, id: &str) -> Option<String> {
        self.0.get(id).map(|number| format!("bead-{number}"))
    }

    /// Returns a link to the bead's row, or the plain content if the bead has no row.
    pub fn link(&self, id: &str, inner: &Markup) -> Markup {
        html! {
            @if let Some(name) = self.name(id) {
                a href={ "#" (name) } { (inner) }
            } @else {
                (inner)
            }
        }
    }

    fn code(&self, id: &str) -> Markup {
        self.link(id, &html! { code { (cut(id, 80)) } })
    }

    /// Returns the id with a link, and the title of the bead.
    fn bead(&self, run: &Run, id: &str) -> Markup {
        html! {
            (self.code(id))
            @if let Some(title) = run.title_of(id) { " " (cut(title, SHORT_TITLE)) }
        }
    }
}

/// Returns how an agent ended, in words.
pub fn outcome(stint: &Stint) -> &'static str {
    match stint.end.as_ref().map(|end| end.status) {
        None => "running",
        Some(Outcome::Success) => "success",
        Some(Outcome::Failure) => "failure",
        Some(Outcome::Timeout) => "timeout",
    }
}

pub fn is_retry(kind: TroubleKind) -> bool {
    matches!(kind, TroubleKind::Retried | TroubleKind::Uncounted)
}

pub fn phases(chronicle: &Chronicle) -> Markup {
    let tallies = chronicle.by_purpose();
    let most = tallies.values().map(|tally| tally.cost_usd).fold(0.0, f64::max);
    let longest = tallies.values().map(|tally| tally.worked_ms).max().unwrap_or(0);
    html! {
        @if !tallies.is_empty() {
            section #phases aria-labelledby="phases-title" {
                h2 #phases-title { "Results of each phase" }
                table {
                    thead { tr {
                        th scope="col" { "Phase" }
                        th.number scope="col" { "Agents" }
                        th.number scope="col" { "Work" }
                        th.chart aria-hidden="true" {}
                        th.number scope="col" { "Cost" }
                        th.chart aria-hidden="true" {}
                    } }
                    tbody {
                        @for (purpose, tally) in &tallies {
                            tr {
                                th scope="row" {
                                    i class={ "key part-" (purpose.as_str()) } {}
                                    (part(*purpose))
                                }
                                td.number { (tally.agents) }
                                td.number { (worked(tally.worked_ms)) }
                                (share(ratio(tally.worked_ms, longest), "work"))
                                td.number { (usd(tally.cost_usd)) }
                                (share(
                                    if most > 0.0 { tally.cost_usd / most } else { 0.0 },
                                    "money"
                                ))
                            }
                        }
                    }
                    tfoot {
                        tr {
                            th scope="row" { "all" }
                            td.number { (tallies.values().map(|tally| tally.agents).sum::<u32>()) }
                            td.number {
                                (worked(tallies.values().map(|tally| tally.worked_ms).sum()))
                            }
                            td {}
                            td.number { (usd(tallies.values().map(|tally| tally.cost_usd).sum())) }
                            td {}
                        }
                    }
                }
                (iterations(chronicle))
            }
        }
    }
}

fn iterations(chronicle: &Chronicle) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Iteration" }
                th.number scope="col" { "Beads" }
                th.number scope="col" { "Done" }
                th.number scope="col" { "Failed attempts" } th.number scope="col" { "Agents" }
                th.number scope="col" { "Maintenance" } th.number scope="col" { "Observations" }
            } }
            tbody {
                @for (one, number) in chronicle.run.iterations.iter().zip(1..).take(ROWS) {
                    tr {
                        th scope="row" { (number) }
                        td.number { (one.beads) }
                        td.number { (one.completed) }
                        td.number { (one.failed) }
                        td.number { (one.spawns) }
                        td.number { (one.maintenance) }
                        td.number { (one.observations) }
                    }
                }
            }
        }
    }
}

pub fn troubles(chronicle: &Chronicle, anchors: &Anchors<'_>, clock: Clock<'_>) -> Markup {
    let count = chronicle.troubles.len() + chronicle.untold;
    html! {
        section #troubles aria-labelledby="troubles-title" {
            h2 #troubles-title { "Retries and faults" }
            @if count == 0 {
                p.empty { "None." }
            } @else {
                table {
                    thead { tr {
                        th scope="col" { "When" } th scope="col" { "What" }
                        th scope="col" { "Whose" } th scope="col" { "Why" }
                    } }
                    tbody {
                        @for one in chronicle.troubles.iter().take(TROUBLES) {
                            tr {
                                td { (clock.short(one.at)) }
                                td { (trouble(one.kind)) }
                                td { (anchors.bead(&chronicle.run, &one.whose)) }
                                td.prose { (cut(&one.reason, PROSE / 4)) }
                            }
                        }
                    }
                }
                @if count > TROUBLES { p.dim { "and " (count - TROUBLES) " more" } }
            }
        }
    }
}

fn trouble(kind: TroubleKind) -> &'static str {
    match kind {
        TroubleKind::Retried => "retried",
        TroubleKind::Uncounted => "retried, not counted",
        TroubleKind::Blocked => "blocked for good",
        TroubleKind::Slowed => "slowed down",
        TroubleKind::PushUndone => "push undone",
    }
}

pub fn beads(chronicle: &Chronicle, anchors: &Anchors<'_>) -> Markup {
    let run = &chronicle.run;
    let tallies = chronicle.by_bead();
    let most = tallies.values().map(|tally| tally.cost_usd).fold(0.0, f64::max);
    let tally = |id: &str| tallies.get(id).copied().unwrap_or_default();
    html! {
        @if !run.beads.is_empty() {
            section #beads aria-labelledby="beads-title" {
                h2 #beads-title { "Beads" }
                div.scroll tabindex="0" role="group" aria-label="Beads" {
                    table {
                        thead { tr {
                            th scope="col" { "Bead" }
                            th scope="col" { "State" }
                            th scope="col" { "Title" }
                            th scope="col" { "Depends on" } th.number scope="col" { "Iteration" }
                            th.number scope="col" { "Attempts" } th.number scope="col" { "Work" }
                            th.number scope="col" { "Cost" } th.chart aria-hidden="true" {}
                        } }
                        tbody {
                            @for task in
                                run.order.iter().filter_map(|id| run.beads.get(id)).take(ROWS) {
                                @let Tally { worked_ms, cost_usd, .. } = tally(&task.planned.id);
                                @let (mark, word) = stage_words(task.stage);
                                tr id=[anchors.name(&task.planned.id)] {
                                    th scope="row" { code { (cut(&task.planned.id, 80)) } }
                                    td class={ "stage " (word.replace(' ', "-")) } {
                                        (mark) " " (word)
                                    }
                                    td.prose { (cut(&task.planned.title, TITLE)) }
                                    td.waits { (waits(run, &task.planned.depends_on, anchors)) }
                                    td.number { (task.iteration) }
                                    td.number {
                                        (task.attempts)
                                        @if task.failures > 0 {
                                            " " small { "(" (task.failures) " failed)" }
                                        }
                                    }
                                    td.number { (worked(worked_ms)) }
                                    td.number { (usd(cost_usd)) }
                                    (share(if most > 0.0 { cost_usd / most } else { 0.0 }, "money"))
                                }
                            }
                        }
                    }
                }
                @if run.beads.len() > ROWS { p.dim { "and " (run.beads.len() - ROWS) " more" } }
            }
        }
    }
}

fn waits(run: &Run, on: &[String], anchors: &Anchors<'_>) -> Markup {
    html! {
        @for (index, id) in on.iter().take(20).enumerate() {
            @if index > 0 { ", " }
            (anchors.bead(run, id))
        }
        @if on.len() > 20 { " and " (on.len() - 20) " more" }
    }
}

pub fn agents(chronicle: &Chronicle, anchors: &Anchors<'_>, clock: Clock<'_>) -> Markup {
    let count = chronicle.stints.len();
    html! {
        @if count > 0 {
            section #agents aria-labelledby="agents-title" {
                h2 #agents-title { "Agents" }
                details open[count <= SHORT] {
                    summary {
                        (count) @if count == 1 { " agent" } @else { " agents" }
                        ", in the order in which they were started"
                    }
                    div.scroll tabindex="0" role="group" aria-label="Agents" {
                        table {
                            thead { tr {
                                th scope="col" { "Began" }
                                th.number scope="col" { "Agent" }
                                th scope="col" { "For" }
                                th scope="col" { "Bead" }
                                th.number scope="col" { "Attempt" }
                                th.number scope="col" { "Work" }
                                th.number scope="col" { "Cost" }
                                th scope="col" { "Ended" } th scope="col" { "Dispatch" }
                            } }
                            tbody {
                                @for stint in chronicle.stints.iter().take(ROWS) {
                                    (agent(stint, chronicle, anchors, clock))
                                }
                            }
                        }
                    }
                }
                @if count > ROWS { p.dim { "and " (count - ROWS) " more" } }
            }
        }
    }
}

fn agent(stint: &Stint, chronicle: &Chronicle, anchors: &Anchors<'_>, clock: Clock<'_>) -> Markup {
    let bead = stint.start.bead_id.as_deref().unwrap_or_default();
    let end = stint.end.as_ref();
    html! {
        tr {
            td { (clock.short(stint.began)) }
            td.number { (stint.start.agent) }
            td { (part(stint.start.purpose)) }
            td { (anchors.bead(&chronicle.run, bead)) }
            td.number { (stint.start.attempt + 1) }
            td.number { (worked(stint.worked_ms(chronicle.run.updated_at))) }
            td.number { (usd(end.map_or(0.0, |end| end.cost_usd))) }
            td.prose {
                span class={ "outcome " (outcome(stint).replace(' ', "-")) } { (outcome(stint)) }
                @if let Some(end) = end.filter(|end| !end.reason.is_empty()) {
                    " " (cut(&end.reason, PROSE / 4))
                }
            }
            td { code { (cut(&stint.start.dispatch, 40)) } }
        }
    }
}

fn worked(millis: u64) -> String {
    if millis == 0 { "-".into() } else { exact(Duration::from_millis(millis)) }
}

/// Draws a bar whose length is the share.
fn share(ratio: f64, of: &str) -> Markup {
    html! {
        td.chart aria-hidden="true" {
            @if ratio > 0.0 {
                i class={ "share " (of) }
                    style=(format!("width:{:.1}%", ratio.min(1.0) * 100.0)) {}
            }
        }
    }
}

#[allow(clippy::cast_precision_loss)] // This is only the length of a bar.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
