//! The entry points of the crate, each with a call that makes it run git.

use crate::stage::{Kind, Stage, TARGET};
use muleteer_model::dispatch::work::{LeftWork, WorkHome};
use muleteer_model::task_list::Stand;
use muleteer_vcs::spec_run::remote::{Connection, Remote, settings};
use muleteer_vcs::spec_run::{clones, hub, publish};
use muleteer_vcs::user_repo::{Git, LfsContent, Saved};
use muleteer_vcs::worktree::{self, Homecoming, Identities, NewClone, Places, Repositories};
use std::fmt::Display;
use std::path::PathBuf;
use std::pin::Pin;
use tokio_util::sync::CancellationToken;

/// An error of any kind.
pub type Failure = Box<dyn std::error::Error>;
type Done = Result<(), Failure>;
type Call = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = Done> + 'a>>;

/// One entry point.
pub struct Entry {
    /// The module and the function.
    pub name: &'static str,
    pub call: Call,
}

impl Entry {
    /// Whether it may run a program of such a repository. The person's repository says how its
    /// remote is reached.
    pub fn may_run(&self, kind: Kind) -> bool {
        kind == Kind::Addresses && self.name.starts_with("remote::")
    }

    /// Returns a part of the error with which it must refuse such a repository; `None` if it must
    /// succeed.
    pub fn refusal(&self, kind: Kind) -> Option<&'static str> {
        let is_this =
            |(of, _, names): &&(Kind, &str, &[&str])| *of == kind && names.contains(&self.name);
        REFUSED.iter().find(is_this).map(|(_, refusal, _)| *refusal)
    }
}

macro_rules! entries {
    ($($name:literal => |$stage:ident| $call:expr,)*) => {
        &[$(Entry { name: $name, call: |$stage| Box::pin(async move { $call }) }),*]
    };
}

/// Functions that run no git in a repository.
pub const NO_GIT: &[&str] = &[
    "clones::new",
    "clones::outlived_the_machine",
    "clones::remember",
    "clones::remember_own",
    "clones::remove",
    "command::alone",
    "command::as_person",
    "command::complaint",
    "command::failed",
    "command::find_git",
    "command::is_full",
    "command::copy_global_configuration",
    "command::output",
    "command::renew_configuration",
    "error::hint",
    "error::is_disk_full",
    "error::step",
    "hub::lenders",
    "person::trusted_environment",
    "person::copy_configuration",
    "remote::new",
    "spec_run::hub",
    "spec_run::is_changed",
    "spec_run::keep",
    "spec_run::new",
    "spec_run::take_repairs",
    "spec_run::undone",
    "user_repo::common_dir",
    "user_repo::forwarded",
    "user_repo::is_made_anew",
    "user_repo::settle",
    "user_repo::shares",
    "user_repo::task",
    "user_repo::top",
    "user_repo::warnings",
    "worktree::discard",
    "worktree::exclude",
    "worktree::lends",
    "worktree::move_away",
    "worktree::removal_name",
    "worktree::removed_id",
    "worktree::unsaved",
];

