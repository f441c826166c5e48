//! Messages of a session.

/// The number of a message in its session. Numbers ascend from 1, are never reused, and are never
/// part of a stored text.
pub type Number = u64;

/// The author of a message in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningRole {
    /// A person, or another caller of the agent.
    User,
    /// The agent's model.
    Assistant,
    /// A tool: the result of a call.
    Tool,
    System,
    /// A text that replaces compressed messages.
    Summary,
}

impl ReasoningRole {
    pub const ALL: [Self; 5] = [Self::User, Self::Assistant, Self::Tool, Self::System, Self::Summary];

    /// The name in Postgres and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::System => "system",
            Self::Summary => "summary",
        }
    }

    /// The role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The label in a view.
    pub const fn label(self) -> &'static str {
        match self {
            Self::User => "User",
            Self::Assistant => "Assistant",
            Self::Tool => "Tool",
            Self::System => "System",
            Self::Summary => "Summary",
        }
    }
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCall {
    /// The id, which is unique among the calls of the session that wait for their result.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments as the model wrote them. Absent in a [`crate::ShownThread`], because decisions
    /// do not need them.
    pub arguments: Option<String>,
    /// The provider's signature of the call.
    pub signature: Option<String>,
}

impl SessionCall {
    /// A call with only an id and a tool.
    pub fn new(id: impl Into<String>, name: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: None, signature: None }
    }
}

/// One immutable message of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMessage {
    pub number: Number,
    /// True if the message belongs to the temp layer. A summary belongs to it if all messages that
    /// it replaced do.
    pub in_temp: bool,
    pub role: ReasoningRole,
    /// The text; for a tool message, the result.
    pub content: String,
    /// The model's thinking before the message. It has no number and stays with its message.
    pub thinking: Option<String>,
    /// The provider's signature of the thinking.
    pub signature: Option<String>,
    /// Calls of an assistant message.
    pub calls: Vec<SessionCall>,
    /// For a tool message: the id of the answered call.
    pub answers: Option<String>,
    /// For a tool message: the name of the tool.
    pub tool: Option<String>,
}

impl SessionMessage {
    /// Number of characters of its text.
    pub fn chars(&self) -> u32 {
        chars(&self.content)
    }
}

/// The id of a message, unique in its session.
pub fn message_id(number: Number) -> String {
    format!("rm-{number}")
}

/// The number of the message with this id.
pub fn number_of_message_id(id: &str) -> Option<Number> {
    let number = id.strip_prefix("rm-")?.parse().ok()?;
    (message_id(number) == id).then_some(number)
}

/// Number of characters of a text, for displayed sizes.
pub(crate) fn chars(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}
