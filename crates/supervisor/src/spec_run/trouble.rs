//! The failure of an effect of a run.

/// The reason why an effect failed. The run stops, and can be resumed.
#[derive(Debug)]
pub struct Trouble {
    pub code: String,
    pub message: String,
}

impl Trouble {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}
