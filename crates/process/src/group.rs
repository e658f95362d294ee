//! Ends everything that an agent started: by process group, by descent, by cgroup, and by the nonce
//! in the environment.

use crate::cgroup;
use crate::host::{Stat, host};
use crate::identity::{NONCE_VAR, Pinned, raw, signal};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The outcome of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Processes killed.
    pub killed: u32,
    /// The killed processes with their names, at most [`MOST_NAMED`].
    pub named: Vec<(u32, String)>,
    /// Two searches in a row found nothing. Only then may a successor be started.
    pub clean: bool,
    /// The processes that still lived at the deadline.
    pub survivors: Vec<u32>,
}

/// At most this many killed processes are named.
pub const MOST_NAMED: usize = 50;

/// Whether a search before a [`sweep`] found nothing, at a time when no new process could begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nobody,
    FoundNothing,
}

/// Kills all processes of the given nonces (`MULETEER_NONCE` in their environment) and of `cgroup`.
/// It repeats until two searches in a row found none, or for at most `limit`; the search `before`
/// counts. It removes the cgroup at the end.
///
/// It never kills this process. It blocks the thread.
pub fn sweep(
    nonces: &[&str],
    cgroup: Option<&Path>,
    before: Before,
    limit: Duration,
) -> SweepReport {
    let deadline = crate::clock::awake() + limit;
    let mut report = SweepReport::default();
    let mut killed = HashSet::new();
    // How many searches in a row found nothing.
    let mut quiet = u32::from(before == Before::FoundNothing);
    let mut looked = false;
    loop {
        if let Some(cgroup) = cgroup {
            cgroup::kill(cgroup);
        }
        let (mut found, unclear) = look(nonces);
        if unclear && !looked {
            // A process that is unclear now may have been unclear in the search before.
            quiet = 0;
        }
        looked = true;
        found.extend(cgroup.into_iter().flat_map(cgroup::members));
        found.sort_unstable();
        found.dedup();
        let mut alive = vec![];
        for pid in found {
            let marked = || {
                carries(pid, nonces)
                    || cgroup.is_some_and(|cgroup| cgroup::members(cgroup).contains(&pid))
            };
            let Ok(pinned) = Pinned::open(pid) else { continue };
            // Checked again after pinning: another process may have got the pid in between.
            if !marked() {
                continue;
            }
            alive.push(pid);
            let name = host().name(pid);
            if pinned.signal(libc::SIGKILL).is_ok() && killed.insert(pinned.id()) {
                report.killed += 1;
                if report.named.len() < MOST_NAMED {
                    report.named.extend(name.map(|name| (pid, name)));
                }
            }
        }
        if alive.is_empty() {
            quiet += 1;
            if quiet == 2 {
                report.clean = true;
                report.survivors.clear();
                cgroup.map(cgroup::remove);
                return report;
            }
        } else {
            quiet = 0;
            report.survivors = alive;
        }
        if crate::clock::awake() >= deadline {
            return report;
        }
        // Time for killed processes to end, and for processes in a fork or exec to become visible.
        let pause = if quiet == 0 || unclear { 20 } else { 2 };
        std::thread::sleep(Duration::from_millis(pause));
    }
}

/// Returns every living process except this one whose environment has the nonce.
pub fn by_nonce(nonce: &str) -> Vec<u32> {
    look(&[nonce]).0
}

/// Whether a living process other than this one was started with this variable in its environment.
pub fn any_with(name: &str, value: &str) -> bool {
    let entry = format!("{name}={value}");
    let holds =
        |environ: Vec<u8>| environ.split(|&byte| byte == 0).any(|one| one == entry.as_bytes());
    let is_it = |pid: &u32| *pid != std::process::id() && host().environ(*pid).is_some_and(holds);
    let is_alive = |pid: u32| host().stat(pid).is_some_and(|stat| !stat.zombie);
    host().pids().into_iter().filter(is_it).any(is_alive)
}

/// Returns the processes of [`by_nonce`], and whether some process is unclear: in the middle of an
/// exec it has no environment, like one that was started with an empty one.
fn look(nonces: &[&str]) -> (Vec<u32>, bool) {
    /// The parent of all kernel threads of Linux, which have no environment either.
    const KERNEL: u32 = 2;
    let own = std::process::id();
    let (mut marked, mut unclear) = (vec![], false);
    for pid in host().pids() {
        let Some(environ) = host().environ(pid).filter(|_| pid != own) else { continue };
        if !(environ.is_empty() || holds(&environ, nonces)) {
            continue;
        }
        let Some(stat) = host().stat(pid).filter(|stat| !stat.zombie) else { continue };
        if !environ.is_empty() {
            marked.push(pid);
        } else if stat.parent != KERNEL && pid != KERNEL {
            unclear = true;
        }
    }
    (marked, unclear)
}

