//! `bead`: the work items of runs. Outside a run it uses the repository's store directly. An agent
//! of a run asks the daemon, which knows the agent and its rights.

mod store;

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip, safe};
use crate::verbs::work::bead::store::Store;
use clap::Subcommand;
use muleteer_model::beads::graph::Graph;
use muleteer_model::beads::{Answer, Bead, Op, Status, named};
use muleteer_protocol::ErrorCode;
use muleteer_store::beads::embedded;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  muleteer bead create --title \"Parse the header\" --priority 1 --label parser
  muleteer bead dep add k3f9 x2ab            k3f9 depends on x2ab
  muleteer bead ready                        the beads that can start now
  muleteer bead list --label run:RUN --status open --json
  muleteer bead close k3f9 --reason \"Done in 1f2e3d\"

The beads of a repository are in .muleteer/beads. An agent of a run reaches the run's beads with \
these verbs, and its new beads get the run's label.";

/// The least time between two lines about the progress of the store.
const QUIET: Duration = Duration::from_secs(2);
/// A larger import is assumed to be a mistake.
const IMPORT_LIMIT: u64 = 128 * 1024 * 1024;

/// Create, show and change beads: the work items of runs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a bead and print its id
    #[command(
        after_help = "Example:\n  muleteer bead create --title \"Parse the header\" --priority 1"
    )]
    Create {
        /// The title: one line
        #[arg(long, value_name = "TEXT", required_unless_present = "words")]
        title: Option<String>,
        /// The title, as an argument
        #[arg(value_name = "TITLE", conflicts_with = "title", hide = true)]
        words: Option<String>,
        /// The full description
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        description: String,
        /// bug, task, feature or chore
        #[arg(long = "type", value_name = "TYPE", default_value = "task")]
        kind: String,
        /// The priority: 0 (most urgent) to 4
        #[arg(long, value_name = "N", default_value = "2", value_parser = priority)]
        priority: u8,
        /// A label; may be given more than once
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
        /// A bead that it depends on; may be given more than once
        #[arg(long = "depends-on", value_name = "ID")]
        depends_on: Vec<String>,
    },
    /// Show one bead in full
    #[command(after_help = "Example:\n  muleteer bead show k3f9")]
    Show { id: String },
    /// List beads, the oldest first
    #[command(after_help = "Example:\n  muleteer bead list --label v2 --status open --json")]
    List {
        /// Only beads with this label; repeat it to require several labels
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
        /// open, in_progress, blocked or closed
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
    },
    /// List the beads that can start now, in scheduling order
    #[command(after_help = "Example:\n  muleteer bead ready")]
    Ready {
        /// Only beads with this label; repeat it to require several labels
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
    },
    /// Change a bead
    #[command(after_help = "Example:\n  muleteer bead update k3f9 --priority 0")]
    Update {
        id: String,
        #[arg(long, value_name = "TEXT")]
        title: Option<String>,
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// open, in_progress, blocked or closed
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
        /// The priority: 0 (most urgent) to 4
        #[arg(long, value_name = "N", value_parser = priority)]
        priority: Option<u8>,
        /// bug, task, feature or chore
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<String>,
    },
    /// Close a bead
    #[command(after_help = "Example:\n  muleteer bead close k3f9 --reason \"Done in 1f2e3d\"")]
    Close {
        id: String,
        /// The reason, or what was done
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Declare that no change was needed: a run accepts the bead without a commit
        #[arg(long)]
        no_change: bool,
    },
    /// Reopen a closed bead
    #[command(after_help = "Example:\n  muleteer bead reopen k3f9")]
    Reopen { id: String },
    /// Add and remove dependencies between beads
    #[command(
        subcommand,
        after_help = "Examples:\n  muleteer bead dep add k3f9 x2ab            k3f9 depends on \
            x2ab\n  muleteer bead dep rm k3f9 x2ab"
    )]
    Dep(Dep),
    /// Add labels to a bead, or remove them
    #[command(after_help = "Example:\n  muleteer bead label k3f9 v2 parser")]
    Label {
        id: String,
        #[arg(required = true, value_name = "LABEL")]
        labels: Vec<String>,
        /// Remove the labels instead
        #[arg(long)]
        remove: bool,
    },
    /// Show the dependencies as a tree
    #[command(after_help = "Example:\n  muleteer bead graph --label v2")]
    Graph {
        /// Only beads with this label; repeat it to require several labels
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
    },
    /// Import beads from an issues.jsonl; `-` is stdin
    #[command(after_help = "Example:\n  muleteer bead import .beads/issues.jsonl")]
    Import { file: PathBuf },
    /// Write all beads as an issues.jsonl [default: to stdout]
    #[command(after_help = "Example:\n  muleteer bead export issues.jsonl")]
    Export { file: Option<PathBuf> },
}

