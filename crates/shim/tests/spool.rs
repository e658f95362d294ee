#![allow(clippy::unwrap_used)]
//! The spool's format: damage of every kind has a name or is a torn tail, and nothing panics.

use muleteer_shim::control::{BlockReason, Cause, Control};
use muleteer_shim::launch::{Launch, SpoolLimits};
use muleteer_shim::meta;
use muleteer_shim::record::{Cursor, RECORD_HEADER, SEGMENT_HEADER, Stream};
use muleteer_shim::record::{compressed_path, segment_path};
use muleteer_shim::spool::{
    ReadError, Reader, Record, Room, State, Writer, compress, is_compressed, segments, trim,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const SMALL: SpoolLimits =
    SpoolLimits { segment_bytes: 4 << 10, cap_bytes: 64 << 10, retain_bytes: 8 << 10 };

fn write_some(spool: &Path, epoch: u32, limits: SpoolLimits, payloads: &[Vec<u8>]) -> Cursor {
    let mut writer = Writer::create(spool, epoch, limits).unwrap();
    for payload in payloads {
        assert_eq!(writer.room(), Room::Yes);
        writer.append(Stream::Stdout, payload).unwrap();
    }
    writer.finish();
    writer.cursor()
}

/// Reads everything readable. It continues after each damage and counts the damages.
fn read_all(spool: &Path, max_bytes: usize) -> (Vec<Record>, usize) {
    let mut reader = Reader::open(spool);
    let (mut records, mut cursor, mut damages) = (vec![], Cursor::default(), 0);
    loop {
        match reader.read(cursor, max_bytes) {
            Ok(batch) => {
                assert!(batch.next >= cursor);
                records.extend(batch.records);
                if batch.state != State::More && batch.next == cursor {
                    return (records, damages);
                }
                cursor = batch.next;
            }
            Err(error) => {
                damages += 1;
                let Some(resume) = error.resume() else { return (records, damages) };
                assert!(resume > cursor, "{error}: {resume:?} is no progress from {cursor:?}");
                cursor = resume;
            }
        }
    }
}

fn bytes(records: &[Record]) -> Vec<u8> {
    records.iter().flat_map(|record| record.bytes.clone()).collect()
}

fn lines(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("line {n} {}\n", "x".repeat(n % 90)).into_bytes()).collect()
}

#[test]
fn spool_round_trips_across_segments_and_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = lines(400);
    write_some(dir.path(), 1, SMALL, &payloads[..200]);
    let end = write_some(dir.path(), 3, SMALL, &payloads[200..]);
    assert!(segments(dir.path()).unwrap().len() > 6);
    for max_bytes in [0, 1, 100, 10_000, 1 << 20] {
        let (records, damages) = read_all(dir.path(), max_bytes);
        assert_eq!((bytes(&records), damages), (payloads.concat(), 0), "{max_bytes}");
        assert_eq!(records.last().unwrap().end, end);
        assert!(
            records
                .windows(2)
                .all(|pair| pair[0].end == pair[1].start || pair[1].start == Cursor::start_of(3))
        );
    }
}

#[test]
fn compressed_spool_reads_as_before_and_takes_another_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = lines(400);
    write_some(dir.path(), 1, SMALL, &payloads[..200]);
    let (before, _) = read_all(dir.path(), 1000);
    let listed = segments(dir.path()).unwrap();
    let first = segment_path(dir.path(), listed[0]);
    let plain = std::fs::read(&first).unwrap();
    assert!(!is_compressed(dir.path()));
    assert!(compress(dir.path()).unwrap() > 0);
    assert!(is_compressed(dir.path()) && !first.exists());
    assert_eq!(segments(dir.path()).unwrap(), listed);
    for max_bytes in [1, 1000, 1 << 20] {
        assert_eq!(read_all(dir.path(), max_bytes), (before.clone(), 0), "{max_bytes}");
    }
    // A kill before the removal leaves both.
    std::fs::write(&first, &plain).unwrap();
    assert_eq!(segments(dir.path()).unwrap(), listed);
    assert_eq!(read_all(dir.path(), 1000), (before, 0));
    compress(dir.path()).unwrap();
    write_some(dir.path(), 2, SMALL, &payloads[200..]);
    assert_eq!(bytes(&read_all(dir.path(), 1000).0), payloads.concat());
    trim(dir.path(), 0).unwrap();
    assert_eq!(segments(dir.path()).unwrap().len(), 1, "the newest stays");
}

