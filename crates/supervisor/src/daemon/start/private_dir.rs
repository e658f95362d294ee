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
    for folder in [Some(path), path.parent()].into_iter().flatten() {
        let meta = std::fs::symlink_metadata(folder)
            .map_err(|source| StartError::Io { path: folder.into(), source })?;
        let ours = meta.uid() == rustix::process::getuid().as_raw()
            && meta.is_dir()
            && meta.permissions().mode() & 0o022 == 0;
        if !ours {
            return Err(StartError::NotPrivate {
                path: folder.into(),
                variable: "XDG_RUNTIME_DIR",
            });
        }
    }
    Ok(())
}

/// Makes the state directory unless it exists, and closes it to other users. Another owner is
/// rejected, because they could write any file there, such as the operator's key.
pub(crate) fn keep_private(path: &Path) -> Result<(), StartError> {
    let keep = || {
        private_dir(path)?;
        let meta = std::fs::metadata(path)?;
        let (ours, mode) =
            (meta.uid() == rustix::process::getuid().as_raw(), meta.permissions().mode());
        if ours && mode & 0o022 != 0 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
            let mode = format!("{:o}", mode & 0o7777);
            tracing::warn!(
                path = %path.display(),
                mode,
                "other users could write to the state directory: set its mode to 700"
            );
        }
        Ok(ours)
    };
    match keep() {
        Ok(true) => Ok(()),
        Ok(false) => Err(StartError::NotPrivate { path: path.into(), variable: "XDG_STATE_HOME" }),
        Err(source) => Err(StartError::Io { path: path.into(), source }),
    }
}
