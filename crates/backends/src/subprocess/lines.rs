//! Interprets one line of any command.

use crate::stream::foreign;
use crate::stream::lines::{Before, Meaning, Text, Understood};
use crate::stream::native_events::{OwnLines, Plain};
use crate::subprocess::headless;
use serde_json::Value;

const OWN: OwnLines = OwnLines { plain: Plain::Output };

#[derive(Debug)]
pub(super) struct OutputLines;

impl Meaning for OutputLines {
    fn read(&self, mut line: Text<'_>) -> Understood {
        // Most output is not JSON: skip the JSON parser for it.
        if !line.is_no_object() {
            let ended = line.ended;
            let document = line.peek();
            // Without a newline, the process ended while it wrote this.
            if (ended || document.damage.is_none())
                && let Some(told) = headless::read(&document.value)
            {
                return foreign::mended(told, document);
            }
        }
        OWN.read(line)
    }

    fn knows(&self, object: &Value, before: Before) -> bool {
        OWN.knows(object, before) || (before == Before::Nothing && headless::read(object).is_some())
    }

    fn is_output(&self, line: &[u8]) -> bool {
        OWN.is_output(line)
    }
}
