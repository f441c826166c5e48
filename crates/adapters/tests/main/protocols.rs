//! The protocols, by their names in the golden files.

use adapters::responses::Resume;
use adapters::{
    AgUi, ChatCompletions, Protocol, Responses, ToolCalls, UiMessage, chat_completions, responses,
};
use model::{MessageId, Metadata, ThreadId, Timestamp};

pub(crate) const NAMES: [&str; 6] = [
    "ui_message",
    "responses",
    "responses_background",
    "chat_completions",
    "chat_completions_hidden",
    "agui",
];

pub(crate) fn of(name: &str) -> Box<dyn Protocol> {
    match name {
        "ui_message" => Box::new(UiMessage::new(message())),
        "responses" => Box::new(response(false, Resume::Start)),
        "responses_background" => Box::new(response(true, Resume::Start)),
        "chat_completions" => Box::new(completion(ToolCalls::Shown)),
        "chat_completions_hidden" => Box::new(completion(ToolCalls::Hidden)),
        "agui" => Box::new(AgUi::new(thread(), "run-1", message())),
        other => panic!("no protocol {other}"),
    }
}

pub(crate) fn response(background: bool, resume: Resume) -> Responses {
    let terms = responses::Terms {
        thread: thread(),
        message: message(),
        model: "talk".to_owned(),
        created_at: Timestamp(1_767_323_045_678),
        background,
        previous_response_id: background.then(|| "resp_u0001-w-a".to_owned()),
        metadata: Metadata::EMPTY,
        tool_calls: ToolCalls::Shown,
    };
    Responses::new(terms, resume)
}

/// With the usage when calls are shown, without it when they are not.
pub(crate) fn completion(tool_calls: ToolCalls) -> ChatCompletions {
    ChatCompletions::new(chat_completions::Terms {
        message: message(),
        model: "talk".to_owned(),
        created_at: Timestamp(1_767_323_045_678),
        include_usage: tool_calls == ToolCalls::Shown,
        tool_calls,
    })
}

pub(crate) fn thread() -> ThreadId {
    ThreadId::parse("t1").unwrap()
}

pub(crate) fn message() -> MessageId {
    MessageId::parse("u0001-x-a").unwrap()
}
