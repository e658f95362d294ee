//! The folders of the system that every agent sees, read-only. Other folders of the machine do not
//! exist for it, unless a later rule shows them.

use super::links::{followed, real};
use muleteer_process::sandbox::What;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Programs, libraries and settings. `/nix` and `/gnu` have a store of programs each.
const FOLDERS: [&str; 15] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/snap",
    "/nix/store",
    "/nix/var/nix/profiles",
    "/gnu/store",
    "/var/guix/profiles",
    "/home/linuxbrew",
];
/// Data that programs of the system read.
const DATA: [&str; 9] = [
    "/var/cache/fontconfig",
    "/var/cache/man",
    "/var/lib/alternatives",
    "/var/lib/ca-certificates",
    "/var/lib/dbus/machine-id",
    "/var/lib/dpkg",
    "/var/lib/rpm",
    "/var/lib/texmf",
    "/var/db",
];
/// The files in which programs read about the hardware and their limits.
const HARDWARE: [&str; 8] = [
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/module",
];
/// The parts of `/run` that lead to nobody: names of hosts and users, and links to programs.
const RUN: [&str; 8] = [
    "/run/NetworkManager/resolv.conf",
    "/run/booted-system",
    "/run/connman/resolv.conf",
    "/run/current-system",
    "/run/nscd",
    "/run/opengl-driver",
    "/run/resolvconf",
    "/run/systemd/resolve",
];
/// Files of `/etc` that may be links to elsewhere.
const LINKED: [&str; 6] = [
    "/etc/hosts",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/ssl/certs/ca-certificates.crt",
];
/// The links that a new root needs, because paths lead through them.
const LINKS: [&str; 3] = ["/var/run", "/var/lock", "/home"];
/// Secrets of the system, which only an agent that is root could read.
const SECRETS: [&str; 18] = [
    "/etc/NetworkManager/system-connections",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/krb5.keytab",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/security/opasswd",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/etc/wpa_supplicant",
];

/// Returns the places of the system on this machine.
pub(super) fn places(is_root: bool) -> BTreeMap<PathBuf, What> {
    let mut places = BTreeMap::new();
    let all = FOLDERS.iter().chain(&DATA).chain(&HARDWARE).chain(&RUN);
    for path in all.map(Path::new) {
        match path.symlink_metadata() {
            Ok(meta) if meta.is_symlink() => link(&mut places, path),
            Ok(_) => drop(places.insert(real(path.to_owned()), What::Show)),
            Err(_) => {}
        }
    }
    for path in LINKS.map(Path::new) {
        if path.is_symlink() {
            link(&mut places, path);
        }
    }
    for path in LINKED.map(Path::new).into_iter().filter(|path| path.exists()) {
        for path in followed(path) {
            let is_shown = path.ancestors().any(|above| places.get(above) == Some(&What::Show));
            if !is_shown && !path.starts_with("/proc") && !path.is_symlink() {
                places.insert(path, What::Show);
            }
        }
    }
    for path in SECRETS.map(Path::new).into_iter().filter(|path| is_root && path.exists()) {
        let what = if path.is_dir() { What::Hidden } else { What::Closed };
        places.insert(real(path.to_owned()), what);
    }
    places
}

fn link(places: &mut BTreeMap<PathBuf, What>, path: &Path) {
    if let Ok(to) = std::fs::read_link(path) {
        places.insert(path.to_owned(), What::Link(to));
    }
}

/// Returns the sizes in bytes of the machine's memory; `None` if they cannot be read.
pub(in crate::dispatch::confine) fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}
