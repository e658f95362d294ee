//! Beads of a run: the harness's own operations, and those that its agents may request.
//!
//! | purpose | may |
//! |---|---|
//! | `decompose` | create (staged), and change what it created |
//! | `implement`, `maintain` | note observations, and close its own bead |
//! | the others | read |

use crate::daemon::context::Daemon;
use crate::dispatch::error::fault;
use crate::spec_run::host::Hosted;
use crate::spec_run::trouble::Trouble;
use jiff::Timestamp;
use muleteer_model::beads::{Answer, Bead, Beads, OBSERVATION, Op, run_label};
use muleteer_model::event::id::DispatchId;
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::{Job, Run};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::beads::Store;
use muleteer_store::beads::embedded::BeadError;
use std::sync::Arc;

/// Returns the mark under which the beads of a decomposition are staged.
pub fn mark(run_id: &str, dispatch: &str) -> String {
    format!("{run_id}:{dispatch}")
}

/// Carries out an operation of the harness itself. `id` is the id for a new bead, or empty.
pub async fn with_store(hosted: &Hosted, op: Op, id: String) -> Result<Answer, Trouble> {
    let answer = locked(hosted, move |store| store.apply(&op, Timestamp::now(), &id))
        .await?
        .map_err(|error| trouble(&error))?;
    for warning in &answer.warnings {
        tracing::warn!(run = %hosted.run_id, %warning, "beads");
    }
    Ok(answer)
}

/// Carries out operations of the harness itself that create no beads, as one change of the store.
pub async fn with_store_all(hosted: &Hosted, ops: Vec<Op>) -> Result<(), Trouble> {
    let answers = locked(hosted, move |store| store.apply_all(&ops, Timestamp::now()))
        .await?
        .map_err(|error| trouble(&error))?;
    for warning in answers.iter().flat_map(|answer| &answer.warnings) {
        tracing::warn!(run = %hosted.run_id, %warning, "beads");
    }
    Ok(())
}

/// Returns all beads of the repository.
pub async fn all(hosted: &Hosted) -> Result<Beads, Trouble> {
    locked(hosted, |store| store.read().cloned()).await?.map_err(|error| trouble(&error))
}

/// Works on the store outside of the runtime, one caller at a time. An fsync may block, and `tbd`
/// may take a minute.
async fn locked<T: Send + 'static>(
    hosted: &Hosted,
    work: impl FnOnce(&mut Store) -> T + Send + 'static,
) -> Result<T, Trouble> {
    let mut store = hosted.beads.clone().lock_owned().await;
    tokio::task::spawn_blocking(move || work(&mut store))
        .await
        .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))
}

fn trouble(error: &BeadError) -> Trouble {
    Trouble::new(error.code(), error.to_string())
}

/// Carries out an operation that an agent requests.
///
/// # Errors
/// `E_FORBIDDEN` for an operation that the agent may not use, and faults of the operation itself.
pub async fn ask(
    daemon: &Arc<Daemon>,
    agent: &DispatchId,
    key: &str,
    op: &str,
) -> Result<Answer, WireError> {
    let Some((hosted, run)) = daemon.runs.of_dispatch(agent.as_str()).await else {
        return Err(fault(
            ErrorCode::Forbidden,
            &format!("agent {agent} is not in a running run"),
            "",
        ));
    };
    let job = run.job_by_dispatch(agent.as_str()).cloned();
    let Some(job) = job else {
        return Err(fault(ErrorCode::Forbidden, "the agent's part of the run has ended", ""));
    };
    let op: Op = serde_json::from_str(op).map_err(|error| {
        fault(ErrorCode::BadInput, &format!("this is not a bead operation: {error}"), "")
    })?;
    let fresh = crate::daemon::context::random_key()[..8].to_string();
    let key = key.to_string();
    let carried = locked(&hosted, move |store| {
        let own = {
            let beads = store.read().map_err(|error| wire(&error))?;
            let resolve = |id: &str| muleteer_model::beads::find(beads, id).cloned();
            permitted(&run, &job, &op, &key, &resolve)?
        };
        store.apply(&own, Timestamp::now(), &fresh).map_err(|error| wire(&error))
    });
    carried.await.map_err(|trouble| fault(&trouble.code, &trouble.message, ""))?
}

