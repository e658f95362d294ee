//! The settings that a daemon reads once, at its start.

use crate::config::span::Span;
use crate::config::types::{Pool, Settings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The export of traces and metrics; OpenTelemetry's variables set the other options.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// The endpoint of the collector, if `OTEL_EXPORTER_OTLP_ENDPOINT` is not set.
    pub endpoint: Option<String>,
}

/// The data that the daemon keeps of agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// The raw output kept of each agent for `logs --raw`, in MiB.
    pub output_mib: u32,
    /// Remove clones and archive journals, as `muleteer clean --apply` does, this long after the
    /// end of their dispatches.
    pub clean_after: Option<Span>,
    /// The finished dispatches that the daemon keeps in memory; at least 20. Older ones are
    /// archived: every command still finds them.
    pub in_memory: u32,
    /// `muleteer clean --apply` removes the events of dispatches that ended this long ago. Their
    /// costs, durations and outcomes stay.
    pub events: Option<Span>,
    /// Compress the output of agents and the logs of runs this long after their end. Every command
    /// reads them as before.
    pub compress_after: Span,
}

/// Questions that agents wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Questions {
    /// The process of an agent that waits for an answer is ended after this awake time, if its
    /// session can be resumed. The answer begins a turn of the next process.
    pub hold: Span,
}

/// The MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mcp {
    /// The tools of the user's own MCP clients, which are no agents of Muleteer. Only the user's
    /// own file says this.
    pub clients: McpClients,
}

/// The tools that the user's own MCP clients have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum McpClients {
    /// They see agents, and change nothing.
    #[default]
    Read,
    /// They also draft, end and write to agents, with the rights of the operator.
    Act,
}

/// The coordinators and analysts that give commands in their output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Coordinator {
    /// When the commands are carried out. Only the user's own file says this.
    pub commands: CoordinatorCommands,
}

/// When the commands in an agent's output are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CoordinatorCommands {
    /// At once.
    #[default]
    AtOnce,
    /// After a person has said yes in the thread.
    Ask,
}

impl Retention {
    /// The finished dispatches that a daemon keeps in memory if no setting says otherwise.
    pub const IN_MEMORY: u32 = 1000;

    /// The age at which output is compressed if no setting says otherwise: a week, in seconds.
    pub const COMPRESS_AFTER_S: u64 = 7 * 24 * 60 * 60;

    /// A quarter of the largest possible spool.
    pub const MOST_MIB: u32 = 256;

    pub fn output_bytes(self) -> u64 {
        u64::from(self.output_mib) << 20
    }
}

/// The settings that a daemon uses for its whole life. Later versions may add fields to this type:
/// the types of the configuration file reject unknown keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InForce {
    /// The most agents that run at the same time.
    pub max_agents: u32,
    /// The most levels of agents that dispatch agents.
    pub max_depth: u32,
    /// The raw output in MiB that is kept of each agent.
    pub output_mib: u32,
    /// The seconds after the end of a dispatch at which its clone is removed and its journal is
    /// archived; absent if neither happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_after_s: Option<u64>,
    /// The finished dispatches that are kept in memory; absent if 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_memory: Option<u32>,
    /// The age in seconds at which `clean` removes events; absent if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_s: Option<u64>,
    /// The seconds after their end at which output of agents and logs of runs are compressed;
    /// absent if a week.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress_after_s: Option<u64>,
}

impl InForce {
    pub fn of(settings: &Settings) -> Self {
        let Pool { max_agents, max_depth } = settings.pool;
        let Retention { output_mib, clean_after, in_memory, events, compress_after } =
            settings.retention;
        let in_memory = (in_memory != Retention::IN_MEMORY).then_some(in_memory);
        let clean_after_s = clean_after.map(Span::as_secs);
        let events_s = events.map(Span::as_secs);
        let compress_after_s =
            Some(compress_after.as_secs()).filter(|age| *age != Retention::COMPRESS_AFTER_S);
        Self {
            max_agents,
            max_depth,
            output_mib,
            clean_after_s,
            in_memory,
            events_s,
            compress_after_s,
        }
    }

    pub fn pool(self) -> Pool {
        Pool { max_agents: self.max_agents, max_depth: self.max_depth }
    }

    pub fn retention(self) -> Retention {
        let clean_after = self.clean_after_s.map(Span::from_secs);
        let in_memory = self.in_memory.unwrap_or(Retention::IN_MEMORY);
        let events = self.events_s.map(Span::from_secs);
        let compress_after =
            Span::from_secs(self.compress_after_s.unwrap_or(Retention::COMPRESS_AFTER_S));
        Retention { output_mib: self.output_mib, clean_after, in_memory, events, compress_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_the_same_after_a_restart() {
        for clean_after in [None, Some(Span::from_secs(0)), Some(Span::from_secs(7 * 86_400))] {
            let in_memory = if clean_after.is_some() { 7 } else { Retention::IN_MEMORY };
            let compress_after = clean_after.unwrap_or(Span::from_secs(3));
            let retention = Retention {
                output_mib: 3,
                clean_after,
                in_memory,
                events: clean_after,
                compress_after,
            };
            let settings = Settings { retention, ..Settings::default() };
            let stored = serde_json::to_string(&InForce::of(&settings)).expect("JSON");
            let read: InForce = serde_json::from_str(&stored).expect("the settings");
            assert_eq!(read.retention(), retention, "{stored}");
        }
        let old = r#"{"max_agents":8,"max_depth":2,"output_mib":64}"#;
        let read: InForce = serde_json::from_str(old).expect("the settings");
        assert_eq!(read.retention().clean_after, None);
        assert_eq!(serde_json::to_string(&read).expect("JSON"), old);
    }
}
