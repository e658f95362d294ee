//! Checks of the operating system: containment, sandbox and limits.

use crate::doctor::{Check, Facts, LimitFacts, ServiceFacts, Status};

/// Open files of the daemon itself, and for each agent (shim, spool, sockets, clients).
const FILES_BASE: u64 = 128;
const FILES_PER_AGENT: u64 = 8;
/// Processes of one busy agent: compilers and test runners start many.
const PROCESSES_PER_AGENT: u64 = 64;
/// inotify instances that the user's other programs leave free.
const INOTIFY_INSTANCES: u64 = 64;

pub(super) fn namespaces(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("sandbox.namespaces", status, message);
    match &facts.sandbox.namespaces {
        Some(Ok(what)) => check(
            Status::Ok,
            format!(
                "{what}; in the sandbox of a run /tmp, /var/tmp and TMPDIR are the agent's own \
                 (sandbox.show shows a path)"
            ),
        ),
        Some(Err(error)) => check(
            Status::Warn,
            format!("cannot create private namespaces: {error}"),
        )
        .hint(
            "allow unprivileged user namespaces (kernel.unprivileged_userns_clone, AppArmor), \
                 or use a container that may nest",
        )
        .best_effort(
            "judges and acceptance criteria are checked afterwards instead of isolated: \
                 summaries say `checked`",
        ),
        None => check(Status::Skip, format!("{} has no namespaces", facts.os)).best_effort(
            "judges and acceptance criteria are checked afterwards instead of isolated: summaries \
             say `checked`",
        ),
    }
}

/// Checks whether a private HOME can show the homes of CLIs and the caches.
pub(super) fn overlays(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("sandbox.overlays", status, message);
    match (&facts.sandbox.overlays, &facts.sandbox.namespaces) {
        (Some(Ok(what)), _) => check(Status::Ok, what.clone()),
        (Some(Err(error)), Some(Ok(_))) => {
            check(Status::Warn, format!("cannot show folders of HOME as overlays: {error}"))
                .hint(
                    "use Linux 5.11 or newer, and put the state directory on ext4, XFS or Btrfs \
                     (XDG_STATE_HOME)",
                )
                .best_effort(
                    "in the private HOME of an agent the caches start empty, and the settings of \
                     agent CLIs are read-only",
                )
        }
        (Some(Err(_)), _) => check(Status::Skip, "there are no namespaces to try it in".into()),
        (None, None) => check(Status::Skip, format!("{} has no overlays", facts.os)),
        (None, Some(_)) => check(Status::Skip, "there is no state directory to try it in".into()),
    }
}

pub(super) fn landlock(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("sandbox.landlock", status, message);
    match &facts.sandbox.landlock {
        Some(Ok(what)) => check(Status::Ok, what.clone()),
        Some(Err(error)) => check(Status::Warn, format!("Landlock does not hold: {error}"))
            .hint("boot a kernel of 5.13 or newer with `landlock` in its lsm= list")
            .best_effort("without namespaces too, nothing limits an agent's writes"),
        None => check(Status::Skip, format!("{} has no Landlock", facts.os)),
    }
}

/// Checks the features that terminate an agent with its shim, and that make signals hit the right
/// process.
pub(super) fn containment(facts: &Facts) -> Check {
    let abilities = &facts.containment;
    let missing: Vec<_> = [
        (abilities.pidfd, "pidfd"),
        (abilities.subreaper, "subreaper"),
        (abilities.parent_death_signal, "parent death signal"),
    ]
    .into_iter()
    .filter(|(there, _)| !there)
    .map(|(_, name)| name)
    .collect();
    if missing.is_empty() {
        return Check::new("containment", Status::Ok, "pidfd, subreaper and parent death signal");
    }
    // Normal supervision works without them, so it is only a warning where the user can fix it.
    let status = if facts.os == "linux" { Status::Warn } else { Status::Skip };
    let check =
        Check::new("containment", status, format!("{} has no {}", facts.os, missing.join(", no ")));
    let check =
        if facts.os == "linux" { check.hint("boot a kernel of 5.4 or newer") } else { check };
    check.best_effort(
        "processes of a killed shim are found a moment later, by parent and by a mark in their \
         environment",
    )
}

pub(super) fn cgroup(facts: &Facts) -> Check {
    match &facts.containment.cgroup {
        Ok(place) => Check::new(
            "cgroup",
            Status::Ok,
            format!("each agent gets its own cgroup below {place}"),
        ),
        Err(error) => Check::new("cgroup", Status::Skip, format!("no delegated cgroup: {error}"))
            .hint("run `muleteer service install`: the unit of the service delegates a cgroup")
            .best_effort("agents are contained by process group, parent death signal and sweeps"),
    }
}

/// The most schedules that a message names.
const NAMED: usize = 5;

