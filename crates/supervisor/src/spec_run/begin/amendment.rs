//! Takes a new version of the spec for a run that rests. The text is durable before its event, and
//! the event before the new version is frozen.

use crate::dispatch::error::{fault, internal, unwritten};
use crate::spec_run::begin::preconditions;
use crate::spec_run::host::Places;
use muleteer_model::spec_run::event::SpecAmended;
use muleteer_model::spec_run::spec::amendment;
use muleteer_model::spec_run::{Input, Run};
use muleteer_process::fault::point;
use muleteer_protocol::v1::{self, WireError};
use muleteer_store::atomic::write_atomic;
use muleteer_store::beads::Store;
use muleteer_store::hash::sha256;
use std::path::Path;

/// Reads the new spec, and plans the amendment. Nothing is written.
///
/// # Errors
/// The reason why the run does not take this spec.
pub(super) fn plan(
    mut store: Store,
    run: &Run,
    request: &v1::Run,
    places: &Places,
) -> Result<(SpecAmended, String), WireError> {
    let (text, _) = preconditions::read_spec(request.spec.as_deref().unwrap_or_default())?;
    let path = places.spec(run.versions.planned.unwrap_or(run.versions.current));
    let before = std::fs::read_to_string(&path)
        .map_err(|error| internal(&format!("{}: {error}", path.display())))?;
    let beads = tokio::task::block_in_place(|| store.read().cloned())
        .map_err(|error| crate::spec_run::beads::wire(&error))?;
    let shown =
        preconditions::shown(Path::new(&request.repo), request.spec.as_deref().unwrap_or_default());
    let hash = sha256(text.as_bytes());
    let amended =
        amendment::amend(run, (&before, &text), &beads, shown, hash).map_err(|barred| {
            let message = format!("run {} is not amended: {}", request.run_id, barred.message);
            let hint = match run.is_live() {
                true => format!("run `muleteer run stop {}`", request.run_id),
                false => "check it with `muleteer run status`".into(),
            };
            fault(barred.code, &message, &hint)
        })?;
    Ok((amended, text))
}

/// Saves the new version, and adds the amendment to the resumption. A saved version whose event was
/// not recorded is overwritten by the next amendment.
pub(super) fn input(
    places: &Places,
    amended: Option<(SpecAmended, String)>,
    resume: Input,
) -> Result<Input, WireError> {
    let Some((amended, text)) = amended else { return Ok(resume) };
    point("amend.planned");
    write_atomic(&places.spec(amended.number), text.as_bytes(), 0o400)
        .map_err(|error| unwritten(&error))?;
    point("amend.saved");
    Ok(Input::Amend { amended: Box::new(amended), resume: Box::new(resume) })
}
