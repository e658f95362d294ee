//! The verbs by purpose, one module each: its arguments, and what it does.

pub mod adapter;
pub mod agents;
pub mod connect;
pub mod daemon;
pub mod demo;
pub mod inspect;
pub mod internal;
pub mod mcp;
pub mod setup;
pub mod thread;
pub mod work;

use crate::block_on;
use crate::cli::Verb;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::verb_span;
use crate::verbs::agents::{
    answer, clean, close, interrupt, kill, model, prune, questions, send, spawn, wait,
};
use crate::verbs::inspect::{cost, events, journal, logs, parse, status, tree, why};
use crate::verbs::setup::{completions, config, doctor, hooks, man, notify, roles, service, trust};
use crate::verbs::work::{bead, hook, run, runs, tasks};

/// Returns whether a verb works even if the environment determines no state directory.
pub fn needs_no_state(verb: &Verb) -> bool {
    match verb {
        Verb::Agents(_)
        | Verb::Doctor(_)
        | Verb::Completions(_)
        | Verb::Man(_)
        | Verb::Parse(_) => true,
        Verb::Config(args) => args.needs_no_state(),
        _ => false,
    }
}

/// Runs the verb that the user typed.
///
/// # Errors
/// The error to show to the user, which has an exit code.
pub fn run(verb: Verb, context: &Context) -> Result<Exit, Failure> {
    match verb {
        Verb::Daemon(args) => daemon::run(&args, context),
        Verb::Spawn(args) => {
            verb_span::run("spawn", context, |context| block_on(spawn::run(&args, context)))
        }
        Verb::Send(args) => {
            verb_span::run("send", context, |context| block_on(send::run(&args, context)))
        }
        Verb::Questions(args) => block_on(questions::run(&args, context)),
        Verb::Answer(args) => {
            verb_span::run("answer", context, |context| block_on(answer::run(&args, context)))
        }
        Verb::Model(args) => {
            verb_span::run("model", context, |context| block_on(model::run(&args, context)))
        }
        Verb::Clean(args) => {
            verb_span::run("clean", context, |context| block_on(clean::run(&args, context)))
        }
        Verb::Prune(args) => {
            verb_span::run("prune", context, |context| block_on(prune::run(&args, context)))
        }
        Verb::Interrupt(args) => {
            verb_span::run("interrupt", context, |context| block_on(interrupt::run(&args, context)))
        }
        Verb::Kill(args) => {
            verb_span::run("kill", context, |context| block_on(kill::run(&args, context)))
        }
        Verb::Thread(args) if args.acts() => {
            verb_span::run("thread", context, |context| block_on(thread::run(&args, context)))
        }
        Verb::Thread(args) => block_on(thread::run(&args, context)),
        Verb::Adapter(args) if args.acts() => {
            verb_span::run("adapter", context, |context| block_on(adapter::run(&args, context)))
        }
        Verb::Adapter(args) => block_on(adapter::run(&args, context)),
        Verb::Meeting(args) if args.acts() => verb_span::run("meeting", context, |context| {
            block_on(thread::meeting::run(&args, context))
        }),
        Verb::Meeting(args) => block_on(thread::meeting::run(&args, context)),
        Verb::Schedule(args) if args.acts() => verb_span::run("schedule", context, |context| {
            block_on(thread::schedule::run(&args, context))
        }),
        Verb::Schedule(args) => block_on(thread::schedule::run(&args, context)),
        Verb::Chat(args) => block_on(thread::chat::run(*args, context)),
        Verb::Close(args) => {
            verb_span::run("close", context, |context| block_on(close::run(&args, context)))
        }
        Verb::Run(args) if args.acts() => {
            verb_span::run("run", context, |context| block_on(run::run(&args, context)))
        }
        Verb::Tasks(args) if args.acts() => {
            verb_span::run("tasks run", context, |context| tasks::run(&args, context))
        }
        Verb::Status(args) => block_on(status::run(&args, context)),
        Verb::Why(args) => block_on(why::run(&args, context)),
        Verb::Tree(_) => block_on(tree::run(context)),
        Verb::Events(args) => block_on(events::run(&args, context)),
        Verb::Logs(args) => block_on(logs::run(&args, context)),
        Verb::Journal(args) => block_on(journal::run(&args, context)),
        Verb::Wait(args) => block_on(wait::run(&args, context)),
        Verb::Cost(args) => block_on(cost::run(&args, context)),
        Verb::Agents(args) => setup::agents::run(&args, context),
        Verb::Roles(args) => roles::run(&args, context),
        Verb::Config(args) => block_on(config::run(&args, context)),
        Verb::Trust(args) => block_on(trust::run(&args, context)),
        Verb::Notify(args) => block_on(notify::run(&args, context)),
        Verb::Service(args) => block_on(service::run(&args, context)),
        Verb::Run(args) => block_on(run::run(&args, context)),
        Verb::Runs(_) => runs::run(context),
        Verb::Bead(args) => block_on(bead::run(&args, context)),
        Verb::Tasks(args) => tasks::run(&args, context),
        Verb::Hooks(args) => hooks::run(&args, context),
        Verb::Hook(args) => hook::run(&args, context),
        Verb::Connect(_) => connect::run(context, &[]),
        Verb::Mcp(args) => mcp::run(&args, context),
        Verb::Demo(args) => block_on(demo::run(&args, context.out)),
        Verb::Doctor(args) => block_on(doctor::run(&args, context)),
        Verb::Parse(args) => parse::run(&args, context),
        Verb::Completions(args) => completions::run(&args, context),
        Verb::Man(args) => man::run(&args, context),
    }
}
