//! A future that shares a task with a busy one.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Polls the future only when it was woken itself, not whenever its task was woken. Checking
/// whether a token was cancelled takes a lock, which a connection would take with every event that
/// it writes. This type checks one flag instead.
#[derive(Debug)]
pub(crate) struct WakeGated<F> {
    future: Pin<Box<F>>,
    flag: Arc<WakeFlag>,
    /// Sets the flag.
    waker: Waker,
    /// The task's waker as last stored in the flag.
    task: Option<Waker>,
}

/// Invariant: a wake sets the flag before it looks for the task, and the task is stored before the
/// flag is read.
#[derive(Debug)]
struct WakeFlag {
    has_rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl WakeFlag {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        if let Some(task) = &*self.task() {
            task.wake_by_ref();
        }
    }
}

impl<F: Future> WakeGated<F> {
    pub(crate) fn new(future: F) -> Self {
        // The flag is set because the future has not been polled yet.
        let flag = Arc::new(WakeFlag { has_rung: AtomicBool::new(true), task: Mutex::new(None) });
        let waker = Waker::from(Arc::clone(&flag));
        Self { future: Box::pin(future), flag, waker, task: None }
    }
}

impl<F: Future> Future for WakeGated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if !this.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            *this.flag.task() = Some(context.waker().clone());
            this.task = Some(context.waker().clone());
        }
        if !this.flag.has_rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // The poll sees everything done before a wake whose flag is cleared here.
        this.flag.has_rung.swap(false, Ordering::AcqRel);
        this.future.as_mut().poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::sleep;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_wakes_its_task_does_not_poll_it_and_what_wakes_it_does() {
        let (token, polls) = (CancellationToken::new(), Cell::new(0));
        let mut cancelled = pin!(token.cancelled());
        let counted = poll_fn(|context| {
            polls.set(polls.get() + 1);
            cancelled.as_mut().poll(context)
        });
        let mut gated = pin!(WakeGated::new(counted));
        for _ in 0..100 {
            tokio::select! {
                biased;
                () = gated.as_mut() => panic!("nothing was cancelled"),
                () = sleep(Duration::from_millis(1)) => {}
            }
        }
        assert_eq!(polls.get(), 1);
        token.cancel();
        gated.as_mut().await;
        assert_eq!(polls.get(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_wakes_the_task_that_it_is_in_now() {
        for round in 0..500 {
            let token = CancellationToken::new();
            let mut gated = WakeGated::new(token.clone().cancelled_owned());
            assert!((&mut gated).now_or_never().is_none());
            let elsewhere = runtime::spawn_named("elsewhere", gated);
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            token.cancel();
            let woken = tokio::time::timeout(Duration::from_secs(10), elsewhere).await;
            assert!(woken.is_ok(), "round {round}");
        }
    }
}
