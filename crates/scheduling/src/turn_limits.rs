//! Limits set by an operator on concurrent turns and their start rate per workflow, model or
//! tenant, and which of them apply to a turn.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

/// Wildcard for any name; each name is counted separately.
const EACH: &str = "*";
/// Maximum of any limit.
const MOST: u32 = 1_000_000_000;

#[derive(Debug, Error)]
pub enum InvalidTurnLimits {
    /// Not JSON, or with unknown fields.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// An invalid limit; limits are numbered from 1.
    #[error("limit {number}: {why}")]
    Limit { number: usize, why: &'static str },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnLimits {
    by_key: BTreeMap<(LimitScope, String), LimitAmounts>,
}

/// A limit that applies to a turn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TurnLimit {
    /// Turns with the same key count together: `workflow:<name>`, `model:<name>` or
    /// `tenant:<name>`, where `-` is the default tenant.
    pub key: String,
    pub limit: LimitAmounts,
}

/// Amounts of a limit; at least one is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitAmounts {
    /// Maximum number of concurrent turns.
    pub turns_at_once: Option<u32>,
    /// Maximum number of turns started per minute; also the size of a burst.
    pub turns_per_minute: Option<u32>,
    /// Maximum tokens of model calls per minute. The usage of a turn is known only at its end, so
    /// active turns may exceed the limit.
    pub tokens_per_minute: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LimitScope {
    Workflow,
    Model,
    Tenant,
}

impl LimitScope {
    fn name(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Model => "model",
            Self::Tenant => "tenant",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    limits: Vec<LimitEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry {
    workflow: Option<String>,
    model: Option<String>,
    tenant: Option<String>,
    turns_at_once: Option<u32>,
    turns_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
}

impl LimitEntry {
    fn read(self) -> Result<((LimitScope, String), LimitAmounts), &'static str> {
        let key = match (self.workflow, self.model, self.tenant) {
            (Some(name), None, None) => (LimitScope::Workflow, name),
            (None, Some(name), None) => (LimitScope::Model, name),
            (None, None, Some(name)) => (LimitScope::Tenant, name),
            _ => return Err("it is of one workflow, one model or one tenant (\"*\": each of them)"),
        };
        if key.1.is_empty() {
            return Err("its name is empty");
        }
        let limit = LimitAmounts {
            turns_at_once: self.turns_at_once,
            turns_per_minute: self.turns_per_minute,
            tokens_per_minute: self.tokens_per_minute,
        };
        let numbers = [limit.turns_at_once, limit.turns_per_minute, limit.tokens_per_minute];
        if numbers.iter().all(Option::is_none) {
            return Err("it has neither turns_at_once nor turns_per_minute nor tokens_per_minute");
        }
        match numbers.iter().flatten().all(|number| (1..=MOST).contains(number)) {
            true => Ok((key, limit)),
            false => Err("its numbers are from 1 to 1000000000"),
        }
    }
}

impl TurnLimits {
    /// Reads `{"limits": [{"model": "m-1", "turns_at_once": 20, "turns_per_minute": 500,
    /// "tokens_per_minute": 200000}]}`.
    ///
    /// # Errors
    /// The first limit that is invalid or a duplicate.
    pub fn parse(json: &str) -> Result<Self, InvalidTurnLimits> {
        let file: LimitsFile = serde_json::from_str(json)?;
        let mut by_key = BTreeMap::new();
        for (number, entry) in (1..).zip(file.limits) {
            let (key, limit) = entry.read().map_err(|why| InvalidTurnLimits::Limit { number, why })?;
            if by_key.insert(key, limit).is_some() {
                let why = "there is one of the same before it";
                return Err(InvalidTurnLimits::Limit { number, why });
            }
        }
        Ok(Self { by_key })
    }

    /// True if there are no limits.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Limits that apply to a turn, sorted by key: for each name its own limit, or else that of
    /// `*`. `tenant`: `None` is the default tenant.
    pub fn of_turn(&self, workflow: &str, model: Option<&str>, tenant: Option<&str>) -> Vec<TurnLimit> {
        let names = [
            (LimitScope::Workflow, Some(workflow)),
            (LimitScope::Model, model),
            (LimitScope::Tenant, Some(tenant.unwrap_or("-"))),
        ];
        let of = |(scope, name): (LimitScope, Option<&str>)| {
            let name = name?;
            let named = self.by_key.get(&(scope, name.to_owned()));
            let limit = named.or_else(|| self.by_key.get(&(scope, EACH.to_owned())))?;
            Some(TurnLimit { key: format!("{}:{name}", scope.name()), limit: *limit })
        };
        let mut limits: Vec<_> = names.into_iter().filter_map(of).collect();
        limits.sort_unstable();
        limits
    }
}

#[cfg(test)]
mod tests;
