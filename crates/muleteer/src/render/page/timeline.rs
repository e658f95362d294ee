//! The timeline of the agents: one lane for each agent number, with the phases above.

use crate::render::page::scale::Scale;
use crate::render::page::tables::{Anchors, outcome, part};
use crate::render::page::{Clock, cut, exact};
use jiff::Timestamp;
use maud::{Markup, html};
use muleteer_model::event::Outcome;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::{Phase, Purpose, Verdict};
use muleteer_model::spec_run::report::history::{Chronicle, Stint};
use std::time::Duration;

/// Items beyond these numbers are only counted.
const LANES: u32 = 100;
const BARS: usize = 4000;
const PHASES: usize = 200;

const LEFT: f64 = 72.0;
const WIDTH: f64 = 1100.0;
const RIGHT: f64 = 16.0;
const LANE: f64 = 22.0;
const PITCH: f64 = 26.0;
const TOP: f64 = 48.0;
/// The approximate width of one column of text.
const LETTER: f64 = 6.4;

const PARTS: [Purpose; 7] = [
    Purpose::Review,
    Purpose::Acceptance,
    Purpose::Decompose,
    Purpose::Implement,
    Purpose::Maintain,
    Purpose::Judge,
    Purpose::Structure,
];

pub fn section(chronicle: &Chronicle, anchors: &Anchors<'_>, clock: Clock<'_>) -> Markup {
    html! {
        section #timeline aria-labelledby="timeline-title" {
            h2 #timeline-title { "Timeline of agents" }
            @if chronicle.stints.is_empty() {
                p.empty { "No agent was started." }
            } @else {
                (drawn(chronicle, anchors, clock))
            }
        }
    }
}

fn drawn(chronicle: &Chronicle, anchors: &Anchors<'_>, clock: Clock<'_>) -> Markup {
    let now = chronicle.run.updated_at;
    let end = |stint: &Stint| stint.end.as_ref().map_or(now, |end| end.at);
    let mut busy: Vec<(Timestamp, Timestamp)> =
        chronicle.stints.iter().map(|stint| (stint.began, end(stint))).collect();
    busy.push((chronicle.run.started_at, chronicle.run.started_at));
    busy.extend(chronicle.judgements.iter().map(|word| (word.at, word.at)));
    busy.push((now, now));
    let scale = Scale::new(&busy);
    let x = |at: Timestamp| LEFT + scale.at(at) * (WIDTH - LEFT - RIGHT);
    let last = chronicle.stints.iter().map(|stint| stint.start.agent).max().unwrap_or(1);
    let lanes = last.clamp(1, LANES);
    let shown: Vec<&Stint> =
        chronicle.stints.iter().filter(|stint| stint.start.agent <= LANES).take(BARS).collect();
    let hidden = chronicle.stints.len() - shown.len();
    let height = TOP + f64::from(lanes) * PITCH + 24.0;
    let used: Vec<Purpose> = PARTS
        .into_iter()
        .filter(|purpose| chronicle.stints.iter().any(|stint| stint.start.purpose == *purpose))
        .collect();
    html! {
        p.legend {
            @for purpose in used {
                span { i class={ "key part-" (purpose.as_str()) } {} (part(purpose)) }
            }
            span { i.key.failed {} "failed" }
            @if hidden > 0 { span.dim { "and " (hidden) " more agents, in the table" } }
        }
        div.scroll tabindex="0" role="group"
            aria-label="The timeline; the table of agents below has the same data" {
            svg.timeline viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height)
                role="img" aria-labelledby="timeline-name timeline-text" {
                title #timeline-name { "Timeline of " (chronicle.stints.len()) " agents" }
                desc #timeline-text {
                    "One lane for each agent at work at the same time, one bar for each agent."
                }
                @for (share, millis) in scale.marks() {
                    @let at = round(LEFT + share * (WIDTH - LEFT - RIGHT));
                    line.mark x1=(at) x2=(at) y1=(TOP - 6.0) y2=(height - 20.0) {}
                    text.mark x=(at) y=(height - 6.0) text-anchor="middle" { (mark(millis)) }
                }
                @for pause in scale.cuts() {
                    @let at = LEFT + pause.at * (WIDTH - LEFT - RIGHT);
                    rect.pause x=(round(at)) y=(TOP - 6.0)
                        width=(round(pause.width * (WIDTH - LEFT - RIGHT)))
                        height=(height - TOP - 14.0) {
                        title { "nothing for " (exact(duration(pause.millis))) }
                    }
                }
                (phases(chronicle, &x, now))
                @for lane in 1..=lanes {
                    text.lane x=(LEFT - 8.0) y=(lane_top(lane) + 15.0) text-anchor="end" {
                        "agent " (lane)
                    }
                }
                @for stint in shown {
                    (anchors.link(
                        stint.start.bead_id.as_deref().unwrap_or_default(),
                        &bar(&chronicle.run, stint, &x, end(stint), clock)
                    ))
                }
                @for word in chronicle.judgements.iter().take(PHASES) {
                    @let passed = word.end.verdict == Verdict::Pass;
                    @let at = round(x(word.at));
                    path class={ "verdict " (if passed { "pass" } else { "fail" }) }
                        d={ "M" (at) " 26 l5 5 l-5 5 l-5 -5 z" } {
                        title {
                            "the judge, iteration " (word.end.iteration) ": "
                            (word.end.verdict.as_str())
                        }
                    }
                }
            }
        }
    }
}

