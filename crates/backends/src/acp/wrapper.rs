//! Finds the command that a container, a sandbox or an environment manager runs.

use muleteer_model::agent::permission::shell::assignment;

/// A command within another one.
pub(super) enum Inner {
    /// Its words, and the variables that the outer command sets for it.
    Words(Vec<String>, Vec<(String, String)>),
    /// A shell script.
    Script(String),
}

/// Flags of containers that take no value. Others take one.
const CONTAINER_FLAGS: [&str; 21] = [
    "--detach",
    "--disable-content-trust",
    "--env-host",
    "--help",
    "--http-proxy",
    "--init",
    "--interactive",
    "--latest",
    "--no-healthcheck",
    "--no-hosts",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--read-only-tmpfs",
    "--replace",
    "--rm",
    "--rmi",
    "--sig-proxy",
    "--tty",
];
const CONTAINER_LETTERS: &str = "diPqt";

/// Flags of bwrap that take two values.
const BWRAP_TWO: [&str; 17] = [
    "--bind",
    "--bind-data",
    "--bind-fd",
    "--bind-try",
    "--chmod",
    "--dev-bind",
    "--dev-bind-try",
    "--file",
    "--ro-bind",
    "--ro-bind-data",
    "--ro-bind-fd",
    "--ro-bind-try",
    "--setenv",
    "--symlink",
    "--add-seccomp-data",
    "--bind-file",
    "--ro-bind-file",
];
/// Flags of bwrap that take no value, beside `--unshare-…`.
const BWRAP_NONE: [&str; 7] = [
    "--as-pid-1",
    "--assert-userns-disabled",
    "--clearenv",
    "--die-with-parent",
    "--disable-userns",
    "--new-session",
    "--share-net",
];

/// Returns the command that the program `name` runs with these arguments, if they show it.
pub(super) fn inner(name: &str, rest: &[String]) -> Option<Inner> {
    let found = match name {
        "docker" | "podman" | "nerdctl" => container(rest)?,
        "mise" => mise(rest)?,
        "direnv" => plain(rest.strip_prefix(&["exec".to_string()][..])?.get(1..)?),
        "bwrap" => bwrap(rest)?,
        "nix" => nix(rest)?,
        _ => return None,
    };
    match &found {
        // An image's own program gets these words as its arguments.
        Inner::Words(words, _) if words.first().is_none_or(|word| word.starts_with('-')) => None,
        _ => Some(found),
    }
}

fn plain(words: &[String]) -> Inner {
    Inner::Words(words.to_vec(), vec![])
}

/// Reads `run [FLAGS] IMAGE COMMAND…` and `exec [FLAGS] CONTAINER COMMAND…`.
fn container(rest: &[String]) -> Option<Inner> {
    let (at, _) = container_flags(rest, 0);
    let at = at + usize::from(rest.get(at).is_some_and(|word| word == "container"));
    let verb = rest.get(at)?;
    if verb != "run" && verb != "exec" {
        return None;
    }
    let (image, sets) = container_flags(rest, at + 1);
    Some(Inner::Words(rest.get(image + 1..)?.to_vec(), sets))
}

/// Returns where the flags that begin at `at` end, and the variables that they set.
fn container_flags(words: &[String], mut at: usize) -> (usize, Vec<(String, String)>) {
    let mut sets = vec![];
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        at += 1;
        if word == "--" {
            break;
        }
        let (flag, joined) = match word.split_once('=') {
            Some((flag, value)) if word.starts_with("--") => (flag.to_string(), Some(value)),
            None if word.starts_with("--") => (word.clone(), None),
            _ => {
                let letters = &word[1..];
                let Some(valued) = letters.find(|c| !CONTAINER_LETTERS.contains(c)) else {
                    continue;
                };
                let letter: String = letters[valued..].chars().take(1).collect();
                let value = &letters[valued + letter.len()..];
                (format!("-{letter}"), Some(value).filter(|value| !value.is_empty()))
            }
        };
        if CONTAINER_FLAGS.contains(&flag.as_str()) {
            continue;
        }
        let value = joined.or_else(|| words.get(at).map(String::as_str));
        at += usize::from(joined.is_none());
        if matches!(flag.as_str(), "-e" | "--env") {
            sets.extend(
                value.and_then(assignment).map(|(name, value)| (name.into(), value.into())),
            );
        }
    }
    (at, sets)
}

/// Reads `exec [TOOLS] -- COMMAND…` and `exec [TOOLS] -c SCRIPT`.
fn mise(rest: &[String]) -> Option<Inner> {
    let verb = rest.iter().position(|word| word == "exec" || word == "x")?;
    let rest = &rest[verb + 1..];
    let at = rest.iter().position(|word| matches!(word.as_str(), "--" | "-c" | "--command"))?;
    match rest[at].as_str() {
        "--" => Some(plain(&rest[at + 1..])),
        _ => Some(Inner::Script(rest.get(at + 1)?.clone())),
    }
}

fn bwrap(rest: &[String]) -> Option<Inner> {
    let (mut at, mut sets) = (0, vec![]);
    while let Some(flag) = rest.get(at).filter(|word| word.starts_with('-')) {
        if let ("--setenv", Some([name, value])) = (flag.as_str(), rest.get(at + 1..at + 3)) {
            sets.push((name.clone(), value.clone()));
        }
        at += match flag.as_str() {
            "--overlay" => 4,
            flag if BWRAP_TWO.contains(&flag) => 3,
            flag if BWRAP_NONE.contains(&flag) || flag.starts_with("--unshare-") => 1,
            "--" => 1,
            _ => 2,
        };
        if flag == "--" {
            break;
        }
    }
    Some(Inner::Words(rest.get(at..)?.to_vec(), sets))
}

/// Reads `develop … -c COMMAND…` and `run FLAKE#PROGRAM -- ARGS…`.
fn nix(rest: &[String]) -> Option<Inner> {
    let verbs = ["develop", "shell", "run"];
    let verb = rest.iter().position(|word| verbs.contains(&word.as_str()))?;
    let (verb, rest) = (rest[verb].as_str(), &rest[verb + 1..]);
    let end = rest.iter().position(|word| word == "--").unwrap_or(rest.len());
    let (flags, args) = rest.split_at(end);
    if let Some(at) = flags.iter().position(|word| word == "-c" || word == "--command") {
        return Some(plain(&rest[at + 1..]));
    }
    let (_, program) = flags.iter().find_map(|word| word.split_once('#'))?;
    let name = program.rsplit('.').next().unwrap_or(program).to_string();
    let args = args.iter().skip(1).cloned();
    (verb == "run").then(|| Inner::Words([name].into_iter().chain(args).collect(), vec![]))
}
