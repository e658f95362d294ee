//! Plans what an agent sees and may write (docs/design/sandbox.md), for
//! [`muleteer_process::sandbox`]. A path that no rule names does not exist for the agent.
//!
//! | | |
//! |---|---|
//! | read-only | the system's folders ([`system`]), the programs that the agent needs ([`programs`]), its project; in HOME also the files that programs outside of the sandbox run or obey ([`home`]), other repositories and Muleteer's configuration, with the targets of their links |
//! | hidden, also under the other names of other mounts ([`mounts`]) | Muleteer's state and cache, every known repository's `.muleteer/{runs,worktrees}`, the runtime directory, the sockets of container engines and key agents |
//! | private, removed when the agent ends | `/tmp`, `/var/tmp`, `/dev/shm`, TMPDIR |
//! | writable | its worktree (the judge: read-only), HOME ([`private`], unless it is shared), the hub (only an agent that pushes), its own folders |
//!
//! An agent that pushes can write the hub, and so can also destroy it. Then it is rebuilt from the
//! harness's private repository.

mod home;
mod links;
mod mounts;
pub(in crate::dispatch) mod private;
mod programs;
mod system;

pub(super) use self::links::real;
pub(crate) use self::programs::named_files;
pub(super) use self::system::memory;
use crate::dispatch::confine::confined::Confined;
use crate::dispatch::confine::plan::home::Absolute;
use crate::dispatch::confine::plan::links::{canonical, followed};
use crate::dispatch::confine::plan::mounts::Mount;
use crate::dispatch::confine::plan::private::PrivateHome;
use crate::dispatch::confine::plan::programs::Programs;
use crate::dispatch::saved::{identity_file, prompt_dir};
use muleteer_backends::{Home, homes, own_folders};
use muleteer_process::sandbox::{Place, Plan, What};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const SCRATCH: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// The sockets of container engines and similar services, and the folders of such sockets. These
/// services do for any client what the sandbox forbids. `/var/run` is `/run` nearly everywhere.
const ENGINES: [&str; 9] = [
    "/run/user",
    "/run/podman",
    "/run/containerd",
    "/run/crio",
    "/run/k3s",
    "/run/buildkit",
    "/run/libvirt",
    "/run/incus",
    "/var/run/podman",
];
const SOCKETS: [&str; 5] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/var/lib/incus/unix.socket",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
];
const SOCKETS_AT_HOME: [&str; 7] = [
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".rd/docker.sock",
    ".gnupg/S.gpg-agent",
    ".gnupg/S.gpg-agent.extra",
    ".gnupg/S.gpg-agent.browser",
    ".gnupg/S.gpg-agent.ssh",
];
/// Variables that name such a socket, as a path or as `unix://PATH`.
const NAMING: [&str; 3] = ["DOCKER_HOST", "CONTAINER_HOST", "SSH_AUTH_SOCK"];

/// The paths that are the same for all agents.
pub struct Ground<'a> {
    pub state: &'a Path,
    pub cache: &'a Path,
    pub config: &'a Path,
    pub runtime: &'a Path,
    /// The folder with the git configuration of agents for whom git finds no name.
    pub identities: &'a Path,
    /// The program, and its folder.
    pub muleteer: &'a Path,
    /// Repositories with runs or worktrees.
    pub repos: Vec<PathBuf>,
    /// The sockets that the daemon's own environment names.
    pub sockets: Vec<PathBuf>,
    /// The repository that the agent works for.
    pub project: PathBuf,
    /// The machine's mounts.
    pub mounts: Vec<Mount>,
    /// The kernel makes overlays for agents.
    pub overlays: bool,
}

/// Returns the machine's mounts; none if the system does not tell them.
pub(super) fn machine_mounts() -> Vec<Mount> {
    std::fs::read_to_string("/proc/self/mountinfo")
        .map(|text| mounts::parse(&text))
        .unwrap_or_default()
}

type Places = BTreeMap<PathBuf, What>;

