//! Timeout for an HTTP/1 head. hyper has one timeout for both an idle connection and a slow head;
//! this timer gives a head that has begun a shorter one.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::time::{Instant as TokioInstant, sleep, sleep_until};

use crate::transport::timeout_stream::HasRead;

/// The timer of one connection.
#[derive(Debug, Clone)]
pub(crate) struct HeaderTimer {
    pub(crate) has_read: HasRead,
    pub(crate) head_timeout: Duration,
}

/// Fires at its deadline, or after the head timeout once a head has begun. It is polled whenever
/// something was read.
struct HeaderSleep {
    idle: Pin<Box<tokio::time::Sleep>>,
    head: Option<Pin<Box<tokio::time::Sleep>>>,
    timer: HeaderTimer,
}

impl Timer for HeaderTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        // The bytes read from now on are the next head.
        self.has_read.forget();
        let idle = Box::pin(sleep_until(TokioInstant::from_std(deadline)));
        Box::pin(HeaderSleep { idle, head: None, timer: self.clone() })
    }
}

impl Sleep for HeaderSleep {}

impl Future for HeaderSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.head.is_none() && self.timer.has_read.get() {
            self.head = Some(Box::pin(sleep(self.timer.head_timeout)));
        }
        match &mut self.head {
            Some(head) => head.as_mut().poll(context),
            None => self.idle.as_mut().poll(context),
        }
    }
}
