//! The store on a real Postgres. Each test has its own database on the server of `DATABASE_URL`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests spawn bare tasks and read what the test runner tells them"
)]

mod api;
mod budgets;
mod cancellation;
mod cleanup;
mod commits;
mod contexts;
mod ends;
mod erasures;
mod fact_vectors;
mod facts;
mod fencing;
mod fixture;
mod going_back;
mod leases;
mod list_costs;
mod migrations;
mod numbers;
mod origins;
mod queues;
mod random;
mod reads;
mod reasoning_blocks;
mod reasoning_contexts;
mod reasoning_log;
mod reasoning_races;
mod reasoning_sessions;
mod refusals;
mod retention;
mod roles;
mod row_security;
mod row_security_costs;
mod schedules;
mod spilled_messages;
mod statement_counts;
mod takeover;
mod temporary_threads;
mod thread_list;
mod timers;
mod turn_limits;
mod turns;
mod usage;
mod usage_days;
mod values;