/// The entry points that must refuse a kind of repository, with a part of their error.
pub const REFUSED: &[(Kind, &str, &[&str])] = &[
    // A task commits through filters, so it does not begin where a needed one does not run.
    (
        Kind::Attributes,
        "goes through the filter `trap`",
        &[
            "user_repo::check_filters",
            "user_repo::remember_start",
            "user_repo::start",
            "user_repo::forget_start",
            "user_repo::uncommitted_since",
            "user_repo::commit",
            "user_repo::keep_lost",
            "user_repo::roll_back",
            "user_repo::undo",
            "user_repo::saved",
            "user_repo::newest",
            "user_repo::disown",
            "user_repo::prepare_clone",
            "user_repo::renew_clone",
            "user_repo::adopt",
        ],
    ),
    // Every path is rewritten to an address of another machine, which git must not contact.
    (
        Kind::Addresses,
        "transport 'ssh' not allowed",
        &[
            "user_repo::prepare_clone",
            "user_repo::reset_clone",
            "user_repo::rebase",
            "user_repo::land",
            "user_repo::adopt",
            "worktree::bring",
            "worktree::bring_last",
            "publish::bring_home",
            "publish::bring_as",
            "publish::bring_ref",
        ],
    ),
    // The `.git` file of a clone may lead to a repository of somebody else.
    (
        Kind::GitFile,
        "leads to another place",
        &[
            "user_repo::prepare_clone",
            "user_repo::open_clone",
            "user_repo::reset_clone",
            "user_repo::rebase",
            "user_repo::land",
            "user_repo::adopt",
        ],
    ),
    // Its commits are not fetched. Its uncommitted files are saved.
    (
        Kind::GitFile,
        "the git directory of the clone was removed",
        &["worktree::bring", "worktree::bring_last"],
    ),
];

