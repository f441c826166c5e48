//! `antiphon <noun> <verb>`: operations of the HTTP API as commands.
//!
//! Entry: [`with_commands`] adds the commands to the command line, [`Call::read`] takes a call from
//! it, [`run`] sends the call. A command is a row of [`table::COMMANDS`]. Its arguments and help
//! texts come from the OpenAPI document of the gateway crate. No command here opens the database or
//! NATS.

mod answers;
mod arguments;
mod awaited;
mod description;
mod exported;
mod imported;
mod refusal;
mod request;
mod show;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use self::answers::run;
pub(crate) use self::arguments::{ApiServer, Call, with_commands};
