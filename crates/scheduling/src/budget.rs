//! Budgets limit the use of model calls in a day or a month of a time zone.
//!
//! Amounts are whole numbers of the smallest part of their unit, so that comparisons are exact: a
//! token, or a billionth of the currency.

use std::fmt::Write as _;

use jiff::civil::{Date, Time};
use model::Timestamp;

use crate::zone::Zone;

/// Unit of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetUnit {
    /// Input and output tokens of model calls.
    Tokens,
    /// Cost of model calls, in the currency of the prices.
    Cost,
}

/// Period after which a budget starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetPeriod {
    /// A day, from midnight to midnight.
    Day,
    /// A calendar month.
    Month,
}

impl BudgetUnit {
    pub const ALL: [Self; 2] = [Self::Tokens, Self::Cost];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Cost => "cost",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// Number of decimal digits of the smallest part.
    fn decimals(self) -> usize {
        match self {
            Self::Tokens => 0,
            Self::Cost => 9,
        }
    }

    /// Parses a decimal number as an amount. Smaller parts are cut off, and a value that is too
    /// large becomes the largest amount. Limits have no smaller parts, so a sum that is cut off
    /// reaches a limit exactly when the exact sum does. `None`: `text` is not a decimal number.
    pub fn floor(self, text: &str) -> Option<u64> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) {
            return None;
        }
        let decimals = self.decimals();
        let mut digits = whole.to_owned();
        digits.extend(part.chars().chain(std::iter::repeat('0')).take(decimals));
        Some(digits.parse().unwrap_or(u64::MAX))
    }

    /// Parses a decimal number as an exact amount. `None`: not a number, smaller parts than the
    /// unit has, or too large.
    pub fn exact(self, text: &str) -> Option<u64> {
        let part = text.split_once('.').map_or("", |(_, part)| part);
        let is_whole = part.get(self.decimals()..).is_none_or(|rest| rest.bytes().all(|byte| byte == b'0'));
        self.floor(text).filter(|amount| is_whole && *amount < u64::MAX)
    }

    /// The amount as a decimal number.
    pub fn show(self, amount: u64) -> String {
        let decimals = self.decimals();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{amount:0>width$}", width = decimals + 1);
        text.insert(text.len() - decimals, '.');
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
        text
    }
}

impl BudgetPeriod {
    pub const ALL: [Self; 2] = [Self::Day, Self::Month];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.name() == name)
    }

    /// Start of the period that contains this time, and start of the next one.
    pub fn around(self, zone: &Zone, at: Timestamp) -> (Timestamp, Timestamp) {
        let today: Date = zone.wall_clock(at).date();
        let (first, last) = match self {
            Self::Day => (today, today),
            Self::Month => (today.first_of_month(), today.last_of_month()),
        };
        let begin = |date: Date| zone.first_instant(date.to_datetime(Time::midnight()));
        // The calendar ends with the year 9999.
        (begin(first), last.tomorrow().map_or(Timestamp(i64::MAX), begin))
    }
}

/// Whether a turn may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// Amount that is left.
    Within(u64),
    /// Nothing is left.
    Spent,
}

/// Decides whether a budget allows a turn to start. A turn that starts with anything left continues
/// to its end, however much it uses.
pub fn decide_budget(limit: u64, spent: u64) -> BudgetVerdict {
    match limit.saturating_sub(spent) {
        0 => BudgetVerdict::Spent,
        left => BudgetVerdict::Within(left),
    }
}

#[cfg(test)]
mod tests;