/// Whether a living program whose name begins with `name` may have its working directory below one
/// of `places`. If its directory cannot be read, the answer is yes.
pub fn may_be_at_work(name: &str, places: &[&Path]) -> bool {
    let is_there = |pid: u32| {
        let cwd = host().cwd(pid);
        let stands = cwd.map_or(true, |cwd| {
            cwd.is_some_and(|cwd| places.iter().any(|place| cwd.starts_with(place)))
        });
        stands && host().stat(pid).is_some_and(|stat| !stat.zombie)
    };
    let named = |pid: &u32| host().name(*pid).is_some_and(|own| own.starts_with(name));
    host().pids().into_iter().filter(named).any(is_there)
}

fn carries(pid: u32, nonces: &[&str]) -> bool {
    host().environ(pid).is_some_and(|environ| holds(&environ, nonces))
}

fn holds(environ: &[u8], nonces: &[&str]) -> bool {
    environ.split(|&byte| byte == 0).any(|entry| {
        let value =
            entry.strip_prefix(NONCE_VAR.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|value| nonces.iter().any(|nonce| nonce.as_bytes() == value))
    })
}

/// Returns every process below `root`, zombies included, nearest first. It may miss one while
/// others end: a caller that must be certain uses [`children_of_this_thread`].
pub fn descendants(root: u32) -> Vec<Stat> {
    walk_down(root).unwrap_or_else(|| search(root))
}

/// Walks down by the lists of children that the system reports. Its cost does not depend on the
/// machine's other processes.
fn walk_down(root: u32) -> Option<Vec<Stat>> {
    /// A process that forks as fast as we walk would keep the walk from ending. Beyond this number
    /// the search is used, which always ends.
    const MOST: usize = 1 << 16;
    let (mut found, mut known, mut next) = (vec![], HashSet::from([root]), 0);
    let mut parents = vec![root];
    while let Some(&parent) = parents.get(next) {
        next += 1;
        for pid in host().children(parent)? {
            // Another process may have got the pid, or the parent may have died and left the child
            // to a process above.
            let Some(stat) = host().stat(pid).filter(|stat| known.contains(&stat.parent)) else {
                continue;
            };
            if !known.insert(pid) {
                continue;
            }
            parents.push(pid);
            found.push(stat);
        }
        if found.len() > MOST {
            return None;
        }
    }
    Some(found)
}

/// Searches all processes for those whose parent is known.
fn search(root: u32) -> Vec<Stat> {
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in host().pids().into_iter().filter_map(|pid| host().stat(pid)) {
        children.entry(stat.parent).or_default().push(stat);
    }
    let mut found = vec![];
    let mut roots = vec![root];
    while let Some(parent) = roots.pop() {
        for stat in children.remove(&parent).unwrap_or_default() {
            roots.push(stat.pid);
            found.push(stat);
        }
    }
    found
}

/// Kills every process below `root` that has a session of its own, as commands have to which an
/// agent gave a terminal. It does so only if `root` itself is below `above`: a pid on record may
/// mean another process by now. Returns the number of the killed, once they have ended or `limit`
/// is over. Blocks the thread.
pub fn kill_other_sessions(above: u32, root: u32, limit: Duration) -> usize {
    /// A killed process may have started another one just before.
    const SEARCHES: usize = 5;
    let Some(own) = descendants(above).into_iter().find(|stat| stat.pid == root) else {
        return 0;
    };
    let deadline = crate::clock::awake() + limit;
    let mut killed = 0;
    for _ in 0..SEARCHES {
        let others: Vec<Pinned> = descendants(root)
            .into_iter()
            .filter(|stat| stat.session != own.session && !stat.zombie)
            .filter_map(|stat| Pinned::open_exact(stat.into()).ok())
            .collect();
        if others.is_empty() {
            break;
        }
        killed += others.iter().filter(|other| other.signal(libc::SIGKILL).is_ok()).count();
        for other in &others {
            other.wait(deadline.saturating_sub(crate::clock::awake()));
        }
        if crate::clock::awake() >= deadline {
            break;
        }
    }
    killed
}

/// Returns the cpu time used by everything below the shim `shim`, including dead processes that
/// were waited for, but not the shim itself. It decreases when a process ends that nobody waits
/// for.
pub fn cpu_below(shim: u32) -> Option<Duration> {
    let reaped = host().stat(shim)?.reaped_cpu;
    let living = descendants(shim).into_iter().map(|stat| stat.cpu + stat.reaped_cpu);
    Some(reaped + living.sum::<Duration>())
}

/// Returns the cpu time used by a process group, including the dead that its living members waited
/// for.
pub fn cpu_of_group(leader: u32) -> Duration {
    let stats = host().pids().into_iter().filter_map(|pid| host().stat(pid));
    stats.filter(|stat| stat.group == leader).map(|stat| stat.cpu + stat.reaped_cpu).sum()
}

