//! The patterns of rules: shell commands, paths, hosts and text with `*`.

/// The part of a call that a rule must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strictness {
    /// Any part of it, or one that cannot be judged: for rules that forbid.
    Any,
    /// All of it, and for certain: for rules that allow.
    All,
}

/// Matches a shell command. Each of its parts is judged by itself, so `git status && rm -rf /` is
/// not allowed by `Bash(git *)`, and is denied by `Bash(rm *)`.
pub(super) fn command(pattern: &str, command: &str, strictness: Strictness) -> bool {
    let fits = |part: &str| prefix(pattern, part.trim());
    let whole = command.trim();
    match strictness {
        Strictness::Any => {
            // White space between words does not count.
            let fits = |part: &str| fits(&part.split_whitespace().collect::<Vec<_>>().join(" "));
            let whole = &whole.replace("\\\n", " ");
            let parts = whole.split(['\n', ';', '|', '&', '`', '(', ')', '{', '}']);
            fits(whole) || parts.map(bare).any(fits)
        }
        Strictness::All => {
            // A command that runs something unseen or writes a file never matches by its prefix.
            let unseen = ['`', '$', '<', '>', '(', ')', '{', '}', '\\']
                .iter()
                .any(|sign| whole.contains(*sign));
            let mut parts =
                whole.split(['\n', ';', '|', '&']).filter(|part| !part.trim().is_empty());
            pattern == whole || (!unseen && !whole.is_empty() && parts.all(fits))
        }
    }
}

/// Returns a command without what may precede it: variables, and words that run what follows.
fn bare(part: &str) -> &str {
    const BEFORE: [&str; 9] =
        ["!", "sudo", "env", "command", "exec", "nohup", "time", "nice", "eval"];
    let mut rest = part.trim();
    while let Some((word, more)) = rest.split_once(char::is_whitespace) {
        let sets = word
            .split_once('=')
            .is_some_and(|(name, _)| !name.is_empty() && !name.contains(['-', '/']));
        if !sets && !BEFORE.contains(&word) {
            break;
        }
        rest = more.trim_start();
    }
    rest
}

/// Whether `text` matches a prefix: `git *` and `git:*` match `git` alone or with arguments.
fn prefix(pattern: &str, text: &str) -> bool {
    let head = pattern.strip_suffix(":*").or_else(|| pattern.strip_suffix(" *"));
    match head {
        Some(head) if !head.contains('*') => {
            text == head || text.strip_prefix(head).is_some_and(|r| r.starts_with(' '))
        }
        _ => wild(pattern, text) || head.is_some_and(|head| wild(head, text)),
    }
}

/// Matches a path. Returns `None` for a path that cannot be resolved.
pub(crate) fn path(pattern: &str, path: &str, cwd: &str) -> Option<bool> {
    let path = absolute(path, cwd)?;
    let anchored = absolute_pattern(pattern, cwd);
    let pattern: Vec<_> =
        anchored.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    Some(segments(&pattern, &parts))
}

/// Returns the absolute path without `.` and `..`; `None` above the root.
pub(crate) fn absolute(path: &str, cwd: &str) -> Option<String> {
    if path.starts_with('/') { normal(path) } else { normal(&format!("{cwd}/{path}")) }
}

pub(super) fn absolute_pattern(pattern: &str, cwd: &str) -> String {
    if let Some(rest) = pattern.strip_prefix("//") {
        return format!("/{rest}");
    }
    match pattern.strip_prefix("./").or_else(|| pattern.strip_prefix('/')) {
        Some(inner) => format!("{cwd}/{inner}"),
        // A name without a slash matches at any depth, as in a .gitignore.
        None if !pattern.trim_end_matches('/').contains('/') => format!("{cwd}/**/{pattern}"),
        None => format!("{cwd}/{pattern}"),
    }
}

/// Removes `.` and `..`; returns `None` above the root.
fn normal(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// Matches segments. `**` is any number of segments. A pattern that names a directory covers its
/// content.
fn segments(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], _) => true,
        (["**", rest @ ..], path) => {
            rest.is_empty() || (0..=path.len()).any(|skipped| segments(rest, &path[skipped..]))
        }
        (_, []) => false,
        ([first, rest @ ..], [name, path @ ..]) => wild(first, name) && segments(rest, path),
    }
}

/// Matches a host. Returns `None` if the address names no host.
pub(super) fn domain(pattern: &str, url: &str) -> Option<bool> {
    let wanted = pattern.strip_prefix("domain:")?.trim().to_ascii_lowercase();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    // An address that hides the host behind a user name is not trusted.
    if authority.contains('@') {
        return None;
    }
    let host = authority.split(':').next()?.trim_end_matches('.').to_ascii_lowercase();
    let wanted = wanted.strip_prefix("*.").unwrap_or(&wanted);
    (!host.is_empty())
        .then(|| host == wanted || host.strip_suffix(wanted).is_some_and(|sub| sub.ends_with('.')))
}

/// Matches a pattern in which `*` is any text, also none. The time grows with both lengths,
/// whatever the pattern.
pub(super) fn wild(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(first) = pieces.next() else { return text.is_empty() };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<_> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}
