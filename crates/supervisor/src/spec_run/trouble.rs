//! The failure of an effect of a run.

/// The reason why an effect failed. The run stops, and can be resumed.
#[derive(Debug)]
pub struct Trouble {
    pub code: String,
    pub message: String,
    /// The disk or a quota was full while the harness wrote a file: no agent is to blame.
    pub is_disk_full: bool,
}

impl Trouble {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), is_disk_full: false }
    }
}