#[derive(Debug, Subcommand)]
enum Dep {
    /// Make the first bead depend on the second
    #[command(after_help = "Example:\n  muleteer bead dep add k3f9 x2ab")]
    Add { id: String, depends_on: String },
    /// Remove the first bead's dependency on the second
    #[command(after_help = "Example:\n  muleteer bead dep rm k3f9 x2ab")]
    Rm { id: String, depends_on: String },
}

/// Executes one verb on the beads.
///
/// # Errors
/// The error of the request or of the store.
pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    // The store is not dropped, because the process exits anyway: freeing 100,000 beads one by one
    // would take as long as sorting them.
    let mut store = std::mem::ManuallyDrop::new(Store::find(context).await?);
    match &args.verb {
        Verb::Export { file } => export(&mut store, file.as_deref(), context).await,
        Verb::Graph { labels } => graph(&mut store, labels.clone(), context).await,
        Verb::Import { file } => {
            let (beads, text) = issues(file)?;
            let mut answer = store.ask(&Op::Import { beads }, context).await?;
            answer.warnings.extend(store.keep_others(&text)?);
            for warning in &answer.warnings {
                context.out.note(format!("warning: {warning}"));
            }
            if context.out.json {
                context.out.document(
                    &json!({ "imported": answer.beads.len(), "warnings": answer.warnings }),
                )?;
            } else {
                context.out.line(format!("{} imported", answer.beads.len()))?;
            }
            Ok(Exit::Done)
        }
        verb => {
            let answer = store.ask(&op(verb), context).await?;
            for warning in &answer.warnings {
                context.out.note(format!("warning: {warning}"));
            }
            if let (Verb::Show { .. }, Some(bead), false) =
                (verb, answer.beads.first(), context.out.json)
            {
                let blockers = store.names(bead.blockers(), context).await;
                context.out.text(full(bead, &blockers))?;
                return Ok(Exit::Done);
            }
            show(verb, &answer, context)
        }
    }
}

fn op(verb: &Verb) -> Op {
    match verb {
        Verb::Create { title, words, description, kind, priority, labels, depends_on } => {
            Op::Create {
                title: title.clone().or_else(|| words.clone()).unwrap_or_default(),
                description: description.clone(),
                issue_type: kind.clone(),
                priority: *priority,
                labels: labels.clone(),
                depends_on: depends_on.clone(),
                key: None,
                staged: None,
            }
        }
        Verb::Show { id } => Op::Show { id: id.clone() },
        Verb::List { labels, status } => {
            Op::List { labels: labels.clone(), status: status.clone(), staged: None }
        }
        Verb::Ready { labels } => Op::Ready { labels: labels.clone() },
        Verb::Update { id, title, description, status, priority, kind } => Op::Update {
            id: id.clone(),
            title: title.clone(),
            description: description.clone(),
            status: status.clone(),
            priority: *priority,
            issue_type: kind.clone(),
            add_labels: vec![],
            remove_labels: vec![],
        },
        Verb::Close { id, reason, no_change } => {
            Op::Close { id: id.clone(), reason: reason.clone(), no_change: *no_change }
        }
        Verb::Reopen { id } => Op::Reopen { id: id.clone() },
        Verb::Dep(Dep::Add { id, depends_on }) => {
            Op::DepAdd { id: id.clone(), on: depends_on.clone() }
        }
        Verb::Dep(Dep::Rm { id, depends_on }) => {
            Op::DepRm { id: id.clone(), on: depends_on.clone() }
        }
        Verb::Label { id, labels, remove } => {
            let (add_labels, remove_labels) =
                if *remove { (vec![], labels.clone()) } else { (labels.clone(), vec![]) };
            Op::Update {
                id: id.clone(),
                title: None,
                description: None,
                status: None,
                priority: None,
                issue_type: None,
                add_labels,
                remove_labels,
            }
        }
        Verb::Graph { labels } => Op::List { labels: labels.clone(), status: None, staged: None },
        Verb::Import { .. } | Verb::Export { .. } => {
            Op::List { labels: vec![], status: None, staged: None }
        }
    }
}

