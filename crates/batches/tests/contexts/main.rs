//! A provider must accept the context of any thread. Contexts of random histories are checked by a
//! validator that was written from the providers' rules and shares no code with the code under
//! test.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod export_import;
mod history;
mod properties;
mod valid;