/// On a full disk each attempt would take more room.
#[test]
fn failed_compression_leaves_no_temporary_file() {
    let dir = tempfile::tempdir().unwrap();
    write_some(dir.path(), 1, SMALL, &lines(200));
    let first = segments(dir.path()).unwrap()[0];
    let target = compressed_path(dir.path(), first);
    // A file cannot be renamed to a folder.
    std::fs::create_dir(&target).unwrap();
    let left = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".tmp")).count()
    };
    compress(dir.path()).unwrap_err();
    assert_eq!(left(), 0);
    std::fs::remove_dir(&target).unwrap();
    // A kill leaves one, which goes with its segment.
    std::fs::write(target.with_extension("zst.tmp"), "half").unwrap();
    trim(dir.path(), 0).unwrap();
    assert_eq!(left(), 0);
}

#[test]
fn io_error_of_a_compressed_segment_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    write_some(dir.path(), 1, SMALL, &lines(200));
    compress(dir.path()).unwrap();
    let first = segments(dir.path()).unwrap()[0];
    let file = compressed_path(dir.path(), first);
    std::fs::remove_file(&file).unwrap();
    // It can be opened, and its read fails.
    std::fs::create_dir(&file).unwrap();
    let error = Reader::open(dir.path()).read(first, 100).unwrap_err();
    assert!(matches!(error, ReadError::Io { .. }), "{error}");
}

#[test]
fn damaged_compressed_segment_is_named_and_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    write_some(dir.path(), 1, SMALL, &lines(200));
    let listed = segments(dir.path()).unwrap();
    let whole = read_all(dir.path(), 1 << 20).0;
    compress(dir.path()).unwrap();
    let victim = compressed_path(dir.path(), listed[1]);
    let good = std::fs::read(&victim).unwrap();
    let left = whole.iter().filter(|it| !(listed[1]..listed[2]).contains(&it.start)).count();
    for at in (0..good.len()).step_by(11) {
        for cut in [false, true] {
            let mut bad = good.clone();
            match cut {
                true => bad.truncate(at),
                false => bad[at] ^= 1 << (at % 8),
            }
            std::fs::write(&victim, &bad).unwrap();
            let (records, damages) = read_all(dir.path(), 1 << 20);
            // A flipped bit of the frame's header may change nothing.
            let untouched = damages == 0 && records == whole && !cut;
            assert!(untouched || (damages, records.len()) == (1, left), "{at} {cut}: {damages}");
        }
    }
    std::fs::write(&victim, b"").unwrap();
    let error = Reader::open(dir.path()).read(listed[1], 100).unwrap_err().to_string();
    assert!(error.contains(".seg.zst is damaged at byte 0: its compressed form"), "{error}");
}