fn show(verb: &Verb, answer: &Answer, context: &Context) -> Result<Exit, Failure> {
    let out = &context.out;
    let one = answer.beads.first();
    let shown = |bead: &Bead| bead.clone().without_nulls();
    match (verb, one) {
        (Verb::List { .. } | Verb::Ready { .. }, _) if out.json => {
            out.document(&answer.beads.iter().map(shown).collect::<Vec<_>>())?;
        }
        (Verb::List { .. } | Verb::Ready { .. }, _) => out.text(table(&answer.beads))?,
        (Verb::Show { .. }, Some(bead)) if out.json => out.document(&shown(bead))?,
        (_, Some(bead)) if out.json => {
            out.document(&json!({ "id": bead.id, "title": bead.title, "status": bead.status }))?;
        }
        (Verb::Create { .. }, Some(bead)) => out.line(&bead.id)?,
        (_, Some(bead)) => {
            out.note(format!("{}: {} ({})", bead.id, safe(&bead.title), bead.status.as_str()))
        }
        (_, None) => {}
    }
    Ok(Exit::Done)
}

fn table(beads: &[Bead]) -> String {
    let heads = ["ID", "STATUS", "P", "TYPE", "TITLE", "LABELS"]
        .map(|head| (head, if head == "TITLE" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<Vec<Cell>> = beads
        .iter()
        .map(|bead| {
            vec![
                Cell::colored(bead.id.as_str(), BOLD),
                bead.status.as_str().to_string().into(),
                bead.priority.to_string().into(),
                clip(&bead.issue_type, 10).into(),
                clip(&bead.title, 70).into(),
                clip(&bead.labels.join(", "), 40).into(),
            ]
        })
        .collect();
    layout(&heads, &rows, &["LABELS", "TYPE"])
}

/// Shows a bead with everything known of it; `blockers` are the names of those that it waits for.
fn full(bead: &Bead, blockers: &[String]) -> String {
    let facts = [
        ("id", Some(bead.id.clone())),
        ("title", Some(bead.title.clone())),
        ("status", Some(bead.status.as_str().to_string())),
        ("type", Some(bead.issue_type.clone())),
        ("priority", Some(bead.priority.to_string())),
        ("labels", Some(bead.labels.join(", ")).filter(|text| !text.is_empty())),
        ("depends on", Some(blockers.join("\n           ")).filter(|text| !text.is_empty())),
        ("created", Some(bead.created_at.clone())),
        ("closed", bead.closed_at.clone()),
        ("reason", bead.close_reason.clone()),
    ];
    let facts = facts
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name:<11}{}\n", safe(&value?))));
    let text = if bead.description.is_empty() {
        String::new()
    } else {
        format!("\n{}\n", safe(&bead.description))
    };
    facts.chain([text]).collect()
}

async fn graph(store: &mut Store, labels: Vec<String>, context: &Context) -> Result<Exit, Failure> {
    let answer = store.ask(&Op::List { labels, status: None, staged: None }, context).await?;
    let graph = Graph::of_beads(&answer.beads);
    let cycles = graph.cycles();
    if context.out.json {
        let edges: Vec<_> = answer
            .beads
            .iter()
            .flat_map(|bead| {
                bead.blockers().map(|on| json!({ "issue_id": bead.id, "depends_on_id": on }))
            })
            .collect();
        let nodes: Vec<_> = answer
            .beads
            .iter()
            .map(|bead| json!({ "id": bead.id, "title": bead.title, "status": bead.status }))
            .collect();
        context.out.document(&json!({ "nodes": nodes, "edges": edges, "cycles": cycles }))?;
        return Ok(Exit::Done);
    }
    for chain in &cycles {
        let title = |id: &String| answer.beads.iter().find(|bead| bead.id == *id);
        let names = chain.iter().map(|id| named(id, title(id).map(|bead| bead.title.as_str())));
        let names: Vec<_> = names.map(|name| safe(&name)).collect();
        context.out.note(format!("warning: a cycle: {}", names.join(" → ")));
    }
    context.out.text(tree(&answer.beads, &graph))?;
    Ok(Exit::Done)
}

/// Draws each bead once in full, below the first bead it waits for; further mentions are marked.
pub fn tree(beads: &[Bead], graph: &Graph) -> String {
    let mut text = String::new();
    let mut shown = BTreeSet::new();
    let roots: Vec<usize> = (0..graph.len()).filter(|at| graph.blockers(*at).is_empty()).collect();
    // Beads on a cycle have no root, so the remaining beads are visited too.
    let rest = 0..graph.len();
    for start in roots.into_iter().chain(rest) {
        if shown.contains(&start) {
            continue;
        }
        let mut stack = vec![(start, 0usize)];
        while let Some((at, depth)) = stack.pop() {
            let bead = &beads[at];
            let again = !shown.insert(at);
            let mark = match bead.status {
                ref status if status.is_over() => "✓",
                Status::InProgress => "▸",
                Status::Blocked => "✗",
                _ => "·",
            };
            let indent = "  ".repeat(depth.min(40));
            let more = if again { " (above)" } else { "" };
            text.push_str(&format!("{indent}{mark} {} {}{more}\n", bead.id, clip(&bead.title, 80)));
            if !again {
                stack.extend(graph.dependants(at).iter().rev().map(|next| (*next, depth + 1)));
            }
        }
    }
    text
}

async fn export(
    store: &mut Store,
    file: Option<&Path>,
    context: &Context,
) -> Result<Exit, Failure> {
    let answer =
        store.ask(&Op::List { labels: vec![], status: None, staged: None }, context).await?;
    let beads = answer.beads.into_iter().map(|bead| (bead.id.clone(), bead)).collect();
    let text = embedded::write_issues(&beads);
    let Some(path) = file else {
        context.out.bytes((text + &store.with_kept("")?).as_bytes())?;
        return Ok(Exit::Done);
    };
    // The target of a link is replaced, not the link. A pipe or a device is written to, not
    // replaced.
    let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if std::fs::metadata(&place).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        let failed =
            |error: std::io::Error| Failure::new(ErrorCode::Io, error.to_string()).file(path);
        let text = text + &store.with_kept("")?;
        let mut file = std::fs::OpenOptions::new().write(true).open(&place).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
    } else {
        let mode =
            std::fs::metadata(&place).map_or(0o644, |meta| meta.permissions().mode() & 0o777);
        let text = text + &store.with_kept(&other_records(&place))?;
        muleteer_store::atomic::write_atomic(&place, text.as_bytes(), mode)
            .map_err(|error| Failure::of(ErrorCode::StoreIo, &error).file(path))?;
    }
    if context.out.json {
        context
            .out
            .document(&json!({ "exported": beads.len(), "file": path.display().to_string() }))?;
    }
    Ok(Exit::Done)
}

