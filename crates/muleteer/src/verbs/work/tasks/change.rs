//! The verbs that only change the list.

use crate::cli::arg_error::ArgError;
use crate::cli::context::{Context, absolute};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::tasks::place::{
    begin, here, keep_out_of_git, listed, named, not_by_an_agent, root, task, unknown,
};
use jiff::Timestamp;
use muleteer_model::config::Span;
use muleteer_model::task_list::document::{parse_priority, valid_id};
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::repeated_import::new_items;
use muleteer_model::task_list::{
    DAMAGED, OWN_FILES, Task, TaskList, import as imports, outcome, select,
};
use muleteer_protocol::ErrorCode;
use muleteer_store::links::open_to_write;
use muleteer_store::task_list::{Root, Tx};
use muleteer_supervisor::daemon::settings;
use serde_json::json;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The maximum size of an imported file, which is read completely.
const IMPORT_LIMIT: u64 = 64 * 1024 * 1024;

/// On a terminal, further dropped dependencies are only counted.
const DROPPED_SHOWN: usize = 20;

const INIT_SCRIPT: &str = "#!/bin/sh
# Runs at every session start, so it must be safe to run again. Exit 0: the environment is ready.
set -e
# npm install, cargo fetch, docker compose up -d, …
echo \"Environment health check complete\"
";

/// Create a task list: harness-tasks.json, harness-progress.txt, .harness-active
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks init\n  muleteer tasks init ../web --script \
        --gitignore\n\nKeeps an existing list.")]
pub struct Init {
    /// The project [default: the current directory]
    path: Option<PathBuf>,
    /// Create a template of harness-init.sh
    #[arg(long)]
    script: bool,
    /// Add the harness's files to .gitignore [default: asks on a terminal]
    #[arg(long, conflicts_with = "no_gitignore")]
    gitignore: bool,
    /// Do not change .gitignore
    #[arg(long)]
    no_gitignore: bool,
    /// Allow several workers on the list at the same time
    #[arg(long)]
    concurrent: bool,
}

/// Add a task; prints its id
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  muleteer tasks add \"Parse dates\" --validate 'cargo test dates'\n  \
        muleteer tasks add \"Ship\" --depends-on task-001,task-002 --priority P0"
)]
pub struct Add {
    /// The title: one line
    title: String,
    #[command(flatten)]
    fields: Fields,
    /// The id of the task [default: task-NNN, the next free one]
    #[arg(long, value_parser = id)]
    id: Option<String>,
}

/// Change a task
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  muleteer tasks edit task-002 --validate 'npm test' --timeout 300"
)]
pub struct Edit {
    /// The task
    id: String,
    /// The title: one line
    #[arg(long)]
    title: Option<String>,
    #[command(flatten)]
    fields: Fields,
}