/// All others.
pub const ENTRIES: &[Entry] = entries![
    // A person's working directory.
    "user_repo::open" => |stage| person(stage).map(drop),
    "user_repo::head" => |stage| text(person(stage)?.head()).map(drop),
    "user_repo::branch" => |stage| some(person(stage)?.branch()),
    "user_repo::stands_on" => |stage| text(person(stage)?.stands_on()).map(drop),
    "user_repo::tip" => |stage| text(person(stage)?.tip("ahead")).map(drop),
    "user_repo::contains" => |stage| {
        let git = person(stage)?;
        is(text(git.contains(&ahead(&git)?, &stage.base))?)
    },
    "user_repo::exists" => |stage| is(person(stage)?.exists(&stage.base)),
    "user_repo::recent" => |stage| is(!person(stage)?.recent(5).is_empty()),
    "user_repo::uncommitted" => |stage| is(person(stage)?.uncommitted().contains("untracked")),
    "user_repo::missing_in_clones" => |stage| {
        let missing = person(stage)?.missing_in_clones(LfsContent::Copied { path: None });
        is(!missing.uncommitted.is_empty())
    },
    "user_repo::stashes" => |stage| is(person(stage)?.stashes().is_empty()),
    "user_repo::commits_since" => |stage| {
        let git = person(stage)?;
        forward(&git)?;
        is(text(git.commits_since(&stage.base))?.len() == 1)
    },
    "user_repo::mend_index" => |stage| {
        let git = person(stage)?;
        let index = stage.git_dir(&stage.project()).join("index");
        std::fs::write(index, "").map_err(|error| error.to_string())?;
        is(text(git.mend_index())?)
    },
    "user_repo::check_filters" => |stage| {
        let git = person(stage)?;
        text(git.check_filters(false)).and_then(|()| text(git.check_filters(true)))
    },
    "user_repo::snapshot" => |stage| text(person(stage)?.snapshot()).map(drop),
    "user_repo::tree_of" => |stage| text(person(stage)?.tree_of("ahead")).map(drop),
    "user_repo::in_progress" => |stage| text(person(stage)?.in_progress()).map(drop),
    "user_repo::check_no_operation" => |stage| text(person(stage)?.check_no_operation()),
    "user_repo::end_operations" => |stage| text(person(stage)?.end_operations()),
    "user_repo::remember_refs" => |stage| text(person(stage)?.remember_refs(TASK)),
    "user_repo::remember_start" => |stage| begun(stage).map(drop),
    "user_repo::start" => |stage| {
        let git = begun(stage)?;
        text(git.start(TASK, &stage.base)).map(drop)
    },
    "user_repo::forget_start" => |stage| {
        begun(stage)?.forget_start(TASK);
        Ok(())
    },
    "user_repo::uncommitted_since" => |stage| {
        let git = worked(stage)?;
        some(text(git.uncommitted_since(&text(git.start(TASK, &stage.base))?))?)
    },
    "user_repo::commit" => |stage| {
        let git = worked(stage)?;
        some(text(git.commit(&text(git.start(TASK, &stage.base))?, "the task"))?)
    },
    "user_repo::keep_lost" => |stage| {
        let git = begun(stage)?;
        let gone = std::fs::remove_file(stage.project().join("untracked"));
        gone.map_err(|error| error.to_string())?;
        some(text(git.keep_lost(TASK, &stage.base, &text(git.start(TASK, &stage.base))?))?)
    },
    "user_repo::roll_back" => |stage| {
        let git = worked(stage)?;
        roll_back(&git, &stage.base, &Stand::On("main".into())).map(drop)
    },
    "user_repo::undo" => |stage| {
        let git = worked(stage)?;
        let saved = roll_back(&git, &stage.base, &Stand::On("main".into()))?;
        text(git.undo(&saved, &[])).map(drop)
    },
    "user_repo::saved" => |stage| {
        let git = worked(stage)?;
        roll_back(&git, &stage.base, &Stand::On("main".into()))?;
        is(text(git.saved(Some(TASK)))?.len() == 1)
    },
    "user_repo::newest" => |stage| {
        let git = worked(stage)?;
        roll_back(&git, &stage.base, &Stand::On("main".into()))?;
        some(git.newest(&text(git.saved(None))?))
    },
    "user_repo::forward" => |stage| forward(&person(stage)?),
    "user_repo::mend_forward" => |stage| {
        let git = person(stage)?;
        let note = format!("1 {} {}\n", stage.base, ahead(&git)?);
        let path = stage.git_dir(&stage.project()).join("muleteer-forward");
        std::fs::write(path, note).map_err(|error| error.to_string())?;
        text(git.mend_forward()).map(drop)
    },
    "user_repo::untrack" => |stage| {
        let git = person(stage)?;
        forward(&git)?;
        some(text(git.untrack())?)
    },
    "user_repo::disown" => |stage| {
        let git = begun(stage)?;
        forward(&git)?;
        some(text(git.disown(TASK, &stage.base))?)
    },
    // The clone of a task-list worker.
    "user_repo::prepare_clone" => |stage| {
        let dir = stage.root.join("new");
        text(person(stage)?.prepare_clone(&dir, "main"))?;
        // Done again, it brings the clone up to date.
        text(person(stage)?.prepare_clone(&stage.worker_dir(), "main")).map(drop)
    },
    "user_repo::open_copy" => |stage| {
        text(Git::open_copy(&stage.worker_dir(), &person(stage)?)).map(drop)
    },
    "user_repo::open_clone" => |stage| worker(stage).map(drop),
    "user_repo::reset_clone" => |stage| {
        let (project, clone) = worker(stage)?;
        text(clone.reset_clone(&project, "main")).map(drop)
    },
    "user_repo::rebase" => |stage| {
        let (project, clone) = worker(stage)?;
        forward(&project)?;
        let file = std::fs::write(stage.worker_dir().join("file"), "one\ntwo\nthree\n");
        file.map_err(|error| error.to_string())?;
        text(clone.rebase(&project, "main")).map(drop)
    },
    "user_repo::land" => |stage| {
        let (project, clone) = worker(stage)?;
        is(text(project.land(&clone, "main", &stage.base))?)
    },
    "user_repo::mend_clone" => |stage| {
        let git = person(stage)?;
        text(git.mend_clone(&stage.worker_dir(), "main")).map(drop)
    },
    "user_repo::renew_clone" => |stage| {
        let git = person(stage)?;
        drop(std::fs::remove_file(stage.git_dir(&stage.worker_dir()).join("HEAD")));
        some(text(git.renew_clone(&stage.worker_dir(), "main", &stage.base))?)
    },
    "user_repo::adopt" => |stage| {
        let (project, clone) = worker(stage)?;
        text(clone.remember_start(TASK, &stage.base))?;
        let new = std::fs::write(stage.worker_dir().join("new"), "new\n");
        new.map_err(|error| error.to_string())?;
        let saved = roll_back(&clone, &stage.base, &Stand::Anywhere)?;
        text(project.adopt(&clone, &saved)).map(drop)
    },
    // The clone of a dispatch, and questions about a repository.
    "worktree::ensure" => |stage| {
        let (id, branch) = ("abcd2345", "muleteer/abcd2345");
        let new = NewClone { id, branch, has_email: false, path: None };
        text(worktree::ensure(&stage.project(), &stage.root.join("new"), new).await.map(drop))
    },
    "worktree::bring" => |stage| homecoming(stage, Bring::All).await,
    "worktree::bring_last" => |stage| homecoming(stage, Bring::Last).await,
    "worktree::name_earlier" => |stage| homecoming(stage, Bring::Nothing).await,
    "worktree::branch_in_the_way" => |stage| {
        some(worktree::branch_in_the_way(&stage.project(), "main/more").await)
    },
    "worktree::git_dir" => |stage| each(stage, async |dir| worktree::git_dir(&dir).await).await,
    "worktree::top" => |stage| each(stage, async |dir| worktree::top(&dir).await).await,
    "worktree::head" => |stage| each(stage, async |dir| worktree::head(&dir).await).await,
    "worktree::branch" => |stage| each(stage, async |dir| worktree::branch(&dir).await).await,
    "worktree::tip" => |stage| some(worktree::tip(&stage.project(), "ahead").await),
    "worktree::has" => |stage| is(worktree::has(&stage.project(), "file").await),
    "worktree::is_branch_name" => |stage| {
        is(worktree::is_branch_name(&stage.project(), "a/b").await)
    },
    "worktree::refusal" => |stage| match worktree::refusal(&stage.project()).await {
        None => Ok(()),
        Some(why) => Err(why.into()),
    },
    "worktree::of" => |stage| some(Repositories::default().of(&stage.clone_dir()).await),
    "worktree::missing" => |stage| {
        let env = [environment(), vec![("HOME".into(), stage.root.display().to_string())]].concat();
        let own = stage.root.join("identity");
        let places = Places { shared: &stage.root, own: &own };
        Identities::default().missing(&stage.clone_dir(), &env, Some(places)).await;
        Ok(())
    },
    // A run.
    "hub::ensure" => |stage| text(hub::ensure(&stage.repos, &stage.base, TARGET).await),
    "hub::guard" => |stage| {
        pushed(stage).await?;
        text(hub::guard(&stage.repos, TARGET, Some("job")).await).map(drop)
    },
    "hub::hold" => |stage| {
        pushed(stage).await?;
        text(hub::hold(&stage.repos, TARGET, Some("job")).await).map(drop)
    },
    "hub::watch" => |stage| {
        pushed(stage).await?;
        text(hub::watch(&stage.repos, TARGET).await)
    },
    "hub::tip" => |stage| {
        pushed(stage).await?;
        text(hub::tip(&stage.repos, TARGET).await).map(drop)
    },
    "hub::commit" => |stage| {
        pushed(stage).await?;
        some(hub::commit(&stage.repos, TARGET).await)
    },
    "hub::unlock" => |stage| {
        pushed(stage).await?;
        hub::unlock(&stage.repos, TARGET).await;
        Ok(())
    },
    "clones::worktree" => |stage| {
        let dir = pushed(stage).await?;
        clones::worktree(&stage.repos, &dir, TARGET, Some("one"), true).await?;
        let next = dir.with_file_name("bead-two-1");
        text(clones::worktree(&stage.repos, &next, TARGET, Some("two"), false).await).map(drop)
    },
    "clones::work" => |stage| {
        let dir = pushed(stage).await?;
        hub::guard(&stage.repos, TARGET, None).await?;
        is(clones::work(&stage.repos, &dir, TARGET).await?.unreadable.is_none())
    },
    "clones::was_pushed" => |stage| {
        let dir = pushed(stage).await?;
        hub::guard(&stage.repos, TARGET, None).await?;
        clones::work(&stage.repos, &dir, TARGET).await?;
        is(clones::was_pushed(&stage.repos, "one", TARGET).await?)
    },
    "clones::is_dirty" => |stage| {
        let dir = pushed(stage).await?;
        is(clones::is_dirty(&stage.repos, &dir).await?)
    },
    "clones::discard" => |stage| {
        let dir = pushed(stage).await?;
        some(clones::discard(&stage.repos, &dir, TARGET).await?)
    },
    "publish::bring_home" => |stage| {
        pushed(stage).await?;
        hub::guard(&stage.repos, TARGET, None).await?;
        text(publish::bring_home(&stage.repos, TARGET).await).map(drop)
    },
    // The branch is checked out.
    "publish::bring_home" => |stage| {
        hub::ensure(&stage.repos, &ahead(&person(stage)?)?, "main").await?;
        is(publish::bring_home(&stage.repos, "main").await? == "main")
    },
    "publish::bring_as" => |stage| {
        let commit = gathered(stage).await?;
        text(publish::bring_as(&stage.repos, &commit, ["beside".to_string()]).await).map(drop)
    },
    "publish::bring_ref" => |stage| {
        let commit = gathered(stage).await?;
        text(publish::bring_ref(&stage.repos, &commit, "refs/muleteer/run/it").await)
    },
    "publish::count_commits" => |stage| {
        let commit = gathered(stage).await?;
        is(publish::count_commits(&stage.repos, &stage.base, &commit).await? == 1)
    },
    "publish::diff_stat" => |stage| {
        let commit = gathered(stage).await?;
        is(publish::diff_stat(&stage.repos, &stage.base, &commit).await?.contains("1 file"))
    },
    "publish::is_only_of_run" => |stage| {
        let commit = gathered(stage).await?;
        is(publish::is_only_of_run(&stage.repos, &commit).await)
    },
    "publish::keep_base" => |stage| {
        publish::keep_base(&stage.repos, Some(&stage.base)).await?;
        text(publish::keep_base(&stage.repos, None).await)
    },
    "remote::find" => |stage| some(Remote::find(&stage.project(), "main").await),
    "remote::settings" => |stage| is(!settings(&stage.project()).await.is_empty()),
    "remote::tip" => |stage| some(connection(stage).await?.tip("main").await),
    "remote::rebased" => |stage| {
        gathered(stage).await?;
        text(connection(stage).await?.rebased(&stage.repos, TARGET, "ahead").await).map(drop)
    },
    "remote::push" => |stage| {
        let commit = gathered(stage).await?;
        text(connection(stage).await?.push(&stage.repos, &commit, "result").await)
    },
];

