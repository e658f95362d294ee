//! Tests a run's page: its content, that nothing in it is trusted, and that its size is bounded.
//!
//! `MULETEER_PAGES=DIR cargo test -p muleteer --test page` leaves the pages in DIR for inspection.

#[path = "support/tale.rs"]
mod tale;

use jiff::tz::TimeZone;
use muleteer_cli::render::page::{Setting, page};
use muleteer_model::event::{Event, Outcome};
use muleteer_model::spec_run::event::{Phase, Purpose, RunStatus, Verdict};
use muleteer_model::spec_run::report::history::Chronicle;
use tale::{Tale, planned, verdict};

fn setting() -> Setting {
    Setting { zone: TimeZone::UTC, judge_results: None }
}

fn shown(name: &str, chronicle: &Chronicle) -> String {
    let page = page(chronicle, &setting());
    if let Some(dir) = std::env::var_os("MULETEER_PAGES") {
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.html")), &page)
            .expect("a page");
    }
    sound(&page);
    page
}

/// Checks that the page fetches nothing, runs nothing and closes every tag.
fn sound(page: &str) {
    let body = page.split_once("</style>").map_or(page, |(_, body)| body);
    let style = &page[..page.len() - body.len()];
    assert!(!style.contains("@import") && !style.contains("//"), "the style fetches nothing");
    for (at, _) in page.match_indices("url(") {
        assert!(page[at..].starts_with("url(#"), "{}", &page[at..at + 40]);
    }
    // Text contains no `<` and no `>`, so these are all the tags.
    for tag in page.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default()) {
        let name = tag
            .split([' ', '\n'])
            .next()
            .unwrap_or_default()
            .trim_start_matches('/')
            .to_lowercase();
        for outside in
            ["script", "link", "img", "image", "iframe", "object", "embed", "base", "use", "form"]
        {
            assert_ne!(name, outside, "<{tag}>");
        }
        // Parts outside of quotes are names of attributes.
        for (index, part) in tag.split('"').enumerate().filter(|(index, _)| index % 2 == 0) {
            assert!(!part.contains(" on") && !part.contains(" src"), "<{tag}>");
            if part.ends_with("href=") {
                let target = tag.split('"').nth(index + 1).unwrap_or_default();
                assert!(
                    target.starts_with('#') || target.starts_with("https://example.invalid/"),
                    "{target}"
                );
            }
        }
    }
    let mut open: Vec<&str> = vec![];
    let voids = ["!doctype", "meta", "input", "br"];
    for tag in page
        .split('<')
        .skip(1)
        .map(|rest| rest.split(['>', ' ', '\n']).next().unwrap_or_default())
    {
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed)),
            None if voids.contains(&tag.to_lowercase().as_str()) => {}
            None => open.push(tag),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    // Every link within the page has a target.
    let ids: std::collections::HashSet<&str> =
        page.match_indices(" id=\"").filter_map(|(at, _)| page[at..].split('"').nth(1)).collect();
    assert_eq!(ids.len(), page.matches(" id=\"").count(), "an id is there twice");
    for (at, _) in page.match_indices("href=\"#") {
        let target = &page[at + 7..].split('"').next().unwrap_or_default();
        assert!(ids.contains(target), "{target} is not there");
    }
}

/// Returns the text of the page in order, without styles and tags.
fn text(page: &str) -> String {
    let body = page.split_once("</style>").map_or(page, |(_, body)| body);
    let mut lines: Vec<String> = vec![];
    for piece in body.split('<').skip(1) {
        let Some((_, text)) = piece.split_once('>') else { continue };
        let text = text
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&amp;", "&");
        if !text.trim().is_empty() {
            lines.push(text.trim().to_string());
        }
    }
    lines.join("\n")
}

#[test]
fn a_small_run_from_its_start_to_its_end() {
    let page = shown("small", &tale::small());
    insta::assert_snapshot!("page_small", text(&page));
    for part in ["graph", "timeline", "phases", "judge", "troubles", "beads", "agents"] {
        assert!(page.contains(&format!("<section id=\"{part}\"")), "{part}");
    }
    assert!(page.contains("role=\"img\"") && page.contains("<desc id=\"graph-text\">"));
    assert_eq!(page.matches("class=\"bead ").count(), 4, "each bead is drawn once");
    assert_eq!(page.matches("class=\"bar ").count(), tale::small().stints.len());
}

#[test]
fn sixty_and_two_hundred_and_two_thousand_beads() {
    for (count, most) in [(60, 200_000), (200, 600_000), (2000, 6_000_000)] {
        let page = shown(&format!("many-{count}"), &tale::many(count, 6));
        assert_eq!(page.matches("class=\"bead ").count(), count + 1);
        assert!(page.len() < most, "{count} beads make {} bytes", page.len());
    }
}

