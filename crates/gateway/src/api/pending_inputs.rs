//! Inputs that are accepted and not in the history yet, as the owner of their thread knows them.

use model::{OpenInput, OpenInputs, QueryTarget, QueueStatus, Role, ThreadId};
use serde::Serialize;
use serde_json::Value;
use store::StoredMessage;
use utoipa::ToSchema;

use crate::api::views::rfc3339;
use crate::backend::Backend;
use crate::commands::owner_query::{self, OwnerStatus};
use crate::openapi::schemas;

/// The pending inputs of a thread; `None` if the owner did not answer.
pub(crate) struct PendingInputs(Option<OpenInputs>);

impl PendingInputs {
    /// Asks the owner of the thread once it has read everything that is stored in its stream, so
    /// that every input that was acknowledged to a client is included.
    pub(crate) async fn read(backend: &Backend, thread: &ThreadId) -> Self {
        let about = QueryTarget::Inputs(thread.clone());
        let explained = owner_query::explain_up_to_date(backend, thread, &about).await;
        Self(explained.ok().and_then(|explained| explained.inputs))
    }

    /// Takes the inputs out of an owner's answer.
    pub(crate) fn of(explained: Option<&QueueStatus>) -> Self {
        Self(explained.and_then(|explained| explained.inputs.clone()))
    }

    /// Whether the owner answered.
    pub(crate) fn owner_status(&self) -> OwnerStatus {
        OwnerStatus::of(self.0.as_ref())
    }

    /// Removes the inputs that were committed after the owner had answered: the newest messages of
    /// the thread, read afterwards, have them.
    pub(crate) fn remove_committed(&mut self, newest: &[StoredMessage]) {
        let is_committed =
            |input: &OpenInput| newest.iter().any(|message| message.message_id == input.turn.input());
        if let Some(open) = &mut self.0 {
            open.inputs.retain(|input| !is_committed(input));
        }
    }

    /// Whether the last inputs were left out, because the answer would have been too large.
    pub(crate) fn is_cut(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.is_cut)
    }

    /// In the order in which they will be answered.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &OpenInput> {
        self.0.iter().flat_map(|open| &open.inputs)
    }

    pub(crate) fn into_views(self) -> Vec<PendingInputView> {
        self.0.into_iter().flat_map(|open| open.inputs).map(PendingInputView::from).collect()
    }
}

/// A question that is accepted and not in the history yet.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PendingInputView {
    /// Id of the question, under which the history shows it later.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    /// Id of the answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    answer_id: String,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    content: String,
    #[schema(value_type = schemas::MetadataObject)]
    metadata: Value,
    /// Time of acceptance.
    #[schema(value_type = schemas::TimestampSchema)]
    created_at: Option<String>,
}

impl From<OpenInput> for PendingInputView {
    fn from(input: OpenInput) -> Self {
        Self {
            message_id: input.turn.input().into(),
            answer_id: input.answer().into(),
            turn_id: input.turn.as_str().to_owned(),
            role: Role::User.name(),
            metadata: input.metadata.to_value(),
            created_at: rfc3339(input.accepted_at),
            content: input.content,
        }
    }
}
