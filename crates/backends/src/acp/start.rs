//! Finds the programs that a command starts, and their arguments. Shells, package managers and
//! other wrappers through which an agent is started are skipped.

use crate::acp::wrapper::{self, Inner};
use crate::launch::Command;
use muleteer_model::agent::permission::shell::{self, assignment, basename, script};

/// How many levels of nested commands are read.
const DEEPEST: usize = 8;

/// One program that a command starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Start {
    /// Its name, without path and version.
    pub program: Option<String>,
    /// Its own arguments.
    pub args: Vec<String>,
    /// Variables that the command sets for it.
    pub sets: Vec<(String, String)>,
}

/// Programs that run another one, with those of their flags that take a value.
const WRAPPERS: &[(&str, &[&str])] = &[
    ("env", &["-u", "--unset", "-C", "--chdir"]),
    ("exec", &["-a"]),
    ("command", &[]),
    ("nohup", &[]),
    ("setsid", &[]),
    ("time", &["-f", "-o"]),
    ("nice", &["-n"]),
    ("ionice", &["-c", "-n"]),
    ("sudo", &["-u", "--user", "-g", "--group", "-h", "-p", "-C", "-T", "-D", "-R"]),
    ("doas", &["-u", "-C"]),
    ("timeout", &["-k", "-s", "--signal", "--kill-after"]),
    ("stdbuf", &["-i", "-o", "-e"]),
];

/// Programs that run a package, with the subcommands that do so.
const RUNNERS: &[(&str, &[&str])] = &[
    ("npx", &[]),
    ("bunx", &[]),
    ("pnpx", &[]),
    ("uvx", &[]),
    ("npm", &["exec", "x"]),
    ("pnpm", &["dlx", "exec"]),
    ("yarn", &["dlx", "exec"]),
    ("bun", &["x"]),
    ("pipx", &["run"]),
    ("uv", &["run"]),
];
/// Their flags that take a value.
const RUNNER_VALUES: [&str; 22] = [
    "-p",
    "--package",
    "--registry",
    "--prefix",
    "--cache",
    "--userconfig",
    "--node-options",
    "--from",
    "--python",
    "--with",
    "-w",
    "--workspace",
    "--dir",
    "-C",
    "--project",
    "--directory",
    "--env-file",
    "--extra",
    "--group",
    "--index",
    "--with-editable",
    "--with-requirements",
];

/// Programs that run a file.
const INTERPRETERS: [&str; 11] =
    ["node", "bun", "deno", "python", "python3", "sh", "bash", "dash", "zsh", "ksh", "tsx"];

/// Packages whose program has another name.
const PACKAGES: [(&str, &str); 4] = [
    ("claude-code", "claude"),
    ("gemini-cli", "gemini"),
    ("opencode-ai", "opencode"),
    ("qwen-code", "qwen"),
];

/// Returns the programs that a command starts, in order. `args` belong to the last one.
pub(crate) fn starts(command: Option<&Command>, args: &[String]) -> Vec<Start> {
    let mut commands = match command {
        Some(Command::Argv(words)) => vec![words.clone()],
        Some(Command::Shell(text)) => shell::read(text).commands,
        None => vec![],
    };
    let mut starts = vec![];
    // A shell script gets them as its "$@".
    let last = commands.pop().unwrap_or_default();
    for words in &commands {
        resolve(words, vec![], 0, &mut starts);
    }
    let before = starts.len();
    resolve(&last, vec![], 0, &mut starts);
    if starts.len() == before {
        starts.push(Start::default());
    }
    if let Some(start) = starts.last_mut() {
        start.args.extend(args.iter().cloned());
    }
    starts
}

