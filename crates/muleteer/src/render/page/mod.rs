//! Renders a run as one HTML page: self-contained (no script, nothing fetched), escaped by
//! [`maud`], and of bounded size.
//!
//! People and agents wrote its content, possibly with bad intent. Therefore all content is text of
//! limited length, and a URL becomes a link only if it begins with `https://` or `http://`. The
//! page's policy forbids everything except its own style, so even a mistake here would fetch and
//! run nothing.
//!
//! Pure: the same run gives the same page.

mod graph;
mod judge;
mod scale;
mod tables;
mod timeline;

use crate::render::{span, usd};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use muleteer_model::spec_run::event::RunStatus;
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_model::spec_run::{Run, Stage};
use muleteer_model::text::controls::reorders;
use std::time::Duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const STYLE: &str = include_str!("style.css");
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
const TITLE: usize = 200;
const PROSE: usize = 2000;

/// Settings of the page that are not part of the run.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The time zone of all times on the page.
    pub zone: TimeZone,
    /// The place of the judge's own results.
    pub judge_results: Option<String>,
}

pub fn page(chronicle: &Chronicle, setting: &Setting) -> String {
    let run = &chronicle.run;
    let title = cut(&run.started.title, TITLE);
    let clock = Clock { zone: &setting.zone };
    let anchors = tables::Anchors::of(run);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "muleteer " (env!("CARGO_PKG_VERSION")) };
                title { (title) " · " (run.id()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (graph::definitions())
                header {
                    p.id { (run.id()) }
                    h1 { (title) }
                    p.state {
                        span class={ "badge " (run.status().as_str()) } { (words(run.status())) }
                        @if run.outcome().is_none() { " phase " (run.phase().as_str()) }
                        ", iteration " (run.iteration)
                    }
                    (news(run))
                }
                main {
                    (summary(chronicle, clock))
                    (graph::section(chronicle, &anchors))
                    (timeline::section(chronicle, &anchors, clock))
                    (tables::phases(chronicle))
                    (judge::section(chronicle, clock, setting))
                    (tables::troubles(chronicle, &anchors, clock))
                    (tables::beads(chronicle, &anchors))
                    (tables::agents(chronicle, &anchors, clock))
                }
                footer {
                    "Made from " code { ".muleteer/runs/" (run.id()) "/events.jsonl" }
                    " as of event " (run.seq)
                    ", " (clock.full(run.updated_at)) "."
                }
            }
        }
    };
    markup.into_string()
}

/// Says why the run is not done, or where its result is.
fn news(run: &Run) -> Markup {
    let resume = run.resume_command();
    html! {
        @if let Some(error) = run.error() {
            p.alert { strong { (cut(&error.code, 60)) } " " (cut(&error.message, PROSE)) }
        }
        @if let Some(reason) = run.rest_reason() {
            @let approval = run.status() == RunStatus::AwaitingApproval;
            p.note {
                (cut(reason, PROSE)) ": "
                (if approval { "approve with " } else { "resume with " })
                code { (resume) } "."
            }
        }
        @if let Some(url) = &run.publication.pr_url {
            p { "Pull request: " (link(url)) }
        }
        @if let Some(kept) = &run.publication.preserved {
            p { "Its work: " (cut(&crate::render::work::kept(kept), PROSE)) "." }
        }
        @let pushed = run.publication.pushed.as_ref();
        @if let Some(page) = pushed.and_then(|pushed| pushed.page.as_ref()) {
            p { "Make a pull request: " (link(page)) }
        }
        @if let Some(why) = pushed.and_then(|pushed| pushed.trouble.as_ref()) {
            p.note { (cut(why, PROSE)) }
        }
        @if let Some(branch) = run.publication.final_branch() {
            @let base =
                run.frozen.as_ref().map(|frozen| frozen.base_branch.as_str()).unwrap_or_default();
            @if branch == base {
                p { "The result is on " code { (cut(base, TITLE)) } "." }
            } @else {
                p {
                    "The result is on " code { (cut(branch, TITLE)) } ": "
                    code {
                        "git checkout " (cut(base, TITLE)) " && git merge " (cut(branch, TITLE))
                    }
                }
            }
        }
        @if let Some(reason) = run.enforced().reason {
            p.note {
                "The judge's read-only view and the criteria's secrecy were checked, not enforced: "
                (cut(&reason, PROSE))
            }
        }
    }
}