/// Returns the place that decides about `path`: its own, or the nearest one above.
fn nearest<'a>(places: &'a Places, path: &Path) -> Option<&'a What> {
    path.ancestors().find_map(|above| places.get(above))
}

fn is_visible(places: &Places, path: &Path) -> bool {
    nearest(places, path).is_some_and(What::shows)
}

/// Returns the sockets that an environment names.
pub(super) fn named(value: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let path = |text: String| PathBuf::from(text.strip_prefix("unix://").unwrap_or(&text));
    NAMING
        .iter()
        .filter_map(|name| value(name))
        .map(path)
        .filter(|path| path.is_absolute())
        .collect()
}

pub fn plan(
    ground: &Ground<'_>,
    confined: &Confined,
    backend: &str,
    env: &[(String, String)],
    argv: &[String],
    agent_dir: &Path,
) -> Plan {
    let _read_once = links::ReadOnce::begin();
    let value = |name: &str| {
        env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let absolute = |name: &str| value(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("HOME").filter(|home| home.components().count() > 1);
    let mut places = system::places(rustix::process::geteuid().is_root());
    let mut links = Places::new();
    // A later rule for the same path replaces an earlier one.
    let mut set = |path: PathBuf, what: What| drop(places.insert(real(path), what));
    set(ground.config.to_owned(), What::Show);
    let private = private_home(ground, confined, home.as_deref(), agent_dir);
    let at_home = match &private {
        Some(private) => private.places(&absolute, ground.overlays),
        None => shared_home(home.as_deref(), &absolute),
    };
    for (path, what) in at_home {
        // A link is no place of its target.
        match what {
            What::Link(_) => drop(links.insert(path, what)),
            _ => set(path, what),
        }
    }
    for path in SCRATCH.map(PathBuf::from).into_iter().chain(absolute("TMPDIR")) {
        set(path, What::Scratch);
    }
    for repo in ground.repos.iter().map(|repo| real(repo.clone())) {
        // A repository that is HOME is writable.
        let is_writable = places.get(&repo) == Some(&What::Write);
        if !is_writable && (is_visible(&places, &repo) || repo == real(ground.project.clone())) {
            places.insert(repo, What::Show);
        }
    }
    places.extend(links);
    let hidden = hidden(ground, &absolute);
    let closed = closed(ground, home.as_deref(), &value);
    let mut set = |path: PathBuf, what: What| drop(places.insert(real(path), what));
    for path in &hidden {
        set(path.clone(), What::Hidden);
    }
    for path in closed {
        set(path, What::Closed);
    }
    let identities = [ground.identities.to_owned(), identity_file(agent_dir)];
    let own = [agent_dir.join("pub"), prompt_dir(agent_dir), ground.state.join("bin")];
    for path in own.into_iter().chain(identities) {
        set(path, What::Show);
    }
    for name in own_folders() {
        set(agent_dir.join(name), What::Write);
    }
    for path in &confined.hide {
        set(path.clone(), out_of_sight(path));
    }
    for path in &confined.show {
        set(path.clone(), What::Show);
    }
    for path in &confined.write {
        set(path.clone(), What::Write);
    }
    if let Some(private) = &private {
        for folder in private.conversations(&absolute) {
            let own = private.place_of(&folder);
            set(folder, What::Instead(own));
        }
    }
    let talk = confined.talk.as_deref();
    for (folder, instead) in conversations(backend, talk, &absolute, private.as_ref()) {
        set(folder, What::Instead(instead));
    }
    let secret = secret(ground, home.as_deref());
    let programs = Programs { argv, env, private: &secret, own: &confined.write };
    protect(&mut places, ground, confined, home.as_deref(), &programs);
    let mut needed = programs.needed();
    if let Some(private) = &private {
        needed.retain(|path| !private.is_mixed(path));
        needed.extend(private.shown(&absolute));
        needed.extend(settings_of(ground.config));
    }
    show_needed(&mut places, ground, confined, &hidden, needed);
    hide_aliases(&mut places, ground, confined, &hidden);
    pin(&mut places);
    let places = places.into_iter().map(|(path, what)| Place { path, what }).collect();
    Plan {
        scratch_bytes: memory().unwrap_or_default() / 4,
        max_processes: confined.max_processes,
        nested: confined.nested,
        ..Plan::new(places)
    }
}

/// Returns the folders that must not be shown as a whole, or with all that is above them.
fn secret<'a>(ground: &'a Ground<'_>, home: Option<&'a Path>) -> Vec<&'a Path> {
    home.into_iter()
        .chain([ground.state, ground.cache, ground.config, ground.runtime])
        .chain(ground.repos.iter().map(PathBuf::as_path))
        .collect()
}

