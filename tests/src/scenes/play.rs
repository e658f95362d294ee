//! A script that follows the prompts: each has its own steps, so that further requests of an agent
//! (a title, a summary of its memory) shift nothing.

use super::talk::Talk;
use crate::model_server::{ModelServer, Step};

/// The steps for each prompt, known by a text in it.
#[derive(Debug, Default)]
pub struct Play {
    parts: Vec<(&'static str, Vec<Step>)>,
}

impl Play {
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers a prompt that has `key`: first with the first step, after each result of a tool with
    /// the next. The last step repeats.
    pub fn on(mut self, key: &'static str, steps: impl IntoIterator<Item = Step>) -> Self {
        self.parts.push((key, steps.into_iter().collect()));
        self
    }

    /// # Panics
    /// When no socket can be had.
    pub fn start(self) -> ModelServer {
        ModelServer::playing(move |request| {
            let keys: Vec<&str> = self.parts.iter().map(|(key, _)| *key).collect();
            let Some((part, results)) = Talk::of(request).newest(&keys) else {
                return Step::text("ok");
            };
            let steps = &self.parts[part].1;
            steps.get(results).or(steps.last()).cloned().unwrap_or_else(|| Step::text("ok"))
        })
    }
}