fn summary(chronicle: &Chronicle, clock: Clock<'_>) -> Markup {
    let run = &chronicle.run;
    let took = Duration::from_millis(run.ran_for_ms(run.updated_at).max(0).unsigned_abs());
    let worked: u64 = chronicle.stints.iter().map(|stint| stint.worked_ms(run.updated_at)).sum();
    let failed = chronicle.troubles.iter().filter(|trouble| tables::is_retry(trouble.kind)).count();
    html! {
        section aria-label="Summary" {
            dl.facts {
                div {
                    dt { "Beads done" }
                    dd { (run.count(Stage::Done)) small { " of " (run.total()) } }
                }
                div { dt { "Blocked" } dd { (run.count(Stage::Blocked)) } }
                div { dt { "Running for" } dd { (exact(took)) } }
                div { dt { "Agents' work" } dd { (exact(Duration::from_millis(worked))) } }
                div { dt { "Agents" } dd { (run.spawns) } }
                div { dt { "Retries" } dd { (failed) } }
                div { dt { "Iterations" } dd { (run.iteration) } }
                div { dt { "Cost" } dd { (usd(run.cost_usd)) } }
            }
            dl.pairs {
                dt { "Started" } dd { (clock.full(run.started_at)) }
                dt { @if run.outcome().is_some() { "Ended" } @else { "Last event" } }
                dd { (clock.full(run.updated_at)) }
                dt { "Spec" } dd { (cut(&run.started.spec, TITLE)) }
                @if let Some(frozen) = &run.frozen {
                    dt { "Frozen as" } dd.mono { "sha256 " (cut(&frozen.sha256, 64)) }
                    dt { "From" }
                    dd {
                        code { (cut(&frozen.base_branch, TITLE)) } " at "
                        code { (cut(&frozen.base_commit, 12)) }
                    }
                }
                dt { "Target" } dd { code { (cut(&run.target(), TITLE)) } }
                dt { "Agents" } dd {
                    (cut(&run.settings.backend, 80))
                    @if let Some(model) = &run.settings.model { ", " (cut(model, 80)) }
                    ", at most " (run.settings.max_concurrency) " at once"
                }
                @if let Some(sealed) =
                    run.sealed.as_ref().filter(|sealed| !sealed.path.is_empty()) {
                    dt { "Criteria" } dd.mono { "sha256 " (cut(&sealed.sha256, 64)) }
                }
            }
        }
    }
}

fn words(status: RunStatus) -> String {
    status.as_str().replace('_', " ")
}

/// Returns a link if the URL leads to the web, else plain text.
fn link(url: &str) -> Markup {
    let web = (url.starts_with("https://") || url.starts_with("http://"))
        && url.len() <= PROSE
        && !url.contains(char::is_control);
    html! {
        @if web {
            a href=(url) rel="noopener noreferrer" { (cut(url, TITLE)) }
        } @else {
            (cut(url, PROSE))
        }
    }
}

/// Formats times in the reader's time zone; the markup has the exact time.
#[derive(Debug, Clone, Copy)]
struct Clock<'a> {
    zone: &'a TimeZone,
}

impl Clock<'_> {
    fn full(self, at: Timestamp) -> Markup {
        let shown = at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string();
        html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) { (shown) } }
    }

    fn plain(self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%m-%d %H:%M:%S").to_string()
    }

    fn short(self, at: Timestamp) -> Markup {
        let shown = self.plain(at);
        html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) { (shown) } }
    }
}

/// As [`span`], with tenths of a second below ten seconds.
fn exact(time: Duration) -> String {
    match time.as_millis() {
        0 => "0s".into(),
        1..10_000 => format!("{:.1}s", time.as_secs_f64()),
        _ => span(time),
    }
}

/// Shortens text to at most `width` columns, ending in `…`. Characters that move a cursor or change
/// the writing direction become spaces.
fn cut(text: &str, width: usize) -> String {
    let clean = |c: char| if c.is_control() || reorders(c) { ' ' } else { c };
    let mut kept = String::new();
    let mut used = 0;
    let mut rest = text.trim().chars().map(clean);
    // Combining marks take no column, so the number of characters is bounded too.
    for c in rest.by_ref().take(width * 4) {
        used += c.width().unwrap_or(0);
        kept.push(c);
        if used > width {
            break;
        }
    }
    if used <= width && rest.next().is_none() {
        return kept;
    }
    while kept.width() >= width && kept.pop().is_some() {}
    kept.push('…');
    kept
}

/// Returns the symbol and the name of a bead's state, so that colour is never the only sign.
fn stage_words(stage: Stage) -> (&'static str, &'static str) {
    match stage {
        Stage::Done => ("✓", "done"),
        Stage::Taken => ("▸", "in progress"),
        Stage::Blocked => ("✗", "blocked"),
        Stage::Open => ("·", "open"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_display_width() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("a\u{202e}b\x1b[2J\nc", 20), "a b [2J c");
        assert!(cut(&"e\u{301}".repeat(10_000), 10).len() < 60);
        assert_eq!(cut("", 5), "");
    }

    #[test]
    fn only_web_addresses_become_links() {
        assert!(link("https://example.invalid/1").into_string().starts_with("<a href"));
        assert_eq!(link("javascript:alert(1)").into_string(), "javascript:alert(1)");
        assert!(!link("https://e/\"><script>").into_string().contains("<script>"));
    }
}
