//! The limits of a child dispatch: it never has more than its parent.
//!
//! The child's configuration comes with the request, so the parent chooses it. Whatever it says,
//! the stricter policy counts, and the least budget that is left.

use crate::agent::backend::Traits;
use crate::agent::permission::{Mode, Policy};
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::life;
use crate::event::id::DispatchId;
use crate::event::{Created, Limit};

/// Returns the policy that `parent` imposes on a child in `project`, or in a clone of `project`.
/// `traits` are those of the parent's CLI.
pub fn policy(parent: &Created, traits: Traits, project: &str, clone: bool) -> Policy {
    let mut policy = parent.permissions.clone();
    // A scripted agent asks because its script says so. That mode must not bind other dispatches.
    if traits.scripted && policy.mode == Mode::Ask {
        policy.mode = Mode::Allow;
    }
    let there = parent.directory();
    let same = project == there;
    if !same || clone {
        policy.forbid_in(there);
    }
    if !same {
        policy.allow_in(there);
    }
    policy
}

/// Returns the budget of a child of `parent` that asks for `asked`. The use of all descendants
/// counts against an agent's own budget, so a child is bounded by what all its ancestors have left.
/// Several agents at work may each have got all that was left when they began; [`overspent`] holds
/// their sum to it.
pub fn budget(fleet: &Fleet, parent: &DispatchId, asked: Option<f64>) -> Option<f64> {
    let bounds = fleet.get(parent).into_iter().flat_map(|parent| bounds(fleet, parent));
    let left = bounds.map(|bound| (bound.usd - bound.spent).max(0.0));
    asked.into_iter().chain(left).reduce(f64::min)
}

/// Returns the nearest shared budget that is used up, if this dispatch can be stopped.
pub fn overspent(fleet: &Fleet, dispatch: &Dispatch) -> Option<(Limit, String)> {
    if !life::can_be_stopped(dispatch) {
        return None;
    }
    let over = bounds(fleet, dispatch).find(|bound| bound.spent >= bound.usd)?;
    let (usd, spent) = (life::dollars(over.usd), life::dollars(over.spent));
    Some((Limit::Budget, format!("a shared budget of {usd} ({spent} spent by {})", over.by)))
}

/// A budget that a dispatch shares with others, and what they have spent of it.
struct Bound {
    usd: f64,
    spent: f64,
    by: String,
}

/// The budgets that bound a dispatch: its own, then those of its ancestors, and last the purse.
fn bounds<'a>(fleet: &'a Fleet, dispatch: &'a Dispatch) -> impl Iterator<Item = Bound> + 'a {
    let above = |dispatch: &&'a Dispatch| Some(&**fleet.get(dispatch.created.parent.as_ref()?)?);
    // Ancestors are older, so this ends.
    let families = std::iter::successors(Some(dispatch), above).filter_map(|dispatch| {
        let usd = dispatch.created.limits.budget_usd?;
        Some(Bound {
            usd,
            spent: fleet.family_usd(&dispatch.id),
            by: format!("{} and its descendants", dispatch.id),
        })
    });
    let purse = dispatch.created.purse.as_ref().map(|purse| Bound {
        usd: purse.usd,
        spent: fleet.purse_usd(&purse.of),
        by: format!("run {}", purse.of),
    });
    families.chain(purse)
}