/// Draws the phases as a band; repeated implementation and judge phases show their iteration.
fn phases(chronicle: &Chronicle, x: &dyn Fn(Timestamp) -> f64, now: Timestamp) -> Markup {
    let starts = &chronicle.phases;
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([now]);
    let iteration = |at: Timestamp| {
        let begun = chronicle.iterations.iter().rev().find(|(since, _)| *since <= at);
        begun.map_or(1, |(_, iteration)| *iteration)
    };
    html! {
        @for ((at, phase), until) in starts.iter().zip(ends).take(PHASES) {
            @let (from, to) = (x(*at), x(until));
            @let width = (to - from).max(1.0);
            @let many = chronicle.iterations.len() > 1
                && matches!(phase, Phase::Implement | Phase::Judge);
            @let name = if many {
                format!("{} {}", phase.as_str(), iteration(*at))
            } else {
                phase.as_str().to_string()
            };
            g.phase {
                rect x=(round(from)) y="4" width=(round(width)) height="18" { title { (name) } }
                @if width > name.len() as f64 * LETTER + 6.0 {
                    text x=(round(from + 5.0)) y="17" { (name) }
                }
            }
        }
    }
}

fn bar(
    run: &Run,
    stint: &Stint,
    x: &dyn Fn(Timestamp) -> f64,
    end: Timestamp,
    clock: Clock<'_>,
) -> Markup {
    let (from, to) = (x(stint.began), x(end));
    let width = (to - from).max(2.0);
    let start = &stint.start;
    let bead = start.bead_id.as_deref().unwrap_or_default();
    let label = if bead.is_empty() { part(start.purpose) } else { bead };
    let failed = stint.end.as_ref().is_some_and(|end| end.status != Outcome::Success);
    let top = lane_top(start.agent);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let room = ((width - 8.0) / LETTER).max(0.0) as usize;
    html! {
        g class={
            "bar part-" (start.purpose.as_str())
            @if failed { " failed" } @if stint.end.is_none() { " open" }
        } {
            title {
                (part(start.purpose)) " " (cut(&run.named(bead), 160))
                ", attempt " (start.attempt + 1) ", from "
                (clock.plain(stint.began)) ", "
                (exact(Duration::from_millis(stint.worked_ms(end)))) ": " (outcome(stint))
            }
            rect x=(round(from)) y=(round(top)) width=(round(width)) height=(LANE) rx="3" {}
            @if failed {
                rect.over x=(round(from)) y=(round(top)) width=(round(width)) height=(LANE)
                    rx="3" {}
            }
            @if room >= 4 {
                text x=(round(from + 5.0)) y=(round(top + 15.0)) { (cut(label, room)) }
            }
        }
    }
}

fn lane_top(lane: u32) -> f64 {
    TOP + f64::from(lane - 1) * PITCH
}

fn duration(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default()
}

fn mark(millis: f64) -> String {
    match millis {
        m if m <= 0.0 => "0".into(),
        m if m < 1000.0 => format!("{:.2}s", m / 1000.0),
        m => crate::render::span(duration(m)),
    }
}

fn round(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}