/// Returns the private HOME of an agent; `None` if it gets the person's. A repository that is HOME
/// could not be shown beside a private one.
fn private_home(
    ground: &Ground<'_>,
    confined: &Confined,
    home: Option<&Path>,
    agent_dir: &Path,
) -> Option<PrivateHome> {
    let home = home.filter(|_| confined.private_home).map(|home| real(home.to_owned()))?;
    let is_project = home == real(ground.project.clone());
    links::list(&home);
    (!is_project).then(|| PrivateHome::new(home, agent_dir))
}

/// Returns the places of a shared HOME: all of it, and the homes of the CLIs, which a person may
/// have moved.
fn shared_home(home: Option<&Path>, absolute: Absolute<'_>) -> Vec<(PathBuf, What)> {
    let moved = homes().filter_map(|home| absolute(home.variable));
    home.map(Path::to_owned)
        .into_iter()
        .chain(moved)
        .map(|path| (path, What::Write))
        .collect()
}

/// Returns the plan for a program that shows whether agents can be confined. `overlay` has a folder
/// that it finds there if overlays are possible, and those for its changes and the kernel.
pub(super) fn probing([lower, changes, work]: [PathBuf; 3]) -> Plan {
    let mut places = system::places(rustix::process::geteuid().is_root());
    places.insert(real(lower), What::Overlay { changes, work });
    places.insert("/tmp".into(), What::Scratch);
    let places = places.into_iter().map(|(path, what)| Place { path, what }).collect();
    Plan::new(places)
}

/// Returns the folders that no agent sees, except for what later rules show in them.
fn hidden(ground: &Ground<'_>, absolute: &dyn Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut hidden =
        vec![ground.state.to_owned(), ground.cache.to_owned(), ground.runtime.to_owned()];
    hidden.extend(absolute("XDG_RUNTIME_DIR"));
    hidden.extend(ENGINES.map(PathBuf::from).into_iter().filter(|dir| dir.is_dir()));
    for repo in &ground.repos {
        hidden.extend(["runs", "worktrees"].map(|name| repo.join(".muleteer").join(name)));
    }
    hidden
}

/// Returns how a path is hidden: a file cannot become an empty folder.
fn out_of_sight(path: &Path) -> What {
    if path.is_file() { What::Closed } else { What::Hidden }
}

/// Returns the sockets that lead out of the sandbox.
fn closed<'a>(
    ground: &Ground<'_>,
    home: Option<&Path>,
    value: &impl Fn(&str) -> Option<&'a str>,
) -> Vec<PathBuf> {
    let at_home = |home: &Path| SOCKETS_AT_HOME.map(|name| home.join(name));
    let known = SOCKETS.map(PathBuf::from).into_iter().chain(home.into_iter().flat_map(at_home));
    let named = named(|name| value(name).map(String::from));
    let all = known.chain(named).chain(ground.sockets.iter().cloned());
    all.filter(|path| is_socket(path)).collect()
}