#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
struct Fields {
    /// The priority: P0 (most urgent), P1 or P2
    #[arg(long, value_name = "P", value_parser = priority)]
    priority: Option<u32>,
    /// Tasks that must be completed first; repeated, or separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    depends_on: Option<Vec<String>>,
    /// The command that decides whether the task is done, for `sh -c`
    #[arg(long, value_name = "CMD")]
    validate: Option<String>,
    /// The time limit of the validation: 15m, 300s or bare seconds
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    timeout: Option<u64>,
    /// A command to run after a failed attempt, for `sh -c`
    #[arg(long, value_name = "CMD")]
    cleanup: Option<String>,
    /// The number of attempts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,
    /// A longer description for the agent
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// Reset the attempts of a failed task, and of the tasks that it blocked
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  muleteer tasks retry task-002")]
pub struct Retry {
    /// The task
    id: String,
}

/// Add tasks from beads' issues.jsonl or a markdown checklist
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks import .beads/issues.jsonl\n  muleteer tasks \
        import PLAN.md\n\nIn a checklist, an item depends on the items indented below it, and a \
        `validate: CMD` line below it is its validation. Tasks with an existing id are skipped, \
        and items that an earlier import has added.")]
pub struct Import {
    /// The file
    file: PathBuf,
}

fn id(text: &str) -> Result<String, ArgError> {
    if valid_id(text) { Ok(text.into()) } else { Err(ArgError::TaskId) }
}

fn priority(text: &str) -> Result<u32, ArgError> {
    parse_priority(text).filter(|level| *level <= 2).ok_or(ArgError::Wanted("P0, P1 or P2"))
}

fn seconds(text: &str) -> Result<u64, ArgError> {
    let span: Span = text.parse()?;
    Some(span.as_secs())
        .filter(|seconds| *seconds > 0)
        .ok_or(ArgError::Wanted("at least 1 second"))
}

pub fn init(args: &Init, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let dir = absolute(args.path.as_deref().or(said).unwrap_or(&here()?));
    if !dir.is_dir() {
        return Err(Failure::new(
            ErrorCode::ProjectNotFound,
            format!("{} is not a directory", dir.display()),
        ));
    }
    let root = Root::at(&dir);
    // A list that is gone is restored from its backup, as by every other verb.
    let is_restorable = || root.read().is_ok_and(|read| read.from_backup);
    let created = !root.tasks().exists() && !is_restorable();
    if created {
        let now = Timestamp::now();
        let mut list = TaskList::new(now);
        if args.concurrent {
            list.configure("concurrency_mode", json!("concurrent"));
        }
        let mut tx = root.create(list, now).map_err(|error| listed(&error))?;
        if let Some(text) = &tx.restored {
            context.out.note(format!("warning: {text}"));
        }
        tx.log(Entry::init(&format!("Harness initialized for project {}", root.path().display())));
        tx.mark_active(true).map_err(|error| listed(&error))?;
        tx.commit().map_err(|error| listed(&error))?;
    } else {
        let tx = begin(&root)?;
        if !muleteer_model::task_list::stats::is_over(&tx.list) || tx.list.tasks.is_empty() {
            tx.mark_active(true).map_err(|error| listed(&error))?;
        }
    }
    if args.script && !root.init_script().exists() {
        let mut options = std::fs::OpenOptions::new();
        let opened = open_to_write(&root.init_script(), options.create(true).write(true));
        let written = opened.and_then(|mut file| {
            file.write_all(INIT_SCRIPT.as_bytes())?;
            file.set_permissions(std::fs::Permissions::from_mode(0o755))
        });
        written.map_err(|error| {
            Failure::new(ErrorCode::Io, format!("cannot write harness-init.sh: {error}"))
        })?;
    }
    if !args.no_gitignore && (args.gitignore || asked(context)) {
        ignore(&root)?;
    }
    keep_out_of_git(&root);
    if context.out.json {
        context.out.document(&json!({"root": root.path(), "created": created}))?;
    } else {
        let what =
            if created { "creating a task list in" } else { "keeping the existing task list in" };
        context.out.note(format!("{what} {}", root.path().display()));
    }
    Ok(Exit::Done)
}

/// Asks the user whether to add the harness's files to .gitignore.
fn asked(context: &Context) -> bool {
    on_terminal(context)
        && matches!(
            answer("Add the harness's files to .gitignore? [y/N]").to_lowercase().as_str(),
            "y" | "yes"
        )
}

/// Returns whether the user can be asked.
fn on_terminal(context: &Context) -> bool {
    !context.out.json
        && !context.out.quiet
        && std::io::stdin().is_terminal()
        && std::io::stderr().is_terminal()
}

fn answer(question: &str) -> String {
    let mut answer = String::new();
    drop(write!(std::io::stderr(), "{question} "));
    drop(std::io::stdin().lock().take(64 * 1024).read_line(&mut answer));
    answer.trim().to_string()
}

/// Asks the user for optional fields; an empty answer leaves a field unchanged.
fn ask() -> Result<Fields, Failure> {
    let given = |question: &str| Some(answer(question)).filter(|text| !text.is_empty());
    let refused = |error: ArgError| Failure::new(ErrorCode::Usage, error.to_string());
    Ok(Fields {
        priority: given("Priority (P0, P1, P2) [P1]:")
            .map(|text| priority(&text))
            .transpose()
            .map_err(refused)?,
        depends_on: given("Depends on (ids, separated by commas) []:")
            .map(|text| text.split(',').map(|id| id.trim().to_string()).collect()),
        validate: given("Validation command [none yet]:"),
        timeout: given("Its timeout [300s]:")
            .map(|text| seconds(&text))
            .transpose()
            .map_err(refused)?,
        ..Fields::default()
    })
}

fn ignore(root: &Root) -> Result<(), Failure> {
    let path = root.path().join(".gitignore");
    let fail = |error: std::io::Error| {
        Failure::new(ErrorCode::Io, format!("cannot write .gitignore: {error}")).file(&path)
    };
    let text = settings::read_if_there(&path)
        .map_err(|error| fail(std::io::Error::other(error)))?
        .unwrap_or_default();
    let files = OWN_FILES.iter().filter(|name| **name != muleteer_model::task_list::INIT);
    let missing: Vec<_> = files
        .map(|name| if *name == DAMAGED { format!("/{name}*") } else { format!("/{name}") })
        .filter(|line| {
            !text.lines().any(|known| known.trim() == line || known.trim() == &line[1..])
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let text = format!("{text}{gap}{}\n", missing.join("\n"));
    let mut options = std::fs::OpenOptions::new();
    open_to_write(&path, options.create(true).write(true).truncate(true))
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(fail)
}

impl Fields {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&self, task: &mut Task) {
        if let Some(priority) = self.priority {
            task.priority = priority;
        }
        if let Some(depends_on) = &self.depends_on {
            task.depends_on = depends_on.iter().filter(|id| !id.is_empty()).cloned().collect();
        }
        let text = |text: &String| Some(text.trim().to_string()).filter(|text| !text.is_empty());
        if let Some(command) = &self.validate {
            task.command = text(command);
        }
        if let Some(timeout) = self.timeout {
            task.timeout_seconds = Some(timeout);
        }
        if let Some(cleanup) = &self.cleanup {
            task.cleanup = text(cleanup);
        }
        if let Some(max_attempts) = self.max_attempts {
            task.max_attempts = max_attempts;
        }
        if let Some(description) = &self.description {
            task.description = text(description);
        }
    }
}

/// Resolves tasks that are named by the beginnings of their ids. Unknown names are left for
/// [`check`] to reject.
fn known(list: &TaskList, said: &[String]) -> Vec<String> {
    let said = said.iter().filter(|id| !id.is_empty());
    said.map(|id| list.find(id).map_or_else(|_| id.clone(), |task| task.id.clone())).collect()
}

/// Rejects a change that would make the list unreadable.
fn check(tx: &Tx) -> Result<(), Failure> {
    use muleteer_model::task_list::document::Unreadable;
    match TaskList::parse(&tx.list.to_text()) {
        Ok(_) => Ok(()),
        Err(Unreadable::Invalid(faults)) => {
            let fault = faults.into_iter().next();
            let (message, hint) =
                fault.map_or_else(Default::default, |fault| (fault.to_string(), fault.hint));
            Err(Failure::new(ErrorCode::TasksInvalid, message).hint(hint))
        }
        Err(Unreadable::Corrupt { why, .. }) => Err(Failure::new(ErrorCode::Internal, why)),
    }
}

fn tell(context: &Context, task: &Task) -> Result<Exit, Failure> {
    if context.out.json {
        context.out.document(&task.to_value())?
    } else {
        context.out.line(&task.id)?
    }
    if task.command.is_none() {
        context.out.note(format!(
            "{} has no validation command: it cannot be completed without one",
            task.id
        ));
    }
    Ok(Exit::Done)
}

pub fn add(args: &Add, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    if args.title.trim().is_empty() {
        return Err(Failure::new(ErrorCode::Usage, "the title is empty"));
    }
    let root = root(said)?;
    // The user is asked before the lock is taken, because people take their time.
    let asked = if args.fields.is_empty() && on_terminal(context) { Some(ask()?) } else { None };
    let mut tx = begin(&root)?;
    let id = args.id.clone().unwrap_or_else(|| tx.list.next_id());
    let mut task = Task::new(id, args.title.trim());
    args.fields.apply(&mut task);
    if let Some(asked) = asked {
        asked.apply(&mut task);
    }
    task.depends_on = known(&tx.list, &task.depends_on);
    tx.list.tasks.push(task.clone());
    check(&tx)?;
    tx.mark_active(true).map_err(|error| listed(&error))?;
    tx.commit().map_err(|error| listed(&error))?;
    tell(context, &task)
}

pub fn edit(args: &Edit, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    if args.title.as_ref().is_some_and(|title| title.trim().is_empty()) {
        return Err(Failure::new(ErrorCode::Usage, "the title is empty"));
    }
    let root = root(said)?;
    not_by_an_agent(&root)?;
    let mut tx = begin(&root)?;
    let id = named(&tx.list, &args.id)?;
    let depends_on = args.fields.depends_on.as_ref().map(|ids| known(&tx.list, ids));
    let task = tx.list.get_mut(&id).ok_or_else(|| unknown(&id))?;
    if let Some(title) = &args.title {
        task.title = title.trim().to_string();
    }
    args.fields.apply(task);
    if let Some(depends_on) = depends_on {
        task.depends_on = depends_on;
    }
    let task = task.clone();
    check(&tx)?;
    if let Some(circle) =
        args.fields.depends_on.as_ref().and_then(|_| select::circle(&tx.list, &task.id))
    {
        let message = format!("{} would depend on itself: {circle}", task.id);
        return Err(Failure::new(ErrorCode::GraphCycle, message)
            .hint("correct --depends-on, which replaces the earlier dependencies"));
    }
    tx.commit().map_err(|error| listed(&error))?;
    tell(context, &task)
}

pub fn retry(args: &Retry, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    use muleteer_model::task_list::Status;
    let root = root(said)?;
    not_by_an_agent(&root)?;
    let mut tx = begin(&root)?;
    let task = task(&tx.list, &args.id)?;
    let id = task.id.clone();
    if task.status != Status::Failed {
        let message = format!("`{}` is {}, not failed", task.id, task.status.as_str());
        return Err(Failure::new(ErrorCode::TaskClaimed, message)
            .hint("name a failed task: only its attempts can be reset"));
    }
    let again = outcome::retry(&mut tx.list, &id);
    for id in &again {
        tx.log(Entry::warn(Some(id), "reset by the user"));
    }
    tx.mark_active(true).map_err(|error| listed(&error))?;
    tx.commit().map_err(|error| listed(&error))?;
    if context.out.json {
        context.out.document(&json!({"retried": again}))?;
    } else {
        for id in again {
            context.out.line(id)?;
        }
    }
    Ok(Exit::Done)
}

pub fn import(args: &Import, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    not_by_an_agent(&root)?;
    let unreadable = |error: std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound {
            ErrorCode::NotFound
        } else {
            ErrorCode::BadInput
        };
        Failure::new(code, format!("cannot read it: {error}")).file(&args.file)
    };
    let file = std::fs::File::open(&args.file).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(IMPORT_LIMIT + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > IMPORT_LIMIT {
        let message = format!("it is larger than {} MiB", IMPORT_LIMIT >> 20);
        return Err(Failure::new(ErrorCode::BadInput, message)
            .file(&args.file)
            .hint("import it in parts"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        Failure::new(ErrorCode::BadInput, "it is not UTF-8")
            .file(&args.file)
            .at(Some(line as u64), None)
    })?;
    let mut tx = begin(&root)?;
    let now = tx.now();
    let bad = |error: imports::BadLine| {
        Failure::new(ErrorCode::BadInput, error.message)
            .file(&args.file)
            .at(Some(error.line), None)
    };
    let first = imports::first_number(&tx.list);
    let tasks = imports::tasks(&text, first, now).map_err(bad)?;
    if tasks.is_empty() {
        return Err(Failure::new(ErrorCode::BadInput, "it has no tasks")
            .file(&args.file)
            .hint("give beads' issues.jsonl, or a markdown checklist (`- [ ] …`)"));
    }
    let (tasks, known) = match imports::is_jsonl(&text) {
        true => (tasks, 0),
        false => new_items(&tx.list, tasks, first),
    };
    let open = imports::open(&tasks);
    let merged = imports::merge(&mut tx.list, tasks).map_err(|circle| {
        Failure::new(ErrorCode::GraphCycle, circle.to_string())
            .file(&args.file)
            .at(imports::line_of(&text, &circle.task), None)
            .hint(
                "remove one of these dependencies from the file, and import it again: nothing was \
                added",
            )
    })?;
    let imports::Merged { added: ids, skipped, dropped } = merged;
    let skipped = skipped + known;
    check(&tx)?;
    tx.mark_active(true).map_err(|error| listed(&error))?;
    tx.commit().map_err(|error| listed(&error))?;
    if context.out.json {
        let dropped: Vec<_> = dropped
            .iter()
            .map(|one| json!({"task": one.task, "depends_on": one.depends_on}))
            .collect();
        context.out.document(&json!({"added": ids, "skipped": skipped, "dropped": dropped}))?;
    } else {
        for id in &ids {
            context.out.line(id)?;
        }
        for one in dropped.iter().take(DROPPED_SHOWN) {
            context.out.note(format!(
                "{} depends on {}, which is in neither the list nor the file: the dependency is \
                 dropped",
                one.task, one.depends_on
            ));
        }
        if dropped.len() > DROPPED_SHOWN {
            context.out.note(format!(
                "{} more dependencies are dropped for this reason",
                dropped.len() - DROPPED_SHOWN
            ));
        }
        context
            .out
            .note(format!("{} added ({open} open), {skipped} already in the list", ids.len()));
    }
    Ok(Exit::Done)
}
