//! The list of all dispatches with the archived ones, which is too long for the memory.

use crate::dispatch::error::internal;
use crate::dispatch::view;
use crate::gate::connection::{Answer, Connection};
use crate::ledger::archive;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_protocol::v1::{DispatchStatus, Item, Reply, StatusReport, WireError};
use std::collections::VecDeque;
use std::sync::Arc;

/// The number of archived dispatches that are in memory at the same time.
const PAGE: usize = 200;

/// Adds the archived dispatches to the report about a fleet. Sends the dispatches in the order of
/// their creation; the reply has those that are newer than all archived ones.
pub(super) async fn send(
    connection: &mut Connection,
    fleet: Arc<Fleet>,
    mut report: StatusReport,
) -> Answer {
    let daemon = connection.daemon.clone();
    let seqs = fleet.iter().map(|dispatch| dispatch.created_seq);
    let mut recent: VecDeque<(u64, DispatchStatus)> =
        seqs.zip(std::mem::take(&mut report.dispatches)).collect();
    report.archived = 0;
    let mut from_seq = 0;
    loop {
        let (of, at) = (daemon.clone(), fleet.clone());
        let page = tokio::task::spawn_blocking(move || -> Result<_, WireError> {
            let mut page = Vec::with_capacity(PAGE);
            archive::each(&of, &at, from_seq, |dispatch| {
                page.push((dispatch.created_seq, view::status(&at, &dispatch)));
                page.len() < PAGE
            })?;
            Ok(page)
        });
        let page = match page.await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(error) => return Ok(Err(internal(&error.to_string()))),
        };
        let is_last = page.len() < PAGE;
        for (seq, archived) in page {
            from_seq = seq + 1;
            while recent.front().is_some_and(|(recent, _)| *recent < seq)
                && let Some((_, dispatch)) = recent.pop_front()
            {
                if !connection.send(Item::Dispatch(Box::new(dispatch))).await? {
                    return Ok(Ok(None));
                }
            }
            if !connection.send(Item::Dispatch(Box::new(archived))).await? {
                return Ok(Ok(None));
            }
        }
        if is_last {
            report.dispatches = recent.into_iter().map(|(_, dispatch)| dispatch).collect();
            return Ok(Ok(Some(Reply::Status(report))));
        }
    }
}
