//! Draws the beads and their dependencies.

use crate::render::page::tables::Anchors;
use crate::render::page::{cut, stage_words};
use maud::{Markup, html};
use muleteer_model::beads::graph_layout::{self, Picture, Place};
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_model::spec_run::{Run, TaskState};
use std::collections::HashSet;
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;

/// A run with more beads than this has no drawing, only the table.
const MOST: usize = 4000;
const MARGIN: f64 = 12.0;

/// The size of a drawn bead. The more beads there are, the less text each one has.
#[derive(Debug, Clone, Copy)]
struct Size {
    width: f64,
    height: f64,
    /// The distance between layers (`gap`) and between rows (`lead`).
    gap: f64,
    lead: f64,
    /// The number of title lines (`lines`), and the characters in one of them (`letters`).
    lines: usize,
    letters: usize,
    named: bool,
}

impl Size {
    fn of(count: usize) -> Self {
        let (width, height, gap, lead, lines, letters, named) = match count {
            0..=80 => (188.0, 52.0, 56.0, 14.0, 2, 27, true),
            81..=320 => (150.0, 36.0, 44.0, 10.0, 1, 21, true),
            321..=1000 => (76.0, 18.0, 36.0, 8.0, 0, 0, true),
            _ => (12.0, 12.0, 28.0, 5.0, 0, 0, false),
        };
        Self { width, height, gap, lead, lines, letters, named }
    }

    #[allow(clippy::cast_precision_loss)] // There are few layers.
    fn x(self, layer: usize) -> f64 {
        MARGIN + layer as f64 * (self.width + self.gap)
    }

    fn y(self, row: f64) -> f64 {
        MARGIN + row * (self.height + self.lead)
    }
}

/// Arrows and patterns, defined once for all drawings of the page.
pub fn definitions() -> Markup {
    html! {
        svg.defs width="0" height="0" aria-hidden="true" focusable="false" {
            defs {
                marker #arrow viewBox="0 0 8 8" refX="7" refY="4"
                    markerWidth="7" markerHeight="7" orient="auto" {
                    path.head d="M0 0.8 L7.4 4 L0 7.2 z" {}
                }
                marker #arrow-long viewBox="0 0 8 8" refX="7" refY="4"
                    markerWidth="5" markerHeight="5" orient="auto" {
                    path.head.long d="M0 0.8 L7.4 4 L0 7.2 z" {}
                }
                pattern #hatch width="6" height="6"
                    patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect.hatch width="2.5" height="6" {}
                }
            }
        }
    }
}

pub fn section(chronicle: &Chronicle, anchors: &Anchors<'_>) -> Markup {
    let run = &chronicle.run;
    let count = run.beads.len();
    html! {
        section #graph aria-labelledby="graph-title" {
            h2 #graph-title { "Beads and their dependencies" }
            @if count == 0 {
                p.empty { "There are no beads." }
            } @else if count > MOST {
                p.empty { (count) " beads are too many to draw; the table below has them." }
            } @else {
                (drawn(chronicle, anchors))
            }
        }
    }
}

fn drawn(chronicle: &Chronicle, anchors: &Anchors<'_>) -> Markup {
    let run = &chronicle.run;
    let graph = run.schedule.graph();
    let picture = graph_layout::picture(graph);
    let size = Size::of(graph.len());
    let chain = chronicle.longest_chain();
    let alone: Vec<usize> = (0..graph.len()).filter(|at| picture.places[*at].is_none()).collect();
    let (places, width, height) = arrange(&picture, &alone, size);
    let long: HashSet<(&str, &str)> = chain.windows(2).map(|pair| (pair[0], pair[1])).collect();
    html! {
        p.legend {
            @for stage in ["done", "taken", "open", "blocked"] {
                span {
                    i class={ "key " (stage) } {}
                    (if stage == "taken" { "in progress" } else { stage })
                }
            }
            @if chain.len() > 1 {
                span { i.key.chain {} "the chain that took the longest: " (chain.len()) " beads" }
            }
            @if picture.implied > 0 {
                span.dim {
                    "not drawn, because others imply them: " (picture.implied)
                    @if picture.implied == 1 { " dependency" } @else { " dependencies" }
                }
            }
        }
        // Fits the drawing to the page without a script: a style depends on the checkbox.
        input.fit #fit type="checkbox" checked[width <= 1500.0];
        label.fit for="fit" { "fit to the page" }
        div.scroll tabindex="0" role="group"
            aria-label="The graph; the table of beads below has the same data" {
            svg.graph width=(round(width)) height=(round(height))
                viewBox={ "0 0 " (round(width)) " " (round(height)) }
                role="img" aria-labelledby="graph-name graph-text" {
                title #graph-name { "Dependency graph of " (graph.len()) " beads" }
                desc #graph-text {
                    "Beads from left to right, each to the right of its dependencies. "
                    (graph.edges()) " dependencies in " (picture.layers) " layers."
                }
                g.lines {
                    @for line in &picture.lines {
                        @let marked = long.contains(&(graph.id(line.from), graph.id(line.to)));
                        path.long[marked]
                            d=(route(places[line.from], &line.bends, places[line.to], size))
                            marker-end=(if marked { "url(#arrow-long)" } else { "url(#arrow)" }) {}
                    }
                }
                @for at in 0..graph.len() {
                    @if let Some(task) = run.beads.get(graph.id(at)) {
                        (anchors.link(graph.id(at), &bead(run, task, places[at], size)))
                    }
                }
            }
        }
    }
}