#[test]
fn failed_run_shows_its_error_and_paused_run_its_command() {
    let page = shown("failed", &tale::failed());
    let told = text(&page);
    for word in
        ["E_DEADLOCK", "blocked for good", "timeout after 15m", "The judge has not reported yet."]
    {
        assert!(told.contains(word), "{word} in {told}");
    }
    let mut rests = Tale::new("Rests");
    rests.beads(&[planned("a", "A", &[])]);
    rests.event(Event::RunRested {
        status: RunStatus::Pending,
        reason: "it was stopped".into(),
        question: None,
    });
    let told = text(&shown("rests", &rests.chronicle));
    assert!(told.contains("muleteer run --resume run-2026-02-12-a1b2c3"), "{told}");
}

#[test]
fn new_run_and_run_without_beads_have_pages() {
    let told = text(&shown("begun", &Tale::new("Begun").chronicle));
    for word in
        ["There are no beads.", "No agent was started.", "The judge has not reported yet.", "None."]
    {
        assert!(told.contains(word), "{word} in {told}");
    }
    let mut under_way = Tale::new("Under way");
    under_way.beads(&[planned("a", "A", &[]), planned("b", "B", &["a"])]);
    under_way.start(1, Purpose::Implement, Some("a"), 0);
    under_way.pass(30);
    under_way.event(Event::PoolSlowed { until: under_way.now, reason: "529".into() });
    let page = shown("under-way", &under_way.chronicle);
    assert!(page.contains("class=\"bar part-implement open\"") && text(&page).contains("running"));
}

#[test]
fn foreign_text_is_escaped_and_shortened() {
    let evil = "</title></text><script>alert('x')</script><img src=x \
        onerror=alert(1)>\"'&\u{202e}\u{1b}[2J]]>";
    let long = "w".repeat(100_000);
    let mut tale = Tale::new(evil);
    tale.beads(&[
        planned(evil, evil, &[]),
        planned(&long, &long, &[evil]),
        planned("<b>", "<!--", &[evil, &long]),
    ]);
    tale.start(1, Purpose::Implement, Some(evil), 0);
    tale.pass(10);
    tale.end(1, Outcome::Failure, evil, 0.5);
    tale.event(Event::BeadRetried {
        bead_id: evil.into(),
        attempt: 1,
        reason: long.clone(),
        reuse: false,
        counted: true,
        note: evil.into(),
        kind: None,
    });
    let mut found = verdict(1, Verdict::Fail);
    if let Some(result) = &mut found.result {
        for issue in result.spec_drift.iter_mut().flat_map(|drift| &mut drift.issues) {
            issue.severity = evil.into();
            issue.section = evil.into();
            issue.description = long.clone();
        }
        for one in result.acceptance.iter_mut().flat_map(|acceptance| &mut acceptance.results) {
            one.criterion = evil.into();
            one.evidence = evil.into();
        }
    }
    tale.event(Event::JudgeFinished(Box::new(found)));
    tale.event(Event::PrCreated { url: "javascript:alert(1)//https://example.invalid/".into() });
    tale.event(Event::BranchPublished {
        branch: evil.into(),
        commit: evil.into(),
        merge: evil.into(),
        unpushed: Some(evil.into()),
    });
    tale.event(Event::RunFailed { code: evil.into(), message: long, status: RunStatus::Failed });
    let page = page(&tale.chronicle, &setting());
    sound(&page);
    assert!(page.contains("&lt;script&gt;alert('x')&lt;/script&gt;"));
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    assert!(page.len() < 150_000, "{}", page.len());
}

/// The run's agents may be able to read a page.
#[test]
fn criteria_are_shown_only_after_the_run_has_ended() {
    let mut tale = Tale::new("Secrets");
    tale.beads(&[planned("a", "A", &[])]);
    tale.event(Event::JudgeFinished(Box::new(verdict(1, Verdict::Fail))));
    let told = text(&page(&tale.chronicle, &setting()));
    assert!(told.contains("omitted until the run has ended"), "{told}");
    assert!(!told.contains("Sorting an empty file") && !told.contains("exit code 1"), "{told}");
    tale.event(Event::RunCompleted { status: RunStatus::Completed, total_beads: 1 });
    let told = text(&page(&tale.chronicle, &setting()));
    assert!(told.contains("Sorting an empty file") && told.contains("exit code 1"), "{told}");
}

#[test]
fn a_run_resumed_after_days_and_judged_too_often_keeps_its_shape() {
    let mut tale = Tale::new("Days");
    tale.beads(&[planned("a", "A", &[])]);
    for round in 0..120 {
        tale.start(1, Purpose::Judge, None, 0);
        tale.pass(60);
        tale.end(1, Outcome::Success, "", 0.1);
        tale.event(Event::JudgeFinished(Box::new(verdict(round + 1, Verdict::Discarded))));
        tale.pass(100_000);
        tale.event(Event::PhaseChanged { phase: Phase::Judge });
    }
    let page = shown("days", &tale.chronicle);
    assert_eq!(page.matches("<article").count(), 50);
    assert_eq!(
        page.matches("class=\"pause\"").count(),
        20,
        "no more pauses are cut than leave room"
    );
}
