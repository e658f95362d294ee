//! Separates the CPU time of an agent's own processes from that of its tools.
//!
//! An agent that hangs can use more CPU than a working one: timers, a terminal interface, file
//! watchers and idle MCP servers need several percent of a core. So where no tool runs, only other
//! processes are evidence of life, such as a build that a tool left in the background.
//!
//! A process is the agent's own if it was there when the watch began, or if it appeared while no
//! tool ran. After a restart of the daemon all processes are the agent's own.

use std::collections::BTreeSet;
use std::time::Duration;

/// One process below the agent's shim, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUse {
    pub pid: u32,
    /// Tells it from an earlier process with the same pid.
    pub start_time: u64,
    /// Its CPU time, with that of its children that have ended.
    pub cpu: Duration,
}

/// The processes that are the agent's own, and those of its tools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnProcesses {
    own: BTreeSet<(u32, u64)>,
    of_tools: BTreeSet<(u32, u64)>,
}

impl OwnProcesses {
    /// Begins with the processes that are there at the start of a turn.
    pub fn new(processes: &[ProcessUse]) -> Self {
        let own = processes.iter().map(|one| (one.pid, one.start_time)).collect();
        Self { own, of_tools: BTreeSet::new() }
    }

    /// Returns the CPU time of all processes that are not the agent's own. `tool_ran` means that a
    /// tool ran at some time since the last call, so a new process may be the tool's.
    pub fn cpu_of_others(&mut self, tool_ran: bool, processes: &[ProcessUse]) -> Duration {
        let alive: BTreeSet<_> = processes.iter().map(|one| (one.pid, one.start_time)).collect();
        self.own.retain(|one| alive.contains(one));
        self.of_tools.retain(|one| alive.contains(one));
        for one in alive {
            if !self.own.contains(&one) && !self.of_tools.contains(&one) {
                if tool_ran {
                    self.of_tools.insert(one)
                } else {
                    self.own.insert(one)
                };
            }
        }
        let others = processes.iter().filter(|one| !self.own.contains(&(one.pid, one.start_time)));
        others.map(|one| one.cpu).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: u32, ms: u64) -> ProcessUse {
        ProcessUse { pid, start_time: 1, cpu: Duration::from_millis(ms) }
    }

    #[test]
    fn only_processes_of_tools_are_evidence() {
        let mut own = OwnProcesses::new(&[one(1, 10)]);
        let mut ms =
            |tool_ran, processes: &[ProcessUse]| own.cpu_of_others(tool_ran, processes).as_millis();
        assert_eq!(ms(false, &[one(1, 500)]), 0, "the agent itself");
        assert_eq!(ms(false, &[one(1, 900), one(2, 70)]), 0, "an MCP server of the agent's");
        assert_eq!(ms(true, &[one(1, 950), one(2, 90), one(3, 40)]), 40, "a tool");
        assert_eq!(ms(false, &[one(1, 950), one(2, 90), one(3, 60)]), 60, "a build it left");
        assert_eq!(ms(false, &[one(1, 999), one(2, 99)]), 0);
        assert_eq!(ms(false, &[one(1, 999), ProcessUse { start_time: 2, ..one(3, 5) }]), 0);
    }
}
