//! The `muleteer` program: the command line of Muleteer.
//!
//! Every verb is a client: it asks the daemon over its socket, or reads the files of the state
//! directory. Only `daemon` hosts the actor tree, so a closed terminal strands no agent. No other
//! verb changes a file that the daemon owns.
//!
//! - [`cli`]: global options, the list of verbs, output streams, exit codes;
//! - [`verbs`]: one module a verb;
//! - [`client`]: connections to the daemon, its start on demand, and reading without it;
//! - [`remote`]: a verb on another host, by ssh;
//! - [`render`]: texts and pages for people;
//! - [`mcp`]: the MCP server of agents;
//! - [`doctor`], [`service`], [`demo`], [`rehearse`]: larger verbs in folders of their own.

pub mod cli;
pub mod client;
pub mod demo;
pub mod doctor;
pub mod mcp;
pub mod rehearse;
pub mod remote;
pub mod render;
pub mod service;
pub mod verbs;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::{Cli, Parsed, Verb};
use crate::remote::order::{self, First};
use muleteer_protocol::ErrorCode;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

/// Runs the program with its arguments (the first is its name) and returns the exit code.
pub fn main(args: Vec<OsString>) -> ExitCode {
    muleteer_process::signals::inherited::begin();
    // The shim and the rehearsal agent are dispatched first. They are processes of their own that
    // must stay small, and they share only the executable file with the verbs.
    if let Some(code) = verbs::internal::dispatch(&args) {
        return code;
    }
    run(args)
}

/// Runs the verb of these arguments: here, or on another host.
fn run(args: Vec<OsString>) -> ExitCode {
    let typed = args.clone();
    let cli = match Cli::read(args) {
        Parsed::Run(cli) => *cli,
        Parsed::Shown(code) => return code,
    };
    let out = cli.global.output();
    // A relay to a host that has the same variable would never arrive, and a hook is about a
    // session of this host.
    let is_local = matches!(cli.verb, Verb::Connect(_) | Verb::Hook(_));
    let elsewhere = match remote::host(&cli.global, is_local) {
        Ok(host) => host.map(|host| remote::run(&host, &typed, out)),
        Err(failure) => Some(Err(failure)),
    };
    if let Some(done) = elsewhere {
        return done.unwrap_or_else(|failure| {
            out.failure(&failure);
            failure.exit().into()
        });
    }
    let done = match &cli.verb {
        Verb::Connect(_) => match order::first(&io::stdin()) {
            Ok(First::Order(order)) => match remote::begin(order) {
                Ok(args) => return run(args),
                Err(error) => Err(error.into()),
            },
            Ok(First::Relay(first)) => {
                Context::new(&cli.global).and_then(|context| verbs::connect::run(&context, &first))
            }
            Err(error) => {
                Err(Failure::new(ErrorCode::BadInput, format!("cannot read the order: {error}"))
                    .hint("install the same version of muleteer on both hosts"))
            }
        },
        // The demo has its own directories, so it works even if no state directory can be
        // determined.
        Verb::Demo(args) => block_on(verbs::demo::run(args, out)),
        verb if verbs::needs_no_state(verb) => {
            verbs::run(cli.verb, &Context::anywhere(&cli.global))
        }
        _ => Context::new(&cli.global).and_then(|context| verbs::run(cli.verb, &context)),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => {
            out.failure(&failure);
            failure.exit().into()
        }
    }
}

/// Runs a client's future on one thread, because a verb waits for one thing at a time.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::from)?.block_on(future)
}
