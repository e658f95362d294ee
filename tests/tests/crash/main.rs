//! System tests of crashes: kills, panics, power cuts and full disks, and the recovery from them.

mod adoption;
mod archive;
mod campaign;
mod damaged_state;
mod full_disk;
mod recovery;
mod retention;
mod segments;
mod snapshot;