/// Variables that decide which program a name means, or that make a program load or run code before
/// its own work.
const LOADING: &[&str] = &[
    "PATH",
    "HOME",
    "SHELL",
    "IFS",
    "ENV",
    "BASH_ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "ZDOTDIR",
    "FPATH",
    "INPUTRC",
    "TERMCAP",
    "TERMINFO",
    "VIMINIT",
    "EXINIT",
    "EMACSLOADPATH",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "MANPAGER",
    "LESSOPEN",
    "LESSCLOSE",
    "BROWSER",
    "GCONV_PATH",
    "LOCPATH",
    "GLIBC_TUNABLES",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
    "OPENSSL_ENGINES",
    "NODE_PATH",
    "NODE_REPL_EXTERNAL_MODULE",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "PYTHONBREAKPOINT",
    "PYTHONINSPECT",
    "PYTHONEXECUTABLE",
    "PYTHONWARNINGS",
    "PYTHONPLATLIBDIR",
    "PYTHONPYCACHEPREFIX",
    "PYTHON_PRESITE",
    "VIRTUAL_ENV",
    "PERLLIB",
    "JAVA_HOME",
    "CLASSPATH",
    "PHPRC",
    "MAKEFILES",
    "MAKE",
    "CC",
    "CXX",
    "CPP",
    "LD",
    "AR",
    "AS",
    "PKG_CONFIG",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "KUBECONFIG",
    "AWS_CONFIG_FILE",
    "DOCKER_CONFIG",
    "HGRCPATH",
    "PSQLRC",
    "TCL_LIBRARY",
    "GOROOT",
    "GOENV",
    "GOPATH",
    "GOBIN",
    "GOTOOLCHAIN",
    "GOPROXY",
    "GOCACHEPROG",
];
/// The prefixes of such names: of loaders and shells, and of tools that build and run programs.
const LOADING_PREFIXES: &[&str] = &[
    "LD_",
    "DYLD_",
    "BASH_FUNC_",
    "GIT_",
    "XDG_",
    "NIX_",
    "PERL5",
    "LUA_",
    "RUBY",
    "GEM_",
    "BUNDLE_",
    "PHP_",
    "COMPOSER_",
    "R_",
    "JULIA_",
    "GUILE_",
    "ERL_",
    "ELIXIR_",
    "MIX_",
    "PYTEST_",
    "PIP_",
    "UV_",
    "POETRY_",
    "CONDA_",
    "NPM_CONFIG_",
    "npm_config_",
    "YARN_",
    "PNPM_",
    "COREPACK_",
    "DENO_",
    "BUN_",
    "TS_NODE_",
    "ELECTRON_",
    "CARGO_",
    "RUSTC",
    "RUSTDOC",
    "RUSTUP_",
    "CGO_",
    "CMAKE_",
    "CCACHE_",
    "SCCACHE_",
    "DOTNET_",
    "CORECLR_",
    "COMPlus_",
    "MSBUILD",
    "NUGET_",
    "MAVEN_",
    "GRADLE_",
    "SBT_",
    "ANT_",
    "MULETEER_",
];
/// The suffixes of such names: arguments for a program, a program to run, and places to load from.
const LOADING_SUFFIXES: &[&str] = &[
    "_OPTS",
    "_OPTIONS",
    "_ADDOPTS",
    "_ARGS",
    "FLAGS",
    "_WRAPPER",
    "_RUNNER",
    "_LINKER",
    "_HOOK",
    "_HOOKS",
    "_PRELOAD",
    "_STARTUP",
    "_PLUGINS",
    "_PAGER",
    "_EDITOR",
    "_ASKPASS",
    "_RSH",
    "_SSH",
    "_SHELL",
    "_COMMAND",
    "_CMD",
    "_RC_FILENAME",
    "_LOAD_PATH",
    "_LIBRARY_PATH",
    "_MODULE_PATH",
    "_PLUGIN_PATH",
    "LIBPATH",
];
/// The suffix of credential names. It takes precedence over the prefixes.
const CREDENTIAL_SUFFIX: &str = "_API_KEY";

