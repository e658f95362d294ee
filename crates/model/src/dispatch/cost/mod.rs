//! Costs, summed from the events or from the database's sums of them. Both agree with the log.

pub mod metric;

use crate::admission::api_error::Terms;
use crate::event::id::DispatchId;
use crate::event::{Created, Event, Record};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// The grouping of a bill's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Role,
    Model,
    /// In UTC, so that a bill reads the same everywhere.
    Day,
    Project,
    /// The dispatch.
    Agent,
}

/// The sums of one row. They only grow, and money stays finite, whatever a record claims.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    pub cost_usd: f64,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    /// The dispatches with any use, without those of `settled`.
    dispatches: BTreeSet<DispatchId>,
    /// The use of each model by each of these dispatches.
    shares: BTreeMap<(DispatchId, String), Share>,
    /// The sums of dispatches that were added together. The fields above include their use.
    settled: Sums,
}

/// The sums of one row over all use of some dispatches.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sums {
    pub cost_usd: f64,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    /// The number of dispatches with any use.
    pub dispatches: u64,
    pub unpriced: Unpriced,
}

/// The use of one model by one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Share {
    tokens: u64,
    cost_usd: f64,
}

/// Use that has tokens and no price, so that it is missing in the cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unpriced {
    /// All tokens of that use.
    pub tokens: u64,
    /// The models that have no price.
    pub models: BTreeSet<String>,
}

/// The facts about a dispatch that a bill needs.
#[derive(Debug, Clone, Default)]
struct Known {
    role: String,
    project: String,
    /// The prices that are configured for its models; they may be 0.
    terms: Terms,
    /// Its CLI reports the cost of the session, apart from its tokens.
    has_total: bool,
}

/// The use of one model, as one event reports it or several together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use<'a> {
    pub model: &'a str,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub cost_usd: f64,
    /// The CLI reports the cost of the session, apart from its tokens.
    pub has_total: bool,
}

impl<'a> Use<'a> {
    /// Returns the use that an event reports, if it reports any.
    pub fn of(event: &'a Event) -> Option<Self> {
        // All money is in one kind of event, so the other kinds are no concern of a bill.
        let Event::UsageRecorded {
            model,
            input,
            output,
            cache_read,
            cache_write,
            cost_usd,
            total_usd,
            cumulative: _,
        } = event
        else {
            return None;
        };
        Some(Self {
            model,
            input: *input,
            output: *output,
            cache_read: *cache_read,
            cache_write: *cache_write,
            cost_usd: *cost_usd,
            has_total: total_usd.is_some(),
        })
    }
}

/// A bill that is built from records in the order of the log, or from sums of such records.
#[derive(Debug, Clone)]
pub struct Bill {
    by: By,
    since: Option<Timestamp>,
    rows: BTreeMap<String, Row>,
    total: Row,
    known: BTreeMap<DispatchId, Known>,
}

impl Bill {
    /// Creates an empty bill that leaves out use before `since`. Records before `since` must still
    /// be added, because they name the dispatch that the use belongs to.
    pub fn new(by: By, since: Option<Timestamp>) -> Self {
        Self { by, since, rows: BTreeMap::new(), total: Row::default(), known: BTreeMap::new() }
    }

    pub fn by(&self) -> By {
        self.by
    }

    pub fn add(&mut self, record: &Record) {
        let Some(id) = &record.entry.dispatch_id else { return };
        if let Event::DispatchCreated(created) = &record.entry.event {
            self.know(id, created);
        } else if let Some(used) = Use::of(&record.entry.event) {
            self.count(id, record.ts, &used);
        }
    }

    /// Adds the facts about a dispatch, which its use needs.
    pub fn know(&mut self, id: &DispatchId, created: &Created) {
        self.known.entry(id.clone()).or_insert_with(|| Known {
            role: created.role.clone(),
            project: created.project_name().to_string(),
            terms: created.api.clone(),
            has_total: false,
        });
    }

    /// Adds the facts about a dispatch whose use has a cost in money.
    pub fn know_paid(&mut self, id: &DispatchId, role: &str, project: &str) {
        self.known.entry(id.clone()).or_insert_with(|| Known {
            role: role.into(),
            project: project.into(),
            terms: Terms::default(),
            has_total: false,
        });
    }

    /// Adds that the CLI of a known dispatch reports the cost of its session, apart from its
    /// tokens.
    pub fn know_total(&mut self, id: &DispatchId) {
        if let Some(known) = self.known.get_mut(id) {
            known.has_total = true;
        }
    }

