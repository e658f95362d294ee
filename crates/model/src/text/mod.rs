//! Text formats that several domains read: JSON of other programs, Markdown fences, byte order
//! marks, and a stable hash.

pub mod bom;
pub mod fnv1a;
pub mod foreign_json;
pub(crate) mod markdown_fence;
