//! Follow-up rules in an agent's settings.

use std::collections::BTreeMap;

use model::{Timestamp, TriggerType};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::quiet_hours::QuietHours;
use crate::zone::Zone;

/// When an agent may send follow-ups. [`FollowUpRules::OFF`] unless its settings enable them.
#[derive(Debug, Clone, PartialEq)]
pub struct FollowUpRules {
    /// Whether follow-ups are sent at all.
    pub enabled: bool,
    /// Maximum number of follow-ups in a row without a person's message.
    pub max_in_a_row: u32,
    /// Minimum time between two follow-ups.
    pub cooldown_ms: i64,
    /// Minimum and maximum time from an answer to a follow-up, in seconds.
    pub delay_seconds: (u64, u64),
    /// Time after which a due follow-up is no longer sent.
    pub max_lateness_ms: i64,
    /// Maximum number of follow-ups in a thread within a day of the user.
    pub max_per_day: u32,
    /// Hours in which none are sent.
    pub quiet_hours: Option<QuietHours>,
    /// Time zone of a user whose messages name none.
    pub time_zone: Zone,
    /// Follow-up after an answer without a hint.
    pub default: Option<DefaultFollowUp>,
    /// Language of a user whose messages name none: `en`, `pt-br`.
    pub language: Option<Box<str>>,
    prompts: BTreeMap<TriggerType, BTreeMap<String, String>>,
}

/// The rules that decide whether a turn sets the timer of a follow-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArmingRules {
    /// See [`FollowUpRules::delay_seconds`].
    pub delay_seconds: (u64, u64),
    /// See [`FollowUpRules::default`].
    pub default: Option<DefaultFollowUp>,
}

/// Follow-up after an answer without a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultFollowUp {
    pub trigger: TriggerType,
    /// Delay after the answer's commit.
    pub after_seconds: u64,
}

/// Invalid follow-up settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("follow_ups{0}")]
pub struct InvalidFollowUpRules(Box<str>);

