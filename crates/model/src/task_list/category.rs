//! The categories of failures, and the recovery from each.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    EnvSetup,
    Config,
    TaskExec,
    TestFail,
    Timeout,
    Dependency,
    SessionTimeout,
}

/// The reaction of the harness to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Run `harness-init.sh` again; stop if it still fails.
    InitThenStop,
    /// Stop, and change nothing: a person has to fix it.
    Stop,
    /// Roll back, clean up, and retry while attempts are left.
    RollbackRetry,
    /// Like `RollbackRetry`, after the timed-out process was killed.
    KillRollbackRetry,
    /// Mark the task failed, and continue with others.
    Skip,
    /// Examine the remains with the recovery matrix.
    Assess,
}

impl Category {
    pub const ALL: [Self; 7] = [
        Self::EnvSetup,
        Self::Config,
        Self::TaskExec,
        Self::TestFail,
        Self::Timeout,
        Self::Dependency,
        Self::SessionTimeout,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::EnvSetup => "ENV_SETUP",
            Self::Config => "CONFIG",
            Self::TaskExec => "TASK_EXEC",
            Self::TestFail => "TEST_FAIL",
            Self::Timeout => "TIMEOUT",
            Self::Dependency => "DEPENDENCY",
            Self::SessionTimeout => "SESSION_TIMEOUT",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.as_str() == text)
    }

    pub fn recovery(self) -> Recovery {
        match self {
            Self::EnvSetup => Recovery::InitThenStop,
            Self::Config => Recovery::Stop,
            Self::TaskExec | Self::TestFail => Recovery::RollbackRetry,
            Self::Timeout => Recovery::KillRollbackRetry,
            Self::Dependency => Recovery::Skip,
            Self::SessionTimeout => Recovery::Assess,
        }
    }

    /// Formats an entry of `error_log`.
    pub fn entry(self, message: &str) -> String {
        format!("[{self}] {}", one_line(message))
    }
}

impl fmt::Display for Category {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// The longest message in a list or in a line of the log.
const MESSAGE_LIMIT: usize = 500;

/// Returns a text as one line of bounded length, for grep.
pub fn one_line(text: &str) -> String {
    let words: Vec<_> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|w| !w.is_empty())
        .collect();
    crate::agent::event::cut(&words.join(" "), MESSAGE_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_category_has_its_default_recovery() {
        let table = [
            ("ENV_SETUP", Recovery::InitThenStop),
            ("CONFIG", Recovery::Stop),
            ("TASK_EXEC", Recovery::RollbackRetry),
            ("TEST_FAIL", Recovery::RollbackRetry),
            ("TIMEOUT", Recovery::KillRollbackRetry),
            ("DEPENDENCY", Recovery::Skip),
            ("SESSION_TIMEOUT", Recovery::Assess),
        ];
        assert_eq!(table.len(), Category::ALL.len());
        for (name, recovery) in table {
            let category = Category::parse(name).expect(name);
            assert_eq!((category.as_str(), category.recovery()), (name, recovery));
        }
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(
            Category::TestFail.entry("exit 1:\n  a\tb\r\n\x1b[31m"),
            "[TEST_FAIL] exit 1: a b [31m"
        );
        assert!(one_line(&"x".repeat(9000)).chars().count() <= MESSAGE_LIMIT + 1);
    }
}