#[test]
fn a_reader_keeps_up_with_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(dir.path(), 1, SMALL).unwrap();
    let mut reader = Reader::open(dir.path());
    let mut cursor = Cursor::default();
    let mut read = vec![];
    for payload in lines(500) {
        assert_eq!(writer.room(), Room::Yes);
        writer.append(Stream::Stderr, &payload).unwrap();
        let batch = reader.read(cursor, 1 << 20).unwrap();
        assert_eq!(batch.state, State::CaughtUp);
        cursor = batch.next;
        assert_eq!(cursor, writer.cursor());
        read.extend(batch.records);
        writer.ack(cursor);
    }
    assert_eq!(bytes(&read), lines(500).concat());
    let kept = segments(dir.path()).unwrap();
    assert!(kept[0].offset > 0, "acknowledged segments were deleted");
    // A reader at an earlier position gets an error that says so.
    match reader.read(Cursor::start_of(1), 100) {
        Err(ReadError::Missing { resume: Some(resume), .. }) => assert_eq!(resume, kept[0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn older_epoch_cannot_append() {
    let dir = tempfile::tempdir().unwrap();
    write_some(dir.path(), 2, SMALL, &lines(3));
    for epoch in [1, 2] {
        assert!(Writer::create(dir.path(), epoch, SMALL).is_err());
    }
}

#[test]
fn spool_at_its_cap_refuses_output_but_fits_the_exit_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(dir.path(), 1, SMALL).unwrap();
    let mut accepted = 0;
    while writer.room() == Room::Yes {
        writer.append(Stream::Stdout, &[b'x'; 1000]).unwrap();
        accepted += 1;
    }
    assert_eq!(writer.room(), Room::No(BlockReason::Cap));
    assert!((40..80).contains(&accepted), "{accepted}");
    let exited = Control::Exited { code: Some(0), signal: None, cause: Cause::Exited };
    writer.append(Stream::Control, &exited.encode()).unwrap();
    writer.ack(Cursor { epoch: 9, offset: 0 });
    assert_eq!(writer.acked(), Cursor::default(), "nobody can acknowledge what was not written");
    writer.ack(writer.cursor());
    assert_eq!(writer.room(), Room::Yes);
}

#[test]
fn a_flipped_bit_is_named_and_costs_one_record() {
    let payloads = lines(60);
    let dir = tempfile::tempdir().unwrap();
    let limits = SpoolLimits::default();
    write_some(dir.path(), 1, limits, &payloads);
    let path = segment_path(dir.path(), Cursor::start_of(1));
    let whole = std::fs::read(&path).unwrap();
    let last = whole.len() - RECORD_HEADER - payloads[59].len();
    for at in (SEGMENT_HEADER..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).unwrap();
        let (records, damages) = read_all(dir.path(), 1 << 20);
        let tail = at >= last;
        assert_eq!(records.len(), 59, "byte {at}");
        // At the very end of the spool, damage looks like a write that was cut.
        assert!(damages == 1 || (tail && damages <= 1), "byte {at}: {damages}");
        let position = records.windows(2).position(|pair| pair[0].seq + 1 != pair[1].seq);
        assert!(position.is_some() || records[0].seq == 1 || tail, "byte {at}");
    }
    let mut damaged = whole;
    damaged[SEGMENT_HEADER + 3] ^= 4;
    std::fs::write(&path, &damaged).unwrap();
    let error = Reader::open(dir.path()).read(Cursor::start_of(1), 100).unwrap_err();
    assert!(
        error.to_string().contains("00000001-0000000000000000.seg is damaged at byte 32"),
        "{error}"
    );
}

#[test]
fn zeros_at_the_end_are_a_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    let end = write_some(dir.path(), 1, SpoolLimits::default(), &lines(5));
    let path = segment_path(dir.path(), Cursor::start_of(1));
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(length + 5000).unwrap();
    let batch = Reader::open(dir.path()).read(Cursor::start_of(1), 1 << 20).unwrap();
    assert_eq!(
        (batch.records.len(), batch.next, batch.state),
        (5, end, State::Torn { bytes: 5000 })
    );
}

/// A write was cut short before its writer began another segment. Its bytes never were a record.
#[test]
fn half_a_record_before_the_next_segment_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    write_some(dir.path(), 1, SMALL, &lines(200));
    let segments = muleteer_shim::spool::segments(dir.path()).unwrap();
    assert!(segments.len() > 2);
    let mut first =
        std::fs::File::options().append(true).open(segment_path(dir.path(), segments[0])).unwrap();
    std::io::Write::write_all(&mut first, &[7; 10]).unwrap();
    for max_bytes in [1, 1000, 1 << 20] {
        let (records, damages) = read_all(dir.path(), max_bytes);
        assert_eq!((records.len(), damages), (200, 0), "{max_bytes} bytes at once");
    }
}

#[test]
fn missing_spool_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let batch = Reader::open(&dir.path().join("none")).read(Cursor::default(), 100).unwrap();
    assert_eq!((batch.records.len(), batch.state), (0, State::CaughtUp));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn truncated_spool_yields_a_prefix(count in 1usize..40, cut in 0usize..4000) {
        let dir = tempfile::tempdir().unwrap();
        let payloads = lines(count);
        write_some(dir.path(), 1, SpoolLimits::default(), &payloads);
        let path = segment_path(dir.path(), Cursor::start_of(1));
        let length = std::fs::metadata(&path).unwrap().len() as usize;
        let cut = cut.min(length);
        std::fs::File::options().write(true).open(&path).unwrap()
            .set_len((length - cut) as u64).unwrap();
        let (records, damages) = read_all(dir.path(), 500);
        prop_assert_eq!(damages, 0);
        let read = bytes(&records);
        prop_assert_eq!(&payloads.concat()[..read.len()], &read[..]);
        prop_assert!(records.len() + cut / RECORD_HEADER + 1
            >= count.min(records.len() + 1 + cut / RECORD_HEADER));
    }

    #[test]
    fn garbage_for_a_segment_never_panics(
        garbage in proptest::collection::vec(any::<u8>(), 0..3000), offset in 0u64..4000
    ) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(segment_path(dir.path(), Cursor::start_of(1)), &garbage).unwrap();
        let _ = read_all(dir.path(), 100);
        let _ = Reader::open(dir.path()).read(Cursor { epoch: 1, offset }, 100);
    }

    #[test]
    fn bit_flips_lose_only_their_record(
        flips in proptest::collection::vec((any::<usize>(), 0u8..8), 1..4)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let payloads = lines(120);
        write_some(dir.path(), 1, SMALL, &payloads);
        let files: Vec<PathBuf> = segments(dir.path()).unwrap().into_iter()
            .map(|s| segment_path(dir.path(), s)).collect();
        for (at, bit) in &flips {
            let path = &files[at % files.len()];
            let mut content = std::fs::read(path).unwrap();
            let at = at % content.len();
            content[at] ^= 1 << bit;
            std::fs::write(path, content).unwrap();
        }
        let (records, _) = read_all(dir.path(), 300);
        prop_assert!(
            records.len() + flips.len() >= payloads.len(),
            "{} of {}", records.len(), payloads.len());
        for record in &records {
            prop_assert_eq!(&record.bytes, &payloads[record.seq as usize]);
        }
    }
}

