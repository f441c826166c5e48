//! Reads messages of other systems, which have no batches: parses their formats, finds where
//! batches begin and assigns positions. Also writes LangChain's format.
//!
//! [`parse`] reads the JSON, [`read`] the messages, and [`assign_positions`] assigns positions,
//! batches and numbers to the messages of one thread. All depend only on their input, so a second
//! import changes nothing.
//!
//! Texts, calls, results and media are kept. For messages with roles, all other fields are kept
//! too. A note reports what is replaced, unknown or moved, and messages of branches other than the
//! current one are counted. A strict import refuses an input with replaced or unknown parts.

mod boundaries;
mod branch;
mod chatgpt;
mod claude;
mod details;
mod fields;
mod json;
mod langchain;
mod langgraph;
mod lists;
mod media;
mod message;
mod notes;
mod open_calls;
mod openai;
mod openwebui;
mod parts;
mod positions;
mod reading;
mod repair;
mod results;
#[cfg(test)]
mod tests;
mod thread;
mod times;

use std::fmt;

use model::Role;
use serde_json::Value;

pub use self::json::parse;
pub use self::langchain::langchain;
use self::lists::{list_of, source_list};
pub use self::notes::{ImportNote, LeftOut, LeftOutKind, NoteKind};
pub use self::positions::{Numbered, assign_positions, keep_last_input_open};
use self::reading::{GivenUp, ReadMessage, SourceThread, ThreadReader, chats_of};
pub use self::repair::{Replaced, ReplacedKind};
pub use self::thread::{ForeignMessage, ForeignThread, FormatError, MAX_CALLS};

/// The format of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignFormat {
    /// A list of `{"role", "content", …}`, or an object with it as `messages`.
    OpenAi,
    /// A list of LangChain's messages, or a checkpoint with such a list.
    LangGraph,
    /// The `conversations.json` of an export of ChatGPT.
    ChatGpt,
    /// The `conversations.json` of an export of Claude.
    Claude,
    /// Exported chats of Open WebUI.
    OpenWebUi,
}

impl ForeignFormat {
    pub const ALL: [Self; 5] = [Self::OpenAi, Self::LangGraph, Self::ChatGpt, Self::Claude, Self::OpenWebUi];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::LangGraph => "langgraph",
            Self::ChatGpt => "chatgpt",
            Self::Claude => "claude",
            Self::OpenWebUi => "openwebui",
        }
    }

    /// The format with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// True if an input has many chats with ids. Inputs of other formats are one thread without an
    /// id.
    pub fn has_chats(self) -> bool {
        match self {
            Self::OpenAi | Self::LangGraph => false,
            Self::ChatGpt | Self::Claude | Self::OpenWebUi => true,
        }
    }

    /// Guesses the format from the input or its first element.
    fn guess(input: &Value) -> Option<Self> {
        let first = input.as_array().map_or(Some(input), |list| list.first())?;
        let chats = [
            (Self::ChatGpt, chatgpt::is_chat as fn(&Value) -> bool),
            (Self::Claude, claude::is_chat),
            (Self::OpenWebUi, openwebui::is_chat),
        ];
        let is = |(format, is_chat): &(Self, fn(&Value) -> bool)| is_chat(first).then_some(*format);
        if let Some(format) = chats.iter().find_map(is) {
            return Some(format);
        }
        let message = list_of(input).and_then(|list| list.first())?;
        let kind = message.get("type").and_then(Value::as_str);
        if message.get("lc").is_some() || matches!(kind, Some("human" | "ai" | "constructor")) {
            return Some(Self::LangGraph);
        }
        message.get("role").is_some().then_some(Self::OpenAi)
    }
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How to handle a message that cannot be kept completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// The message is kept as far as possible, with a note.
    Lenient,
    /// The input is refused.
    Strict,
}

/// The reason why an input cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// The input has no list of messages.
    #[error("no list of messages: a JSON array, an object with \"messages\", or a checkpoint is expected")]
    NoList,
    /// The input has no chats.
    #[error("no chats of {0}: its export is expected, unpacked")]
    NoChats(ForeignFormat),
    /// The input looks like one of another format.
    #[error("{error}; it looks like the format {format}: try `--from {format}`")]
    OtherFormat {
        /// The format that it looks like.
        format: ForeignFormat,
        /// The error of reading it in the requested format.
        error: Box<Self>,
    },
    /// One of the chats is invalid.
    #[error("chat {}: {error}", index + 1)]
    Chat {
        /// Index of the chat, from 0.
        index: usize,
        error: Box<Self>,
    },
    /// The value is not a chat of the format.
    #[error("it is no chat of {0}")]
    NoChat(ForeignFormat),
    /// One of the messages is invalid.
    #[error("message {}: {wrong}", index + 1)]
    Message {
        /// Index of the message, from 0.
        index: usize,
        wrong: FormatError,
    },
}

impl ForeignError {
    /// The same error without the hint at another format, which helps only people who choose the
    /// format.
    #[must_use]
    pub fn without_hint(self) -> Self {
        match self {
            Self::OtherFormat { error, .. } => *error,
            error => error,
        }
    }
}

/// Reads the threads of an input: one, or one for each chat of an export.
///
/// # Errors
/// The input does not have that format, or a message is invalid. Then nothing is read.
pub fn read(
    input: &Value,
    format: ForeignFormat,
    strictness: Strictness,
) -> Result<Vec<ForeignThread>, ForeignError> {
    let threads = if format.has_chats() {
        read_chats(input, format, strictness)
    } else {
        read_list(input, format, strictness).map(|thread| vec![thread])
    };
    threads.map_err(|error| match ForeignFormat::guess(input) {
        Some(other) if other != format => ForeignError::OtherFormat { format: other, error: Box::new(error) },
        _ => error,
    })
}

