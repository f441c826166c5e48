//! Agent settings that the fleet itself interprets, with the name and range of each. All other
//! settings belong to the agent's workflow.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const DAY_MS: u64 = 86_400_000;
/// Maximum tokens of a context.
pub const MAX_CONTEXT_TOKENS: u64 = 1_000_000;

/// Values of [`AgentSetting::MEMORY_LANGUAGE`]: the names of Postgres's text search configurations,
/// and languages without one.
pub const MEMORY_LANGUAGES: [&str; 33] = [
    "simple",
    "arabic",
    "armenian",
    "basque",
    "catalan",
    "chinese",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hindi",
    "hungarian",
    "indonesian",
    "irish",
    "italian",
    "japanese",
    "korean",
    "lithuanian",
    "nepali",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "serbian",
    "spanish",
    "swedish",
    "tamil",
    "thai",
    "turkish",
    "yiddish",
];

/// One setting of an agent. An invalid value is refused when settings are written, and counts as
/// absent when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentSetting {
    /// Key in the settings.
    pub name: &'static str,
    pub kind: SettingKind,
}

/// Type and range of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// A whole number in a range, both ends included.
    Integer {
        min: u64,
        max: u64,
        /// True if null is allowed and means no bound.
        is_nullable: bool,
    },
    /// True or false; false if absent.
    Boolean,
    /// One of these texts; if absent, the first.
    OneOf(&'static [&'static str]),
    /// Text of at most this many bytes.
    Text(usize),
    /// Different texts without control characters, each of at least one byte.
    Texts {
        /// Maximum number of texts.
        most: usize,
        /// Maximum bytes of a text.
        max_bytes: usize,
    },
}

impl AgentSetting {
    /// Time without progress of the answer after which a turn fails, in ms.
    pub const DEADLINE_MS: Self = Self::integer("deadline_ms", 100, DAY_MS);
    /// Backoff after the first failure, in ms.
    pub const BACKOFF_BASE_MS: Self = Self::integer("backoff_base_ms", 1, DAY_MS);
    /// The longest backoff, in ms.
    pub const BACKOFF_CAP_MS: Self = Self::integer("backoff_cap_ms", 1, 30 * DAY_MS);
    /// Number of failures after which a task becomes a dead letter; null: never.
    pub const MAX_ATTEMPTS: Self = Self {
        name: "max_attempts",
        kind: SettingKind::Integer { min: 1, max: 1_000_000, is_nullable: true },
    };
    /// Maximum tokens of a context.
    pub const CONTEXT_TOKENS: Self = Self::integer("context_tokens", 1, MAX_CONTEXT_TOKENS);
    /// Time without progress after which an incomplete batch is abandoned, in ms.
    pub const BATCH_TIMEOUT_MS: Self = Self::integer("batch_timeout_ms", 1, 30 * DAY_MS);
    /// Method of counting tokens.
    pub const TOKENIZER: Self = Self::one_of("tokenizer", &["estimate", "o200k_base", "cl100k_base"]);
    /// A work request follows each turn.
    pub const WORK_REQUEST: Self = Self::boolean("work_request");
    /// The agent has a memory.
    pub const MEMORY: Self = Self::boolean("memory");
    /// Maximum tokens of facts in a turn request.
    pub const MEMORY_TOKENS: Self = Self::integer("memory_tokens", 1, 32_000);
    /// Language assumed for facts and questions whose words do not show their language; `simple`:
    /// the language of most facts.
    pub const MEMORY_LANGUAGE: Self = Self::one_of("memory_language", &MEMORY_LANGUAGES);
    /// Handling of messages while the agent backs off.
    pub const FOREGROUND_DURING_BACKOFF: Self =
        Self::one_of("foreground_during_backoff", &["pass", "refuse"]);
    /// Handling of a client's instructions; by default they are appended.
    pub const CLIENT_INSTRUCTIONS: Self = Self::one_of("client_instructions", &["refuse", "append"]);
    /// Handling of a history that a client sends with a request that names no thread; by default a
    /// temporary thread takes it.
    pub const CLIENT_HISTORY: Self =
        Self::one_of("client_history", &["refuse", "ignore", "import", "temporary"]);
    /// Instructions of the agent.
    pub const SYSTEM: Self = Self::text("system", 64 << 10);
    /// Model that its workflow calls.
    pub const MODEL: Self = Self::text("model", 256);

