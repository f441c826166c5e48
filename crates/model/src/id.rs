//! Identifiers that outsiders choose. They travel in subjects, URLs and SQL, so their alphabet is narrow.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest identifier, in bytes.
pub const MAX_ID_LEN: usize = 128;

/// An identifier that does not match `[A-Za-z0-9_-]{1,128}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The empty string names nothing.
    #[error("the id is empty")]
    Empty,
    /// Longer than [`MAX_ID_LEN`].
    #[error("the id has {0} bytes; at most {MAX_ID_LEN} are allowed")]
    TooLong(usize),
    /// A character that would have a meaning in a subject or a URL, or that is not ASCII.
    #[error("the id has the character {0:?}; letters, digits, '_' and '-' are allowed")]
    Character(char),
}

fn check(text: &str) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty);
    }
    if text.len() > MAX_ID_LEN {
        return Err(InvalidId::TooLong(text.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match text.chars().find(|c| !allowed(*c)) {
        Some(character) => Err(InvalidId::Character(character)),
        None => Ok(()),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the alphabet and the length.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                check(text).map(|()| Self(Arc::from(text)))
            }

            /// An identifier made from others, which are known to be valid and short.
            #[allow(dead_code, reason = "not every kind is made from others")]
            pub(crate) fn made(text: &str) -> Self {
                debug_assert!(check(text).is_ok(), "{text} is no id");
                Self(Arc::from(text))
            }

            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.to_string()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

id! {
    /// A conversation, durable and ordered. The wire calls it `session_id`.
    ThreadId
}

id! {
    /// One message of a thread, named by whoever produces it; unique within its thread.
    MessageId
}

id! {
    /// An addressable actor with a queue of tasks, a workflow that thinks for it, and a backoff.
    AgentId
}

id! {
    /// One unit of work of an agent, named by whoever sends it; unique for seven days.
    TaskId
}

id! {
    /// One act of an operator or a client on an agent, a task or a turn, so that it happens once.
    ActId
}

id! {
    /// The name of a workflow: the last token of the subject on which its services take turn requests.
    WorkflowName
}

impl AgentId {
    /// The agent's own thread, in which its tasks run. It bears the agent's id.
    pub fn thread(&self) -> ThreadId {
        ThreadId(Arc::clone(&self.0))
    }
}

impl ThreadId {
    /// The agent whose own thread this would be.
    pub fn agent(&self) -> AgentId {
        AgentId(Arc::clone(&self.0))
    }
}

/// The identity of a message: ids of messages are unique within a thread only, so that no publisher can
/// collide with another one's thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    /// The thread.
    pub thread: ThreadId,
    /// The message in it.
    pub message: MessageId,
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.thread, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_and_the_length_are_checked() {
        assert!(ThreadId::parse("a-Z_09").is_ok());
        assert!(ThreadId::parse(&"x".repeat(128)).is_ok());
        assert_eq!(ThreadId::parse(""), Err(InvalidId::Empty));
        assert_eq!(ThreadId::parse(&"x".repeat(129)), Err(InvalidId::TooLong(129)));
        for bad in ["a.b", "a b", "*", ">", "../", "a\0", "é", "'; --", "%00"] {
            assert!(matches!(MessageId::parse(bad), Err(InvalidId::Character(_))), "{bad:?}");
        }
    }
}
