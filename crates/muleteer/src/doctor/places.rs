//! Checks the directories, the operator's key, the shim, and the daemon at the socket.

use crate::cli::context::Context;
use muleteer_model::doctor::{
    Barred, Cause, DaemonFacts, DatabaseFacts, DirFacts, DirState, EventFacts, Exports, FileFacts,
    ShimFacts, There,
};
use muleteer_protocol::client::ClientError;
use muleteer_store::StoreError;
use muleteer_store::db::Projection;
use muleteer_store::events::check;
use muleteer_supervisor::daemon::paths::Paths;
use rustix::io::Errno;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// A daemon that needs longer than this for the handshake counts as unusable.
const GREETING: Duration = Duration::from_secs(5);

pub(super) fn dir(path: &Path) -> DirFacts {
    facts(path, std::fs::metadata(path))
}

/// Checks a directory that must not be a symbolic link.
pub(super) fn own_dir(path: &Path, socket_len: Option<usize>) -> DirFacts {
    DirFacts { socket_len, ..facts(path, std::fs::symlink_metadata(path)) }
}

fn facts(path: &Path, found: io::Result<Metadata>) -> DirFacts {
    let there = match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => There::Missing(can_be_made(path)),
        Err(error) => There::Broken(error.to_string()),
        Ok(meta) if !meta.is_dir() => There::Broken("it is not a directory".into()),
        Ok(meta) => There::Dir(DirState {
            uid: meta.uid(),
            mode: meta.mode(),
            writable: may_write(path),
            free_bytes: rustix::fs::statvfs(path)
                .map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
            doubtful_fs: doubtful_fs(path),
        }),
    };
    DirFacts { path: path.into(), there, socket_len: None }
}

fn may_write(dir: &Path) -> Result<(), Barred> {
    let barred = |why: &str, read_only| Err(Barred { why: why.into(), read_only });
    match rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(Errno::ROFS) => barred("is on a read-only file system", true),
        Err(Errno::ACCESS | Errno::PERM) => barred("cannot be written", false),
        Err(error) => barred(&format!("cannot be written: {}", io::Error::from(error)), false),
    }
}

/// Returns whether the directory can be created, judging by its nearest existing ancestor.
fn can_be_made(path: &Path) -> Result<(), Barred> {
    let barred = |why: String| Err(Barred { why, read_only: false });
    for above in path.ancestors().skip(1) {
        let say = |what: &str| format!("{} {what}", above.display());
        match std::fs::metadata(above) {
            Ok(meta) if !meta.is_dir() => return barred(say("is not a directory")),
            Ok(_) => {
                return may_write(above).map_err(|error| Barred { why: say(&error.why), ..error });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return barred(say(&format!("cannot be inspected: {error}"))),
        }
    }
    barred("none of its parent directories exists".into())
}

/// Reads the log and the database as the next daemon will. A thread does the reading, and nobody
/// waits for it longer than the deadline: a log may have any length.
pub(super) async fn state(paths: &Paths, deadline: Duration) -> (EventFacts, DatabaseFacts) {
    let slow = (EventFacts::Slow { after_s: deadline.as_secs() }, DatabaseFacts::None);
    let (done, told) = tokio::sync::oneshot::channel();
    let (events, database) = (paths.events(), paths.database());
    let read = move || drop(done.send(read_state(&events, &database)));
    match std::thread::Builder::new().name("state".into()).spawn(read) {
        Ok(_) => {
            tokio::time::timeout(deadline, told).await.ok().and_then(Result::ok).unwrap_or(slow)
        }
        Err(_) => slow,
    }
}

fn read_state(events: &Path, database: &Path) -> (EventFacts, DatabaseFacts) {
    let said = |error: &StoreError| (crate::cli::failure::chain(error), error.hint().to_string());
    // The database is read first: the log of a running daemon is never behind its database.
    let found = Projection::open_read_only(database).map(|db| db.map(|db| db.applied_seq()));
    let (log, last) = match check(events) {
        Ok(recovery) if recovery.records == 0 => (EventFacts::None, Some(0)),
        Ok(recovery) => (EventFacts::Read { records: recovery.records }, Some(recovery.last_seq)),
        Err(error) => {
            let (error, hint) = said(&error);
            (EventFacts::Broken { error, hint }, None)
        }
    };
    let ahead = |applied: &u64| last.filter(|last| applied > last);
    let database = match found {
        Ok(None) => DatabaseFacts::None,
        Ok(Some(applied)) => match ahead(&applied) {
            Some(last) => {
                let (error, hint) =
                    said(&StoreError::DbAhead { file: events.into(), applied, last });
                DatabaseFacts::Broken { error, hint }
            }
            None => DatabaseFacts::Read { applied },
        },
        Err(error @ StoreError::DbCorrupt { .. }) => {
            DatabaseFacts::Damaged(crate::cli::failure::chain(&error))
        }
        Err(error) => {
            let (error, hint) = said(&error);
            DatabaseFacts::Broken { error, hint }
        }
    };
    (log, database)
}

/// File systems whose locks or fsync are known to be unreliable.
#[cfg(target_os = "linux")]
fn doubtful_fs(path: &Path) -> Option<String> {
    const KNOWN: [(u32, &str); 6] = [
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x0102_1994, "tmpfs, which loses all files at a reboot"),
    ];
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    // The type's width and sign differ between architectures; the numbers have 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let kind = kind as u32;
    KNOWN.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| (*name).to_string())
}

#[cfg(not(target_os = "linux"))]
fn doubtful_fs(_: &Path) -> Option<String> {
    None
}

pub(super) fn file(path: &Path) -> Option<FileFacts> {
    let meta = std::fs::metadata(path).ok()?;
    Some(FileFacts { path: path.into(), uid: meta.uid(), mode: meta.mode() })
}

pub(super) async fn daemon(context: &Context) -> DaemonFacts {
    let socket = context.socket.clone();
    match tokio::time::timeout(GREETING, context.dial_living()).await {
        Ok(Ok(client)) => {
            let welcome = client.welcome();
            let exports = welcome.telemetry.as_ref().map(|telemetry| match &telemetry.endpoint {
                Some(endpoint) => Exports::To(endpoint.clone()),
                None => Exports::Nothing,
            });
            DaemonFacts::Answers {
                pid: welcome.daemon_pid,
                version: welcome.daemon_version.clone(),
                socket,
                exports,
            }
        }
        Ok(Err(ClientError::NoDaemon { .. })) if context.is_held() => DaemonFacts::Mute {
            socket,
            error: "a daemon is running but does not listen \
                there"
                .into(),
        },
        Ok(Err(ClientError::NoDaemon { .. })) if socket.exists() => DaemonFacts::Left { socket },
        Ok(Err(ClientError::NoDaemon { .. })) => DaemonFacts::None,
        Ok(Err(error)) => DaemonFacts::Mute { socket, error: crate::cli::failure::chain(&error) },
        Err(_) => DaemonFacts::Mute {
            socket,
            error: format!("no greeting within {} s", GREETING.as_secs()),
        },
    }
}

pub(super) fn shim(own: &Path) -> Result<ShimFacts, Cause> {
    let beside = own.with_file_name("muleteer-shim");
    match std::fs::File::open(&beside) {
        Ok(_) => Ok(ShimFacts { path: beside, own_binary: true }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(ShimFacts { path: own.into(), own_binary: false })
        }
        Err(error) => Err(format!("{}: {error}", beside.display()).into()),
    }
}