const TASK: &str = "task-1";

fn text<T>(result: Result<T, impl Display>) -> Result<T, Failure> {
    result.map_err(|error| error.to_string().into())
}

fn some<T>(found: Option<T>) -> Done {
    found.map(drop).ok_or_else(|| "nothing was found".into())
}

fn is(fact: bool) -> Done {
    fact.then_some(()).ok_or_else(|| "it is not so".into())
}

fn person(stage: &Stage) -> Result<Git, Failure> {
    text(Git::open(&stage.project()))
}

/// Returns a commit that the branch can move forward to.
fn ahead(git: &Git) -> Result<String, Failure> {
    text(git.tip("ahead"))
}

fn forward(git: &Git) -> Done {
    text(git.forward(&text(git.head())?, &ahead(git)?))?;
    text(git.forwarded())
}

/// Begins a task in the person's working directory.
fn begun(stage: &Stage) -> Result<Git, Failure> {
    let git = person(stage)?;
    text(git.remember_start(TASK, &stage.base))?;
    Ok(git)
}

/// The same, with files that the task has changed.
fn worked(stage: &Stage) -> Result<Git, Failure> {
    let git = begun(stage)?;
    for (name, content) in [("new", "new\n"), ("file", "one, by a task\ntwo\nthree\n")] {
        text(std::fs::write(stage.project().join(name), content))?;
    }
    Ok(git)
}

