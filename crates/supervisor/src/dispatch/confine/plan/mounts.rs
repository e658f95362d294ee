//! The machine's mounts. A file system can be mounted more than once, so a path can have other
//! names, and hiding one of them hides nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount, as `/proc/self/mountinfo` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Names the file system.
    device: String,
    /// The path in the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
}

/// Reads the lines of `/proc/self/mountinfo`.
pub(super) fn parse(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?.to_string();
        let (root, point) = (path(fields.next()?), path(fields.next()?));
        Some(Mount { device, root, point })
    };
    text.lines().filter_map(mount).collect()
}

/// Resolves the octal escapes of a path.
fn path(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (vec![], 0);
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                found.push(byte);
                at += 4;
            }
            None => {
                found.push(bytes[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(found).into()
}

/// Returns the other paths at which `hidden` or a part of it can be reached. Paths in `hidden`
/// itself are left out.
pub(super) fn aliases(mounts: &[Mount], hidden: &Path) -> Vec<PathBuf> {
    let holds = |mount: &&Mount| hidden.starts_with(&mount.point);
    // Of two mounts at one place the later one is on top.
    let depth = |mount: &&Mount| mount.point.components().count();
    let Some(own) = mounts.iter().filter(holds).max_by_key(depth) else { return vec![] };
    let Ok(rest) = hidden.strip_prefix(&own.point) else { return vec![] };
    let within = join(&own.root, rest);
    let others = mounts.iter().filter(|mount| mount.device == own.device);
    let alias = |mount: &Mount| {
        if let Ok(rest) = within.strip_prefix(&mount.root) {
            return Some(join(&mount.point, rest));
        }
        mount.root.starts_with(&within).then(|| mount.point.clone())
    };
    others.filter_map(alias).filter(|path| !path.starts_with(hidden)).collect()
}

fn join(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:1 / /mnt/whole rw - ext4 /dev/sda1 rw
24 22 8:1 /home/me/.local /srv/a\\040part rw - ext4 /dev/sda1 rw
25 22 8:1 /home/me/.local/state/muleteer/sealed /home/me/seal rw - ext4 /dev/sda1 rw
26 22 0:9 / /tmp rw - tmpfs tmpfs rw
27 22 8:1 /var /mnt/var rw - ext4 /dev/sda1 rw
";

    #[test]
    fn hidden_path_is_found_under_every_other_mount_of_its_file_system() {
        let found = aliases(&parse(MOUNTS), Path::new("/home/me/.local/state/muleteer"));
        let expected = [
            "/mnt/whole/home/me/.local/state/muleteer",
            "/srv/a part/state/muleteer",
            "/home/me/seal",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn path_on_its_own_file_system_has_no_other_name() {
        assert_eq!(aliases(&parse(MOUNTS), Path::new("/tmp/x")), Vec::<PathBuf>::new());
    }
}
