//! Tasks with an owner: dropping the handle ends the task. The one place that may spawn.

use std::future::Future;
use tokio_util::task::AbortOnDropHandle;

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