    /// Adds the use by a dispatch at a time. For a sum of several uses, it is a time of the same
    /// day and on the same side of `since` as all of them.
    pub fn count(&mut self, id: &DispatchId, at: Timestamp, used: &Use<'_>) {
        if used.has_total {
            self.know_total(id);
        }
        if self.since.is_some_and(|since| at < since) {
            return;
        }
        let known = self.known.get(id);
        let key = match self.by {
            By::Role => known.map(|known| known.role.clone()),
            By::Project => known.map(|known| known.project.clone()),
            By::Model => Some(used.model.to_string()),
            By::Day => Some(at.strftime("%Y-%m-%d").to_string()),
            By::Agent => Some(id.to_string()),
        };
        self.total.add(id, used);
        self.rows.entry(key.unwrap_or_else(|| "unknown".into())).or_default().add(id, used);
    }

    /// Adds the sums of whole dispatches to the row `key`. Their use is added in no other way. The
    /// total is separate ([`Bill::settle_total`]), because a dispatch may be in many rows.
    pub fn settle(&mut self, key: &str, sums: &Sums) {
        self.rows.entry(key.into()).or_default().settle(sums);
    }

    /// Adds the sums of whole dispatches to the total.
    pub fn settle_total(&mut self, sums: &Sums) {
        self.total.settle(sums);
    }

    /// Returns the sums of a row.
    pub fn sums(&self, row: &Row) -> Sums {
        Sums {
            cost_usd: row.cost_usd,
            input: row.input,
            output: row.output,
            cache_read: row.cache_read,
            cache_write: row.cache_write,
            dispatches: row.dispatches(),
            unpriced: self.unpriced(row),
        }
    }

    /// Returns the use of a row that has tokens and no price.
    pub fn unpriced(&self, row: &Row) -> Unpriced {
        let mut unpriced = row.settled.unpriced.clone();
        for ((id, model), share) in &row.shares {
            let known = self.known.get(id);
            let has_price = |known: &Known| known.terms.price_of([model.as_str()]).is_some();
            let is_priced = known.is_some_and(|known| known.has_total || has_price(known));
            if share.tokens > 0 && share.cost_usd <= 0.0 && !is_priced {
                unpriced.tokens = unpriced.tokens.saturating_add(share.tokens);
                unpriced.models.insert(model.clone());
            }
        }
        unpriced
    }

    /// Returns the role and the project of a dispatch; `None` if its creation was not added.
    pub fn dispatch(&self, id: &str) -> Option<(&str, &str)> {
        let id = DispatchId::try_from(id.to_string()).ok()?;
        self.known.get(&id).map(|known| (known.role.as_str(), known.project.as_str()))
    }

    /// Returns the rows: days in their order, all other rows by descending cost.
    pub fn rows(&self) -> Vec<(&str, &Row)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(key, row)| (key.as_str(), row)).collect();
        if self.by != By::Day {
            rows.sort_by(|(_, a), (_, b)| b.cost_usd.total_cmp(&a.cost_usd));
        }
        rows
    }

    pub fn total(&self) -> &Row {
        &self.total
    }
}

impl Row {
    /// Returns the number of dispatches with any use.
    pub fn dispatches(&self) -> u64 {
        self.dispatches.len() as u64 + self.settled.dispatches
    }

    fn settle(&mut self, sums: &Sums) {
        self.cost_usd = (self.cost_usd + sums.cost_usd.max(0.0)).min(f64::MAX);
        self.input = self.input.saturating_add(sums.input);
        self.output = self.output.saturating_add(sums.output);
        self.cache_read = self.cache_read.saturating_add(sums.cache_read);
        self.cache_write = self.cache_write.saturating_add(sums.cache_write);
        self.settled.dispatches += sums.dispatches;
        let unpriced = &mut self.settled.unpriced;
        unpriced.tokens = unpriced.tokens.saturating_add(sums.unpriced.tokens);
        unpriced.models.extend(sums.unpriced.models.iter().cloned());
    }

