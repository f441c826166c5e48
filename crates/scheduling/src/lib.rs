//! Which agent runs next: each agent's queue is first in, first out, with a backoff of its own, and a thread has one turn
//! at a time.
//!
//! Entry points: [`AgentQueue`] for the tasks of one agent, [`ThreadQueue`] for the turns of one thread, [`backoff::delay_ms`].
//! Nothing here knows a clock, a random source or a store: time and random numbers come in, decisions go out.

pub mod backoff;
mod queue;
mod thread_queue;

pub use queue::{AgentQueue, HeadState};
pub use thread_queue::{Admission, Readiness, ThreadQueue};
