//! Settings of agents: those that the fleet uses are checked, the rest belongs to the workflow.

use std::borrow::Cow;

use batches::context;
use batches::retention;
use http_server::error::{ErrorCode, Problem};
use model::{AgentSetting, Metadata, SettingKind, TurnBudget};
use scheduling::follow_up::FollowUpRules;
use serde_json::{Map, Value};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Schema of an agent's settings, for the OpenAPI document.
#[derive(Debug)]
pub(crate) enum AgentSettings {}

impl PartialSchema for AgentSettings {
    fn schema() -> RefOr<Schema> {
        let described = "Settings of an agent. Further ones are kept for its workflow.";
        let known = ObjectBuilder::new().schema_type(Type::Object).description(Some(described));
        let known = AgentSetting::ALL
            .iter()
            .fold(known, |known, setting| known.property(setting.name, schema(setting.kind)));
        let rules = || ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::Object, Type::Null]));
        let compaction = "How contexts are compacted; null: not at all.";
        let retention = "What is deleted of the agent's threads; null: nothing.";
        let follow_ups = "When the agent speaks first; null: never.";
        let turn_budget = "Most `tokens`, `calls` of models and `cost` of one turn; null: no bound.";
        let known = known.property(TurnBudget::KEY, rules().description(Some(turn_budget)));
        let known = known.property("compaction", rules().description(Some(compaction)));
        let known = known.property(FollowUpRules::KEY, rules().description(Some(follow_ups)));
        known.property("retention", rules().description(Some(retention))).into()
    }
}

impl ToSchema for AgentSettings {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("AgentSettings")
    }
}

fn schema(kind: SettingKind) -> Schema {
    let new = ObjectBuilder::new();
    let single = match kind {
        SettingKind::Integer { min, max, is_nullable } => {
            let kind = match is_nullable {
                true => SchemaType::from_iter([Type::Integer, Type::Null]),
                false => Type::Integer.into(),
            };
            new.schema_type(kind).minimum(Some(min)).maximum(Some(max))
        }
        SettingKind::Boolean => new.schema_type(Type::Boolean),
        SettingKind::OneOf(values) => new.schema_type(Type::String).enum_values(Some(values.iter().copied())),
        SettingKind::Text(max_bytes) => new.schema_type(Type::String).max_length(Some(max_bytes)),
        SettingKind::Texts { most, max_bytes } => {
            let text = new.schema_type(Type::String).min_length(Some(1)).max_length(Some(max_bytes));
            return ArrayBuilder::new().items(text).max_items(Some(most)).into();
        }
    };
    single.into()
}
/// Checks the settings of an agent.
pub(crate) fn checked(settings: Option<Map<String, Value>>) -> Result<Map<String, Value>, Problem> {
    let settings = settings.unwrap_or_default();
    if let Some(error) = AgentSetting::errors(&settings).next() {
        return Err(invalid(format!("settings.{error}")));
    }
    if let Some(base) = AgentSetting::BACKOFF_BASE_MS.number(&settings)
        && let Some(cap) = AgentSetting::BACKOFF_CAP_MS.number(&settings)
        && base > cap
    {
        return Err(invalid("settings.backoff_base_ms is above settings.backoff_cap_ms".to_owned()));
    }
    let said = |name: &str| settings.get(name).filter(|rules| !rules.is_null());
    // Checked separately, because serde also accepts an array with a value for each field.
    if let Some(name) = ["compaction", "retention"]
        .into_iter()
        .find(|name| said(name).is_some_and(|rules| !rules.is_object()))
    {
        return Err(invalid(format!("settings.{name} must be null or an object")));
    }
    if let Some(rules) = said("compaction") {
        context::compaction(rules).map_err(|error| invalid(format!("settings.{error}")))?;
    }
    if let Some(rules) = said("retention") {
        retention::rules(rules).map_err(|error| invalid(format!("settings.{error}")))?;
    }
    if let Some(rules) = said(FollowUpRules::KEY) {
        FollowUpRules::parse(rules).map_err(|error| invalid(format!("settings.{error}")))?;
    }
    if let Some(budget) = said(TurnBudget::KEY) {
        TurnBudget::parse(budget).map_err(|error| invalid(format!("settings.{error}")))?;
    }
    // Settings are stored as jsonb, which refuses the same values that metadata must not contain.
    Metadata::new(settings.clone())
        .map_err(|error| invalid(error.to_string().replace("metadata", "settings")))?;
    Ok(settings)
}

