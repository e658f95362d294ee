//! Turns the output of `strace` into a list of steps on files.

use super::disk::Step;
use crate::{PATIENCE, wait_until};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Returns all steps on files below the `roots` and on the agent's `effects`, in their order.
pub fn read(traces: &Path, roots: &[PathBuf], effects: &Path) -> Vec<Step> {
    // A traced process may end a moment before its tracer has written its last call.
    let texts = wait_until("the traces to be written", PATIENCE, || {
        let texts: Option<Vec<String>> = std::fs::read_dir(traces)
            .ok()?
            .flatten()
            .map(|entry| {
                std::fs::read_to_string(entry.path())
                    .ok()
                    .filter(|text| text.is_empty() || text.ends_with('\n'))
            })
            .collect();
        texts.filter(|texts| !texts.is_empty())
    });
    let mut calls: Vec<_> = texts.iter().flat_map(|text| calls(text)).collect();
    calls.sort_by(|one, other| one.done.total_cmp(&other.done));
    let ours = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let below = roots.iter().any(|root| path.starts_with(root))
            && roots.iter().all(|root| path != root);
        below
            && path != effects
            && !name.starts_with("muleteer.db")
            && !name.ends_with(" (deleted)")
    };
    let kept = |step: &Step| match step {
        Step::Open { path, .. } | Step::Write { path, .. } | Step::Truncate { path, .. } => {
            ours(path)
        }
        Step::Remove(path) | Step::Folder(path) => ours(path),
        Step::Rename { from, to } | Step::Link { from, to } => ours(from) && ours(to),
        Step::Exchange { one, other } => ours(one) && ours(other),
        Step::Sync(path) | Step::WriteBack(path) => ours(path) || roots.contains(path),
        Step::Effect(_) | Step::SyncAll => true,
    };
    let effect = |step: Step| match step {
        Step::Write { path, bytes, .. } if path == effects => {
            Step::Effect(String::from_utf8_lossy(&bytes).into())
        }
        other => other,
    };
    calls.iter().filter_map(Call::step).map(effect).filter(kept).collect()
}

/// One call that succeeded.
#[derive(Debug, Default, PartialEq)]
struct Call {
    /// The time of its return, in seconds since 1970.
    done: f64,
    name: String,
    args: Vec<String>,
    returned: String,
    /// The directory from which relative names begin.
    folder: PathBuf,
}

/// Returns the calls of one thread.
fn calls(text: &str) -> Vec<Call> {
    let mut folder = PathBuf::from("/");
    // While a sandbox is being built, its mounts are in memory. That ends when the agent begins.
    let mut sandbox = false;
    let mut found = vec![];
    for line in text.lines() {
        let Some(mut call) = parse(line) else { continue };
        if let Some(at) =
            call.args.iter().find(|arg| arg.starts_with("AT_FDCWD<")).and_then(|arg| path_of(arg))
        {
            folder = at;
        }
        call.folder.clone_from(&folder);
        if call.name == "chdir" {
            folder = call.named(0);
        }
        match call.name.as_str() {
            "mount" => sandbox = true,
            "execve" => sandbox = false,
            _ if sandbox => {}
            _ => found.push(call),
        }
    }
    found
}

fn parse(line: &str) -> Option<Call> {
    let (begun, rest) = line.split_once(' ')?;
    let (name, rest) = rest.split_once('(')?;
    let (args, rest) = arguments(rest)?;
    let (returned, took) = rest.strip_prefix(" = ")?.rsplit_once(" <")?;
    if returned.starts_with(['-', '?']) {
        return None;
    }
    let done = begun.parse::<f64>().ok()? + took.strip_suffix('>')?.parse::<f64>().ok()?;
    Some(Call { done, name: name.into(), args, returned: returned.into(), folder: PathBuf::new() })
}

/// Splits the text between the parentheses of a call, and returns the text after them.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut args, mut arg, mut depth) = (vec![], String::new(), 0);
    let mut chars = text.char_indices();
    let mut quoted = false;
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quoted => {
                arg.push(c);
                arg.push(chars.next()?.1);
                continue;
            }
            '"' => quoted = !quoted,
            _ if quoted => {}
            '[' | '{' | '<' | '(' => depth += 1,
            ')' if depth == 0 => {
                args.push(arg.trim().to_string());
                return Some((args, &text[at + 1..]));
            }
            ']' | '}' | '>' | ')' => depth -= 1,
            ',' if depth == 0 => {
                args.push(arg.trim().to_string());
                arg.clear();
                continue;
            }
            _ => {}
        }
        arg.push(c);
    }
    None
}

/// Returns the path in `5</path>` or `AT_FDCWD</path>`.
fn path_of(arg: &str) -> Option<PathBuf> {
    Some(arg.split_once('<')?.1.strip_suffix('>')?.into())
}

/// Returns the bytes of every string in `arg`, one after the other.
fn bytes_of(arg: &str) -> Vec<u8> {
    let mut bytes = vec![];
    let mut left: VecDeque<u8> = arg.bytes().collect();
    let mut quoted = false;
    while let Some(byte) = left.pop_front() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => match left.pop_front() {
                Some(b'n') => bytes.push(b'\n'),
                Some(b't') => bytes.push(b'\t'),
                Some(b'r') => bytes.push(b'\r'),
                Some(b'v') => bytes.push(11),
                Some(b'f') => bytes.push(12),
                Some(digit @ b'0'..=b'7') => {
                    let mut value = u32::from(digit - b'0');
                    for _ in 0..2 {
                        let Some(next @ b'0'..=b'7') = left.front().copied() else { break };
                        value = value * 8 + u32::from(next - b'0');
                        left.pop_front();
                    }
                    bytes.push(value as u8);
                }
                Some(other) => bytes.push(other),
                None => {}
            },
            _ if quoted => bytes.push(byte),
            _ => {}
        }
    }
    bytes
}

