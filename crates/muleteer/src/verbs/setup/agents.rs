//! `agents`: lists the agents that Muleteer knows, and what each can do.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::render::BOLD;
use crate::render::table::{Align, Cell, layout};
use muleteer_backends::find_program;
use muleteer_model::agent::capability::{AGENTS, Agent, Features};
use muleteer_protocol::ErrorCode;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  muleteer agents
  muleteer agents gemini                how to install it and to log in
  muleteer agents --json | jq '.agents[] | select(.asks and .path) | .name'

HERE says whether the agent's program is on PATH. ASKS: it asks for permission, so a permission \
policy can bind it. RESUMES: its session survives its process. INTERRUPTS: a turn can be ended and \
the session kept. MODEL: `muleteer model` changes its model. SANDBOX: it confines its commands \
itself. EXITS: it ends when its input ends.";

/// List the known agents and what each can do, or show one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show this agent in full
    name: Option<String>,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let Some(name) = &args.name else {
        if context.out.json {
            let agents: Vec<_> = AGENTS.iter().map(document).collect();
            context.out.document(&json!({ "agents": agents }))?;
        } else {
            context.out.text(table())?;
        }
        return Ok(Exit::Done);
    };
    let mut found: Vec<_> = AGENTS.iter().filter(|agent| is_named(agent, name)).collect();
    // The agent of that backend is first, if an agent has two.
    found.sort_by_key(|agent| agent.backend != name);
    if found.is_empty() {
        let mut names: Vec<&str> = vec![];
        for agent in &AGENTS {
            if !names.contains(&agent.name) {
                names.push(agent.name);
            }
        }
        return Err(Failure::new(ErrorCode::Usage, format!("there is no agent `{name}`"))
            .hint(format!("known: {}", names.join(", "))));
    }
    if context.out.json {
        // The same form as that of the whole list: an agent may have two backends.
        let agents: Vec<_> = found.into_iter().map(document).collect();
        context.out.document(&json!({ "agents": agents }))?;
    } else {
        let pages: Vec<_> = found.into_iter().map(full).collect();
        context.out.text(pages.join("\n"))?;
    }
    Ok(Exit::Done)
}

fn is_named(agent: &Agent, name: &str) -> bool {
    agent.name == name || agent.backend == name || agent.is_started_by(name)
}

/// Returns where the agent's program is, as a dispatch of this environment would find it.
fn path(agent: &Agent) -> Option<String> {
    let program = Some(agent.program).filter(|program| !program.is_empty())?;
    let found = find_program(program, std::env::var_os("PATH").as_deref())?;
    Some(found.display().to_string())
}

fn document(agent: &Agent) -> Value {
    let text = |text: &'static str| Some(text).filter(|text| !text.is_empty());
    let mut document = json!(agent.features());
    for (key, value) in [
        ("name", json!(agent.name)),
        ("backend", json!(agent.backend)),
        ("program", json!(text(agent.program))),
        ("path", json!(path(agent))),
        ("install", json!(text(agent.install))),
        ("login", json!(text(agent.login))),
        ("refused", json!(refused(agent))),
    ] {
        document[key] = value;
    }
    document
}

/// Returns why no new dispatch may name the agent, and the way out.
fn refused(agent: &Agent) -> Option<String> {
    let refused = agent.refused?;
    Some(format!("{}; use --backend {}", refused.why, refused.instead))
}

fn table() -> String {
    let heads = [
        "AGENT",
        "BACKEND",
        "HERE",
        "ASKS",
        "RESUMES",
        "INTERRUPTS",
        "MODEL",
        "TOKENS",
        "COST",
        "MCP",
        "SANDBOX",
        "EXITS",
    ]
    .map(|head| (head, Align::Left));
    let row = |agent: &Agent| {
        // An agent without a program of its own is always there.
        let here = agent.program.is_empty() || path(agent).is_some();
        let mut cells = vec![Cell::colored(agent.name, BOLD), agent.backend.into()];
        cells.push(mark(here));
        cells.extend(agent.features().named().map(|(_, has)| mark(has)));
        cells
    };
    let rows: Vec<_> = AGENTS.iter().map(row).collect();
    layout(&heads, &rows, &["BACKEND", "EXITS", "SANDBOX"])
}

fn mark(has: bool) -> Cell {
    if has { "yes" } else { "-" }.into()
}

fn full(agent: &Agent) -> String {
    let names = |features: Features, wanted: bool| {
        let names = features.named().into_iter().filter(|(_, has)| *has == wanted);
        names.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    let facts = [
        ("name", agent.name.to_string()),
        ("backend", format!("--backend {}", agent.backend)),
        ("program", agent.program.to_string()),
        ("here", path(agent).unwrap_or_default()),
        ("can", names(agent.features(), true)),
        ("cannot", names(agent.features(), false)),
        ("install", agent.install.to_string()),
        ("login", agent.login.to_string()),
        ("refused", refused(agent).unwrap_or_default()),
    ];
    let facts = facts.into_iter().filter(|(_, value)| !value.is_empty());
    facts.map(|(name, value)| format!("{name:<9}{value}\n")).collect()
}
