//! The content of the event of a setting that was changed at run time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting that was changed at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingChanged {
    /// The dotted key.
    pub key: String,
    /// The value as YAML; absent if the change was withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The user that changed it.
    pub by: String,
    /// The adapter that knows this user; `cli` for the local operator.
    pub adapter: String,
}
