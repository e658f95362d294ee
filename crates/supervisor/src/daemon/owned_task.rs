//! Tasks with an owner: dropping the handle ends the task. Only this module may spawn.

use futures_util::FutureExt;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
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

/// Returns the outcome of `future`, or its panic message. A caller that waits for a task's answer
/// must learn of its death too, or it waits for ever.
///
/// State that the future shares must tolerate an interruption at any point, as it must tolerate a
/// kill.
pub async fn survive<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map_err(|panic| format!("panicked: {}", words(panic.as_ref())))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
