//! Appends one durable event to the log, alternating with a plain write of the same number of bytes
//! and fdatasync (`cargo xtask bench append`). Prints `floor_us ours_us` for each round.
//!
//! `append DIR ROUNDS`

use jiff::Timestamp;
use muleteer_model::event::{Entry, Event};
use muleteer_store::events::EventLog;
use std::error::Error;
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = std::path::PathBuf::from(args.next().unwrap_or_else(|| ".".into()));
    let rounds: usize = args.next().unwrap_or_default().parse().unwrap_or(100);
    let path = dir.join("events.jsonl");
    let (mut log, _) = EventLog::open(&path, 0, |_| {})?;
    let mut bare = std::fs::File::create(dir.join("bare"))?;
    let mut size = 256;
    for round in 0..=rounds {
        let begun = Instant::now();
        bare.write_all(&vec![b'x'; size])?;
        bare.sync_data()?;
        let floor = begun.elapsed();
        let before = path.metadata()?.len();
        let event = Event::AgentSaid { text: "a sentence of the length that agents say".into() };
        let entry = Entry {
            id: format!("bench{round:010}"),
            dispatch_id: None,
            at: None,
            more: false,
            event,
        };
        let begun = Instant::now();
        log.append(&[entry], Timestamp::now())?;
        let ours = begun.elapsed();
        size = usize::try_from(path.metadata()?.len() - before)?;
        if round > 0 {
            println!("{} {}", floor.as_secs_f64() * 1e6, ours.as_secs_f64() * 1e6);
        }
    }
    Ok(())
}
