//! Oracles for files that people (and agents) write by hand: a decoder accepts them, or its error
//! names a place that exists.

use jiff::Timestamp;
use jiff::tz::Offset;
use muleteer_model::agent::role::{self, RoleLayer, RoleSource};
use muleteer_model::config::{self, Layer, Source};
use muleteer_model::journal::{Header, Status, agent_lines, reconcile, summarize};
use muleteer_rehearsal::scenario::Scenario;

pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(errors) =
        config::load(&[Source::new(Layer::User, "config.yaml", text.as_ref())], &[])
    {
        assert!(!errors.is_empty(), "refused without a reason");
        for error in errors {
            assert!(!error.message.is_empty());
            assert!(
                error.line.is_none_or(|line| line as usize <= text.lines().count() + 1),
                "{error:?}"
            );
        }
    }
}

pub fn role(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    let lines = text.lines().count();
    let source = RoleSource {
        layer: RoleLayer::User,
        file: "roles/some.md".into(),
        text: Ok(text),
        trust: config::Trust::Untrusted,
    };
    if let Err(error) = role::parse(&source) {
        assert!(!error.message.is_empty());
        assert!(error.line.is_none_or(|line| line as usize <= lines + 1), "{error:?}");
    }
}

pub fn scenario(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(fault) = Scenario::parse(&text, "scenario.yaml") {
        assert!(!fault.message.is_empty());
        assert!(fault.line as usize <= text.lines().count() + 1, "{fault:?}");
    }
}

pub fn journal(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let header = Header {
        feature: "login".into(),
        spec: None,
        task: None,
        project: "app".into(),
        branch: "main".into(),
        started: Timestamp::UNIX_EPOCH,
    };
    let ours = ["- 12:00 [harness] started".to_string(), "- 12:01 [harness] ended".to_string()];
    let fixed = reconcile(&text, &header, &ours, Status::InProgress, Offset::UTC);
    if let Some(fixed) = &fixed {
        let again = reconcile(fixed, &header, &ours, Status::InProgress, Offset::UTC);
        assert_eq!(again, None, "what was mended needs mending again");
        // Every line that the agent wrote is still there.
        for line in agent_lines(&text, &ours, &[]) {
            let line = line.trim_end_matches('…');
            assert!(fixed.contains(line), "lost: {line:?}");
        }
    }
    drop(summarize(&text));
}
