//! Ids of commands from the command line, for the audit log.

use model::CommandId;
use uuid::Uuid;

use crate::exit::ExitError;

pub(super) fn new_command_id() -> Result<CommandId, ExitError> {
    let id = CommandId::parse(&Uuid::now_v7().simple().to_string());
    id.map_err(|error| ExitError::Failed(error.to_string()))
}
