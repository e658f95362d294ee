//! The tokens and the money that a dispatch, its session and its process have used.

use crate::agent::event::ModelUsage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Spend {
    pub cost_usd: f64,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub per_model: BTreeMap<String, ModelUsage>,
    /// The counted use of all processes of the session, by model.
    pub session: BTreeMap<String, ModelUsage>,
}

impl Spend {
    /// Adds the use that was reported. A `cumulative` use is contained in the reported total.
    pub(super) fn count(&mut self, new: &ModelUsage, cumulative: bool) {
        add(&mut self.per_model, new);
        if cumulative {
            add(&mut self.session, new);
        }
        self.cost_usd += new.cost_usd;
        self.input = self.input.saturating_add(new.input);
        self.output = self.output.saturating_add(new.output);
        self.cache_read = self.cache_read.saturating_add(new.cache_read);
        self.cache_write = self.cache_write.saturating_add(new.cache_write);
    }
}

/// The use that one process has reported.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// The counted use, by model.
    pub by_model: BTreeMap<String, ModelUsage>,
    /// The cost that the process reported call by call. If it reports a total, that includes this.
    pub calls_usd: f64,
    /// The cost of the whole session, as the process reported it last.
    pub session_usd: Option<f64>,
}

impl ProcessUsage {
    pub const fn new() -> Self {
        Self { by_model: BTreeMap::new(), calls_usd: 0.0, session_usd: None }
    }

    pub(super) fn count(&mut self, new: &ModelUsage, cumulative: bool, session_usd: Option<f64>) {
        self.session_usd = session_usd.or(self.session_usd);
        if cumulative {
            add(&mut self.by_model, new);
        } else {
            self.calls_usd += new.cost_usd;
        }
    }
}

fn add(books: &mut BTreeMap<String, ModelUsage>, new: &ModelUsage) {
    let book = books.entry(new.model.clone()).or_default();
    book.model.clone_from(&new.model);
    book.input = book.input.saturating_add(new.input);
    book.output = book.output.saturating_add(new.output);
    book.cache_read = book.cache_read.saturating_add(new.cache_read);
    book.cache_write = book.cache_write.saturating_add(new.cache_write);
    book.cost_usd += new.cost_usd;
}
