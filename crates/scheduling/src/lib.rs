//! Which agent runs next: each agent's queue is first in, first out, with a backoff of its own, and a thread has one turn
//! at a time; what runs by the clock: follow-ups, which a person may never have too many of, and schedules; and how much may be used by when.
//!
//! Entry points: [`AgentQueue`] for the tasks of one agent, [`ThreadQueue`] for the turns of one thread, [`backoff::delay_ms`],
//! [`follow_up::arm`] and [`follow_up::decide_follow_up`], [`schedule::Schedule`], [`budget::BudgetPeriod`] and [`budget::decide_budget`],
//! [`turn_limits::TurnLimits`].
//! Nothing here knows a clock, a random source or a store: time and random numbers come in, decisions go out.

pub mod backoff;
pub mod budget;
pub mod follow_up;
mod queue;
pub mod schedule;
mod thread_queue;
pub mod turn_limits;
mod zone;

pub use queue::{AgentQueue, HeadState};
pub use thread_queue::{Admission, Readiness, ThreadQueue};
pub use zone::{UnknownZone, Zone};
