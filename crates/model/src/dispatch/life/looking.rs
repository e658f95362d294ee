//! Classifies a shell command: it only reads, or it surely changes something.
//!
//! Most commands are neither: nothing is known about the effect of `make`.

use crate::agent::ask::looks_cut;
use crate::agent::permission::shell::{self, assignment, basename, script};

/// The depth to which shells within shells are read.
const DEEPEST: usize = 4;

/// Commands that change nothing, whatever their arguments.
const LOOKING: &[&str] = &[
    ":",
    "[",
    "[[",
    "arch",
    "b2sum",
    "basename",
    "cal",
    "cat",
    "cd",
    "cksum",
    "cmp",
    "column",
    "comm",
    "cut",
    "df",
    "diff",
    "diff3",
    "dirname",
    "du",
    "echo",
    "egrep",
    "exit",
    "expand",
    "expr",
    "false",
    "fgrep",
    "file",
    "fmt",
    "fold",
    "free",
    "getconf",
    "grep",
    "groups",
    "head",
    "hexdump",
    "id",
    "join",
    "jq",
    "locale",
    "logname",
    "ls",
    "lsblk",
    "lscpu",
    "lsof",
    "md5sum",
    "nl",
    "nproc",
    "numfmt",
    "od",
    "paste",
    "pathchk",
    "pgrep",
    "popd",
    "printenv",
    "printf",
    "ps",
    "pstree",
    "pushd",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "return",
    "seq",
    "set",
    "sha1sum",
    "sha256sum",
    "sha512sum",
    "sleep",
    "stat",
    "strings",
    "sum",
    "tac",
    "tail",
    "test",
    "tr",
    "true",
    "tty",
    "type",
    "uname",
    "unexpand",
    "uptime",
    "users",
    "vmstat",
    "wait",
    "wc",
    "whereis",
    "which",
    "who",
    "whoami",
];
/// Commands that change nothing as long as no argument begins like this.
const LOOKING_WITHOUT: &[(&str, &[&str])] = &[
    ("date", &["-s", "--s"]),
    ("fd", &["-x", "-X", "--exec"]),
    ("find", &["-exec", "-ok", "-delete", "-fprint", "-fls"]),
    ("rg", &["--pre", "--hostname-bin"]),
    ("sort", &["-o", "--o", "--compress-program"]),
    ("tree", &["-o"]),
];
/// Commands that change nothing with at most so many arguments beside their flags.
const LOOKING_WITH: &[(&str, usize)] = &[("env", 0), ("hostname", 0), ("uniq", 1)];
/// The text that an awk program needs in order to do more than print.
const AWK_ACTS: [&str; 4] = ["system", "|", ">", "getline"];

const GIT_LOOKING: &[&str] = &[
    "annotate",
    "blame",
    "cat-file",
    "check-ignore",
    "cherry",
    "count-objects",
    "describe",
    "diff",
    "diff-index",
    "diff-tree",
    "for-each-ref",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "name-rev",
    "range-diff",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-branch",
    "show-ref",
    "status",
    "var",
    "version",
    "whatchanged",
];
/// Git commands that change nothing if all that follows is among these.
const GIT_LISTING: &[(&str, &[&str])] = &[
    (
        "branch",
        &[
            "-a",
            "--all",
            "-r",
            "--remotes",
            "-v",
            "-vv",
            "--verbose",
            "-l",
            "--list",
            "--show-current",
        ],
    ),
    ("remote", &["-v", "--verbose"]),
    ("tag", &["-l", "--list", "-n"]),
    ("reflog", &["show"]),
];
/// Git commands that change nothing if this is the next word.
const GIT_SHOWING: &[(&str, &[&str])] = &[
    ("config", &["--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"]),
    ("remote", &["show", "get-url"]),
    ("stash", &["list", "show"]),
    ("worktree", &["list"]),
    ("submodule", &["status"]),
];
/// Arguments by which git writes a file or starts a program that the caller chooses.
const GIT_ACTS: &[&str] = &["--output", "-O", "--open-files-in-pager", "--ext-diff", "--textconv"];

/// Commands that change something, whatever their arguments.
const WRITING: &[&str] = &[
    "chgrp", "chmod", "chown", "cp", "dd", "install", "kill", "killall", "ln", "mkdir", "mkfifo",
    "mv", "patch", "pkill", "rm", "rmdir", "rsync", "shred", "tee", "touch", "truncate", "unlink",
];
const GIT_WRITING: &[&str] = &[
    "add",
    "am",
    "apply",
    "checkout",
    "cherry-pick",
    "clean",
    "commit",
    "merge",
    "mv",
    "pull",
    "push",
    "rebase",
    "reset",
    "restore",
    "revert",
    "rm",
    "switch",
];

/// Whether `line` only reads. Returns `false` if that cannot be decided.
pub(super) fn only_looks(line: &str) -> bool {
    !looks_cut(line) && reads_only(line, 0)
}