/// Makes the files read-only that a program outside of the sandbox runs or obeys, as far as the
/// agent could write them.
fn protect(
    places: &mut Places,
    ground: &Ground<'_>,
    confined: &Confined,
    home: Option<&Path>,
    programs: &Programs<'_>,
) {
    let folders =
        ground.repos.iter().map(|repo| repo.join(".muleteer")).chain([ground.config.to_owned()]);
    let settings = folders.flat_map(|folder| settings_of(&folder));
    let own = home.into_iter().flat_map(home::obeyed);
    // A project can have programs of its own, which its agents build.
    let is_own = |path: &PathBuf| confined.write.iter().any(|own| path.starts_with(own));
    let path = programs.search_path().into_iter().filter(|dir| dir.is_dir() && !is_own(dir));
    let shim = ground.muleteer.with_file_name("muleteer-shim");
    let ours = [ground.muleteer.to_owned(), shim].into_iter().filter(|path| path.exists());
    let files = settings.chain(own).chain(path).chain(ours).chain(programs.cli());
    let files = files.flat_map(|path| followed(&path));
    for path in files.chain(ground.repos.iter().flat_map(|repo| git_dirs(repo))) {
        if nearest(places, &path) == Some(&What::Write) {
            places.entry(path).or_insert(What::Show);
        }
    }
}

/// Shows what the agent's programs need and no rule shows so far, unless it is a secret.
fn show_needed(
    places: &mut Places,
    ground: &Ground<'_>,
    confined: &Confined,
    hidden: &[PathBuf],
    mut needed: BTreeSet<PathBuf>,
) {
    let hidden: Vec<PathBuf> = hidden.iter().chain(&confined.hide).cloned().map(real).collect();
    needed.insert(ground.muleteer.to_owned());
    needed.extend(git_dirs(&ground.project));
    needed.extend(lenders(&ground.project));
    let is_there = |path: &PathBuf| path.is_absolute() && canonical(path).is_some();
    for path in needed.into_iter().filter(is_there) {
        for path in followed(&path) {
            let is_secret = hidden.iter().any(|dir| path.starts_with(dir));
            let is_root = path.parent().is_none();
            if is_root || is_secret || places.contains_key(&path) || is_visible(places, &path) {
                continue;
            }
            match std::fs::read_link(&path) {
                Ok(to) => places.insert(path, What::Link(to)),
                Err(_) => places.insert(path, What::Show),
            };
        }
    }
}

/// Hides the hidden paths under their other names.
fn hide_aliases(places: &mut Places, ground: &Ground<'_>, confined: &Confined, hidden: &[PathBuf]) {
    for path in hidden.iter().chain(&confined.hide).cloned().map(real) {
        for alias in mounts::aliases(&ground.mounts, &path) {
            if is_visible(places, &alias) && alias.exists() {
                let what = out_of_sight(&alias);
                places.insert(alias, what);
            }
        }
    }
}

/// Returns the folders from which the repository borrows objects, directly or not.
fn lenders(repo: &Path) -> Vec<PathBuf> {
    const DEPTH: usize = 8;
    /// Of each list, and in all. Each becomes a mount.
    const MOST: usize = 64;
    let mut found = vec![];
    let mut next: Vec<PathBuf> = git_dirs(repo).iter().map(|dir| dir.join("objects")).collect();
    for _ in 0..DEPTH {
        let lists = next.iter().map(|objects| (objects, objects.join("info/alternates")));
        let read = lists.filter_map(|(objects, list)| {
            let text = crate::daemon::settings::read_if_there(&list).ok()??;
            Some(text.lines().take(MOST).map(|line| objects.join(line)).collect::<Vec<_>>())
        });
        next = read.flatten().map(real).filter(|path| !found.contains(path)).take(MOST).collect();
        if next.is_empty() || found.len() >= MOST {
            break;
        }
        found.extend(next.iter().cloned());
    }
    found
}

