//! The directories, the operator's key, the shim, and whoever answers at the socket.

use crate::context::Context;
use muleteer_model::doctor::{DaemonFacts, DirFacts, DirState, FileFacts, ShimFacts};
use muleteer_protocol::client::ClientError;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// A daemon that takes longer than this to greet is no use to anybody.
const GREETING: Duration = Duration::from_secs(5);

pub(super) fn dir(path: &Path, socket_len: Option<usize>) -> DirFacts {
    let there = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(error.to_string())),
        Ok(meta) if !meta.is_dir() => Some(Err("it is not a directory".into())),
        Ok(meta) => Some(Ok(DirState {
            uid: meta.uid(),
            mode: meta.mode(),
            writable: rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok(),
            free_bytes: rustix::fs::statvfs(path).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
            doubtful_fs: doubtful_fs(path),
        })),
    };
    DirFacts { path: path.into(), there, socket_len }
}

/// File systems whose locks or fsync are known to promise more than they keep.
#[cfg(target_os = "linux")]
fn doubtful_fs(path: &Path) -> Option<String> {
    const KNOWN: [(u32, &str); 6] = [
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x0102_1994, "tmpfs, which forgets everything at a reboot"),
    ];
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    // The type's width and sign differ between architectures; the numbers are of 32 bits.
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
    match tokio::time::timeout(GREETING, context.dial()).await {
        Ok(Ok(client)) => {
            let welcome = client.welcome();
            DaemonFacts::Answers { pid: welcome.daemon_pid, version: welcome.daemon_version.clone(), socket }
        }
        Ok(Err(ClientError::NoDaemon { .. })) if socket.exists() => DaemonFacts::Left { socket },
        Ok(Err(ClientError::NoDaemon { .. })) => DaemonFacts::None,
        Ok(Err(error)) => DaemonFacts::Mute { socket, error: crate::failure::chain(&error) },
        Err(_) => DaemonFacts::Mute { socket, error: format!("no greeting within {} s", GREETING.as_secs()) },
    }
}

pub(super) fn shim(own: &Path) -> Result<ShimFacts, String> {
    let beside = own.with_file_name("muleteer-shim");
    match std::fs::File::open(&beside) {
        Ok(_) => Ok(ShimFacts { path: beside, own_binary: true }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ShimFacts { path: own.into(), own_binary: false }),
        Err(error) => Err(format!("{}: {error}", beside.display())),
    }
}
