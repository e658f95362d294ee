//! Makes and checks directories that no other user may enter or write.

use crate::daemon::start::error::StartError;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Makes a directory with mode 0700, and its parents, unless it exists.
pub fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Rejects a runtime directory that another user may have made first (possible in `/tmp`).
pub(crate) fn check_private(path: &Path) -> Result<(), StartError> {
    // The outer one first: without rights to it the inner one cannot be looked at.
    for folder in [path.parent(), Some(path)].into_iter().flatten() {
        let meta = std::fs::symlink_metadata(folder)
            .map_err(|source| StartError::Io { path: folder.into(), source })?;
        let owner = Some(meta.uid()).filter(|uid| *uid != rustix::process::getuid().as_raw());
        if owner.is_some() || !meta.is_dir() || meta.permissions().mode() & 0o022 != 0 {
            let (path, variable) = (folder.into(), "XDG_RUNTIME_DIR");
            return Err(StartError::NotPrivate { path, owner, variable });
        }
    }
    Ok(())
}

/// Makes a runtime directory, and checks it. Another user who made the one above it first keeps
/// this user out, and is named.
pub(crate) fn make_private(path: &Path) -> Result<(), StartError> {
    match private_dir(path) {
        Ok(()) => check_private(path),
        Err(source) => match path.parent().map(std::fs::symlink_metadata) {
            Some(Ok(meta)) if meta.uid() != rustix::process::getuid().as_raw() => {
                check_private(path)
            }
            _ => Err(StartError::Io { path: path.into(), source }),
        },
    }
}

/// Makes the state directory unless it exists, and closes it to other users. Another owner is
/// rejected, because they could write any file there, such as the operator's key.
pub(crate) fn keep_private(path: &Path) -> Result<(), StartError> {
    let keep = || {
        private_dir(path)?;
        let meta = std::fs::metadata(path)?;
        let (owner, mode) = (meta.uid(), meta.permissions().mode());
        let ours = owner == rustix::process::getuid().as_raw();
        if ours && mode & 0o077 != 0 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
            let could = if mode & 0o022 != 0 { "write to" } else { "read" };
            let mode = format!("{:o}", mode & 0o7777);
            tracing::warn!(
                path = %path.display(),
                mode,
                "other users could {could} the state directory: set its mode to 700"
            );
        }
        Ok((ours, owner))
    };
    match keep() {
        Ok((true, _)) => Ok(()),
        Ok((false, owner)) => {
            let (path, variable) = (path.into(), "XDG_STATE_HOME");
            Err(StartError::NotPrivate { path, owner: Some(owner), variable })
        }
        Err(source) => Err(StartError::Io { path: path.into(), source }),
    }
}
