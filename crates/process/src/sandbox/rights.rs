//! Takes rights from the agent before it runs: keys, capabilities, system calls, processes.
//!
//! | step | what it prevents |
//! |---|---|
//! | a new session keyring | reading and using the keys of the person's session |
//! | no capabilities, no new privileges | rights of root in the namespaces, set-uid programs |
//! | Landlock's scope | connections to abstract sockets, which no mount hides |
//! | Landlock's ports | connections elsewhere, for an agent that only talks to its model |
//! | a limit of processes | a fork bomb, for agents that are not root |
//! | a filter of system calls | mounts, nested user namespaces, keys, BPF, kernel modules, … |

#![allow(unsafe_code)]

use super::{Plan, SandboxError, at};
use std::io;

/// Starts a session keyring with no keys. Only the filter of system calls keeps the agent from
/// joining another one, so that a kernel without keyrings needs no exception.
pub(super) fn forget_keys() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for a keyring without a name.
    unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>());
    }
}

/// Takes all rights that the plan does not leave to the agent.
pub(super) fn give_up(plan: &Plan) -> Result<(), SandboxError> {
    drop_capabilities()?;
    limit_processes(plan.max_processes)?;
    leave_abstract_sockets();
    if let Some(ports) = &plan.ports {
        connect_only_to(ports);
    }
    calls::forbid(plan.nested)
}

