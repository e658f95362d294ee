//! Makes the event log of many finished dispatches out of the log of one (`cargo xtask bench
//! month_`): each copy has an id of its own, and all are spread over the last 30 days.
//!
//! `month TEMPLATE TARGET COUNT`: `TEMPLATE` is an `events.jsonl` with one finished dispatch;
//! `TARGET` is a file that must not exist yet. Prints the ids of the last copy and of the first.
//!
//! `month --archived LOG` prints the number of archived dispatches.

use jiff::{SignedDuration, Timestamp};
use muleteer_model::event::id::{DispatchId, ID_BYTES};
use muleteer_model::event::{Entry, Record};
use muleteer_store::events::{EventLog, fold_fleet, read};
use std::error::Error;
use std::path::PathBuf;

const MONTH: SignedDuration = SignedDuration::from_hours(30 * 24);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, log] = &args[..]
        && flag == "--archived"
    {
        println!("{}", fold_fleet(log.as_ref())?.0.archived());
        return Ok(());
    }
    let [template, target, count] = &args[..] else {
        return Err("month TEMPLATE TARGET COUNT".into());
    };
    let (target, count) = (PathBuf::from(target), count.parse::<u32>()?);
    let mut records: Vec<Record> = vec![];
    read(template.as_ref(), |record| records.push(record))?;
    let first = records.iter().find_map(|record| record.entry.dispatch_id.clone());
    let of = first.ok_or("no dispatch in the template")?;
    records.retain(|record| record.entry.dispatch_id.as_ref() == Some(&of));
    let begin = Timestamp::now().checked_sub(MONTH)?;
    let (mut log, _) = EventLog::open(&target, 0, |_| {})?;
    let mut last = of;
    let oldest = id(0)?;
    // Many share one fsync and one time.
    let group = count.div_ceil(2000).max(1);
    for begun in (0..count).step_by(usize::try_from(group)?) {
        let mut entries: Vec<Entry> = vec![];
        for number in begun..count.min(begun + group) {
            last = id(number)?;
            let of = records.iter().enumerate();
            entries.extend(of.map(|(at, record)| copy(record, &last, at)));
        }
        let now = begin.checked_add(MONTH / i32::try_from(count)? * i32::try_from(begun)?)?;
        log.append(&entries, now)?;
    }
    println!("{} {}", last.as_str(), oldest.as_str());
    Ok(())
}

fn copy(record: &Record, id: &DispatchId, at: usize) -> Entry {
    Entry {
        id: format!("{}-{at}", id.as_str()),
        dispatch_id: Some(id.clone()),
        more: false,
        ..record.entry.clone()
    }
}

/// Returns the id of a copy. Neighbours have different beginnings, as random ids have.
fn id(number: u32) -> Result<DispatchId, Box<dyn Error>> {
    let mut bytes = [0; ID_BYTES];
    bytes.copy_from_slice(&(u64::from(number) << 8).to_be_bytes()[3..]);
    bytes.reverse();
    Ok(DispatchId::from_random(bytes))
}
