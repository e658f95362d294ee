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
        Some(Ok(what)) => check(Status::Ok, what.clone()),
        Some(Err(error)) => check(Status::Warn, format!("no private namespaces: {error}"))
            .hint(
                "allow unprivileged user namespaces (kernel.unprivileged_userns_clone, AppArmor), \
                 or a container that may nest",
            )
            .best_effort(
                "judges and acceptance criteria are checked afterwards, not walled off: summaries \
                 say `checked`",
            ),
        None => check(Status::Skip, format!("{} has no namespaces", facts.os)).best_effort(
            "judges and acceptance criteria are checked afterwards, not walled off: summaries say \
             `checked`",
        ),
    }
}

pub(super) fn landlock(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("sandbox.landlock", status, message);
    match &facts.sandbox.landlock {
        Some(Ok(what)) => check(Status::Ok, what.clone()),
        Some(Err(error)) => check(Status::Warn, format!("Landlock does not hold: {error}"))
            .hint("boot a kernel of 5.13 or newer with `landlock` in its lsm= list")
            .best_effort("where namespaces are missing too, nothing limits what an agent writes"),
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
        "what a killed shim leaves is found by descent and by a mark in its environment, a moment \
         later",
    )
}

pub(super) fn cgroup(facts: &Facts) -> Check {
    match &facts.containment.cgroup {
        Ok(place) => Check::new(
            "cgroup",
            Status::Ok,
            format!("agents get cgroups of their own below {place}"),
        ),
        Err(error) => Check::new("cgroup", Status::Skip, format!("no cgroup of our own: {error}"))
            .hint(
                "run the daemon as a service (`muleteer service install`): its unit delegates a \
                 cgroup",
            )
            .best_effort("agents are held by process group, parent death signal and sweeps"),
    }
}

pub(super) fn service(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("service", status, message);
    match &facts.service {
        ServiceFacts::None => check(
            Status::Skip,
            "no service manager here: a daemon is started when a verb needs one".into(),
        ),
        ServiceFacts::Systemd { unit: None, .. } | ServiceFacts::Launchd { loaded: false } => {
            check(
                Status::Skip,
                "no service is installed: a daemon is started when a verb needs one".into(),
            )
            .hint("`muleteer service install` keeps one running")
        }
        // A system unit needs no login session; a user's unit ends with the last session.
        ServiceFacts::Systemd { user, linger: false, unit: Some(state) } if facts.uid != 0 => {
            check(
                Status::Warn,
                format!("the user service ({state}) ends, agents and all, when {user} logs out"),
            )
            .hint(format!("loginctl enable-linger {user}"))
        }
        ServiceFacts::Systemd { unit: Some(state), .. } if state == "failed" => {
            check(Status::Fail, "the service has failed".into())
                .hint("journalctl --user -u muleteer, then `muleteer service status`")
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
    let late = "agents' own journal lines are picked up when they end, not as they write";
    match &inotify.available {
        Err(error) => check(Status::Warn, format!("no instance is left: {error}"))
            .hint(
                "raise fs.inotify.max_user_instances with sysctl, or end programs that watch files",
            )
            .best_effort(late),
        Ok(_) if inotify.max_instances < INOTIFY_INSTANCES => check(
            Status::Warn,
            format!("only {} instances for all your programs", inotify.max_instances),
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
        "{soft} open files, and {} agents (pool.max_agents) need about {needed}",
        limits.max_agents
    );
    let advice = if hard >= needed {
        format!("`ulimit -n {needed}` before the daemon starts, or LimitNOFILE= in its unit")
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
            format!("{limit}; {} busy agents may have {needed}", limits.max_agents),
        ),
        Some(limit) => check(
            Status::Warn,
            format!(
                "{limit} processes for all of yours; {} busy agents may have {needed}",
                limits.max_agents
            ),
        )
        .hint("raise `ulimit -u` (limits.conf, TasksMax=), or lower pool.max_agents"),
    }
}