/// Drops all capabilities for good, and lets no set-uid program grant any.
fn drop_capabilities() -> Result<(), SandboxError> {
    const NO_ROOT_LOCKED: libc::c_ulong = 0b11;
    // SAFETY: prctl with plain numbers; capset reads a header and two records of zeros.
    unsafe {
        libc::prctl(libc::PR_SET_SECUREBITS, NO_ROOT_LOCKED, 0, 0, 0);
        for capability in 0..=63 {
            libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0);
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as libc::c_ulong, 0, 0, 0) != 0 {
            return Err(at("no_new_privs")(io::Error::last_os_error()));
        }
        let header: [u32; 2] = [0x2008_0522, 0];
        let none = [[0_u32; 3]; 2];
        if libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) != 0 {
            return Err(at("capset")(io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Limits the processes of the sandbox. Since Linux 5.14 the kernel counts them for each user
/// namespace; it exempts root.
fn limit_processes(most: u32) -> Result<(), SandboxError> {
    if most == 0 {
        return Ok(());
    }
    let current = rustix::process::getrlimit(rustix::process::Resource::Nproc);
    let most = current.maximum.map_or(u64::from(most), |maximum| maximum.min(most.into()));
    let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(rustix::process::Resource::Nproc, limit)
        .map_err(|error| at("limit of processes")(error.into()))
}

/// Forbids connections to abstract sockets from outside, where the kernel can (6.12).
fn leave_abstract_sockets() {
    use landlock::{Ruleset, RulesetAttr, Scope};
    let ruleset = Ruleset::default().scope(Scope::AbstractUnixSocket);
    let _ = ruleset.and_then(|rules| rules.create()).and_then(|rules| rules.restrict_self());
}

/// Forbids TCP connections to other ports, where the kernel can (6.7). It tells no addresses.
fn connect_only_to(ports: &[u16]) {
    use landlock::{AccessNet, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr};
    let rules = ports.iter().map(|port| Ok(NetPort::new(*port, AccessNet::ConnectTcp)));
    let ruleset = Ruleset::default().handle_access(AccessNet::ConnectTcp);
    let _: Result<_, landlock::RulesetError> = ruleset
        .and_then(|rules| rules.create())
        .and_then(|ruleset| ruleset.add_rules(rules))
        .and_then(|ruleset| ruleset.restrict_self());
}

/// The filter of system calls. Another architecture has none; its kernel still refuses all that
/// needs a capability.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod calls {
    pub(super) fn forbid(_: bool) -> Result<(), super::SandboxError> {
        Ok(())
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls {
    use super::{SandboxError, at};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, apply_filter,
    };
    use std::collections::BTreeMap;
    use std::io;

    /// Calls that no agent needs, and that change the machine or have harmed kernels.
    const NEVER: &[libc::c_long] = &[
        libc::SYS_acct,
        libc::SYS_add_key,
        libc::SYS_bpf,
        libc::SYS_clock_adjtime,
        libc::SYS_clock_settime,
        libc::SYS_delete_module,
        libc::SYS_finit_module,
        libc::SYS_init_module,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_io_uring_setup,
        libc::SYS_kexec_load,
        libc::SYS_keyctl,
        libc::SYS_lookup_dcookie,
        libc::SYS_nfsservctl,
        libc::SYS_open_by_handle_at,
        libc::SYS_perf_event_open,
        libc::SYS_quotactl,
        libc::SYS_reboot,
        libc::SYS_request_key,
        libc::SYS_setns,
        libc::SYS_settimeofday,
        libc::SYS_swapoff,
        libc::SYS_swapon,
        libc::SYS_syslog,
        libc::SYS_userfaultfd,
        libc::SYS_vhangup,
    ];
    #[cfg(target_arch = "x86_64")]
    const NEVER_HERE: &[libc::c_long] = &[
        libc::SYS_ioperm,
        libc::SYS_iopl,
        libc::SYS_kexec_file_load,
        libc::SYS_modify_ldt,
        libc::SYS_uselib,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const NEVER_HERE: &[libc::c_long] = &[];
    /// Calls that a sandbox of the agent's own needs.
    const NESTED: &[libc::c_long] = &[
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fsopen,
        libc::SYS_fspick,
        libc::SYS_mount,
        libc::SYS_mount_setattr,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_pivot_root,
        libc::SYS_umount2,
    ];
    /// Requests of a terminal that type for the person who sits at it.
    const TYPING: [u32; 2] = [0x5412, 0x541c];

    type Rules = BTreeMap<i64, Vec<SeccompRule>>;

    /// Installs the filter. It fails a call with `EPERM`, and `clone3` with `ENOSYS`: its flags
    /// cannot be read by a filter, and the C library then calls `clone`.
    pub(super) fn forbid(nested: bool) -> Result<(), SandboxError> {
        let failed = |error: &dyn std::fmt::Display| {
            at("filter of system calls")(io::Error::other(error.to_string()))
        };
        for program in programs(nested).map_err(|error| failed(&error))? {
            apply_filter(&program).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn programs(nested: bool) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
        let mut rules = Rules::new();
        for call in NEVER.iter().chain(NEVER_HERE) {
            add(&mut rules, *call, vec![]);
        }
        let typing = TYPING.map(|request| is(1, u64::from(u32::MAX), request.into()));
        add(&mut rules, libc::SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
        let mut programs = vec![];
        if !nested {
            for call in NESTED {
                add(&mut rules, *call, vec![]);
            }
            let namespace = libc::CLONE_NEWUSER as u64;
            for call in [libc::SYS_unshare, libc::SYS_clone] {
                add(&mut rules, call, vec![is(0, namespace, namespace)?]);
            }
            let mut unreadable = Rules::new();
            add(&mut unreadable, libc::SYS_clone3, vec![]);
            programs.push(compile(unreadable, libc::ENOSYS)?);
        }
        programs.push(compile(rules, libc::EPERM)?);
        Ok(programs)
    }

    /// Adds a call, which the filter fails if one of `rules` matches; always if there are none.
    /// x86-64 has a second number for each call.
    fn add(to: &mut Rules, call: libc::c_long, rules: Vec<SeccompRule>) {
        #[cfg(target_arch = "x86_64")]
        to.insert(call | 0x4000_0000, rules.clone());
        to.insert(call, rules);
    }

    /// The argument, seen through a mask, has this value.
    fn is(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
        let operation = SeccompCmpOp::MaskedEq(mask);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operation, value)?;
        SeccompRule::new(vec![condition])
    }

    fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, seccompiler::BackendError> {
        let refusal = SeccompAction::Errno(errno as u32);
        let arch = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch)?.try_into()
    }
}
