//! Messages of a session.

/// The place of a message in its session's numbering: from 1, only rising, never given twice, never in a stored text.
pub type Number = u64;

/// Who speaks in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningRole {
    /// A person, or another caller of the agent.
    User,
    /// The agent's model.
    Assistant,
    /// A tool: the result of a call.
    Tool,
    /// Instructions.
    System,
    /// Stands for messages that were compressed.
    Summary,
}

impl ReasoningRole {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::User, Self::Assistant, Self::Tool, Self::System, Self::Summary];

    /// Its name in Postgres and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::System => "system",
            Self::Summary => "summary",
        }
    }

    /// The role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// As it is shown in a view.
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

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCall {
    /// Unique among the calls of the session that wait for their result.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them. A [`crate::ShownThread`] has none: decisions do not need them.
    pub arguments: Option<String>,
    /// What the provider signed the call with.
    pub signature: Option<String>,
}

impl SessionCall {
    /// A call of which only the id and the tool are known.
    pub fn new(id: impl Into<String>, name: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: None, signature: None }
    }
}

/// One message of a session, never changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMessage {
    /// Its number.
    pub number: Number,
    /// Whether it is of the temp layer; a summary is when all that it replaced is.
    pub in_temp: bool,
    /// Who speaks.
    pub role: ReasoningRole,
    /// What is said; of a tool message, the result.
    pub content: String,
    /// What the model thought before: it has no number of its own and goes where its message goes.
    pub thinking: Option<String>,
    /// What the provider signed the thinking with.
    pub signature: Option<String>,
    /// Of an assistant message.
    pub calls: Vec<SessionCall>,
    /// Of a tool message: the call that it answers.
    pub answers: Option<String>,
    /// Of a tool message: the tool.
    pub tool: Option<String>,
}

impl SessionMessage {
    /// Characters of its text.
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

/// Characters of a text, as sizes are shown.
pub(crate) fn chars(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}