fn resolve(words: &[String], mut sets: Vec<(String, String)>, depth: usize, out: &mut Vec<Start>) {
    let count = words.iter().take_while(|word| assignment(word).is_some()).count();
    let (set, words) = words.split_at(count);
    sets.extend(
        set.iter()
            .filter_map(|word| assignment(word))
            .map(|(name, value)| (name.into(), value.into())),
    );
    let Some((first, rest)) = words.split_first() else {
        return out.extend((!sets.is_empty()).then_some(Start { sets, ..Start::default() }));
    };
    let within = |text: &str, out: &mut Vec<Start>| {
        for words in shell::read(text).commands {
            resolve(&words, sets.clone(), depth + 1, out);
        }
    };
    let name = basename(first);
    if depth >= DEEPEST {
        return out.push(Start { program: Some(bare(name)), args: rest.to_vec(), sets });
    }
    if let Some(script) = script(words) {
        return within(script, out);
    }
    match name {
        "eval" => return within(&rest.join(" "), out),
        "export" | "!" | "do" | "then" | "else" | "if" | "while" | "{" => {
            return resolve(rest, sets, depth + 1, out);
        }
        "env" => {
            let whole = ["-S", "--split-string"];
            if let Some(at) = rest.iter().position(|word| whole.contains(&word.as_str())) {
                let set = rest[..at].to_vec();
                let mut words: Vec<_> =
                    set.into_iter().filter(|word| !word.starts_with('-')).collect();
                words.extend(
                    rest.get(at + 1)
                        .into_iter()
                        .flat_map(|text| shell::read(text).commands)
                        .flatten(),
                );
                return resolve(&words, sets, depth + 1, out);
            }
        }
        _ => {}
    }
    if let Some((_, valued)) = WRAPPERS.iter().find(|(known, _)| *known == name) {
        let skip = flags(rest, valued) + usize::from(name == "timeout");
        return resolve(rest.get(skip..).unwrap_or_default(), sets, depth + 1, out);
    }
    if let Some((_, verbs)) = RUNNERS.iter().find(|(known, _)| *known == name)
        && let Some(at) = verb(rest, verbs)
    {
        let rest = &rest[at..];
        let skip = flags(rest, &RUNNER_VALUES);
        // A later `-c` is an argument of the package.
        let own = &rest[..skip.min(rest.len())];
        if let Some(at) = own.iter().position(|word| word == "-c" || word == "--call") {
            return within(rest.get(at + 1).map_or("", String::as_str), out);
        }
        return resolve(rest.get(skip..).unwrap_or_default(), sets, depth + 1, out);
    }
    match wrapper::inner(name, rest) {
        Some(Inner::Script(text)) => return within(&text, out),
        Some(Inner::Words(words, set)) => {
            sets.extend(set);
            return resolve(&words, sets, depth + 1, out);
        }
        None => {}
    }
    if INTERPRETERS.contains(&name) {
        let skip = flags(rest, &["-r", "--require", "--import", "-m"]);
        let file = rest.get(skip).map(|file| package(file));
        let args = rest.get(skip + 1..).unwrap_or_default().to_vec();
        return out.push(Start { program: file.or_else(|| Some(bare(name))), args, sets });
    }
    out.push(Start { program: Some(bare(name)), args: rest.to_vec(), sets });
}

/// Returns how many words the leading flags of `words` take.
fn flags(words: &[String], valued: &[&str]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        at += if valued.contains(&word.as_str()) { 2 } else { 1 };
        if word == "--" {
            break;
        }
    }
    at
}

/// Returns where the arguments of a package manager begin after the verb that runs a package.
fn verb(words: &[String], verbs: &[&str]) -> Option<usize> {
    if verbs.is_empty() {
        return Some(0);
    }
    let at = flags(words, &RUNNER_VALUES);
    words.get(at).filter(|word| verbs.contains(&word.as_str())).map(|_| at + 1)
}

/// Returns the package to which a file belongs, or else the file's name.
fn package(file: &str) -> String {
    let Some((_, inside)) = file.rsplit_once("node_modules/") else { return bare(basename(file)) };
    let name = inside.split('/').find(|part| !part.starts_with(['@', '.'])).unwrap_or(inside);
    bare(name)
}

/// Returns a program's name without the version of its package.
fn bare(name: &str) -> String {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    PACKAGES
        .iter()
        .find(|(package, _)| *package == name)
        .map_or(name, |(_, program)| program)
        .to_string()
}