fn read_list(
    input: &Value,
    format: ForeignFormat,
    strictness: Strictness,
) -> Result<ForeignThread, ForeignError> {
    let list = source_list(input).ok_or(ForeignError::NoList)?;
    let mut reading = ThreadReader::default();
    reading.notes = list.notes;
    reading.avoid_ids(list.messages.iter().map(|(_, message)| *message));
    // Anthropic and Google have the instructions outside the messages.
    let keys = ["system", "systemInstruction", "system_instruction"];
    if let Some(system) = keys.iter().find_map(|key| input.get(*key)).filter(|system| !system.is_null()) {
        let parts = system.get("parts").unwrap_or(system);
        let message = serde_json::json!({"role": "system", "content": parts});
        read_message(&message, 0, &mut reading, strictness, |message, _| openai::message(message))?;
    }
    for (index, message) in list.messages {
        read_message(message, index, &mut reading, strictness, |message, _| match format {
            ForeignFormat::LangGraph => langgraph::message(message),
            _ => openai::message(message),
        })?;
    }
    finish(&mut reading, GivenUp::Answered, strictness)?;
    let ThreadReader { messages, notes, left_out, .. } = reading;
    Ok(ForeignThread { messages, notes, left_out, ..ForeignThread::default() })
}

fn read_chats(
    input: &Value,
    format: ForeignFormat,
    strictness: Strictness,
) -> Result<Vec<ForeignThread>, ForeignError> {
    type ReadThread = fn(&Value) -> SourceThread<'_>;
    let (is_chat, chat): (fn(&Value) -> bool, ReadThread) = match format {
        ForeignFormat::ChatGpt => (chatgpt::is_chat, chatgpt::chat),
        ForeignFormat::Claude => (claude::is_chat, claude::chat),
        _ => (openwebui::is_chat, openwebui::chat),
    };
    let list = chats_of(input, is_chat).ok_or(ForeignError::NoChats(format))?;
    let in_chat = |index, error| ForeignError::Chat { index, error: Box::new(error) };
    let read = |(index, value): (usize, &Value)| {
        if !is_chat(value) {
            return Err(in_chat(index, ForeignError::NoChat(format)));
        }
        read_chat(chat(value), format, strictness).map_err(|error| in_chat(index, error))
    };
    list.into_iter().enumerate().map(read).collect()
}

fn read_chat(
    chat: SourceThread<'_>,
    format: ForeignFormat,
    strictness: Strictness,
) -> Result<ForeignThread, ForeignError> {
    let mut reading = ThreadReader::default();
    reading.left_out.add(LeftOutKind::OtherBranch, chat.others);
    reading.avoid_ids(chat.messages.iter().copied());
    for (index, message) in chat.messages.into_iter().enumerate() {
        read_message(message, index, &mut reading, strictness, |message, reading| match format {
            ForeignFormat::ChatGpt => chatgpt::message(message, reading),
            ForeignFormat::Claude => claude::message(message),
            _ => openwebui::message(message, reading),
        })?;
    }
    finish(&mut reading, GivenUp::All, strictness)?;
    let ThreadReader { messages, notes, left_out, .. } = reading;
    let SourceThread { id, title, created_at, is_guessed, instructions, .. } = chat;
    let plain = |text: String| text.replace(['\0', json::HALF, json::BYTES], "\u{FFFD}");
    Ok(ForeignThread {
        id,
        title: title.map(plain),
        created_at,
        instructions: instructions.map(plain),
        is_guessed,
        messages,
        notes,
        left_out,
    })
}

/// Ends the thread. A strict import also refuses losses that concern the whole list.
fn finish(reading: &mut ThreadReader, given_up: GivenUp, strictness: Strictness) -> Result<(), ForeignError> {
    reading.finish(given_up);
    match reading.notes.iter().find(|note| note.what.is_loss()) {
        Some(note) if strictness == Strictness::Strict => {
            Err(ForeignError::Message { index: note.index, wrong: FormatError::Loss(note.what.clone()) })
        }
        _ => Ok(()),
    }
}

fn read_message(
    message: &Value,
    index: usize,
    reading: &mut ThreadReader,
    strictness: Strictness,
    read: impl FnOnce(&Value, &mut ThreadReader) -> Result<ReadMessage, FormatError>,
) -> Result<(), ForeignError> {
    let in_message = |wrong| ForeignError::Message { index, wrong };
    let mut repaired = message.clone();
    let replaced = repair::repair(&mut repaired);
    let read = read(&repaired, reading).map_err(in_message)?;
    let mut notes: Vec<NoteKind> = replaced.into_iter().map(NoteKind::Replaced).collect();
    notes.extend(read.notes);
    if read.messages.iter().any(says_nothing) {
        notes.push(NoteKind::Empty);
    }
    if let Some(loss) = notes.iter().find(|note| note.is_loss()).filter(|_| strictness == Strictness::Strict)
    {
        return Err(in_message(FormatError::Loss(loss.clone())));
    }
    let id = read.messages.first().and_then(|message| message.id.clone());
    reading.notes.extend(notes.into_iter().map(|what| ImportNote { index, id: id.clone(), what }));
    for message in read.messages {
        reading.push(ForeignMessage { index, ..message }, read.joins);
    }
    Ok(())
}

fn says_nothing(message: &ForeignMessage) -> bool {
    let has_reasoning = message.metadata.get("reasoning").is_some();
    message.role != Role::Tool && message.content.is_empty() && message.tool_calls.is_none() && !has_reasoning
}
