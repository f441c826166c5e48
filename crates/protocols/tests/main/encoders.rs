//! The protocols, by their names in the golden files.

use bytes::Bytes;
use model::{AnswerReport, BatchType, ChunkKind, MessageId, Metadata, Position, Role, ThreadId, Timestamp};
use protocols::responses::Resume;
use protocols::{
    AgUi, AnswerEvent, ChatCompletions, Cursor, MessageHeader, MessageProgress, Native, Protocol,
    ProtocolOutput, Responses, StreamAction, UiMessage, chat_completions, responses,
};

/// All protocols, including the native one, which has its own connection and cursor.
pub(crate) const ALL: [&str; 6] = ["native", NAMES[0], NAMES[1], NAMES[2], NAMES[3], NAMES[4]];

pub(crate) const NAMES: [&str; 5] =
    ["ui_message", "responses", "responses_background", "chat_completions", "agui"];

pub(crate) fn of(name: &str) -> Box<dyn Protocol> {
    match name {
        "ui_message" => Box::new(UiMessage::new(message())),
        "responses" => Box::new(response(false, Resume::Start)),
        "responses_background" => Box::new(response(true, Resume::Start)),
        "chat_completions" => Box::new(completion()),
        "native" => Box::new(NativeStream {
            native: Native::new(thread(), Cursor::at(Position::from_stored(7))),
            progress: MessageProgress::new(0, true),
        }),
        "agui" => Box::new(AgUi::new(thread(), "run-1", message())),
        other => panic!("no protocol {other}"),
    }
}

pub(crate) fn response(background: bool, resume: Resume) -> Responses {
    let terms = responses::ResponseOptions {
        thread: thread(),
        message: message(),
        model: "talk".to_owned(),
        created_at: Timestamp(1_767_323_045_678),
        background,
        previous_response_id: background.then(|| "resp_u0001-w-a".to_owned()),
        metadata: Metadata::EMPTY,
        shown: Metadata::EMPTY,
    };
    Responses::new(terms, resume)
}

pub(crate) fn completion() -> ChatCompletions {
    ChatCompletions::new(chat_completions::CompletionOptions {
        message: message(),
        model: "talk".to_owned(),
        created_at: Timestamp(1_767_323_045_678),
        include_usage: true,
    })
}

pub(crate) fn thread() -> ThreadId {
    ThreadId::parse("t1").unwrap()
}

pub(crate) fn message() -> MessageId {
    MessageId::parse("u0001-x-a").unwrap()
}

/// The part of a thread's native stream about the message.
struct NativeStream {
    native: Native,
    progress: MessageProgress,
}

impl NativeStream {
    fn header(&self, role: Role) -> MessageHeader {
        MessageHeader::new(message(), self.progress.seen().attempt, role, BatchType::UserRequest)
    }
}

impl Protocol for NativeStream {
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput {
        let (end, position) = (|bytes| (bytes, StreamAction::Close), Position::from_stored(77));
        let header = self.header(Role::Assistant);
        let (bytes, then) = match happening {
            AnswerEvent::Opened => (Bytes::new(), StreamAction::Continue),
            AnswerEvent::Chunk { attempt, chunk } => {
                let role = if chunk.kind == ChunkKind::ToolResult { Role::Tool } else { Role::Assistant };
                if attempt > self.progress.seen().attempt {
                    self.progress = MessageProgress::new(attempt, true);
                }
                self.progress.advance(chunk);
                let (header, seen) = (self.header(role), self.progress.seen().clone());
                (self.native.chunk(&header, seen, chunk, false).bytes(), StreamAction::Continue)
            }
            AnswerEvent::Reset { attempt } => {
                self.progress = MessageProgress::new(attempt, true);
                (self.native.reset(&message(), attempt), StreamAction::Continue)
            }
            AnswerEvent::Used(_) => (Bytes::new(), StreamAction::Continue),
            AnswerEvent::Complete { position } => {
                end(self.native.complete(&header, position, false, &AnswerReport::default()).bytes())
            }
            AnswerEvent::Stopped => {
                end(self.native.complete(&header, position, true, &AnswerReport::default()).bytes())
            }
            AnswerEvent::Failed(failure) => end(self.native.failed(&header, position, failure).bytes()),
        };
        ProtocolOutput { bytes, then }
    }
}
