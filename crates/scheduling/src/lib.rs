//! Decides which agent runs next. Each agent's queue is first in, first out, with its own backoff,
//! and a thread has one turn at a time. The crate also decides schedules, budgets, turn limits, and
//! follow-ups, which are limited so that a person never gets too many.
//!
//! Entry points: [`AgentQueue`] for the tasks of one agent, [`ThreadQueue`] for the turns of one
//! thread, [`backoff::delay_ms`], [`follow_up::arm`] and [`follow_up::decide_follow_up`],
//! [`schedule::Schedule`], [`budget::BudgetPeriod`] and [`budget::decide_budget`],
//! [`turn_limits::TurnLimits`]. Nothing here knows a clock, a random source or a store: time and
//! random numbers come in, decisions go out.

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