/// The checked-in files of version 1 must stay readable for ever. `MULETEER_BLESS=1` creates
/// missing ones.
#[test]
fn the_samples_load() {
    let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("samples");
    if std::env::var_os("MULETEER_BLESS").is_some() && !samples.join("spool").exists() {
        bless(&samples);
    }
    let launch = Launch::read(&samples, 3).unwrap();
    assert_eq!(launch.argv, ["claude", "--verbose"]);
    assert_eq!(launch.timing.term_grace_ms, 10_000);
    assert_eq!(launch.limits.max_memory_bytes, 0);
    let meta = meta::read(&samples).unwrap().unwrap();
    assert_eq!((meta.epoch, meta.shim.pid, meta.agent.map(|id| id.pid)), (3, 4711, Some(4712)));
    let (records, damages) = read_all(&samples.join("spool"), 1 << 20);
    assert_eq!((records.len(), damages), (5, 0));
    assert!(
        matches!(records[0].control(), Some(Control::Spawned { agent, .. }) if agent.pid == 4712)
    );
    assert_eq!((records[1].stream, &records[1].bytes[..]), (Stream::Stdout, &b"a line\n"[..]));
    assert_eq!((records[2].stream, &records[2].bytes[..]), (Stream::Stderr, &b"a complaint\n"[..]));
    assert_eq!(
        records[3].control(),
        Some(Control::Exited { code: Some(0), signal: None, cause: Cause::Exited })
    );
    assert_eq!(records[4].control(), Some(Control::Ended { survivors: 0, left: vec![] }));
}

fn bless(samples: &Path) {
    use muleteer_process::identity::ProcessId;
    let spool = samples.join("spool");
    std::fs::create_dir_all(&spool).unwrap();
    let mut launch = Launch::new(
        3,
        17,
        "6e6f6e6365".into(),
        vec!["claude".into(), "--verbose".into()],
        "/home/user/project".into(),
    );
    launch.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
    launch.write(samples).unwrap();
    let (shim, agent) =
        (ProcessId { pid: 4711, start_time: 90 }, ProcessId { pid: 4712, start_time: 91 });
    let meta = meta::Meta {
        v: meta::VERSION,
        epoch: 3,
        generation: 17,
        shim,
        agent: Some(agent),
        boot_id: "5f6d2a1c-0000-4000-8000-000000000000".into(),
        pid_namespace: 4_026_531_836,
        nonce: launch.nonce,
        containment: "pdeathsig+subreaper+sweep".into(),
        cgroup: None,
        started_ms: 1_795_000_000_000,
        version: "0.1.0".into(),
    };
    std::fs::write(samples.join("meta.json"), serde_json::to_vec_pretty(&meta).unwrap()).unwrap();
    let mut writer = Writer::create(&spool, 3, SpoolLimits::default()).unwrap();
    let containment = meta.containment;
    let control = |writer: &mut Writer, control: Control| {
        writer.append(Stream::Control, &control.encode()).unwrap()
    };
    control(&mut writer, Control::Spawned { agent, shim, containment });
    writer.append(Stream::Stdout, b"a line\n").unwrap();
    writer.append(Stream::Stderr, b"a complaint\n").unwrap();
    control(&mut writer, Control::Exited { code: Some(0), signal: None, cause: Cause::Exited });
    control(&mut writer, Control::Ended { survivors: 0, left: vec![] });
    writer.finish();
}

/// Segments are deleted as a whole, so the spool keeps at most one of them more than requested.
#[test]
fn small_retention_uses_small_segments() {
    let segment =
        |retain_bytes| SpoolLimits { retain_bytes, ..SpoolLimits::default() }.sane().segment_bytes;
    assert_eq!([0, 1 << 20, 8 << 20, 64 << 20].map(segment), [1 << 20, 1 << 20, 4 << 20, 32 << 20]);
}