/// The settings as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRules {
    #[serde(default)]
    enabled: bool,
    max_in_a_row: Option<u64>,
    cooldown_seconds: Option<u64>,
    min_delay_seconds: Option<u64>,
    max_delay_seconds: Option<u64>,
    max_lateness_seconds: Option<u64>,
    max_per_day: Option<u64>,
    quiet_hours: Option<WrittenHours>,
    time_zone: Option<String>,
    default: Option<WrittenDefault>,
    language: Option<String>,
    #[serde(default)]
    prompts: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHours {
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDefault {
    trigger_type: String,
    after_seconds: u64,
}

impl FollowUpRules {
    /// Key in the settings of an agent.
    pub const KEY: &'static str = "follow_ups";
    /// Maximum follow-ups in a row without a person's message. Settings may only lower it.
    pub const MOST_IN_A_ROW: u64 = 3;
    /// Minimum and maximum of `cooldown_seconds`. Settings may only raise the minimum.
    pub const COOLDOWN_SECONDS: (u64, u64) = (15, 86_400);
    /// Minimum and maximum time from an answer to a follow-up. Settings may only narrow it.
    pub const DELAY_SECONDS: (u64, u64) = (30, 3_600);
    /// Minimum and maximum of `max_lateness_seconds`.
    pub const LATENESS_SECONDS: (u64, u64) = (60, 86_400);
    /// Maximum follow-ups of a thread within a day.
    pub const MOST_PER_DAY: u64 = 100;
    /// Maximum bytes of a prompt.
    pub const MAX_PROMPT: usize = 4_096;
    /// Maximum languages of a prompt.
    pub const MAX_LANGUAGES: usize = 64;
    pub const OFF: Self = Self {
        enabled: false,
        max_in_a_row: 3,
        cooldown_ms: 15_000,
        delay_seconds: Self::DELAY_SECONDS,
        max_lateness_ms: 3_600_000,
        max_per_day: 10,
        quiet_hours: None,
        time_zone: Zone::UTC,
        default: None,
        language: None,
        prompts: BTreeMap::new(),
    };

    /// Rules of an agent with these settings; [`FollowUpRules::OFF`] if they do not enable
    /// follow-ups.
    ///
    /// # Errors
    /// The settings are invalid: such settings were not written over HTTP.
    pub fn of(settings: &Map<String, Value>) -> Result<Self, InvalidFollowUpRules> {
        match settings.get(Self::KEY) {
            Some(written) if written.get("enabled") == Some(&Value::Bool(true)) => Self::parse(written),
            _ => Ok(Self::OFF),
        }
    }

    /// Reads `follow_ups` of an agent's settings.
    ///
    /// # Errors
    /// An unknown field or an invalid value; the error names the field.
    pub fn parse(written: &Value) -> Result<Self, InvalidFollowUpRules> {
        if written.is_null() {
            return Ok(Self::OFF);
        }
        if !written.is_object() {
            return Err(InvalidFollowUpRules(" must be null or an object".into()));
        }
        let written = WrittenRules::deserialize(written)
            .map_err(|error| InvalidFollowUpRules(format!(": {error}").into()))?;
        let delay_seconds = delay_bounds(&written)?;
        let zone = written.time_zone.as_deref().map(Zone::named).transpose();
        Ok(Self {
            enabled: written.enabled,
            max_in_a_row: within("max_in_a_row", written.max_in_a_row, 3, (0, Self::MOST_IN_A_ROW))? as u32,
            cooldown_ms: within("cooldown_seconds", written.cooldown_seconds, 15, Self::COOLDOWN_SECONDS)?
                as i64
                * 1_000,
            delay_seconds,
            max_lateness_ms: within(
                "max_lateness_seconds",
                written.max_lateness_seconds,
                3_600,
                Self::LATENESS_SECONDS,
            )? as i64
                * 1_000,
            max_per_day: within("max_per_day", written.max_per_day, 10, (0, Self::MOST_PER_DAY))? as u32,
            quiet_hours: written.quiet_hours.map(quiet_hours).transpose()?,
            time_zone: zone.map_err(|error| wrong("time_zone", &error.to_string()))?.unwrap_or(Zone::UTC),
            default: written.default.map(|default| default_of(&default, delay_seconds)).transpose()?,
            language: written.language.map(|language| tag("language", &language)).transpose()?,
            prompts: prompts(written.prompts)?,
        })
    }

    /// The rules for arming; `None` if follow-ups are not enabled.
    pub fn arming(&self) -> Option<ArmingRules> {
        let Self { delay_seconds, default, .. } = *self;
        self.enabled.then_some(ArmingRules { delay_seconds, default })
    }

    /// Zone of a user whose last message names one (`time_zone` in its metadata); the agent's zone
    /// if that is missing or unknown.
    pub fn zone(&self, named: Option<&str>) -> Zone {
        named.and_then(|name| Zone::named(name).ok()).unwrap_or_else(|| self.time_zone.clone())
    }

    /// Start of the day for which `max_per_day` counts.
    pub fn day_start(&self, named_zone: Option<&str>, now: Timestamp) -> Timestamp {
        self.zone(named_zone).day_start(now)
    }

    /// Input of a follow-up, for a user whose last message names a language (`language` in its
    /// metadata). It is the first of these prompts that exists: the agent's in that language, in
    /// that language without its region, in the agent's own language, and the built-in one.
    pub fn prompt(&self, trigger: TriggerType, language: Option<&str>) -> &str {
        let said = self.prompts.get(&trigger);
        let in_language = |tag: &str| {
            let tag = tag.to_ascii_lowercase();
            let primary = tag.split('-').next().unwrap_or_default();
            said.and_then(|said| said.get(&tag).or_else(|| said.get(primary)))
        };
        let own = || self.language.as_deref().and_then(in_language);
        language.and_then(in_language).or_else(own).map_or_else(|| trigger.prompt(), String::as_str)
    }
}

fn wrong(name: &str, why: &str) -> InvalidFollowUpRules {
    InvalidFollowUpRules(format!(".{name}: {why}").into())
}

fn within(
    name: &str,
    value: Option<u64>,
    absent: u64,
    (low, high): (u64, u64),
) -> Result<u64, InvalidFollowUpRules> {
    let value = value.unwrap_or(absent);
    match (low..=high).contains(&value) {
        true => Ok(value),
        false => Err(wrong(name, &format!("must be a whole number from {low} to {high}"))),
    }
}

fn delay_bounds(written: &WrittenRules) -> Result<(u64, u64), InvalidFollowUpRules> {
    let (low, high) = FollowUpRules::DELAY_SECONDS;
    let least = within("min_delay_seconds", written.min_delay_seconds, low, (low, high))?;
    let most = within("max_delay_seconds", written.max_delay_seconds, high, (low, high))?;
    match least <= most {
        true => Ok((least, most)),
        false => Err(wrong("min_delay_seconds", "is above max_delay_seconds")),
    }
}

fn quiet_hours(written: WrittenHours) -> Result<QuietHours, InvalidFollowUpRules> {
    QuietHours::parse(&written.from, &written.to)
        .ok_or_else(|| wrong("quiet_hours", "from and to must be two different times as HH:MM"))
}

fn trigger_of(name: &str, trigger: &str) -> Result<TriggerType, InvalidFollowUpRules> {
    TriggerType::from_name(trigger).ok_or_else(|| {
        let known = TriggerType::ALL.map(TriggerType::name).join(", ");
        let shown: String = trigger.chars().take(64).collect();
        wrong(name, &format!("unknown trigger_type `{shown}`, expected one of {known}"))
    })
}

fn default_of(
    written: &WrittenDefault,
    (low, high): (u64, u64),
) -> Result<DefaultFollowUp, InvalidFollowUpRules> {
    let trigger = trigger_of("default", &written.trigger_type)?;
    let after_seconds = within("default.after_seconds", Some(written.after_seconds), low, (low, high))?;
    Ok(DefaultFollowUp { trigger, after_seconds })
}

/// A BCP 47 language tag in lower case.
fn tag(name: &str, language: &str) -> Result<Box<str>, InvalidFollowUpRules> {
    let is_part =
        |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match language.len() <= 35 && language.split('-').all(is_part) {
        true => Ok(language.to_ascii_lowercase().into()),
        false => Err(wrong(name, "a language is a tag like en or pt-BR")),
    }
}

fn prompts(
    written: BTreeMap<String, BTreeMap<String, String>>,
) -> Result<BTreeMap<TriggerType, BTreeMap<String, String>>, InvalidFollowUpRules> {
    let of_language = |trigger: TriggerType, (language, text): (String, String)| {
        let name = format!("prompts.{}", trigger.name());
        if text.trim().is_empty() || text.len() > FollowUpRules::MAX_PROMPT || text.contains('\0') {
            let most = FollowUpRules::MAX_PROMPT;
            return Err(wrong(&name, &format!("a prompt is a text of 1 to {most} bytes")));
        }
        Ok((tag(&name, &language)?.into(), text))
    };
    let of_trigger = |(trigger, texts): (String, BTreeMap<String, String>)| {
        let trigger = trigger_of("prompts", &trigger)?;
        if texts.len() > FollowUpRules::MAX_LANGUAGES {
            return Err(wrong("prompts", "too many languages"));
        }
        let texts = texts.into_iter().map(|text| of_language(trigger, text)).collect::<Result<_, _>>()?;
        Ok((trigger, texts))
    };
    written.into_iter().map(of_trigger).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(written: Value) -> Result<FollowUpRules, String> {
        FollowUpRules::parse(&written).map_err(|error| error.to_string())
    }

    #[test]
    fn follow_ups_are_off_unless_settings_ask_for_them() {
        let of = |settings: Value| FollowUpRules::of(settings.as_object().unwrap());
        for off in [
            json!({}),
            json!({"follow_ups": null}),
            json!({"follow_ups": {}}),
            json!({"follow_ups": {"enabled": false, "max_per_day": 5}}),
            json!({"follow_ups": {"enabled": 1}}),
            json!({"follow_ups": "yes"}),
        ] {
            assert_eq!(of(off.clone()), Ok(FollowUpRules::OFF), "{off}");
        }
        let on = FollowUpRules { enabled: true, ..FollowUpRules::OFF };
        assert_eq!(of(json!({"follow_ups": {"enabled": true}})), Ok(on));
        assert!(of(json!({"follow_ups": {"enabled": true, "max_in_a_row": 4}})).is_err());
    }

    #[test]
    fn every_rule_is_read() {
        let rules = parse(json!({
            "enabled": true, "max_in_a_row": 2, "cooldown_seconds": 60, "min_delay_seconds": 45,
            "max_delay_seconds": 600, "max_lateness_seconds": 90, "max_per_day": 4, "quiet_hours": {"from": "22:00", "to": "08:00"},
            "time_zone": "Europe/Berlin", "default": {"trigger_type": "check_in", "after_seconds": 600},
            "language": "de",
            "prompts": {"check_in": {"de": "Weiter.", "pt-BR": "Continue."}},
        }))
        .unwrap();
        assert_eq!((rules.max_in_a_row, rules.cooldown_ms, rules.delay_seconds), (2, 60_000, (45, 600)));
        assert_eq!(rules.max_lateness_ms, 90_000);
        assert_eq!((rules.max_per_day, rules.time_zone.name()), (4, "Europe/Berlin"));
        assert_eq!(rules.quiet_hours, QuietHours::parse("22:00", "08:00"));
        let default = DefaultFollowUp { trigger: TriggerType::CheckIn, after_seconds: 600 };
        assert_eq!(rules.default, Some(default));
    }

    #[test]
    fn what_settings_may_not_say_is_refused_by_name() {
        let bad = [
            (json!([]), "follow_ups must be null or an object"),
            (json!({"enabled": "yes"}), "invalid type: string \"yes\", expected a boolean"),
            (json!({"quiet": 1}), "unknown field `quiet`"),
            (json!({"max_in_a_row": 4}), "max_in_a_row: must be a whole number from 0 to 3"),
            (json!({"cooldown_seconds": 14}), "cooldown_seconds: must be a whole number from 15 to 86400"),
            (json!({"min_delay_seconds": 29}), "min_delay_seconds: must be a whole number from 30 to 3600"),
            (json!({"max_delay_seconds": 3_601}), "max_delay_seconds"),
            (json!({"min_delay_seconds": 61, "max_delay_seconds": 60}), "is above max_delay_seconds"),
            (
                json!({"max_lateness_seconds": 59}),
                "max_lateness_seconds: must be a whole number from 60 to 86400",
            ),
            (json!({"max_per_day": 101}), "max_per_day"),
            (json!({"quiet_hours": {"from": "22:00", "to": "22:00"}}), "two different times as HH:MM"),
            (json!({"quiet_hours": {"from": "22:00"}}), "missing field `to`"),
            (json!({"quiet_hours": {"from": "22:00", "to": "1:00"}}), "HH:MM"),
            (json!({"time_zone": "Mars/Base"}), "time_zone: `Mars/Base` is no time zone"),
            (
                json!({"default": {"trigger_type": "summary", "after_seconds": 60}}),
                "unknown trigger_type `summary`",
            ),
            (json!({"default": {"trigger_type": "check_in", "after_seconds": 29}}), "default.after_seconds"),
            (
                json!({"max_delay_seconds": 60, "default": {"trigger_type": "check_in", "after_seconds": 61}}),
                "default.after_seconds: must be a whole number from 30 to 60",
            ),
            (json!({"prompts": {"summary": {}}}), "unknown trigger_type `summary`"),
            (json!({"prompts": {"check_in": {"en": " "}}}), "a text of 1 to 4096 bytes"),
            (json!({"prompts": {"check_in": {"en": "x".repeat(4_097)}}}), "a text of 1 to 4096 bytes"),
            (json!({"prompts": {"check_in": {"deutsch bitte": "x"}}}), "a tag like en or pt-BR"),
            (json!({"language": ""}), "a tag like en or pt-BR"),
        ];
        for (written, why) in bad {
            let error = parse(written.clone()).unwrap_err();
            assert!(error.starts_with("follow_ups") && error.contains(why), "{written}: {error}");
        }
    }

    #[test]
    fn prompts_may_have_their_greatest_length_and_number() {
        let of_length = |length: usize| json!({"prompts": {"check_in": {"en": "x".repeat(length)}}});
        assert!(parse(of_length(FollowUpRules::MAX_PROMPT)).is_ok());
        assert!(parse(of_length(FollowUpRules::MAX_PROMPT + 1)).is_err());
        let of_languages = |count: usize| {
            let texts: Map<String, Value> = (0..count).map(|n| (format!("x{n}"), json!("hello"))).collect();
            json!({"prompts": {"check_in": texts}})
        };
        assert!(parse(of_languages(1)).is_ok() && parse(of_languages(FollowUpRules::MAX_LANGUAGES)).is_ok());
        assert!(parse(of_languages(FollowUpRules::MAX_LANGUAGES + 1)).is_err());
    }

    #[test]
    fn a_day_begins_in_the_zone_that_the_user_names() {
        // 2026-01-15T12:00:00Z; Kiritimati, fourteen hours ahead, has the 16th.
        let noon = Timestamp(1_768_478_400_000);
        assert_eq!(FollowUpRules::OFF.day_start(None, noon), noon.plus_ms(-12 * 3_600_000));
        assert_eq!(
            FollowUpRules::OFF.day_start(Some("Pacific/Kiritimati"), noon),
            noon.plus_ms(-2 * 3_600_000)
        );
    }

    #[test]
    fn a_prompt_is_found_by_language_then_region_then_default() {
        let written = json!({"language": "de", "prompts": {"check_in": {"de": "Weiter.", "pt-BR": "Siga.", "fr": "Suite."}}});
        let rules = parse(written).unwrap();
        let said = |language| rules.prompt(TriggerType::CheckIn, language);
        for (language, text) in [
            (None, "Weiter."),
            (Some("pt-br"), "Siga."),
            (Some("fr-CA"), "Suite."),
            (Some("ja"), "Weiter."),
            (Some(""), "Weiter."),
        ] {
            assert_eq!(said(language), text, "{language:?}");
        }
        assert_eq!(
            rules.prompt(TriggerType::TaskIncomplete, Some("de")),
            TriggerType::TaskIncomplete.prompt()
        );
        assert_eq!(FollowUpRules::OFF.prompt(TriggerType::CheckIn, None), TriggerType::CheckIn.prompt());
    }
}