    /// Further names by which requests of OpenAI's libraries find the agent.
    pub const ALIASES: Self = Self { name: "aliases", kind: SettingKind::Texts { most: 16, max_bytes: 256 } };

    pub const ALL: [Self; 17] = [
        Self::DEADLINE_MS,
        Self::BACKOFF_BASE_MS,
        Self::BACKOFF_CAP_MS,
        Self::MAX_ATTEMPTS,
        Self::CONTEXT_TOKENS,
        Self::BATCH_TIMEOUT_MS,
        Self::TOKENIZER,
        Self::WORK_REQUEST,
        Self::MEMORY,
        Self::MEMORY_TOKENS,
        Self::MEMORY_LANGUAGE,
        Self::FOREGROUND_DURING_BACKOFF,
        Self::CLIENT_INSTRUCTIONS,
        Self::CLIENT_HISTORY,
        Self::SYSTEM,
        Self::MODEL,
        Self::ALIASES,
    ];

    const fn integer(name: &'static str, min: u64, max: u64) -> Self {
        Self { name, kind: SettingKind::Integer { min, max, is_nullable: false } }
    }

    const fn boolean(name: &'static str) -> Self {
        Self { name, kind: SettingKind::Boolean }
    }

    const fn one_of(name: &'static str, values: &'static [&'static str]) -> Self {
        Self { name, kind: SettingKind::OneOf(values) }
    }

    const fn text(name: &'static str, max_bytes: usize) -> Self {
        Self { name, kind: SettingKind::Text(max_bytes) }
    }

    /// Number in these settings; `None` when absent, null or invalid.
    pub fn number(&self, settings: &Map<String, Value>) -> Option<u64> {
        integer(self.allowed(settings)?)
    }

    /// True if these settings contain `true` for it.
    pub fn is_true(&self, settings: &Map<String, Value>) -> bool {
        self.allowed(settings) == Some(&Value::Bool(true))
    }

    /// Text in these settings; `None` when absent or invalid.
    pub fn string<'a>(&self, settings: &'a Map<String, Value>) -> Option<&'a str> {
        self.allowed(settings)?.as_str()
    }

    /// Texts in these settings; empty when absent or invalid.
    pub fn strings<'a>(&self, settings: &'a Map<String, Value>) -> Vec<&'a str> {
        let texts = self.allowed(settings).and_then(Value::as_array);
        texts.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Checks the value of this setting in these settings, if present.
    ///
    /// # Errors
    /// The requirement: "deadline_ms must be a whole number from 100 to 86400000".
    pub fn check(&self, settings: &Map<String, Value>) -> Result<(), String> {
        match settings.get(self.name) {
            Some(value) if !self.kind.allows(value) => {
                Err(format!("{} must be {}", self.name, self.kind.description()))
            }
            _ => Ok(()),
        }
    }

    /// Errors of the known settings in this map.
    pub fn errors(settings: &Map<String, Value>) -> impl Iterator<Item = String> {
        Self::ALL.iter().filter_map(|setting| setting.check(settings).err())
    }

    fn allowed<'a>(&self, settings: &'a Map<String, Value>) -> Option<&'a Value> {
        settings.get(self.name).filter(|value| self.kind.allows(value))
    }
}

impl SettingKind {
    fn allows(self, value: &Value) -> bool {
        match self {
            Self::Integer { min, max, is_nullable } => match integer(value) {
                Some(number) => (min..=max).contains(&number),
                None => is_nullable && value.is_null(),
            },
            Self::Boolean => value.is_boolean(),
            Self::OneOf(values) => value.as_str().is_some_and(|text| values.contains(&text)),
            Self::Text(max_bytes) => value.as_str().is_some_and(|text| text.len() <= max_bytes),
            Self::Texts { most, max_bytes } => {
                let texts: Option<Vec<&str>> =
                    value.as_array().and_then(|texts| texts.iter().map(Value::as_str).collect());
                texts.is_some_and(|texts| {
                    let is_valid = |text: &&str| {
                        (1..=max_bytes).contains(&text.len()) && !text.chars().any(char::is_control)
                    };
                    let different: BTreeSet<&str> = texts.iter().copied().collect();
                    texts.len() <= most && different.len() == texts.len() && texts.iter().all(is_valid)
                })
            }
        }
    }

