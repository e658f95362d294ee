//! Makes the event log of many threads whose messages are all answered (`cargo xtask bench
//! threads_`).
//!
//! `threads TARGET THREADS EXCHANGES`: `TARGET` is a file that must not exist yet. Each exchange is
//! a message of a person and the answer of an agent. Prints the ids of the newest and of the oldest
//! thread.

use jiff::{SignedDuration, Timestamp};
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageRecorded, State, ThreadOpened,
};
use muleteer_model::event::id::{DispatchId, ID_BYTES};
use muleteer_model::event::{Entry, Event};
use muleteer_store::events::EventLog;
use std::error::Error;

const MONTH: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The length of a message.
const QUESTION: &str = "Which formats does the export support, and what happens to columns that a \
    format cannot hold? Please look at the code before you answer.";
const ANSWER: &str = "\
    The export supports CSV and JSON. A column that CSV cannot hold is written as JSON text. I \
    propose that the user sees a warning for each such column, with its name and the number of \
    rows. Should the export stop instead? One more question: is the file of one export ever \
    larger than the memory of the server? If so, it has to be written row by row.";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, threads, exchanges] = &args[..] else {
        return Err("threads TARGET THREADS EXCHANGES".into());
    };
    let (threads, exchanges) = (threads.parse::<u32>()?, exchanges.parse::<u32>()?);
    let begin = Timestamp::now().checked_sub(MONTH)?;
    let (mut log, _) = EventLog::open(target.as_ref(), 0, |_| {})?;
    for number in 0..threads {
        let thread = id(number)?;
        let mut entries = vec![entry(format!("thread/{thread}"), opened(&thread))];
        for exchange in 0..exchanges {
            entries.extend(exchanged(&thread, exchange)?);
        }
        let now = begin.checked_add(MONTH / i32::try_from(threads)? * i32::try_from(number)?)?;
        log.append(&entries, now)?;
    }
    println!("{} {}", id(threads - 1)?, id(0)?);
    Ok(())
}

fn opened(thread: &DispatchId) -> Event {
    Event::ThreadOpened(Box::new(ThreadOpened {
        thread: thread.to_string(),
        role: "product-analyst".into(),
        project: "/home/someone/work/shop".into(),
        title: None,
        adapter: "cli".into(),
        external: None,
        by: "operator".into(),
        bang: None,
    }))
}

/// Returns the events of a message, its answer and its last state.
fn exchanged(thread: &DispatchId, number: u32) -> Result<Vec<Entry>, Box<dyn Error>> {
    let (message, answer) = (id(number * 2)?.to_string(), id(number * 2 + 1)?.to_string());
    let key = format!("{thread}-{number}");
    let author = |kind, id: &str| Author { kind, id: id.into(), name: id.into() };
    let accepted = Event::MessageAccepted(Box::new(MessageAccepted {
        thread: thread.to_string(),
        message: message.clone(),
        author: author(AuthorKind::Person, "operator"),
        text: format!("{number}: {QUESTION}"),
        key: key.clone(),
        files: vec![],
        shown: false,
        command: None,
    }));
    let recorded = Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.to_string(),
        message: answer.clone(),
        author: author(AuthorKind::Agent, "product-analyst"),
        text: format!("{number}: {ANSWER}"),
        answers: vec![message.clone()],
        dispatch: None,
        turn: None,
        files: vec![],
        reports_through: None,
    }));
    let answered = Event::MessageState {
        thread: thread.to_string(),
        message,
        state: State::Answered,
        reason: String::new(),
        dispatch: None,
    };
    Ok(vec![
        entry(format!("thread/{thread}/key/{key}"), accepted),
        Entry { more: true, ..entry(format!("{thread}-{answer}"), recorded) },
        entry(format!("{thread}-{answer}-state"), answered),
    ])
}

fn entry(id: String, event: Event) -> Entry {
    Entry { id, dispatch_id: None, at: None, more: false, event }
}

/// Returns an id. Neighbours have different beginnings, as random ids have.
fn id(number: u32) -> Result<DispatchId, Box<dyn Error>> {
    let mut bytes = [0; ID_BYTES];
    bytes.copy_from_slice(&(u64::from(number) << 8).to_be_bytes()[3..]);
    bytes.reverse();
    Ok(DispatchId::from_random(bytes))
}
