//! The span of a verb, if its environment names a collector; it is the root of everything the verb
//! causes.
//!
//! A slow collector cannot hold a verb up: a finished verb waits for the delivery of its span only
//! briefly. With `-v` it says why a span was lost.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use muleteer_supervisor::telemetry::http::{Outcome, PostError};
use muleteer_supervisor::telemetry::provider::CommandSpan;
use muleteer_telemetry as telemetry;
use muleteer_telemetry::Settings;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long a finished verb waits for the collector to accept its span.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why the collector does not have the span, as far as the verb knows.
#[derive(Debug, thiserror::Error)]
enum LostSpan {
    #[error("cannot start a thread: {0}")]
    NoThread(#[source] io::Error),
    #[error("the thread that exports has panicked")]
    Panicked,
    #[error("the collector did not answer in time")]
    NoAnswer,
    #[error("the collector rejected the span")]
    Rejected,
    #[error(transparent)]
    Unsent(#[from] PostError),
}

/// Runs a verb as a span below `TRACEPARENT`, or as the root of a new trace.
pub fn run(
    verb: &'static str,
    context: &Context,
    work: impl FnOnce(&Context) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let settings = Settings::from_env(&|name| std::env::var(name).ok()).ok().flatten();
    let above = context.trace.as_deref().and_then(telemetry::Context::parse);
    let name = format!("muleteer {verb}");
    let span = settings.and_then(|settings| CommandSpan::begin(&settings, &name, above, PATIENCE));
    let Some(span) = span else { return work(context) };
    let place = span.place();
    let traced = Context { trace: Some(place.to_string()), ..context.clone() };
    let outcome = work(&traced);
    if place.sampled
        && let Err(lost) = send(span, failure(&outcome), PATIENCE, spawn)
    {
        context.out.detail(format!("failed to export the span of this command: {lost}"));
    }
    outcome
}

fn failure(outcome: &Result<Exit, Failure>) -> Option<String> {
    match outcome {
        Ok(Exit::Done) => None,
        Ok(exit) => Some(format!("exit_{}", *exit as u8)),
        Err(failure) => Some(failure.code().to_string()),
    }
}

fn spawn(work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name("span".into()).spawn(work).map(drop)
}

/// Sends the span from a thread and waits at most `patience` for it: even the resolver may hang.
/// Without a thread the span is lost, because an export by this one could hold the verb up.
fn send(
    span: CommandSpan,
    failure: Option<String>,
    patience: Duration,
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> Result<(), LostSpan> {
    let (done, wait) = mpsc::sync_channel::<Outcome>(1);
    let end = move || drop(done.send(span.end(failure.as_deref())));
    spawn(Box::new(end)).map_err(LostSpan::NoThread)?;
    match wait.recv_timeout(patience) {
        Ok(Ok(0)) => Ok(()),
        Ok(Ok(_)) => Err(LostSpan::Rejected),
        Ok(Err(error)) => Err(error.into()),
        Err(RecvTimeoutError::Timeout) => Err(LostSpan::NoAnswer),
        Err(RecvTimeoutError::Disconnected) => Err(LostSpan::Panicked),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_telemetry::VARIABLE;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const LONG: Duration = Duration::from_secs(60);

    fn span(collector: &TcpListener) -> CommandSpan {
        let endpoint = format!("http://{}", collector.local_addr().unwrap());
        let settings = Settings::from_env(&|name| (name == VARIABLE).then(|| endpoint.clone()));
        CommandSpan::begin(&settings.unwrap().unwrap(), "muleteer kill", None, LONG).unwrap()
    }

    #[test]
    fn span_is_lost_and_not_sent_without_a_thread() {
        let collector = TcpListener::bind("127.0.0.1:0").unwrap();
        collector.set_nonblocking(true).unwrap();
        let lost = send(span(&collector), None, LONG, |_| Err(io::ErrorKind::WouldBlock.into()));
        assert!(matches!(lost, Err(LostSpan::NoThread(_))), "{lost:?}");
        assert!(collector.accept().is_err(), "no connection was made");
    }

    #[test]
    fn rejected_span_says_what_the_collector_answered() {
        let collector = TcpListener::bind("127.0.0.1:0").unwrap();
        let span = span(&collector);
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = collector.accept().unwrap();
            let mut request = vec![];
            while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                let mut part = [0; 1024];
                let length = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..length]);
            }
            stream.write_all(b"HTTP/1.1 401 No\r\nContent-Length: 6\r\n\r\nno key").unwrap();
            // Closing with unread input would reset the connection before the answer is read.
            let _ = stream.read_to_end(&mut request);
        });
        let lost = send(span, None, LONG, spawn).unwrap_err();
        assert_eq!(lost.to_string(), "the collector answered 401: no key");
        answer.join().unwrap();
    }
}