impl Call {
    /// Returns the file that an argument names.
    fn named(&self, at: usize) -> PathBuf {
        let name = String::from_utf8_lossy(&bytes_of(&self.args[at])).into_owned();
        let whole = self.folder.join(name);
        whole.components().filter(|part| *part != std::path::Component::CurDir).collect()
    }

    /// Returns the file that an argument names, relative to the directory of the argument before
    /// it.
    fn named_from(&self, at: usize) -> PathBuf {
        let from = path_of(&self.args[at - 1]).unwrap_or_else(|| self.folder.clone());
        Self { folder: from, args: self.args.clone(), ..Self::default() }.named(at)
    }

    /// Returns the file of the descriptor that is the first argument.
    fn open(&self) -> Option<PathBuf> {
        path_of(self.args.first()?)
    }

    fn number(&self, at: usize) -> Option<u64> {
        self.args.get(at)?.parse().ok()
    }

    /// Returns the bytes that the call wrote.
    fn written(&self, at: usize) -> Vec<u8> {
        let mut bytes = bytes_of(&self.args[at]);
        bytes.truncate(self.returned.parse().unwrap_or(0));
        bytes
    }

    fn step(&self) -> Option<Step> {
        let at_end = || Some(Step::Write { path: self.open()?, at: None, bytes: self.written(1) });
        let in_place =
            || Some(Step::Write { path: self.open()?, at: self.number(3), bytes: self.written(1) });
        match self.name.as_str() {
            "openat"
                if self.args.get(2)?.contains("O_CREAT") || self.args[2].contains("O_TRUNC") =>
            {
                Some(Step::Open {
                    path: path_of(&self.returned)?,
                    truncate: self.args[2].contains("O_TRUNC"),
                })
            }
            "creat" => Some(Step::Open { path: path_of(&self.returned)?, truncate: true }),
            "write" | "writev" => at_end(),
            "pwrite64" | "pwritev" => in_place(),
            "ftruncate" => Some(Step::Truncate { path: self.open()?, len: self.number(1)? }),
            "rename" => Some(Step::Rename { from: self.named(0), to: self.named(1) }),
            "renameat2" if self.args.get(4)?.contains("RENAME_EXCHANGE") => {
                Some(Step::Exchange { one: self.named_from(1), other: self.named_from(3) })
            }
            "renameat" | "renameat2" => {
                Some(Step::Rename { from: self.named_from(1), to: self.named_from(3) })
            }
            "link" => Some(Step::Link { from: self.named(0), to: self.named(1) }),
            "linkat" => Some(Step::Link { from: self.named_from(1), to: self.named_from(3) }),
            "unlink" | "rmdir" => Some(Step::Remove(self.named(0))),
            "unlinkat" => Some(Step::Remove(self.named_from(1))),
            "mkdir" => Some(Step::Folder(self.named(0))),
            "mkdirat" => Some(Step::Folder(self.named_from(1))),
            "syncfs" => Some(Step::SyncAll),
            "sync_file_range" => Some(Step::WriteBack(self.open()?)),
            "fsync" | "fdatasync" => Some(Step::Sync(self.open()?)),
            _ => None,
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_is_printed() {
        let text = "10.5 chdir(\"/s/agents/a\") = 0 <0.000010>\n\
                    11.0 openat(AT_FDCWD</s/agents/a>, \"./m.tmp\", \
                    O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 7</s/agents/a/m.tmp> <0.000100>\n\
                    11.1 write(7</s/agents/a/m.tmp>, \"{\\n \\\"v\\\": 1, \\0\\1772)\", 14) = 12 \
                    <0.000010>\n\
                    11.2 rename(\"./m.tmp\", \"./m\") = 0 <0.000010>\n\
                    11.3 pwritev(8</s/spool>, [{iov_base=\"ab\", iov_len=2}, {iov_base=\"c, d\", \
                    iov_len=4}], 2, 32) = 6 <0.000010>\n\
                    11.3 renameat2(AT_FDCWD</s/agents/a>, \"./m\", AT_FDCWD</s/agents/a>, \"./n\", \
                    RENAME_EXCHANGE) = 0 <0.000010>\n\
                    11.4 rename(\"gone\", \"m\") = -1 ENOENT (No such file or directory) \
                    <0.000010>\n\
                    11.5 mount(\"tmpfs\", \"/s/agents\", \"tmpfs\", MS_NOSUID|MS_NODEV, \
                    \"mode=0755\") = 0 <0.000010>\n\
                    11.6 mkdir(\"/s/agents/a\", 0777) = 0 <0.000010>\n\
                    11.7 execve(\"/bin/sh\", [\"sh\"], 0x7f /* 3 vars */) = 0 <0.000010>\n\
                    11.8 fsync(9</s/agents/a>) = 0 <0.5>\n";
        let found = calls(text);
        assert!((found.last().map(|call| call.done).unwrap_or_default() - 12.3).abs() < 1e-9);
        let m = |name: &str| PathBuf::from(format!("/s/agents/a/{name}"));
        let steps: Vec<_> = found.iter().filter_map(Call::step).collect();
        assert_eq!(
            steps,
            [
                Step::Open { path: m("m.tmp"), truncate: false },
                Step::Write { path: m("m.tmp"), at: None, bytes: b"{\n \"v\": 1, \0".to_vec() },
                Step::Rename { from: m("m.tmp"), to: m("m") },
                Step::Write { path: "/s/spool".into(), at: Some(32), bytes: b"abc, d".to_vec() },
                Step::Exchange { one: m("m"), other: m("n") },
                Step::Sync("/s/agents/a".into()),
            ]
        );
    }
}
