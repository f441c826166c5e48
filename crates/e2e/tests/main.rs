//! The shipped binary as processes, on a real NATS and a real Postgres, only through its public
//! contract.
//!
//! `ANTIPHON_BIN` names the binary, `DATABASE_URL` a Postgres on which databases may be created.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests say what went wrong by panicking"
)]

mod answer_reports;
mod api_client;
mod auth;
mod batches;
mod budgets;
mod chaos;
mod clients;
mod commands;
mod continuation;
mod contracts;
mod control_commands;
mod crash_recovery;
mod databases;
mod dead_letters;
mod default_agent;
mod demo;
mod deployment;
mod disconnects;
mod doctor;
mod edge_cases;
mod erasing;
mod examples;
mod exports;
mod fact_vectors;
mod feedback;
mod fixture;
mod follow_ups;
mod following;
mod front_ends;
mod full_streams;
mod fuzz;
mod generated_clients;
mod handover;
mod heartbeats;
mod http_robustness;
mod inputs;
mod installations;
mod isolation;
mod links;
mod logs;
mod memory;
mod memory_tools;
mod metrics;
mod mistakes;
mod nats_clusters;
mod new_user;
mod notes;
mod outages;
mod partitions;
mod pending_inputs;
mod places;
mod protocols;
mod reasoning;
mod reasoning_access;
mod reasoning_agents;
mod reasoning_conformance;
mod reasoning_log;
mod refusals;
mod replicas;
mod resent_inputs;
mod restores;
mod resumes;
mod settings;
mod stopped_calls;
mod streams;
mod subscribers;
mod tasks;
mod thread_list;
mod timers;
mod tool_effects;
mod traces;
mod turn_limits;
mod turns;