type Resolve<'a> = dyn Fn(&str) -> Result<Bead, muleteer_model::beads::Fault> + 'a;

/// Returns the operation in the form that this agent may use, or rejects it.
fn permitted(
    run: &Run,
    job: &Job,
    op: &Op,
    key: &str,
    resolve: &Resolve<'_>,
) -> Result<Op, WireError> {
    let purpose = job.start.purpose;
    let staged = mark(run.id(), &job.start.dispatch);
    let label = run_label(run.id());
    let coding = matches!(purpose, Purpose::Implement | Purpose::Maintain);
    let forbidden = |what: &str| {
        let hint = match job.start.bead_id.as_ref().filter(|_| coding) {
            Some(bead) => format!(
                "close your own bead with `bead close {bead}`; report other work with `bead create \
                 --label observation`"
            ),
            None => String::new(),
        };
        Err(fault(
            ErrorCode::Forbidden,
            &format!("an agent for `{}` may not {what}", purpose.as_str()),
            &hint,
        ))
    };
    let changes = |id: &str| -> Result<bool, WireError> {
        let bead = resolve(id).map_err(|fault| wire(&BeadError::Fault(fault)))?;
        Ok(match purpose {
            Purpose::Decompose => bead.staged.as_ref() == Some(&staged),
            // The run may know its bead by another name than the store gave it.
            Purpose::Implement | Purpose::Maintain => job
                .start
                .bead_id
                .as_ref()
                .is_some_and(|own| resolve(own).is_ok_and(|own| own.id == bead.id)),
            _ => false,
        })
    };
    match op {
        Op::Show { .. } | Op::Ready { .. } => Ok(op.clone()),
        Op::List { labels, status, .. } => {
            let shown = (purpose == Purpose::Decompose).then(|| staged.clone());
            Ok(Op::List { labels: labels.clone(), status: status.clone(), staged: shown })
        }
        Op::Create { title, description, issue_type, priority, labels, depends_on, .. } => {
            if purpose != Purpose::Decompose && !coding {
                return forbidden("create beads");
            }
            if coding
                && let Some(other) =
                    labels.iter().find(|one| one.starts_with(&run_label("")) && **one != label)
            {
                return forbidden(&format!("create a bead of `{other}`"));
            }
            let mut labels = labels.clone();
            labels.push(label);
            if coding {
                // Nobody works on it until the judge has seen it.
                labels.push(OBSERVATION.into());
            }
            Ok(Op::Create {
                title: title.clone(),
                description: description.clone(),
                issue_type: issue_type.clone(),
                priority: *priority,
                labels,
                depends_on: depends_on.clone(),
                key: Some(format!("{}/{key}", job.start.dispatch)),
                staged: (purpose == Purpose::Decompose).then_some(staged),
            })
        }
        Op::Close { id, .. } if !changes(id)? => forbidden(&format!("close bead {id}")),
        // An agent must not change the content or the run of its bead.
        Op::Reopen { id } | Op::Update { id, .. } if coding || !changes(id)? => {
            forbidden(&format!("change bead {id} so"))
        }
        Op::DepAdd { id, .. } | Op::DepRm { id, .. }
            if purpose != Purpose::Decompose || !changes(id)? =>
        {
            forbidden(&format!("change the dependencies of bead {id}"))
        }
        Op::Import { .. } | Op::Accept { .. } | Op::Discard { .. } => forbidden("do that"),
        other => Ok(other.clone()),
    }
}

pub fn wire(error: &BeadError) -> WireError {
    let place = error.place();
    WireError {
        file: place.map(|(path, _)| path.display().to_string()),
        line: place.and_then(|(_, line)| line),
        ..fault(error.code(), &error.to_string(), &error.hint())
    }
}
