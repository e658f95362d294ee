//! Tasks with an owner: dropping the handle ends the task. Only this module may spawn.

use futures_util::FutureExt;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use tokio_util::task::AbortOnDropHandle;

/// A task has panicked. The text has the panic's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(pub(crate) String);

/// Runs `future` for as long as the handle lives.
#[must_use = "the task ends when its handle is dropped"]
#[allow(clippy::disallowed_methods)]
pub fn own<F>(future: F) -> AbortOnDropHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    AbortOnDropHandle::new(tokio::task::spawn(future))
}

/// Returns the outcome of `future`, or its panic. A caller that waits for a task's answer
/// must learn of its death too, or it waits for ever.
///
/// State that the future shares must tolerate an interruption at any point, as it must tolerate a
/// kill.
///
/// It is no `async fn`, because the state of one has its arguments twice, and some of these futures
/// live as long as an agent.
pub fn survive<T>(future: impl Future<Output = T>) -> impl Future<Output = Result<T, Panicked>> {
    AssertUnwindSafe(future)
        .catch_unwind()
        .map(|ended| ended.map_err(|panic| Panicked(words(panic.as_ref()).to_string())))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