pub(super) fn service(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("service", status, message);
    let is_on_demand = matches!(
        &facts.service,
        ServiceFacts::None
            | ServiceFacts::Systemd { unit: None, .. }
            | ServiceFacts::Launchd { loaded: false }
    );
    if is_on_demand && !facts.adapters.is_empty() {
        // Nobody starts the daemon after a reboot, so messages from outside wait unread.
        return check(
            Status::Warn,
            format!(
                "no service is installed, and adapters need a daemon: {}",
                facts.adapters.join(", ")
            ),
        )
        .hint("run `muleteer service install` to keep a daemon running");
    }
    if is_on_demand && !facts.schedules.is_empty() {
        // Nobody starts the daemon after a reboot, so what is due meanwhile is started late.
        let (named, others) = facts.schedules.split_at(facts.schedules.len().min(NAMED));
        let more = if others.is_empty() { "" } else { ", …" };
        let named = named.join(", ");
        let message =
            format!("no service is installed, and schedules need a daemon: {named}{more}");
        return check(Status::Warn, message)
            .hint("run `muleteer service install` to keep a daemon running");
    }
    match &facts.service {
        ServiceFacts::None => {
            check(Status::Skip, "no service manager: a verb that needs a daemon starts one".into())
        }
        ServiceFacts::Systemd { unit: None, .. } | ServiceFacts::Launchd { loaded: false } => {
            check(
                Status::Skip,
                "no service is installed: a verb that needs a daemon starts one".into(),
            )
            .hint("run `muleteer service install` to keep a daemon running")
        }
        // A system unit needs no login session; a user's unit ends with the last session.
        ServiceFacts::Systemd { user, linger: false, unit: Some(state) } if facts.uid != 0 => {
            check(
                Status::Warn,
                format!("the user service ({state}) and its agents end when {user} logs out"),
            )
            .hint(format!("run `loginctl enable-linger {user}`"))
        }
        ServiceFacts::Systemd { unit: Some(state), .. } if state == "failed" => {
            check(Status::Fail, "the service has failed".into())
                .hint("run `journalctl --user -u muleteer`, then `muleteer service status`")
        }
        ServiceFacts::Systemd { unit: Some(state), .. } => {
            check(Status::Ok, format!("installed, {state}"))
        }
        ServiceFacts::Launchd { loaded: true } => check(Status::Ok, "loaded".into()),
    }
}

pub(super) fn inotify(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("inotify", status, message);
    let Some(inotify) = &facts.limits.inotify else {
        return check(Status::Skip, format!("{} has no inotify", facts.os));
    };
    let late = "Muleteer reads agents' journal entries when the agents end, not as they write";
    match &inotify.available {
        Err(error) => check(Status::Warn, format!("no free inotify instance: {error}"))
            .hint(
                "raise fs.inotify.max_user_instances with sysctl, or stop programs that watch \
                 files",
            )
            .best_effort(late),
        Ok(_) if inotify.max_instances < INOTIFY_INSTANCES => check(
            Status::Warn,
            format!("only {} instances for all programs of the user", inotify.max_instances),
        )
        .hint("raise fs.inotify.max_user_instances with sysctl")
        .best_effort(late),
        Ok(_) if inotify.max_watches < u64::from(facts.limits.max_agents) * 2 => {
            check(Status::Warn, format!("only {} watches", inotify.max_watches))
                .hint("raise fs.inotify.max_user_watches with sysctl")
                .best_effort(late)
        }
        Ok(_) => check(
            Status::Ok,
            format!(
                "{} instances, {} watches; the daemon uses one instance",
                inotify.max_instances, inotify.max_watches
            ),
        ),
    }
}

/// Returns the number of open files of a daemon with this many agents.
pub fn open_files_for(max_agents: u32) -> u64 {
    FILES_BASE + FILES_PER_AGENT * u64::from(max_agents)
}

pub(super) fn open_files(limits: &LimitFacts) -> Check {
    let (soft, hard) = limits.open_files;
    let needed = open_files_for(limits.max_agents);
    let check = |status, message: String| Check::new("open_files", status, message);
    if soft >= needed {
        return check(
            Status::Ok,
            format!("{soft}; {} agents need about {needed}", limits.max_agents),
        );
    }
    let wrong = format!(
        "the limit is {soft} open files, but {} agents (pool.max_agents) need about {needed}",
        limits.max_agents
    );
    let advice = if hard >= needed {
        format!(
            "run `ulimit -n {needed}` before the daemon starts, or set LimitNOFILE= in its \
                 unit"
        )
    } else {
        format!(
            "raise the hard limit of {hard} (limits.conf, LimitNOFILE=), or lower pool.max_agents"
        )
    };
    check(Status::Warn, wrong).hint(advice)
}

pub(super) fn processes(limits: &LimitFacts) -> Check {
    let check = |status, message: String| Check::new("processes", status, message);
    let needed = PROCESSES_PER_AGENT * u64::from(limits.max_agents);
    match limits.processes {
        None => check(Status::Ok, "unlimited".into()),
        Some(limit) if limit >= needed => check(
            Status::Ok,
            format!("{limit}; {} busy agents may need {needed}", limits.max_agents),
        ),
        Some(limit) => check(
            Status::Warn,
            format!(
                "the limit is {limit} processes for the user, but {} busy agents may need {needed}",
                limits.max_agents
            ),
        )
        .hint("raise `ulimit -u` (limits.conf, TasksMax=), or lower pool.max_agents"),
    }
}