/// Whether a variable decides which code a child runs. A parent under a policy may not set it.
/// `of_agents` says so for the variables of agent CLIs: they name settings with hooks, permissions
/// and programs of their own.
pub fn loads_code(name: &str, of_agents: impl Fn(&str) -> bool) -> bool {
    !name.ends_with(CREDENTIAL_SUFFIX)
        && (of_agents(name)
            || LOADING.contains(&name)
            || LOADING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || LOADING_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::agent::ask::{Ask, Verdict};
    use crate::agent::permission::Rule;
    use crate::dispatch::tests::created;
    use crate::event::{Entry, Event, PromptKind, Purse, Record, VERSION};
    use jiff::Timestamp;
    use serde_json::json;

    fn id(name: &str) -> DispatchId {
        DispatchId::try_from(name.to_string()).unwrap()
    }

    fn tell(fleet: &mut Fleet, name: &str, event: Event) {
        let entry =
            Entry { id: String::new(), dispatch_id: Some(id(name)), at: None, more: false, event };
        fleet.apply(&Record { v: VERSION, seq: fleet.seq + 1, ts: Timestamp::UNIX_EPOCH, entry });
    }

    fn made(fleet: &mut Fleet, name: &str, parent: Option<&str>, budget_usd: Option<f64>) {
        let mut created = Created { parent: parent.map(id), ..created() };
        created.limits.budget_usd = budget_usd;
        tell(fleet, name, Event::DispatchCreated(Box::new(created)));
    }

    fn used(fleet: &mut Fleet, name: &str, cost_usd: f64) {
        let model = "m".to_string();
        let (input, output, cache_read, cache_write, cumulative, total_usd) =
            (1, 1, 0, 0, false, None);
        let event = Event::UsageRecorded {
            model,
            input,
            output,
            cache_read,
            cache_write,
            cost_usd,
            cumulative,
            total_usd,
        };
        tell(fleet, name, event);
    }

    fn at_work(fleet: &mut Fleet, name: &str) {
        let key = "p1".to_string();
        let queued = Event::PromptQueued {
            key: key.clone(),
            kind: PromptKind::Initial,
            by: String::new(),
            trace: None,
        };
        tell(fleet, name, queued);
        tell(fleet, name, Event::AttemptStarted { attempt: 1, epoch: 1, resume: None });
        let (containment, awake_ms) = (String::new(), 0);
        tell(fleet, name, Event::AgentSpawned { pid: 1, shim_pid: 2, containment, awake_ms });
    }

    /// The agent that first meets a limit is stopped, and each of the others is stopped at its next
    /// use.
    #[test]
    fn concurrent_children_share_one_budget() {
        let mut fleet = Fleet::default();
        made(&mut fleet, "aaaa", None, Some(10.0));
        for name in ["bbbb", "cccc"] {
            let left = budget(&fleet, &id("aaaa"), None);
            assert_eq!(left, Some(10.0));
            made(&mut fleet, name, Some("aaaa"), left);
        }
        made(&mut fleet, "zzzz", None, Some(10.0));
        let all = ["aaaa", "bbbb", "cccc", "zzzz"];
        all.iter().for_each(|name| at_work(&mut fleet, name));
        let over = |fleet: &Fleet| {
            all.map(|name| overspent(fleet, fleet.get(&id(name)).unwrap()).is_some())
        };
        used(&mut fleet, "bbbb", 6.0);
        used(&mut fleet, "cccc", 3.0);
        used(&mut fleet, "zzzz", 9.0);
        assert_eq!(over(&fleet), [false; 4]);
        used(&mut fleet, "cccc", 1.0);
        assert_eq!(over(&fleet), [true, true, true, false]);
        let told = overspent(&fleet, fleet.get(&id("cccc")).unwrap());
        assert_eq!(
            told,
            Some((
                Limit::Budget,
                "a shared budget of $10.00 ($10.00 spent by aaaa and its descendants)".into()
            ))
        );
    }

    #[test]
    fn shared_budget_covers_all_descendants() {
        let mut fleet = Fleet::default();
        let purse = Some(Purse { of: "r1".into(), usd: 5.0 });
        for (name, parent) in [("aaaa", None), ("bbbb", None), ("cccc", Some("bbbb"))] {
            let created = Created { parent: parent.map(id), purse: purse.clone(), ..created() };
            tell(&mut fleet, name, Event::DispatchCreated(Box::new(created)));
            at_work(&mut fleet, name);
        }
        used(&mut fleet, "aaaa", 2.0);
        used(&mut fleet, "cccc", 2.5);
        assert_eq!((fleet.purse_usd("r1"), budget(&fleet, &id("bbbb"), None)), (4.5, Some(0.5)));
        let over = |fleet: &Fleet, name: &str| overspent(fleet, fleet.get(&id(name)).unwrap());
        assert_eq!(over(&fleet, "aaaa"), None);
        used(&mut fleet, "cccc", 0.5);
        assert_eq!(
            over(&fleet, "aaaa"),
            Some((Limit::Budget, "a shared budget of $5.00 ($5.00 spent by run r1)".into()))
        );
        tell(
            &mut fleet,
            "aaaa",
            Event::LimitReached { limit: Limit::Budget, detail: String::new() },
        );
        assert_eq!(over(&fleet, "aaaa"), None, "it is stopped already");
    }

    #[test]
    fn childs_budget_is_the_least_rest_of_its_ancestors() {
        let mut fleet = Fleet::default();
        made(&mut fleet, "aaaa", None, Some(10.0));
        made(&mut fleet, "bbbb", Some("aaaa"), None);
        made(&mut fleet, "cccc", Some("bbbb"), Some(2.0));
        made(&mut fleet, "zzzz", None, None);
        let of = |fleet: &Fleet, parent: &str, asked| budget(fleet, &id(parent), asked);
        assert_eq!(of(&fleet, "aaaa", None), Some(10.0), "also who names none");
        assert_eq!(of(&fleet, "aaaa", Some(99.0)), Some(10.0));
        assert_eq!(of(&fleet, "aaaa", Some(1.0)), Some(1.0), "who asks for less gets that");
        assert_eq!(of(&fleet, "bbbb", None), Some(10.0), "through one that has none of its own");
        assert_eq!(of(&fleet, "cccc", None), Some(2.0));
        assert_eq!((of(&fleet, "zzzz", None), of(&fleet, "zzzz", Some(99.0))), (None, Some(99.0)));
        assert_eq!(of(&fleet, "yyyy", Some(99.0)), Some(99.0), "nobody that is known");
        used(&mut fleet, "aaaa", 3.0);
        used(&mut fleet, "cccc", 1.5);
        used(&mut fleet, "zzzz", 50.0);
        assert_eq!(of(&fleet, "aaaa", None), Some(5.5), "what its own and theirs have used");
        assert_eq!(of(&fleet, "cccc", None), Some(0.5));
        used(&mut fleet, "bbbb", 5.25);
        assert_eq!(of(&fleet, "cccc", None), Some(0.25), "the least that is left counts");
        used(&mut fleet, "aaaa", 5.0);
        used(&mut fleet, "zzzz", -50.0);
        assert_eq!(of(&fleet, "cccc", Some(1.0)), Some(0.0));
        assert_eq!(of(&fleet, "zzzz", None), None);
    }

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| Rule::try_from((*text).to_string()).unwrap()).collect()
    }

    fn parent(mode: Mode, allow: &[&str], ask: &[&str], deny: &[&str]) -> Created {
        let permissions = Policy {
            mode,
            allow: rules(allow),
            ask: rules(ask),
            deny: rules(deny),
            ..Policy::default()
        };
        Created { backend: "claude-code".into(), project: "/repo".into(), permissions, ..created() }
    }

    /// Returns the verdict on a call in a child of `parent` whose own policy is open.
    fn may(
        parent: &Created,
        project: &str,
        clone: Option<&str>,
        (tool, what): (&str, &str),
    ) -> Option<Verdict> {
        let mut own = Policy::default();
        own.hold_within(policy(parent, Traits::default(), project, clone.is_some()));
        let ask = Ask::tool(tool, json!({"command": what, "file_path": what}));
        own.decide(&ask, clone.unwrap_or(project)).map(|said| said.verdict)
    }

    /// A child in another directory must not reach files that its parent may not.
    #[test]
    fn file_rules_of_a_parent_apply_in_its_childs_clone() {
        use Verdict::{Allow, Deny};
        let clone = Some("/repo/.muleteer/worktrees/x");
        let forbidden = parent(
            Mode::Allow,
            &[],
            &["Edit(docs/**)"],
            &["Edit(src/**)", "Read(.env)", "Bash(rm *)"],
        );
        for (project, clone, call, expected) in [
            ("/repo", None, ("Edit", "src/a"), Some(Deny)),
            ("/repo", None, ("Edit", "other/a"), Some(Allow)),
            ("/repo", clone, ("Edit", "src/a"), Some(Deny)),
            ("/repo", clone, ("Edit", "/repo/src/a"), Some(Deny)),
            ("/repo/src", None, ("Write", "a"), Some(Deny)),
            ("/repo/src", None, ("Write", "../docs/a"), None),
            ("/", None, ("Edit", "/repo/src/a"), Some(Deny)),
            ("/", None, ("Read", "/repo/sub/.env"), Some(Deny)),
            ("/other", None, ("Bash", "rm -rf /"), Some(Deny)),
        ] {
            assert_eq!(
                may(&forbidden, project, clone, call),
                expected,
                "{call:?} in {project} {clone:?}"
            );
        }
        let allowed = parent(Mode::Ask, &["Edit(src/**)", "Bash(git *)"], &[], &[]);
        for (project, clone, call, expected) in [
            ("/repo", None, ("Edit", "src/a"), Some(Allow)),
            ("/repo", clone, ("Edit", "src/a"), Some(Allow)),
            ("/etc", None, ("Edit", "src/a"), None),
            ("/etc", None, ("Edit", "/repo/src/a"), Some(Allow)),
            ("/etc", clone, ("Edit", "src/a"), None),
            ("/etc", None, ("Bash", "git status"), Some(Allow)),
        ] {
            assert_eq!(
                may(&allowed, project, clone, call),
                expected,
                "{call:?} in {project} {clone:?}"
            );
        }
        let long = format!("/{}", "long/".repeat(500));
        let far = Created {
            project: long.clone(),
            ..parent(Mode::Ask, &["Edit(src/**)"], &[], &["Read(src/**)"])
        };
        assert_eq!(may(&far, "/etc", None, ("Edit", &format!("{long}src/a"))), None);
        assert_eq!(
            may(&far, "/etc", None, ("Read", "/x")),
            Some(Deny),
            "rather too much than what cannot be read again"
        );
    }

    #[test]
    fn policy_of_an_agent_applies_to_its_descendants() {
        let first = parent(Mode::Ask, &["Read"], &[], &["WebFetch"]);
        let mut second =
            Policy { mode: Mode::Allow, deny: rules(&["Bash(rm *)"]), ..Policy::default() };
        second.hold_within(policy(&first, Traits::default(), "/repo", false));
        let second = Created { permissions: second, ..first };
        let call = |tool, what| may(&second, "/repo", None, (tool, what));
        assert_eq!(call("WebFetch", "https://x"), Some(Verdict::Deny));
        assert_eq!(call("Bash", "rm x"), Some(Verdict::Deny));
        assert_eq!((call("Bash", "ls"), call("Read", "a")), (None, Some(Verdict::Allow)));
    }

    /// The mode of a rehearsal makes the rehearsal ask; it does not bind a child.
    #[test]
    fn of_a_rehearsal_only_the_rules_count() {
        let open = |deny: &[&str], traits: Traits| {
            policy(&parent(Mode::Ask, &[], &[], deny), traits, "/repo", false).is_open()
        };
        let scripted = Traits { scripted: true, ..Traits::default() };
        assert!(open(&[], scripted));
        assert!(!open(&["Bash(rm *)"], scripted));
        assert!(!open(&[], Traits::default()));
    }

    #[test]
    fn variables_that_choose_code_are_recognized() {
        let of_agents = |name: &str| name.starts_with("AGENT_");
        for name in [
            "PATH",
            "HOME",
            "LD_PRELOAD",
            "BASH_ENV",
            "NODE_OPTIONS",
            "GIT_SSH_COMMAND",
            "GIT_DIR",
            "PERL5OPT",
        ] {
            assert!(loads_code(name, of_agents), "{name}");
        }
        for name in [
            "BASH_FUNC_git%%",
            "DYLD_INSERT_LIBRARIES",
            "LUA_INIT_5_4",
            "npm_config_script_shell",
            "ENV",
        ] {
            assert!(loads_code(name, of_agents), "{name}");
        }
        for name in [
            "DOTNET_STARTUP_HOOKS",
            "CORECLR_PROFILER_PATH",
            "CARGO_BUILD_RUSTC_WRAPPER",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
            "RUSTC",
            "RUSTFLAGS",
            "CFLAGS",
            "CC",
            "JAVA_OPTS",
            "_JAVA_OPTIONS",
            "TAR_OPTIONS",
            "PYTEST_ADDOPTS",
            "YARN_RC_FILENAME",
            "GUILE_LOAD_PATH",
            "ERL_LIBS",
            "RUBYOPT",
            "GOFLAGS",
            "AGENT_SQLITE_HOME",
            "PROMPT_COMMAND",
        ] {
            assert!(loads_code(name, of_agents), "{name}");
        }
        for name in
            ["LANG", "TERM", "ANTHROPIC_API_KEY", "PATHS", "MY_HOME", "LEVEL", "HTTP_PROXY", "CI"]
        {
            assert!(!loads_code(name, of_agents), "{name}");
        }
        let harmless =
            ["AGENT_API_KEY", "RUST_LOG", "RUST_BACKTRACE", "NODE_ENV", "TZ", "LC_ALL", "DEBUG"];
        for name in harmless {
            assert!(!loads_code(name, of_agents), "{name}");
        }
    }
}
