//! Subscriptions, and the events sent for them.

use std::sync::Arc;

use bytes::Bytes;
use model::MessageId;
use protocols::Native;
use protocols::native::NativeEvent;

/// An event for every subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedEvent {
    /// The encoding for native clients.
    pub bytes: Bytes,
    /// The value, for the encoders of other protocols.
    pub event: NativeEvent,
}

/// What a subscriber wants of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subscription {
    Thread,
    /// Every event up to the end of this message, which is after the subscriber's cursor.
    Until(MessageId),
    /// The events of this message from its beginning to its end, as values for an encoder of
    /// another protocol.
    Message(MessageId),
}

impl Subscription {
    /// The message whose end ends the subscription.
    pub fn until(&self) -> Option<&MessageId> {
        match self {
            Self::Thread => None,
            Self::Until(message) | Self::Message(message) => Some(message),
        }
    }

    /// Whether it takes values.
    pub fn takes_values(&self) -> bool {
        matches!(self, Self::Message(_))
    }

    /// The first event for a subscriber without a cursor. `None` if it wants one message, whose
    /// beginning it can request again.
    pub(crate) fn ready(&self, native: &Native) -> Option<StreamPart> {
        matches!(self, Self::Thread).then(|| StreamPart::Encoded(native.ready()))
    }

    /// An event in the form that the subscription takes.
    pub(crate) fn part(&self, bytes: Bytes, event: NativeEvent) -> StreamPart {
        match self {
            Self::Thread | Self::Until(_) => StreamPart::Encoded(bytes),
            Self::Message(_) => StreamPart::Value(Arc::new(FeedEvent { bytes, event })),
        }
    }
}

/// A part of the stream that is sent to a subscriber.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamPart {
    /// Encoded bytes. An event may come in two parts: its id, and the shared data.
    Encoded(Bytes),
    /// An event of [`Subscription::Message`].
    Value(Arc<FeedEvent>),
}

impl StreamPart {
    /// The encoding for native clients.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Encoded(bytes) => bytes,
            Self::Value(event) => &event.bytes,
        }
    }

    /// See [`StreamPart::bytes`].
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Encoded(bytes) => bytes,
            Self::Value(event) => event.bytes.clone(),
        }
    }

    pub fn into_value(self) -> Option<Arc<FeedEvent>> {
        match self {
            Self::Encoded(_) => None,
            Self::Value(event) => Some(event),
        }
    }
}
