//! Every frame of version 1 is checked in as bytes, and must decode for ever.
//!
//! `MULETEER_WRITE_SAMPLES=1 cargo test -p muleteer-protocol --test samples` writes missing
//! samples. An existing one is never changed, because old peers send it.

mod frames;

use frames::{client_samples, server_samples};
use muleteer_protocol::codec::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/v1")
}

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, frame: &T) {
    let path = folder().join(format!("{name}.bin"));
    if !path.exists() && std::env::var_os("MULETEER_WRITE_SAMPLES").is_some() {
        fs::write(&path, encode(frame).expect("encode")).expect("write");
    }
    let bytes = fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}: run with MULETEER_WRITE_SAMPLES=1", path.display())
    });
    let (header, body) = bytes.split_at(4);
    assert_eq!(
        header,
        u32::try_from(body.len()).expect("short").to_be_bytes(),
        "{name}: its length"
    );
    let decoded: T = decode(body).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(&decoded, frame, "{name} says something else now");
}

#[test]
fn every_frame_of_v1_decodes() {
    for (name, frame) in client_samples() {
        check(name, &frame);
    }
    for (name, frame) in server_samples() {
        check(name, &frame);
    }
}

#[test]
fn every_variant_has_a_sample_under_its_name() {
    let client: BTreeSet<_> =
        client_samples().iter().map(|(_, frame)| frames::client_name(frame)).collect();
    assert_eq!(client, frames::CLIENT_NAMES.iter().copied().collect());
    let server: BTreeSet<_> =
        server_samples().iter().map(|(_, frame)| frames::server_name(frame)).collect();
    assert_eq!(server, frames::SERVER_NAMES.iter().copied().collect());
}

#[test]
fn no_file_is_left_without_a_frame() {
    let names: BTreeSet<_> = client_samples()
        .into_iter()
        .map(|(name, _)| name)
        .chain(server_samples().into_iter().map(|(name, _)| name))
        .collect();
    for entry in fs::read_dir(folder()).expect("samples") {
        let path = entry.expect("entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("name").to_string();
        assert!(names.contains(name.as_str()), "{} belongs to no frame", path.display());
    }
}
