//! What was added to messages after they were stored: remembered facts, and feedback.

use model::{MessageId, Role, ThreadId};
use store::{Store, StoreError, StoredMessage};

use crate::api::feedback;
use crate::api::feedback::FeedbackOfMessages;
use crate::api::views::MessageView;
use crate::streaming::remembered;
use crate::streaming::remembered::RememberedFacts;

/// Additions to messages of one thread.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    facts: RememberedFacts,
    feedback: FeedbackOfMessages,
}

impl Additions {
    /// The additions to these messages.
    pub(crate) async fn read(
        store: &Store,
        thread: &ThreadId,
        messages: &[StoredMessage],
    ) -> Result<Self, StoreError> {
        let answers = messages.iter().filter(|message| message.role == Role::Assistant);
        let facts = remembered::of_answers(store, thread, answers.map(|answer| &answer.message_id)).await?;
        let ids: Vec<MessageId> = messages.iter().map(|message| message.message_id.clone()).collect();
        Ok(Self { facts, feedback: feedback::of_messages(store, thread, &ids).await? })
    }

    /// Adds them to the views of the messages.
    pub(crate) fn add_to(mut self, messages: &mut [MessageView]) {
        for message in messages {
            message.remembered = self.facts.remove(message.message_id.as_str()).unwrap_or_default();
            message.feedback = self.feedback.remove(message.message_id.as_str()).unwrap_or_default();
        }
    }
}
