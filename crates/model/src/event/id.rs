//! Ids: short random base32, no time prefix, any unique prefix accepted (contract.md, "Output").

use data_encoding::{Encoding, Specification};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The number of random bytes in an id; 40 bits are eight characters.
pub const ID_BYTES: usize = 5;

fn alphabet() -> &'static Encoding {
    static ENCODING: OnceLock<Encoding> = OnceLock::new();
    ENCODING.get_or_init(|| {
        let mut spec = Specification::new();
        spec.symbols.push_str("abcdefghijkmnpqrstuvwxyz23456789");
        spec.encoding().unwrap_or(data_encoding::BASE32_NOPAD)
    })
}

/// The id of a dispatch; it also names the agent, the shim and their folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
// Cheap to clone: every snapshot of the fleet and every event holds some.
pub struct DispatchId(Arc<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id: expected 4 to 32 lower-case letters and digits")]
pub struct BadId(pub String);

impl DispatchId {
    pub fn from_random(bytes: [u8; ID_BYTES]) -> Self {
        Self(alphabet().encode(&bytes).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Encodes random bytes in the alphabet of ids, for keys and nonces.
pub fn encode(bytes: &[u8]) -> String {
    // Only multiples of five bytes fill whole characters; others are padded with zero bits.
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().div_ceil(5) * 5, 0);
    let mut text = alphabet().encode(&padded);
    text.truncate((bytes.len() * 8).div_ceil(5));
    text
}

impl JsonSchema for DispatchId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DispatchId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[a-z0-9]{4,32}$"})
    }
}

impl TryFrom<String> for DispatchId {
    type Error = BadId;
    /// Accepts nothing but letters and digits, because ids become file names.
    fn try_from(text: String) -> Result<Self, BadId> {
        let ok = (4..=32).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if ok { Ok(Self(text.into())) } else { Err(BadId(text)) }
    }
}

impl From<DispatchId> for String {
    fn from(id: DispatchId) -> String {
        id.0.to_string()
    }
}

impl fmt::Display for DispatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why a prefix names no id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfound {
    Unknown,
    /// Several ids begin with the prefix: these.
    Ambiguous(Vec<String>),
}

/// Returns the item whose id begins with the prefix. A whole id may be the prefix of another one:
/// then the exact match counts.
///
/// # Errors
/// When no id fits, or more than one.
pub fn by_beginning<'a, T>(
    all: impl IntoIterator<Item = (&'a str, T)>,
    beginning: &str,
) -> Result<T, Unfound> {
    let mut fits: Vec<_> = all
        .into_iter()
        .filter(|(id, _)| !beginning.is_empty() && id.starts_with(beginning))
        .collect();
    if let Some(exact) = fits.iter().position(|(id, _)| *id == beginning) {
        return Ok(fits.swap_remove(exact).1);
    }
    match fits.len() {
        0 => Err(Unfound::Unknown),
        1 => fits.pop().map(|(_, one)| one).ok_or(Unfound::Unknown),
        _ => Err(Unfound::Ambiguous(fits.into_iter().map(|(id, _)| id.to_string()).collect())),
    }
}

/// Returns a key in the form of a UUID that follows from a name.
pub(crate) fn key_of(name: &str) -> String {
    let mut high = 0xcbf2_9ce4_8422_2325_u64;
    let mut low = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in name.bytes() {
        high = (high ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        low = (low.rotate_left(5) ^ high).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let hex = format!("{high:016x}{low:016x}");
    format!("{}-{}-8{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_prefix_must_be_unique_and_full_id_matches_itself() {
        let all = ["task-001", "task-0010", "bd-1"];
        let find = |beginning: &str| by_beginning(all.map(|id| (id, id)), beginning);
        for (beginning, found) in
            [("task-001", "task-001"), ("task-0010", "task-0010"), ("b", "bd-1"), ("bd-1", "bd-1")]
        {
            assert_eq!(find(beginning), Ok(found), "{beginning}");
        }
        for unknown in ["", "bd-11", "x"] {
            assert_eq!(find(unknown), Err(Unfound::Unknown), "{unknown}");
        }
        assert_eq!(find("t"), Err(Unfound::Ambiguous(vec!["task-001".into(), "task-0010".into()])));
    }

    #[test]
    fn ids_are_eight_characters_and_survive_the_round_trip() {
        let id = DispatchId::from_random([0xff, 0, 1, 2, 3]);
        assert_eq!(id.as_str().len(), 8);
        assert_eq!(DispatchId::try_from(id.to_string()), Ok(id));
    }

    #[test]
    fn an_id_that_could_leave_its_folder_is_refused() {
        for bad in ["", "abc", "../../x", "a/bcd", "ABCDEFGH", "a.bcdefg"] {
            assert!(DispatchId::try_from(bad.to_string()).is_err(), "{bad}");
        }
    }
}