fn invalid(detail: String) -> Problem {
    Problem::new(ErrorCode::InvalidSettings, detail)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(settings: Value) -> Result<(), String> {
        let Value::Object(map) = settings else { panic!("{settings}") };
        let text = |problem: Problem| format!("{} {}", problem.code().name(), problem.detail());
        checked(Some(map)).map(drop).map_err(text)
    }

    #[test]
    fn known_settings_are_checked_and_others_pass() {
        let good = json!({
            "deadline_ms": 60_000, "backoff_base_ms": 1, "backoff_cap_ms": 1, "max_attempts": null,
            "context_tokens": 50, "compaction": {"strategy": "age", "max_age_ms": 5},
            "retention": {"max_age_ms": 5, "max_batches": 0, "max_bytes": null}, "work_request": false, "memory": true, "foreground_during_backoff": "refuse", "client_instructions": "append", "client_history": "ignore",
            "system": "", "model": "m", "temperature": 0.5, "tools": [{"name": "t"}],
            "follow_ups": {"enabled": true, "max_in_a_row": 1, "quiet_hours": {"from": "22:00", "to": "08:00"}, "time_zone": "Europe/Berlin"},
        });
        assert_eq!(check(good), Ok(()));
        assert_eq!(check(json!({})), Ok(()));
        let bad = [
            (json!({"deadline_ms": 99}), "deadline_ms must be a whole number from 100 to 86400000"),
            (json!({"deadline_ms": "60000"}), "deadline_ms"),
            (json!({"deadline_ms": 60_000.5}), "deadline_ms"),
            (json!({"backoff_base_ms": 0}), "backoff_base_ms"),
            (json!({"backoff_cap_ms": -1}), "backoff_cap_ms"),
            (json!({"backoff_base_ms": 2, "backoff_cap_ms": 1}), "above settings.backoff_cap_ms"),
            (json!({"max_attempts": 0}), "null or a whole number"),
            (json!({"context_tokens": 1_000_001}), "context_tokens"),
            (
                json!({"tokenizer": "words"}),
                "settings.tokenizer must be one of estimate, o200k_base, cl100k_base",
            ),
            (json!({"compaction": {"strategy": "age"}}), "needs max_age_ms above 0"),
            (json!({"retention": {"max_batch": 1}}), "unknown field `max_batch`"),
            (json!({"retention": [null, 3]}), "settings.retention must be null or an object"),
            (json!({"compaction": ["age"]}), "settings.compaction must be null or an object"),
            (
                json!({"turn_budget": {"costs": 1}}),
                "settings.turn_budget.costs: expected tokens, calls or cost",
            ),
            (json!({"follow_ups": []}), "settings.follow_ups must be null or an object"),
            (
                json!({"follow_ups": {"max_in_a_row": 4}}),
                "settings.follow_ups.max_in_a_row: must be a whole number from 0 to 3",
            ),
            (
                json!({"follow_ups": {"time_zone": "Mars/Base"}}),
                "settings.follow_ups.time_zone: `Mars/Base` is no time zone",
            ),
            (json!({"follow_ups": {"quiet": 1}}), "settings.follow_ups: unknown field `quiet`"),
            (json!({"work_request": "yes"}), "true or false"),
            (json!({"memory": 1}), "true or false"),
            (json!({"foreground_during_backoff": "wait"}), "one of pass, refuse"),
            (json!({"client_instructions": true}), "one of refuse, append"),
            (json!({"client_history": "keep"}), "one of refuse, ignore, import, temporary"),
            (json!({"system": null}), "a text of at most 65536 bytes"),
            (json!({"model": "x".repeat(257)}), "a text of at most 256 bytes"),
            (json!({"other": "a\0"}), "settings holds a NUL character"),
        ];
        for (settings, why) in bad {
            let problem = check(settings.clone()).unwrap_err();
            assert!(problem.contains(why) && problem.contains("invalid_settings"), "{settings}: {problem}");
        }
    }
}