/// Makes the folders with conversations of the CLIs, and those below `talk` or in a private HOME
/// that the agent gets in their place. Returns the pairs that could be made.
fn conversations(
    backend: &str,
    talk: Option<&Path>,
    absolute: Absolute<'_>,
    private: Option<&PrivateHome>,
) -> Vec<(PathBuf, PathBuf)> {
    let user = absolute("HOME").unwrap_or_default();
    let known = muleteer_backends::by_name(backend).ok();
    // A CLI that was never used here makes its home itself, and its conversations must not be in
    // there.
    let certain = |home: &Home| known.is_some_and(|backend| backend.creates_home(home));
    let folders = homes().flat_map(|home| {
        let path = absolute(home.variable).unwrap_or_else(|| user.join(home.folder));
        // In a private HOME nothing of the person's has to exist. There the daemon reads only the
        // conversations of the agent's own CLI, so that another one may make its folders itself;
        // but a database is in a folder that has to exist.
        let is_own = private.is_some_and(|private| private.holds(&path));
        let is_there = path.is_dir() || certain(&home) || (is_own && home.database.is_some());
        home.conversations.iter().map(move |name| (path.join(name), is_there))
    });
    let mut made = vec![];
    for (at, (folder, _)) in folders.enumerate().filter(|(_, (_, is_there))| *is_there) {
        let in_talk = talk.map(|talk| talk.join(at.to_string()));
        let own = || private.map(|private| private.place_of(&real(folder.clone())));
        let Some(instead) = in_talk.clone().or_else(own) else { continue };
        // The folders of a private HOME are made later, when no link of an agent can be on the way.
        let is_own = private.is_some_and(|private| private.holds(&folder));
        let there = match is_own || in_talk.is_none() {
            true => Ok(()),
            false => std::fs::create_dir_all(&folder),
        };
        let both = match in_talk {
            Some(talk) => there.and_then(|()| std::fs::create_dir_all(talk)),
            None => there,
        };
        if both.is_ok() {
            made.push((folder, instead));
        }
    }
    made
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Makes every directory above a place a mount point. A mount point cannot be moved, but a
/// directory above it can.
fn pin(places: &mut BTreeMap<PathBuf, What>) {
    let roots: Vec<PathBuf> = places
        .iter()
        .filter(|(_, what)| **what == What::Write)
        .map(|(path, _)| path.clone())
        .collect();
    let mut pins = BTreeSet::new();
    for path in places.keys() {
        // The nearest place above decides whether the directories in between are writable.
        let above = path.ancestors().skip(1).find(|above| places.contains_key(*above));
        if let Some(root) = above.filter(|above| roots.iter().any(|root| root == above)) {
            pins.extend(
                path.ancestors().skip(1).take_while(|between| *between != root).map(Path::to_owned),
            );
        }
    }
    for path in pins {
        places.entry(path).or_insert(What::Write);
    }
}

/// Returns the files that are read in a configuration folder, of the user or a repository. Any of
/// them may be a link to elsewhere.
fn settings_of(folder: &Path) -> Vec<PathBuf> {
    let files = |dir: &Path| -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.take(crate::daemon::settings::ROLES_LIMIT).collect()
    };
    let dirs = ["roles", "guidelines"].map(|name| folder.join(name));
    let within = dirs.iter().flat_map(|dir| files(dir)).collect();
    [vec![folder.to_owned(), folder.join("config.yaml")], dirs.to_vec(), within].concat()
}

/// Whether HOME, which agents may write, is the repository or is in it.
pub fn holds(repo: &Path, home: &str) -> bool {
    let home = Path::new(home);
    home.is_absolute() && real(home.to_owned()).starts_with(real(repo.to_owned()))
}

/// Whether HOME is the repository.
pub fn is_home(repo: &Path, home: &str) -> bool {
    let home = Path::new(home);
    home.is_absolute() && real(home.to_owned()) == real(repo.to_owned())
}

/// Returns the directories that a repository's git uses. These are `.git`, its target if it is a
/// file, and the directory that several checkouts share.
fn git_dirs(repo: &Path) -> Vec<PathBuf> {
    let leads = |file: PathBuf, before: &str| {
        let text = crate::daemon::settings::read_if_there(&file).ok()??;
        Some(file.parent()?.join(text.trim_end().strip_prefix(before)?))
    };
    let top = repo.join(".git");
    let own = leads(top.clone(), "gitdir: ");
    let shared = leads(own.as_ref().unwrap_or(&top).join("commondir"), "");
    let there = [Some(top), own, shared].into_iter().flatten().filter(|path| path.exists());
    there.flat_map(|path| followed(&path)).collect()
}

#[cfg(test)]
mod tests;
