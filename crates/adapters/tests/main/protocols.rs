//! The protocols, by their names in the golden files.

use adapters::chat_completions::ToolCalls;
use adapters::responses::{Calls, Resume};
use adapters::{AgUi, ChatCompletions, Protocol, Responses, UiMessage, chat_completions, responses};
use model::{MessageId, Metadata, ThreadId, Timestamp};

pub(crate) const NAMES: [&str; 7] = [
    "ui_message",
    "responses",
    "responses_background",
    "responses_hosted",
    "chat_completions",
    "chat_completions_hidden",
    "agui",
];

pub(crate) fn of(name: &str) -> Box<dyn Protocol> {
    match name {
        "ui_message" => Box::new(UiMessage::new(message())),
        "responses" => Box::new(response(false, Resume::Start)),
        "responses_background" => Box::new(response(true, Resume::Start)),
        "responses_hosted" => Box::new(hosted()),
        "chat_completions" => Box::new(completion(ToolCalls::Shown)),
        "chat_completions_hidden" => Box::new(completion(ToolCalls::Hidden)),
        "agui" => Box::new(AgUi::new(thread(), "run-1", message())),
        other => panic!("no protocol {other}"),
    }
}

pub(crate) fn response(background: bool, resume: Resume) -> Responses {
    Responses::new(terms(background, Calls::Functions), resume)
}

/// With the calls and their results as those of somebody else.
pub(crate) fn hosted() -> Responses {
    Responses::new(terms(false, Calls::Hosted), Resume::Start)
}

fn terms(background: bool, calls: Calls) -> responses::Terms {
    responses::Terms {
        thread: thread(),
        message: message(),
        model: "talk".to_owned(),
        created_at: Timestamp(1_767_323_045_678),
        background,
        previous_response_id: background.then(|| "resp_u0001-w-a".to_owned()),
        metadata: Metadata::EMPTY,
        calls,
    }
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
