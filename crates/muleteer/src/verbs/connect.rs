//! `connect`: relays the daemon's socket over stdin and stdout, for a program that speaks the
//! daemon's protocol from another host.

use crate::block_on;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::remote::answer::relay;
use muleteer_protocol::ErrorCode;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

const EXAMPLES: &str = "\
Examples:
  ssh box muleteer connect        a connection to the daemon of box

Starts the daemon if none runs. Ends when either side closes the connection.";

/// Relay a connection to the daemon over stdin and stdout
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// Relays one connection. `first` are the bytes of stdin that were read before.
///
/// # Errors
/// `E_NO_DAEMON` if the daemon cannot be reached.
pub fn run(context: &Context, first: &[u8]) -> Result<Exit, Failure> {
    drop(block_on(context.connect_or_start())?);
    let unreachable = |error: io::Error| {
        let message = format!("cannot connect to {}: {error}", context.socket.display());
        Failure::new(ErrorCode::NoDaemon, message).hint("run `muleteer doctor`")
    };
    let socket = UnixStream::connect(&context.socket).map_err(unreachable)?;
    let (mut to, end) = (socket.try_clone()?, socket.try_clone()?);
    let first = first.to_vec();
    // The thread ends with the process: nothing can interrupt a read of stdin.
    std::thread::spawn(move || {
        drop(to.write_all(&first).and_then(|()| relay(io::stdin().lock(), to)));
        // The other side is gone, so nobody will read an answer.
        drop(end.shutdown(Shutdown::Both));
    });
    relay(socket, io::stdout())?;
    Ok(Exit::Done)
}
