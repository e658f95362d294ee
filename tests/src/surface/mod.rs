//! Reads the surface that users rely on from types and from JSON documents.

pub mod probe;
pub mod shape;
