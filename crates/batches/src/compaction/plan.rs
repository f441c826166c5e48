//! Selects the batches to compact.

use model::{Position, Timestamp};

use super::{Compaction, CompactionRules, Strategy};
use crate::BatchHeader;

/// What there is, and what it weighs.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Batches of the thread since the last compaction, and those that it kept, in any order. Others do no harm.
    pub batches: &'a [BatchHeader],
    /// Never compacted.
    pub active: Option<Position>,
    /// The compaction that counts.
    pub live: Option<&'a Compaction>,
    /// Tokens that a context may have.
    pub budget: u64,
    /// Tokens of the agent's instructions.
    pub system_tokens: u64,
    /// Tokens of the summary that counts.
    pub summary_tokens: u64,
    /// Without progress for so long an incomplete batch is abandoned.
    pub timeout_ms: i64,
    /// Now.
    pub now: Timestamp,
}

/// What a compaction does. With an id and, where it is asked for, a summary, it becomes a [`Compaction`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How it was chosen.
    pub strategy: Strategy,
    /// Batches up to this one are out of contexts.
    pub through: Position,
    /// But not these.
    pub kept: Vec<Position>,
    /// Those that leave now.
    pub replaces: Vec<Position>,
    /// Messages in them.
    pub messages: u64,
    /// What stands for them.
    pub summary: Summary,
    /// The compaction that counted before.
    pub previous: Option<Position>,
    /// Tokens of the context before.
    pub tokens_before: u64,
    /// Tokens of the context after, with a summary as large as it may be.
    pub tokens_after: u64,
}

/// What stands for the batches that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Summary {
    /// Nothing does, and nothing did before.
    None,
    /// The summary of this compaction goes on standing for what it stood for.
    Carried(Position),
    /// One that is to be written, of the batches that leave and, where there is one, of the summary before.
    Wanted {
        /// The compaction whose summary is part of what is summarised.
        before: Option<Position>,
    },
}

/// What to compact now; `None` while there is no need, or nothing that may leave.
///
/// Only whole complete batches leave, never the active one and never a pinned one. An incomplete batch that may still become
/// complete stays where it is, so that it is seen when it does.
pub fn plan(input: &PlanInput<'_>, rules: &CompactionRules) -> Option<Plan> {
    let shown = shown(input);
    let before =
        input.system_tokens + input.summary_tokens + shown.iter().map(|batch| batch.tokens).sum::<u64>();
    let part = |percent: u8| input.budget.saturating_mul(u64::from(percent)) / 100;
    let is_high = before > part(rules.high_percent);
    let mut removable: Vec<&BatchHeader> =
        shown.iter().copied().filter(|batch| may_leave(batch, input.active)).collect();
    removable.truncate(removable.len().saturating_sub(rules.keep_newest as usize));
    let room_for_summary =
        if rules.strategy == Strategy::Summarise { rules.summary_tokens } else { input.summary_tokens };
    let fixed = before - input.summary_tokens + room_for_summary;
    let leaving = match rules.strategy {
        Strategy::Age => {
            by_age(&removable, input, rules, is_high.then(|| fixed.saturating_sub(part(rules.low_percent))))
        }
        _ if !is_high => Vec::new(),
        strategy => {
            if strategy == Strategy::Importance {
                removable.sort_by(|a, b| a.importance.total_cmp(&b.importance).then(a.id.cmp(&b.id)));
            }
            first_until(&removable, fixed.saturating_sub(part(rules.low_percent)))
        }
    };
    let gone: u64 = leaving.iter().map(|batch| batch.tokens).sum();
    (!leaving.is_empty()).then(|| made(input, rules, &leaving, before, fixed - gone))
}

/// Batches that a context shows now, oldest first: the complete ones and the active one.
fn shown<'a>(input: &PlanInput<'a>) -> Vec<&'a BatchHeader> {
    let is_shown = |batch: &&BatchHeader| {
        let is_hidden = input.live.is_some_and(|live| live.hides(batch.id, batch.last));
        input.active == Some(batch.id) || (batch.is_complete && !is_hidden)
    };
    let mut shown: Vec<&BatchHeader> = input.batches.iter().filter(is_shown).collect();
    shown.sort_by_key(|batch| batch.id);
    shown.dedup_by_key(|batch| batch.id);
    shown
}

fn may_leave(batch: &BatchHeader, active: Option<Position>) -> bool {
    !batch.is_pinned && active != Some(batch.id)
}

/// The first of them, until this many tokens have left.
fn first_until<'a>(batches: &[&'a BatchHeader], tokens: u64) -> Vec<&'a BatchHeader> {
    let mut gone = 0;
    let mut leaving = Vec::new();
    for batch in batches {
        if gone >= tokens {
            break;
        }
        gone += batch.tokens;
        leaving.push(*batch);
    }
    leaving
}

