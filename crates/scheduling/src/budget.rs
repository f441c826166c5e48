//! Budgets: how much the calls of models may use in a day or a month of a time zone.
//!
//! Amounts are whole numbers of the smallest part of their unit, so that comparing them is exact: a token, or a billionth of the currency.

use std::fmt::Write as _;

use jiff::civil::{Date, Time};
use model::Timestamp;

use crate::zone::Zone;

/// In what a budget is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetUnit {
    /// Tokens that models read and write.
    Tokens,
    /// What they cost, in the currency of the prices.
    Cost,
}

/// After what a budget begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetPeriod {
    /// A day, from midnight to midnight.
    Day,
    /// A month of the calendar.
    Month,
}

impl BudgetUnit {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tokens, Self::Cost];

    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Cost => "cost",
        }
    }

    /// The unit of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// Digits of the smallest part after the point.
    fn decimals(self) -> usize {
        match self {
            Self::Tokens => 0,
            Self::Cost => 9,
        }
    }

    /// A decimal number as an amount; what is smaller than the smallest part is cut off, and what is too large is the largest amount. A sum that is cut
    /// off has reached a limit exactly when it did before, for limits have no smaller parts. `None`: it is no such number.
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

    /// A decimal number as an amount, exactly. `None`: it is none, has smaller parts than there are, or is too large.
    pub fn exact(self, text: &str) -> Option<u64> {
        let part = text.split_once('.').map_or("", |(_, part)| part);
        let is_whole = part.get(self.decimals()..).is_none_or(|rest| rest.bytes().all(|byte| byte == b'0'));
        self.floor(text).filter(|amount| is_whole && *amount < u64::MAX)
    }

    /// The amount as a decimal number.
    pub fn show(self, amount: u64) -> String {
        let decimals = self.decimals();
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = write!(text, "{amount:0>width$}", width = decimals + 1);
        text.insert(text.len() - decimals, '.');
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
        text
    }
}

impl BudgetPeriod {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Day, Self::Month];

    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The period of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.name() == name)
    }

    /// When the period of this moment began, and when the next one begins.
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

/// Whether a turn may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// So much is left.
    Within(u64),
    /// Nothing is left.
    Spent,
}

/// What a budget says of a turn that would begin. A turn that begins with anything left goes on to its end, whatever it uses.
pub fn decide_budget(limit: u64, spent: u64) -> BudgetVerdict {
    match limit.saturating_sub(spent) {
        0 => BudgetVerdict::Spent,
        left => BudgetVerdict::Within(left),
    }
}

#[cfg(test)]
mod tests;