    fn add(&mut self, id: &DispatchId, used: &Use<'_>) {
        let share = self.shares.entry((id.clone(), used.model.to_string())).or_default();
        for tokens in [used.input, used.output, used.cache_read, used.cache_write] {
            share.tokens = share.tokens.saturating_add(tokens);
        }
        if used.cost_usd > 0.0 {
            self.cost_usd = (self.cost_usd + used.cost_usd).min(f64::MAX);
            share.cost_usd = (share.cost_usd + used.cost_usd).min(f64::MAX);
        }
        self.input = self.input.saturating_add(used.input);
        self.output = self.output.saturating_add(used.output);
        self.cache_read = self.cache_read.saturating_add(used.cache_read);
        self.cache_write = self.cache_write.saturating_add(used.cache_write);
        if !self.dispatches.contains(id) {
            self.dispatches.insert(id.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::event::{Created, Entry, Limits, VERSION};
    use proptest::prelude::*;

    fn record(ts: &str, id: &str, event: Event) -> Record {
        let entry = Entry {
            id: String::new(),
            dispatch_id: Some(DispatchId::try_from(id.to_string()).unwrap()),
            at: None,
            more: false,
            event,
        };
        Record { v: VERSION, seq: 1, ts: ts.parse().unwrap(), entry }
    }

    fn created(id: &str, role: &str, project: &str) -> Record {
        let limits = Limits {
            budget_usd: None,
            max_turns: None,
            timeout_s: None,
            inactivity_timeout_s: 300,
            max_restarts: 3,
        };
        let created = Created {
            role: role.into(),
            category: "coding".into(),
            project: project.into(),
            repository: None,
            feature: "f".into(),
            title: None,
            spec: None,
            backend: "claude-code".into(),
            model: None,
            model_source: None,
            limits,
            purse: None,
            worktree: None,
            branch: None,
            journal: "/j".into(),
            parent: None,
            by: "operator".into(),
            multi_turn: true,
            resumable: true,
            wants_result: false,
            calls: None,
            program: None,
            ask_on_crash: false,
            permissions: crate::agent::permission::Policy::default(),
            confined: false,
            can_ask: true,
            unattended_s: None,
            hold_s: None,
            mcp: None,
            idle_hold_s: None,
            role_fault: None,
            thread_verbosity: None,
            transcripts: false,
            folds: false,
            trace: None,
            api: crate::admission::api_error::Terms::default(),
            watched: crate::monitor::Terms::default(),
            fingerprint: String::new(),
        };
        record("2026-01-01T00:00:00Z", id, Event::DispatchCreated(Box::new(created)))
    }

    fn used(ts: &str, id: &str, model: &str, cost_usd: f64) -> Record {
        let usage = Event::UsageRecorded {
            model: model.into(),
            input: 10,
            output: 2,
            cache_read: 3,
            cache_write: 1,
            cost_usd,
            cumulative: false,
            total_usd: None,
        };
        record(ts, id, usage)
    }

    fn story() -> Vec<Record> {
        vec![
            created("aaaaaaaa", "developer", "/web"),
            created("bbbbbbbb", "tester", "/web"),
            created("cccccccc", "tester", "/api"),
            used("2026-01-01T23:59:59Z", "aaaaaaaa", "opus", 1.0),
            used("2026-01-02T00:00:00Z", "aaaaaaaa", "haiku", 0.25),
            used("2026-01-02T10:00:00Z", "bbbbbbbb", "haiku", 0.5),
            used("2026-01-03T10:00:00Z", "cccccccc", "opus", 4.0),
        ]
    }

    fn bill(by: By, since: Option<&str>) -> Vec<(String, f64, u64)> {
        let mut bill = Bill::new(by, since.map(|since| since.parse().unwrap()));
        story().iter().for_each(|record| bill.add(record));
        bill.rows()
            .into_iter()
            .map(|(key, row)| (key.to_string(), row.cost_usd, row.dispatches()))
            .collect()
    }

    #[test]
    fn cost_rows_match_the_grouping() {
        let row = |key: &str, cost, dispatches| (key.to_string(), cost, dispatches);
        assert_eq!(bill(By::Role, None), [row("tester", 4.5, 2), row("developer", 1.25, 1)]);
        assert_eq!(bill(By::Project, None), [row("/api", 4.0, 1), row("/web", 1.75, 2)]);
        assert_eq!(bill(By::Model, None), [row("opus", 5.0, 2), row("haiku", 0.75, 2)]);
        let days =
            [row("2026-01-01", 1.0, 1), row("2026-01-02", 0.75, 2), row("2026-01-03", 4.0, 1)];
        assert_eq!(bill(By::Day, None), days);
    }

    #[test]
    fn use_without_a_price_is_told_from_use_that_costs_nothing() {
        let mut bill = Bill::new(By::Role, None);
        let mut free = created("bbbbbbbb", "free", "/web");
        let Event::DispatchCreated(made) = &mut free.entry.event else { unreachable!() };
        made.api.price = Some(crate::config::Price::default());
        let day = "2026-01-02T00:00:00Z";
        let mut total = used(day, "cccccccc", "acp", 2.0);
        let Event::UsageRecorded { total_usd, .. } = &mut total.entry.event else { unreachable!() };
        *total_usd = Some(2.0);
        for record in [
            created("aaaaaaaa", "mixed", "/web"),
            free,
            created("cccccccc", "session", "/web"),
            used(day, "aaaaaaaa", "opus", 1.0),
            used(day, "aaaaaaaa", "gpt", 0.0),
            used(day, "bbbbbbbb", "local", 0.0),
            used(day, "cccccccc", "unknown", 0.0),
            total,
        ] {
            bill.add(&record);
        }
        let unpriced: BTreeMap<_, _> =
            bill.rows().into_iter().map(|(key, row)| (key, bill.unpriced(row))).collect();
        let gpt = Unpriced { tokens: 16, models: BTreeSet::from(["gpt".to_string()]) };
        assert_eq!(unpriced["mixed"], gpt);
        assert_eq!(unpriced["free"], Unpriced::default(), "its configured price is 0");
        assert_eq!(unpriced["session"], Unpriced::default(), "its cost is told for the session");
        assert_eq!(bill.unpriced(bill.total()), gpt);
        assert_eq!(bill.dispatch("aaaaaaaa"), Some(("mixed", "/web")));
    }

    #[test]
    fn rows_by_agent_have_one_dispatch_each() {
        let row = |key: &str, cost, dispatches| (key.to_string(), cost, dispatches);
        let rows = [row("cccccccc", 4.0, 1), row("aaaaaaaa", 1.25, 1), row("bbbbbbbb", 0.5, 1)];
        assert_eq!(bill(By::Agent, None), rows);
    }

    /// A clone that was made for an agent is not a project of its own.
    #[test]
    fn clones_of_a_run_are_added_up_as_their_repository() {
        let mut bill = Bill::new(By::Project, None);
        for (id, repository) in
            [("aaaaaaaa", Some("/web")), ("bbbbbbbb", Some("/web")), ("cccccccc", None)]
        {
            let clone = format!("/web/.muleteer/worktrees/run-1/{id}");
            let mut record =
                created(id, "developer", if repository.is_some() { &clone } else { "/web" });
            let Event::DispatchCreated(created) = &mut record.entry.event else { unreachable!() };
            created.repository = repository.map(String::from);
            bill.add(&record);
            bill.add(&used("2026-01-02T00:00:00Z", id, "opus", 1.0));
        }
        let rows: Vec<_> = bill
            .rows()
            .into_iter()
            .map(|(key, row)| (key, row.cost_usd, row.dispatches()))
            .collect();
        assert_eq!(rows, [("/web", 3.0, 3)]);
    }

    /// A child dispatch in its parent's own clone works for the parent's repository.
    #[test]
    fn cost_in_a_clone_counts_for_its_repository() {
        let record = created("aaaaaaaa", "developer", "/web");
        let Event::DispatchCreated(plain) = record.entry.event else { unreachable!() };
        let clone = "/web/.muleteer/worktrees/aaaaaaaa";
        let in_worktree = Created { worktree: Some(clone.into()), ..(*plain).clone() };
        let of_run =
            Created { project: clone.into(), repository: Some("/web".into()), ..(*plain).clone() };
        let below = format!("{clone}/docs");
        for (whose, dir, wanted) in [
            (&*plain, "/web", None),
            (&*plain, "/web/docs", None),
            (&in_worktree, clone, Some("/web")),
            (&of_run, below.as_str(), Some("/web")),
            (&of_run, "/api", None),
        ] {
            assert_eq!(whose.repository_of(std::path::Path::new(dir)), wanted, "{dir}");
        }
    }

    #[test]
    fn since_drops_usage_but_keeps_dispatches() {
        let rows = bill(By::Role, Some("2026-01-02T00:00:00Z"));
        assert_eq!(rows, [("tester".into(), 4.5, 2), ("developer".into(), 0.25, 1)]);
        assert!(bill(By::Role, Some("2027-01-01T00:00:00Z")).is_empty());
    }

    proptest! {
        /// For any claims of the records, money is a number and not negative. Each way of grouping
        /// the bill gives the same total.
        #[test]
        fn sums_are_sane(
            costs in prop::collection::vec(prop_oneof![any::<f64>(), 0.0..10.0f64], 0..20)
        ) {
            for by in [By::Role, By::Model, By::Day, By::Project, By::Agent] {
                let mut bill = Bill::new(by, None);
                for (n, cost) in costs.iter().enumerate() {
                    bill.add(&used(
                        "2026-01-02T00:00:00Z", "aaaaaaaa", ["opus", "haiku"][n % 2], *cost
                    ));
                }
                for (_, row) in bill.rows() {
                    prop_assert!(row.cost_usd.is_finite() && row.cost_usd >= 0.0);
                }
                prop_assert_eq!(
                    bill.rows().iter().map(|(_, row)| row.input).sum::<u64>(),
                    bill.total().input
                );
                let sum: f64 =
                    bill.rows().iter().map(|(_, row)| row.cost_usd).sum::<f64>().min(f64::MAX);
                prop_assert!((sum - bill.total().cost_usd).abs() <= sum * 1e-9);
            }
        }
    }
}
