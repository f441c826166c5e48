//! The API: one file per resource, handlers and their types.

pub(crate) mod agent_settings;
pub(crate) mod agents;
pub(crate) mod answer_stream;
pub(crate) mod audit;
pub(crate) mod batches;
pub(crate) mod context;
pub(crate) mod dead_letters;
pub(crate) mod delayed_tasks;
pub(crate) mod events;
pub(crate) mod failed_turns;
pub(crate) mod follow_ups;
pub(crate) mod history;
pub(crate) mod keys;
pub(crate) mod messages;
pub(crate) mod protocols;
pub(crate) mod reasoning;
pub(crate) mod respond;
pub(crate) mod schedules;
pub(crate) mod schemas;
pub(crate) mod service_info;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod tickets;
pub(crate) mod turns;
pub(crate) mod usage;
pub mod views;
