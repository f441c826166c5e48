//! Named tasks. This is the only module that may call `tokio::spawn`.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;
use tokio::task::JoinHandle;

/// Spawns `task` under a name that the log shows when it panics.
///
/// A panic still reaches the handle as a `JoinError`. If a task is indispensable, its caller awaits
/// the handle and ends the process when the task ends. Otherwise the process would continue without
/// the task and hang unnoticed.
#[allow(clippy::disallowed_methods, reason = "this is the named spawn that everything else uses")]
pub fn spawn_named<F>(name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(async move {
        match AssertUnwindSafe(task).catch_unwind().await {
            Ok(output) => output,
            Err(panic) => {
                tracing::error!(task = name, panic = panic_text(&*panic), "a task panicked");
                resume_unwind(panic)
            }
        }
    })
}

/// The message of a panic, if it is text.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(not text)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_output_comes_back() {
        assert_eq!(spawn_named("sum", async { 1 + 1 }).await.ok(), Some(2));
    }

    #[tokio::test]
    async fn a_panic_reaches_the_handle() {
        let ended = spawn_named("doomed", async { panic!("no {}", "way") }).await;
        let panic = ended.expect_err("it panicked").into_panic();
        assert_eq!(panic_text(&*panic), "no way");
    }
}