fn reads_only(line: &str, depth: usize) -> bool {
    let line = shell::read(line);
    depth < DEEPEST
        && !line.unseen
        && !line.writes
        && line.commands.iter().all(|words| match script(words) {
            Some(script) => reads_only(script, depth + 1),
            None => looks(words, depth),
        })
}

/// Whether `line` surely changes something.
pub(super) fn writes(line: &str) -> bool {
    changes(line, 0)
}

fn changes(line: &str, depth: usize) -> bool {
    let line = shell::read(line);
    line.writes || (depth < DEEPEST && line.commands.iter().any(|words| acts(words, depth)))
}

fn looks(words: &[String], depth: usize) -> bool {
    let words = in_control(words);
    let Some((first, rest)) = words.split_first() else { return true };
    if depth >= DEEPEST {
        return false;
    }
    let begins = |starts: &[&str]| {
        rest.iter().any(|word| starts.iter().any(|start| word.starts_with(start)))
    };
    let plain = rest.iter().filter(|word| !word.starts_with(['-', '+']));
    let of = |list: &[(&str, &'static [&'static str])], name| {
        list.iter().find(|(known, _)| *known == name).map(|l| l.1)
    };
    // A program of that name in another directory is another program.
    let name =
        ["/bin/", "/usr/bin/"].iter().find_map(|dir| first.strip_prefix(dir)).unwrap_or(first);
    match name {
        "for" | "case" | "function" => name == "for",
        "git" => git_looks(rest),
        "sed" => sed_looks(rest),
        "awk" | "gawk" | "mawk" => {
            !begins(&["-f", "--file", "-i", "--include", "-l", "-e", "--source", "-E", "--exec"])
                && !rest.iter().any(|word| AWK_ACTS.iter().any(|act| word.contains(act)))
        }
        "command" if begins(&["-v", "-V"]) => true,
        "command" | "nohup" | "time" | "nice" | "timeout" | "xargs" | "stdbuf" => {
            looks(wrapped(name, rest), depth + 1)
        }
        name if LOOKING.contains(&name) => true,
        name => {
            let without = of(LOOKING_WITHOUT, name).is_some_and(|starts| !begins(starts));
            let most = LOOKING_WITH.iter().find(|(known, _)| *known == name);
            let with = most
                .is_some_and(|(_, most)| plain.count() <= *most && !begins(&["-S", "-F", "-b"]));
            let asks =
                matches!(rest, [only] if ["--version", "-V", "--help"].contains(&only.as_str()));
            without || with || (asks && !name.contains(['/', '=', '$']))
        }
    }
}

/// Returns the command without the shell keywords that may precede it.
fn in_control(words: &[String]) -> &[String] {
    const CONTROL: [&str; 11] =
        ["!", "{", "}", "do", "done", "elif", "else", "fi", "if", "then", "while"];
    let count = words.iter().take_while(|word| CONTROL.contains(&word.as_str())).count();
    &words[count..]
}

/// Returns the command that a wrapper such as `sudo` runs.
fn wrapped<'a>(wrapper: &str, words: &'a [String]) -> &'a [String] {
    let valued: &[&str] = match wrapper {
        "xargs" => &["-I", "-n", "-L", "-P", "-s", "-d", "-E", "-a"],
        "nice" => &["-n"],
        "timeout" => &["-k", "-s"],
        "sudo" => &["-u", "-g", "-h", "-p", "-C", "-T", "-D", "-R"],
        "env" => &["-u", "-C"],
        "stdbuf" => &["-i", "-o", "-e"],
        _ => &[],
    };
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match word.as_str() {
            word if valued.contains(&word) => at += 2,
            word if word.starts_with('-') || assignment(word).is_some() => at += 1,
            _ => break,
        }
    }
    at += usize::from(wrapper == "timeout");
    words.get(at..).unwrap_or_default()
}

/// Returns the git command and its arguments. Returns `None` if options of git make the effect
/// undecidable.
fn git_command(words: &[String]) -> Option<(&str, &[String])> {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        match word.as_str() {
            "-c" => return None,
            word if word.starts_with("--exec-path=") || word.starts_with("--config-env") => {
                return None;
            }
            "-C" | "--git-dir" | "--work-tree" | "--namespace" => at += 2,
            _ => at += 1,
        }
    }
    let (first, rest) = words.get(at..)?.split_first()?;
    Some((first, rest))
}

fn git_looks(words: &[String]) -> bool {
    let Some((command, rest)) = git_command(words) else {
        return matches!(words, [only] if only == "--version" || only == "--help");
    };
    if rest.iter().any(|word| GIT_ACTS.iter().any(|act| word.starts_with(act))) {
        return false;
    }
    let first = rest.first().map(String::as_str).unwrap_or_default();
    let is_listing = |(known, flags): &(&str, &[&str])| {
        *known == command && rest.iter().all(|word| flags.contains(&word.as_str()))
    };
    let is_showing = |(known, next): &(&str, &[&str])| *known == command && next.contains(&first);
    GIT_LOOKING.contains(&command)
        || GIT_LISTING.iter().any(is_listing)
        || GIT_SHOWING.iter().any(is_showing)
}