/// Once one is above the age all leave that are above the low mark's part of it, so that the beginning of the context stays as it is
/// for a while; and the oldest of the others, when the budget asks for it.
fn by_age<'a>(
    batches: &[&'a BatchHeader],
    input: &PlanInput<'_>,
    rules: &CompactionRules,
    over: Option<u64>,
) -> Vec<&'a BatchHeader> {
    let Some(max_age_ms) = rules.max_age_ms else { return first_until(batches, over.unwrap_or_default()) };
    let age = |batch: &BatchHeader| input.now.since_ms(batch.last_at);
    let part = max_age_ms / i64::from(rules.high_percent.max(1)) * i64::from(rules.low_percent);
    let is_due = batches.iter().any(|batch| age(batch) > max_age_ms);
    let old: Vec<&BatchHeader> =
        batches.iter().copied().filter(|batch| is_due && age(batch) > part).collect();
    let gone: u64 = old.iter().map(|batch| batch.tokens).sum();
    let rest: Vec<&BatchHeader> =
        batches.iter().copied().filter(|batch| !old.iter().any(|gone| gone.id == batch.id)).collect();
    let more = over.map_or(0, |over| over.saturating_sub(gone));
    let mut leaving = old;
    leaving.extend(first_until(&rest, more));
    leaving
}

fn made(
    input: &PlanInput<'_>,
    rules: &CompactionRules,
    leaving: &[&BatchHeader],
    before: u64,
    after: u64,
) -> Plan {
    let mut replaces: Vec<Position> = leaving.iter().map(|batch| batch.id).collect();
    replaces.sort();
    let newest = replaces.last().copied().unwrap_or(Position::from_stored(0));
    let through = input.live.map_or(newest, |live| live.through.max(newest));
    let was_hidden = |batch: &BatchHeader| input.live.is_some_and(|live| live.hides(batch.id, batch.last));
    let may_be_seen = |batch: &&BatchHeader| {
        let is_abandoned = !batch.is_complete && input.now.since_ms(batch.last_at) >= input.timeout_ms;
        batch.id <= through
            && replaces.binary_search(&batch.id).is_err()
            && (input.active == Some(batch.id) || !(was_hidden(batch) || is_abandoned))
    };
    let mut kept: Vec<Position> = input.batches.iter().filter(may_be_seen).map(|batch| batch.id).collect();
    kept.sort();
    kept.dedup();
    let with_summary = input.live.filter(|live| live.summary.is_some()).map(|live| live.id);
    Plan {
        strategy: rules.strategy,
        through,
        kept,
        messages: leaving.iter().map(|batch| batch.messages).sum(),
        replaces,
        summary: match (rules.strategy, with_summary) {
            (Strategy::Summarise, before) => Summary::Wanted { before },
            (_, Some(before)) => Summary::Carried(before),
            (_, None) => Summary::None,
        },
        previous: input.live.map(|live| live.id),
        tokens_before: before,
        tokens_after: after,
    }
}

impl Plan {
    /// The same without the batches that are to stay after all; all of them are newer than those that still leave.
    #[must_use]
    pub fn without(self, staying: &[BatchHeader], live: Option<&Compaction>) -> Self {
        let stays = |id: &Position| staying.iter().any(|batch| batch.id == *id);
        let (kept, replaces): (Vec<_>, Vec<_>) = self.replaces.into_iter().partition(stays);
        let through = replaces.last().copied().max(live.map(|live| live.through)).unwrap_or(self.through);
        let mut kept: Vec<_> = self.kept.into_iter().chain(kept).filter(|id| *id <= through).collect();
        kept.sort();
        let sum = |of: fn(&BatchHeader) -> u64| staying.iter().map(of).sum::<u64>();
        Self {
            through,
            kept,
            replaces,
            messages: self.messages - sum(|batch| batch.messages),
            tokens_after: self.tokens_after + sum(|batch| batch.tokens),
            ..self
        }
    }

    /// The compaction, with the id that was taken when it was planned; `summary` is what was written or is carried.
    pub fn into_compaction(self, id: Position, summary: Option<String>) -> Compaction {
        Compaction {
            id,
            through: self.through,
            kept: self.kept,
            summary,
            strategy: self.strategy,
            provenance: super::Provenance {
                batches: self.replaces,
                messages: self.messages,
                tokens_before: self.tokens_before,
                tokens_after: self.tokens_after,
            },
            previous: self.previous,
            counts_from: id,
            undone_at: None,
        }
    }
}