/// Returns the left edge and the vertical middle of each node. Nodes without any dependency form a
/// block below the others.
fn arrange(picture: &Picture, alone: &[usize], size: Size) -> (Vec<(f64, f64)>, f64, f64) {
    let mut places: Vec<(f64, f64)> = picture
        .places
        .iter()
        .map(|place| place.map_or((0.0, 0.0), |place| (size.x(place.layer), middle(size, place))))
        .collect();
    let drawn = picture.layers > 0;
    let mut width = if drawn { size.x(picture.layers) - size.gap + MARGIN } else { 0.0 };
    let mut height = if drawn { size.y(picture.height) + size.height + MARGIN } else { MARGIN };
    if !alone.is_empty() {
        let pitch = size.width + size.lead;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let columns = {
            let square =
                (alone.len() as f64 * (size.height + size.lead) * 2.0 / pitch).sqrt().ceil();
            let wanted = ((width - 2.0 * MARGIN) / pitch).floor().max(square);
            (wanted as usize).clamp(1, alone.len())
        };
        let top = if drawn { height + 2.0 * size.lead } else { MARGIN };
        #[allow(clippy::cast_precision_loss)]
        for (index, at) in alone.iter().enumerate() {
            let (column, row) = ((index % columns) as f64, (index / columns) as f64);
            let place = (
                MARGIN + column * pitch,
                top + row * (size.height + size.lead) + size.height / 2.0,
            );
            places[*at] = place;
            width = width.max(place.0 + size.width + MARGIN);
            height = height.max(place.1 + size.height / 2.0 + MARGIN);
        }
    }
    (places, width, height)
}

fn middle(size: Size, place: Place) -> f64 {
    size.y(place.row) + size.height / 2.0
}

/// Returns a curve from the right edge of the first node to the left edge of the last. It passes
/// through the layers between them.
fn route(from: (f64, f64), bends: &[Place], to: (f64, f64), size: Size) -> String {
    let (mut x, mut y) = (from.0 + size.width, from.1);
    let mut path = format!("M{} {}", round(x), round(y));
    let mut curve = |to_x: f64, to_y: f64, level: f64| {
        let half = round(f64::midpoint(x, to_x));
        let _ = write!(
            path,
            "C{half} {} {half} {} {} {}",
            round(y),
            round(to_y),
            round(to_x),
            round(to_y)
        );
        if level > 0.0 {
            let _ = write!(path, "H{}", round(to_x + level));
        }
        (x, y) = (to_x + level, to_y);
    };
    for bend in bends {
        curve(size.x(bend.layer), middle(size, *bend), size.width);
    }
    curve(to.0, to.1, 0.0);
    path
}

fn bead(run: &Run, task: &TaskState, (x, y): (f64, f64), size: Size) -> Markup {
    let id = task.planned.id.as_str();
    let (mark, word) = stage_words(task.stage);
    let top = y - size.height / 2.0;
    let title = cut(&task.planned.title, 120);
    let told =
        if task.attempts > 1 { format!(", {} attempts", task.attempts) } else { String::new() };
    let again = if task.attempts > 1 { format!(" ↻{}", task.attempts) } else { String::new() };
    let later = if task.iteration > 1 && run.iteration > 1 {
        format!(" i{}", task.iteration)
    } else {
        String::new()
    };
    html! {
            g class={ "bead " (class(task)) } {
                title { (cut(id, 80)) ": " (title) " (" (word) (told) ")" }
                rect x=(round(x)) y=(round(top)) width=(size.width) height=(size.height) rx="5" {}
                @if size.named && size.lines == 0 {
                    text x=(round(x + 5.0)) y=(round(y + 4.0)) { (mark) " " (cut(id, 9)) }
                } @else if size.named {
                    text x=(round(x + 8.0)) y=(round(top + 14.0)) {
                        tspan.mark { (mark) } " " (cut(id, size.letters.saturating_sub(8)))
                    }
                    @if !again.is_empty() || !later.is_empty() {
                        text.again x=(round(x + size.width - 8.0)) y=(round(top + 14.0))
                            text-anchor="end" { (later) (again) }
                    }
                    @for (index, line) in wrapped(&task.planned.title, size).iter().enumerate() {
                        @let below = if index == 0 { 29.0 } else { 43.0 };
                        text.title x=(round(x + 8.0)) y=(round(top + below)) { (line) }
                    }
                }
            }
    }
}

fn class(task: &TaskState) -> &'static str {
    use muleteer_model::spec_run::Stage;
    match task.stage {
        Stage::Done => "done",
        Stage::Taken => "taken",
        Stage::Blocked => "blocked",
        Stage::Open => "open",
    }
}

/// Breaks the title into at most `size.lines` lines, at spaces if possible.
fn wrapped(title: &str, size: Size) -> Vec<String> {
    let clean = cut(title, size.letters * size.lines);
    let mut lines: Vec<String> = vec![String::new()];
    for word in clean.split_whitespace() {
        let line = lines.last().map(String::as_str).unwrap_or_default();
        let first = line.is_empty();
        let joined = if first { word.to_string() } else { format!("{line} {word}") };
        if first || joined.width() <= size.letters {
            lines.pop();
            lines.push(joined);
        } else {
            lines.push(word.to_string());
        }
    }
    // Words that do not fit remain in the last line, which is cut.
    let rest = lines.split_off(lines.len().min(size.lines.max(1) - 1)).join(" ");
    lines.push(rest);
    lines.iter().map(|line| cut(line, size.letters)).collect()
}

/// Rounds to one decimal, which is finer than a screen shows.
fn round(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}