/// Reads beads. Returns also the text, because other records may be in it.
fn issues(file: &Path) -> Result<(Vec<Bead>, String), Failure> {
    let unreadable =
        |error| Failure::new(ErrorCode::NotFound, format!("cannot read it: {error}")).file(file);
    let mut text = String::new();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(unreadable)?)
    };
    source.take(IMPORT_LIMIT).read_to_string(&mut text).map_err(unreadable)?;
    let beads = embedded::parse_issues(&text).map_err(|(line, why)| {
        Failure::new(ErrorCode::BadInput, format!("this is not a bead: {why}"))
            .file(file)
            .at(Some(line), None)
            .hint("write one JSON object on each line, with the fields of beads' issues.jsonl")
    })?;
    Ok((beads, text))
}

/// Returns the records of a file that are not issues. An export to the same file keeps them.
fn other_records(file: &Path) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(file)
        .and_then(|file| file.take(IMPORT_LIMIT).read_to_string(&mut text));
    match read {
        Ok(_) => embedded::other_records(&text)
            .into_iter()
            .map(|(_, line)| format!("{line}\n"))
            .collect(),
        Err(_) => String::new(),
    }
}

fn priority(text: &str) -> Result<u8, ArgError> {
    let digits = text.strip_prefix(['p', 'P']).unwrap_or(text);
    digits
        .parse()
        .ok()
        .filter(|priority| *priority <= 4)
        .ok_or(ArgError::Wanted("expected 0 (most urgent) to 4"))
}
