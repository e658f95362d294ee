//! Programs that a test writes and another process runs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes an executable file, by a separate process. If our process wrote it, every child that
/// another test forks at that moment would have it open for writing until its exec, and nobody
/// could run it meanwhile (`ETXTBSY`).
pub fn write(path: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    writer
        .stdin
        .take()
        .expect("its stdin")
        .write_all(text.as_bytes())
        .expect("a program's text");
    let status = writer.wait().expect("the shell's end");
    assert!(status.success(), "{} cannot be written: {status}", path.display());
}

/// Copies a program by a separate process, for the same reason as [`write()`], and makes it
/// executable for everybody.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("install").arg("-m755").arg(from).arg(to).status().expect("install");
    assert!(status.success(), "{} cannot be copied: {status}", from.display());
}

/// Returns the program that PATH names.
///
/// # Panics
/// When there is no such program.
pub fn real(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).map(|folder| folder.join(name));
    all.find(|path| path.is_file()).expect("the program itself")
}

/// Returns a script that replaces the program of that name. A call that has `words` among its
/// arguments fails the first time, and makes the file `failed`.
///
/// # Panics
/// When there is no such program.
pub fn failing_once(name: &str, words: &str, failed: &Path) -> String {
    let (real, failed) = (real(name), failed.display());
    format!(
        "#!/bin/sh\ncase \" $* \" in\n*'{words}'*) test -e '{failed}' || {{ : > '{failed}'; echo \
         'it is locked' >&2; exit 128; }} ;;\n\
         esac\nexec '{}' \"$@\"\n",
        real.display()
    )
}

/// Does the same, but such a call fails each time.
///
/// # Panics
/// When there is no such program.
pub fn failing_always(name: &str, words: &str) -> String {
    let real = real(name);
    format!(
        "#!/bin/sh\ncase \" $* \" in\n*'{words}'*) echo 'it is locked' >&2; exit 128 \
         ;;\nesac\nexec '{}' \"$@\"\n",
        real.display()
    )
}