fn roll_back(git: &Git, base: &str, stand: &Stand) -> Result<Saved, Failure> {
    let saved = text(git.roll_back(TASK, base, None, stand, &[], &mut |_| {}))?;
    saved.ok_or_else(|| "nothing was rolled back".into())
}

/// Returns the person's repository, and the clone of a worker.
fn worker(stage: &Stage) -> Result<(Git, Git), Failure> {
    let project = person(stage)?;
    let clone = text(Git::open_clone(&stage.worker_dir(), &project))?;
    Ok((project, clone))
}

/// Asks about the person's repository and about an agent's clone.
async fn each<T>(stage: &Stage, ask: impl AsyncFn(PathBuf) -> Option<T>) -> Done {
    for dir in [stage.project(), stage.clone_dir()] {
        some(ask(dir).await)?;
    }
    Ok(())
}

/// The part of a homecoming that a call carries out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bring {
    All,
    /// Before the clone is removed.
    Last,
    /// It only names the work that is there already.
    Nothing,
}

/// Brings home the work of an agent in its clone.
async fn homecoming(stage: &Stage, bring: Bring) -> Done {
    let (project, clone, stop) = (stage.project(), stage.clone_dir(), CancellationToken::new());
    let home = Homecoming {
        project: &project,
        clone: &clone,
        id: "abcd2345",
        base: Some(&stage.base),
        branch: "work",
        before: None,
        stop: &stop,
    };
    let work = match bring {
        Bring::All => text(home.bring().await)?,
        Bring::Last => text(home.bring_last().await)?,
        Bring::Nothing => {
            home.name_earlier(&mut WorkHome::default()).await;
            return Ok(());
        }
    };
    // Replacements of objects come home as refs that replace nothing there.
    let replaces = |left: &&LeftWork| left.name.contains("/refs/replace/");
    let others = work.left.len() - work.left.iter().filter(replaces).count();
    is(work.commits == Some(1) && others == 1 && work.skipped.is_empty())
        .map_err(|_| format!("{work:?}").into())
}

