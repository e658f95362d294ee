//! Text formats that several domains read: JSON of other programs, Markdown fences, byte order
//! marks, one line of foreign text, control characters, data blocks of prompts, a stable hash,
//! short commit hashes, and the text of an error with its causes.

pub mod bom;
pub(crate) mod commit_hash;
pub mod controls;
pub mod data_block;
pub mod error_chain;
pub mod fnv1a;
pub mod foreign_json;
pub(crate) mod markdown_fence;
pub(crate) mod one_line;