    fn description(self) -> String {
        match self {
            Self::Integer { min, max, is_nullable } => {
                let null = if is_nullable { "null or " } else { "" };
                format!("{null}a whole number from {min} to {max}")
            }
            Self::Boolean => "true or false".to_owned(),
            Self::OneOf(values) => format!("one of {}", values.join(", ")),
            Self::Text(max_bytes) => format!("a text of at most {max_bytes} bytes"),
            Self::Texts { most, max_bytes } => format!(
                "an array of at most {most} different texts of 1 to {max_bytes} bytes without control characters"
            ),
        }
    }
}

/// JSON does not distinguish 60000 from 60000.0.
fn integer(value: &Value) -> Option<u64> {
    let from_float = || value.as_f64().filter(|float| float.fract() == 0.0 && (0.0..1e15).contains(float));
    value.as_u64().or_else(|| from_float().map(|float| float as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn allowed_values_are_read_and_others_count_as_absent() {
        let deadline = AgentSetting::DEADLINE_MS;
        for (value, expected) in [
            (json!(100), Some(100)),
            (json!(60_000.0), Some(60_000)),
            (json!(86_400_000), Some(86_400_000)),
            (json!(99), None),
            (json!(86_400_001), None),
            (json!(-1), None),
            (json!(100.5), None),
            (json!(1e300), None),
            (json!("60000"), None),
            (json!(null), None),
            (json!([]), None),
        ] {
            let settings = settings(json!({ "deadline_ms": value }));
            assert_eq!(deadline.number(&settings), expected, "{value}");
            assert_eq!(deadline.check(&settings).is_ok(), expected.is_some(), "{value}");
        }
        assert_eq!(deadline.check(&Map::new()), Ok(()));
        assert_eq!(
            deadline.check(&settings(json!({"deadline_ms": 1}))).unwrap_err(),
            "deadline_ms must be a whole number from 100 to 86400000"
        );
        for (value, number, is_ok) in
            [(json!(null), None, true), (json!(3), Some(3), true), (json!(0), None, false)]
        {
            let settings = settings(json!({ "max_attempts": value }));
            assert_eq!(AgentSetting::MAX_ATTEMPTS.number(&settings), number, "{value}");
            assert_eq!(AgentSetting::MAX_ATTEMPTS.check(&settings).is_ok(), is_ok, "{value}");
        }
        let all =
            settings(json!({"memory": true, "work_request": 1, "tokenizer": "words", "system": "Be brief."}));
        assert!(AgentSetting::MEMORY.is_true(&all) && !AgentSetting::WORK_REQUEST.is_true(&all));
        let languages = AgentSetting::MEMORY_LANGUAGE;
        for unknown in ["klingon", "germann", "German", "", "english; drop table facts"] {
            let settings = settings(json!({ "memory_language": unknown }));
            let refusal = languages.check(&settings).unwrap_err();
            assert!(refusal.starts_with("memory_language must be one of simple, arabic, "), "{refusal}");
            assert!(refusal.contains("german") && refusal.contains("japanese"), "{refusal}");
            assert_eq!(languages.string(&settings), None, "{unknown}");
        }
        for known in MEMORY_LANGUAGES {
            assert_eq!(languages.string(&settings(json!({ "memory_language": known }))), Some(known));
        }
        assert_eq!(AgentSetting::TOKENIZER.string(&all), None);
        for (value, is_ok) in [
            (json!(["gpt-4.1", "openai/gpt-4o"]), true),
            (json!([]), true),
            (json!("gpt-4.1"), false),
            (json!(["a", "a"]), false),
            (json!(["a", 1]), false),
            (json!([""]), false),
            (json!(["a\nb"]), false),
            (json!(["é".repeat(129)]), false),
            (json!(vec!["x"; 17]), false),
        ] {
            let settings = settings(json!({ "aliases": value }));
            assert_eq!(AgentSetting::ALIASES.check(&settings).is_ok(), is_ok, "{value}");
            assert_eq!(AgentSetting::ALIASES.strings(&settings).is_empty(), !is_ok || value == json!([]));
        }
        assert_eq!(AgentSetting::SYSTEM.string(&all), Some("Be brief."));
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<&str> =
            AgentSetting::ALL.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), AgentSetting::ALL.len());
    }
}
