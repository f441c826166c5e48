//! The two engines that answer turns: a model behind an endpoint (chat completions, Responses,
//! Anthropic, Google), or a script.

use crate::engine_event::{EngineEnd, EngineSender};
use crate::openai::OpenAi;
use crate::request::TurnAttempt;
use crate::script::Script;

pub(crate) enum Engine {
    OpenAi(Box<OpenAi>),
    Scripted(Script),
}

impl Engine {
    /// Sends the parts of the answer and returns how it ended. Dropping the future cancels all its
    /// work.
    pub(crate) async fn answer(&self, turn: &TurnAttempt, events: &EngineSender) -> EngineEnd {
        match self {
            Self::OpenAi(openai) => openai.answer(turn, events).await,
            Self::Scripted(script) => script.play(turn, events).await,
        }
    }
}