/// Returns the children of the calling thread, zombies included; `None` if the kernel does not list
/// them.
pub fn children_of_this_thread() -> Option<Vec<u32>> {
    let text = std::fs::read_to_string("/proc/thread-self/children").ok()?;
    text.split_ascii_whitespace().map(|pid| pid.parse().ok()).collect()
}

/// Signals a process group. The caller must know that the group number still means this group: its
/// leader must live, or be an unreaped zombie of the caller.
pub fn signal_group(leader: u32, signo: i32) -> io::Result<()> {
    Ok(rustix::process::kill_process_group(raw(leader)?, signal(signo)?)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::Child;

    /// Starts a process that waits for its stdin, with only this environment.
    fn waiting(env: Option<(&str, &str)>) -> Child {
        let mut child = crate::command::helper("/bin/cat")
            .env_clear()
            .envs(env)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The echoed byte shows that the process is past its exec.
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"x").unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        child
    }

    /// A process in the middle of an exec looks like one without an environment. After a search
    /// that met such a process, the next one must not follow after the short pause.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_without_an_environment_leaves_it_unclear() {
        let nonce = format!("look-{}", std::process::id());
        let mut marked = waiting(Some((NONCE_VAR, &nonce)));
        let mut bare = waiting(None);
        let (found, unclear) = look(&[&nonce]);
        assert_eq!((found, unclear), (vec![marked.id()], true));
        bare.kill().unwrap();
        // A zombie has no environment either, and starts nothing any more.
        assert!(look(&[&nonce]).0 == [marked.id()]);
        marked.kill().unwrap();
        bare.wait().unwrap();
        marked.wait().unwrap();
        assert_eq!(look(&[&nonce]).0, [] as [u32; 0]);
        let report = sweep(&[&nonce], None, Before::Nobody, Duration::from_secs(10));
        assert_eq!((report.killed, report.clean), (0, true));
    }

    #[test]
    fn sweep_covers_all_nonces_after_an_earlier_search() {
        let nonces =
            ["one", "two", "three"].map(|name| format!("sweep-{name}-{}", std::process::id()));
        let [one, two, _] = nonces.each_ref().map(String::as_str);
        let mut children = [one, two, one].map(|nonce| waiting(Some((NONCE_VAR, nonce))));
        for before in [Before::FoundNothing, Before::Nobody] {
            let report = sweep(
                &nonces.each_ref().map(String::as_str),
                None,
                before,
                Duration::from_secs(10),
            );
            let expected = if before == Before::FoundNothing { 3 } else { 0 };
            assert_eq!((report.killed, report.clean, report.survivors), (expected, true, vec![]));
        }
        children.iter_mut().for_each(|child| assert!(!child.wait().unwrap().success()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn commands_in_their_own_sessions_are_killed_and_others_live() {
        let mut agent = crate::command::helper("/bin/sh")
            .args(["-c", "sleep 600 & setsid sh -c 'echo 1; sleep 600; :' & read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(agent.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let own = host().stat(agent.id()).unwrap().session;
        let limit = Duration::from_secs(10);
        assert_eq!(kill_other_sessions(agent.id(), agent.id(), limit), 0, "not below it");
        assert!(kill_other_sessions(std::process::id(), agent.id(), limit) >= 1);
        let left: Vec<_> = descendants(agent.id()).into_iter().filter(|one| !one.zombie).collect();
        assert!(!left.is_empty() && left.iter().all(|one| one.session == own), "{left:?}");
        for stat in left {
            let _ = Pinned::open_exact(stat.into()).map(|one| one.signal(libc::SIGKILL));
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Both ways must find the same descendants.
    #[test]
    #[cfg(target_os = "linux")]
    fn descendants_by_walk_and_by_search_are_equal() {
        let mut shell = crate::command::helper("/bin/sh")
            .args(["-c", "sh -c 'sleep 60 & echo 1; sleep 60; :' & sleep 60 & read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let sorted = |stats: Vec<Stat>| {
            let mut pids: Vec<(u32, u32)> =
                stats.into_iter().map(|stat| (stat.parent, stat.pid)).collect();
            pids.sort_unstable();
            pids
        };
        let settled = (0..200).find_map(|_| {
            let (walked, searched) =
                (sorted(walk_down(shell.id()).unwrap()), sorted(search(shell.id())));
            // Two of the four may not have started yet.
            let settled = walked.len() >= 4 && walked == searched;
            if !settled {
                std::thread::sleep(Duration::from_millis(10));
            }
            settled.then_some(walked)
        });
        let below = settled.expect("both ways find the same");
        assert_eq!(walk_down(u32::MAX / 2).unwrap(), [], "nobody is below who is not there");
        for (_, pid) in below {
            Pinned::open(pid).and_then(|pinned| pinned.signal(libc::SIGKILL)).unwrap_or_default();
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
