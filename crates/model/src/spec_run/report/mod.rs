//! The views of a run that people read: its history, its live view, its status, and where its
//! work is.

pub mod document;
pub mod end;
pub mod history;
pub mod live;
pub mod names;
pub mod status;
pub mod work_place;
