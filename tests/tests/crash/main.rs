//! System tests of crashes: kills, panics, power cuts and full disks, and the recovery from them.

mod campaign;
mod full_disk;
mod recovery;
