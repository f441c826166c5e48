//! Whatever a thread has been through, a provider takes its context: random histories against a validator that was written
//! from the providers' rules and shares no code with what it judges.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod export_import;
mod history;
mod properties;
mod valid;