/// Makes a run with a clone whose agent has pushed, and has set its traps in clone and hub.
async fn pushed(stage: &Stage) -> Result<PathBuf, Failure> {
    hub::ensure(&stage.repos, &stage.base, TARGET).await?;
    let dir = stage.worktrees().join("bead-one-1");
    clones::worktree(&stage.repos, &dir, TARGET, Some("one"), false).await?;
    stage.work_in(&dir);
    let hub = stage.repos.paths.hub();
    let target = format!("HEAD:refs/heads/{TARGET}");
    stage.ordinary(&dir, &["push", "--quiet", &hub.display().to_string(), &target]);
    let head = stage.ordinary(&dir, &["rev-parse", "HEAD"]);
    assert_eq!(stage.ordinary(&hub, &["rev-parse", TARGET]), head, "the agent has pushed");
    stage.trap(&dir);
    stage.trap(&hub);
    Ok(dir)
}

/// The same, and returns the commit that was gathered from the hub.
async fn gathered(stage: &Stage) -> Result<String, Failure> {
    pushed(stage).await?;
    hub::guard(&stage.repos, TARGET, None).await?;
    hub::commit(&stage.repos, TARGET).await.ok_or_else(|| "the branch is missing".into())
}

async fn connection(stage: &Stage) -> Result<Connection, Failure> {
    let remote = Remote::find(&stage.project(), "main").await.ok_or("there is no remote")?;
    let settings = settings(&stage.project()).await;
    Ok(Connection::new(&stage.repos, remote, environment(), settings))
}

fn environment() -> Vec<(String, String)> {
    vec![("PATH".into(), std::env::var("PATH").unwrap_or_default())]
}