/// Whether sed only prints lines by their numbers: `sed -n 10,20p`.
fn sed_looks(words: &[String]) -> bool {
    let quiet =
        words.iter().any(|word| matches!(word.as_str(), "-n" | "-ne" | "-nE" | "-nr" | "--quiet"));
    let flags = words.iter().take_while(|word| word.starts_with('-'));
    let known = ["-n", "-ne", "-nE", "-nr", "--quiet", "-E", "-r", "-e"];
    let fits = flags.clone().all(|word| known.contains(&word.as_str()));
    let script = words.get(flags.count());
    let prints =
        |script: &String| script.chars().all(|c| c.is_ascii_digit() || ",$p;q= ".contains(c));
    quiet && fits && script.is_some_and(prints)
}

fn acts(words: &[String], depth: usize) -> bool {
    let words = in_control(words);
    let words = &words[words.iter().take_while(|word| assignment(word).is_some()).count()..];
    if let Some(script) = script(words) {
        return changes(script, depth + 1);
    }
    let Some((first, rest)) = words.split_first() else { return false };
    let has = |starts: &[&str]| {
        rest.iter().any(|word| starts.iter().any(|start| word.starts_with(start)))
    };
    match basename(first) {
        "git" => git_command(rest).is_some_and(|(command, _)| GIT_WRITING.contains(&command)),
        "sed" => has(&["-i", "--in-place"]),
        "sort" => has(&["-o", "--output"]),
        "find" => {
            let run = rest
                .iter()
                .position(|word| ["-exec", "-execdir", "-ok", "-okdir"].contains(&word.as_str()));
            has(&["-delete", "-fprint"])
                || run.is_some_and(|at| depth < DEEPEST && acts(&rest[at + 1..], depth + 1))
        }
        "eval" => depth < DEEPEST && changes(&rest.join(" "), depth + 1),
        name @ ("sudo" | "env" | "command" | "exec" | "nohup" | "time" | "nice" | "timeout"
        | "xargs" | "stdbuf") => depth < DEEPEST && acts(wrapped(name, rest), depth + 1),
        name => WRITING.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_reads_writes_or_neither() {
        for (line, looks, surely_writes) in [
            ("ls -la src", true, false),
            ("git status && git diff | head -5", true, false),
            ("cat a 2>/dev/null", true, false),
            ("echo hi > f", false, true),
            ("touch one", false, true),
            ("ls; /bin/rm -rf x", false, true),
            ("ls\nrm -rf ~", false, true),
            ("git commit -m x", false, true),
            ("sed -i s/a/b/ f", false, true),
            ("sudo rm x", false, true),
            ("make", false, false),
            ("ls $(make)", false, false),
            ("ls $(rm x)", false, true),
            ("bash -lc 'touch a'", false, true),
            ("find . -name x -delete", false, true),
            ("ls | xargs -n 1 rm", false, true),
            ("env A=b rm x", false, true),
            ("./ls", false, false),
            ("git -c core.pager=x log", false, false),
            ("git diff --output=x", false, false),
            ("git branch -D x", false, false),
            ("env make", false, false),
            ("sort -o f f", false, true),
            ("find . -exec make ;", false, false),
            ("awk '{system(\"x\")}' f", false, false),
            ("rg --pre x y", false, false),
            ("LD_PRELOAD=x ls", false, false),
            ("$X --version", false, false),
        ] {
            assert_eq!((only_looks(line), writes(line)), (looks, surely_writes), "{line}");
        }
    }

    #[test]
    fn common_read_commands_are_read_only() {
        for line in [
            "find . -type f -name '*.rs' | sort | head -50",
            "rg -n 'fn main|struct \\w+' src",
            "grep -rn \"a > b; c\" --include='*.rs' .",
            "sed -n '10,20p' src/lib.rs",
            "awk '{print $1}' f | sort | uniq -c",
            "git -C /p --no-pager log --oneline -5",
            "git branch -a && git remote -v",
            "tree -L 2",
            "bash -lc 'cat a && ls'",
            "for f in *.rs; do wc -l \"$f\"; done",
            "if [ -f a ]; then cat a; fi",
            "node --version; cargo --version",
            "find . -name x | xargs -0 grep -l y",
            "timeout 5 ls",
            "command -v cargo",
            "cat a b 2>&1 | tr a b",
            "cd x && pwd # where it is",
            "env | sort",
        ] {
            assert!(only_looks(line) && !writes(line), "{line}");
        }
    }
}
