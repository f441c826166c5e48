//! Reads the context settings of an agent.

use model::{AgentSetting, BatchType, MessageId, Metadata, Position, Role, Timestamp};
use serde_json::{Map, Value};

use super::ContextRequest;
use crate::{Compaction, CompactionRules, Item};

/// Default of `context_tokens`.
pub const DEFAULT_TOKENS: u64 = 32_000;
/// Default of `batch_timeout_ms`.
pub const DEFAULT_TIMEOUT_MS: i64 = 3_600_000;

/// The context settings of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRules {
    /// The instructions: `system`.
    pub system: Option<String>,
    /// Maximum tokens of a context: `context_tokens`.
    pub tokens: u64,
    /// Time without progress after which a batch is abandoned: `batch_timeout_ms`.
    pub timeout_ms: i64,
    /// The tokenizer that counts tokens: `tokenizer`.
    pub tokenizer: Tokenizer,
    /// When and how threads are compacted: `compaction`; `None` if it is `null`.
    pub compaction: Option<CompactionRules>,
}

/// Decides how tokens are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tokenizer {
    /// Estimates from the length of the text: [`crate::EstimatingCounter`].
    #[default]
    Estimate,
    /// Counts exactly, with OpenAI's `o200k_base`: gpt-4o and later.
    O200k,
    /// Counts exactly, with OpenAI's `cl100k_base`: gpt-4 and gpt-3.5.
    Cl100k,
}

impl Tokenizer {
    /// All tokenizers, by name.
    pub const ALL: [(&'static str, Self); 3] =
        [("estimate", Self::Estimate), ("o200k_base", Self::O200k), ("cl100k_base", Self::Cl100k)];

    fn named(name: &str) -> Self {
        Self::ALL.iter().find(|(known, _)| *known == name).map_or_else(Self::default, |(_, one)| *one)
    }

    /// The name in settings.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("estimate", |(name, _)| name)
    }
}

impl Default for ContextRules {
    fn default() -> Self {
        Self {
            system: None,
            tokens: DEFAULT_TOKENS,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            tokenizer: Tokenizer::default(),
            compaction: Some(CompactionRules::default()),
        }
    }
}

impl ContextRules {
    /// Parses the settings, and returns a complaint for each invalid one, whatever its subject. An
    /// invalid setting is ignored.
    pub fn of(settings: &Map<String, Value>) -> (Self, Vec<String>) {
        let mut rules = Self {
            system: AgentSetting::SYSTEM.string(settings).map(str::to_owned),
            tokenizer: AgentSetting::TOKENIZER.string(settings).map(Tokenizer::named).unwrap_or_default(),
            ..Self::default()
        };
        let mut complaints: Vec<String> = AgentSetting::errors(settings).collect();
        if let Some(tokens) = AgentSetting::CONTEXT_TOKENS.number(settings) {
            rules.tokens = tokens;
        }
        if let Some(ms) = AgentSetting::BATCH_TIMEOUT_MS.number(settings) {
            rules.timeout_ms = ms as i64;
        }
        match settings.get("compaction") {
            None => {}
            Some(Value::Null) => rules.compaction = None,
            Some(value) => match compaction(value) {
                Ok(compaction) => rules.compaction = Some(compaction),
                Err(complaint) => complaints.push(complaint),
            },
        }
        (rules, complaints)
    }

    /// The request for a context with this active batch.
    pub fn request(
        &self,
        active: Option<Position>,
        compaction: Option<Compaction>,
        now: Timestamp,
    ) -> ContextRequest {
        ContextRequest {
            system: self.system.clone(),
            active,
            budget: self.tokens,
            compaction,
            now,
            timeout_ms: self.timeout_ms,
            until: None,
        }
    }
}

/// Parses the compaction settings.
///
/// # Errors
/// The settings do not match [`CompactionRules`] or contradict themselves.
pub fn compaction(value: &Value) -> Result<CompactionRules, String> {
    let rules: CompactionRules =
        serde_json::from_value(value.clone()).map_err(|error| format!("compaction: {error}"))?;
    rules.check().map_err(|error| error.to_string())?;
    Ok(rules)
}

/// An input that is not stored yet, as the last message of a context. It is in the batch that it
/// continues, or in a batch of its own.
pub fn input(
    id: MessageId,
    content: String,
    metadata: Metadata,
    continues: Option<Position>,
    now: Timestamp,
) -> Item {
    Item {
        position: Position::MAX,
        message_id: id,
        batch_id: continues.unwrap_or(Position::MAX),
        number: None,
        sequence_num: i32::MAX,
        batch_type: if continues.is_some() { BatchType::Continuation } else { BatchType::UserRequest },
        role: Role::User,
        content,
        tool_calls: None,
        tool_call_id: None,
        metadata,
        token_count: None,
        created_at: now,
        started_at: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compaction::Strategy;

    fn rules(settings: Value) -> (ContextRules, Vec<String>) {
        ContextRules::of(settings.as_object().unwrap())
    }

    #[test]
    fn settings_count_when_they_make_sense() {
        assert_eq!(rules(json!({})), (ContextRules::default(), vec![]));
        let (said, complaints) = rules(json!({
            "system": "Be brief.", "context_tokens": 1_000, "batch_timeout_ms": 5, "tokenizer": "o200k_base",
            "compaction": {"strategy": "summarise", "high_percent": 80},
        }));
        assert_eq!(complaints, [""; 0]);
        assert_eq!((said.system.as_deref(), said.tokens, said.timeout_ms), (Some("Be brief."), 1_000, 5));
        assert_eq!(said.tokenizer, Tokenizer::O200k);
        let compaction = said.compaction.unwrap();
        assert_eq!(
            (compaction.strategy, compaction.high_percent, compaction.low_percent),
            (Strategy::Summarise, 80, 60)
        );
        assert_eq!(rules(json!({"compaction": null})).0.compaction, None);
    }

    #[test]
    fn what_makes_no_sense_counts_as_absent_with_a_complaint() {
        let wrong = json!({
            "context_tokens": 0, "batch_timeout_ms": "5", "tokenizer": "none", "compaction": {"low_percent": 95},
        });
        let (said, complaints) = rules(wrong);
        assert_eq!(said, ContextRules::default());
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        assert!(complaints[3].contains("low_percent (95) must be below high_percent (90)"), "{complaints:?}");
    }

    #[test]
    fn continuing_input_is_the_last_message_of_its_batch() {
        let of = |metadata: Value| {
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            let continues = model::TurnOrigin::of_person(&metadata).continues();
            input(MessageId::parse("q").unwrap(), "hi".into(), metadata, continues, Timestamp(7))
        };
        assert_eq!(
            (of(json!({})).batch_id, of(json!({})).batch_type),
            (Position::MAX, BatchType::UserRequest)
        );
        let on = of(json!({"continues": "4096"}));
        assert_eq!(
            (on.batch_id.get(), on.batch_type, on.position),
            (4096, BatchType::Continuation, Position::MAX)
        );
    }
}
