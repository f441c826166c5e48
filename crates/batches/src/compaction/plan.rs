//! Selects the batches to compact.

use model::{Position, Timestamp};

use super::{Compaction, CompactionRules, Strategy};
use crate::BatchHeader;

/// The batches and sizes that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Batches of the thread since the last compaction, and batches that it kept, in any order.
    /// Others are ignored.
    pub batches: &'a [BatchHeader],
    /// The active batch, which is never compacted.
    pub active: Option<Position>,
    /// The compaction that applies.
    pub live: Option<&'a Compaction>,
    /// Maximum tokens of a context.
    pub budget: u64,
    /// Tokens of the agent's instructions.
    pub system_tokens: u64,
    /// Tokens of the current summary.
    pub summary_tokens: u64,
    /// Time without progress after which an incomplete batch is abandoned, in ms.
    pub timeout_ms: i64,
    pub now: Timestamp,
}

/// The plan of a compaction. With an id and, if wanted, a summary it becomes a [`Compaction`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The strategy that selected the batches.
    pub strategy: Strategy,
    /// Contexts omit batches up to this one, except `kept`.
    pub through: Position,
    /// Older batches that contexts still show.
    pub kept: Vec<Position>,
    /// The batches that this plan removes.
    pub replaces: Vec<Position>,
    /// Number of messages in these batches.
    pub messages: u64,
    /// The replacement of these batches.
    pub summary: Summary,
    /// The compaction that applied before this one.
    pub previous: Option<Position>,
    /// Tokens of the context before the compaction.
    pub tokens_before: u64,
    /// Tokens of the context after the compaction, with the largest allowed summary.
    pub tokens_after: u64,
}

/// The replacement of the removed batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Summary {
    /// There is no replacement, and there was no summary before.
    None,
    /// The summary of this compaction stays in use.
    Carried(Position),
    /// A summary must be written. It covers the removed batches and the previous summary, if any.
    Wanted {
        /// The compaction whose summary is part of the input.
        before: Option<Position>,
    },
}

/// Plans a compaction. Returns `None` if none is needed, or no batch can be removed.
///
/// Only whole complete batches are removed, never the active one or a pinned one. An incomplete
/// batch that may still become complete is kept, so that contexts show it when it does.
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

/// The batches that a context shows now, oldest first: the complete ones and the active one.
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

/// The first batches, until this many tokens are removed.
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

/// Once a batch exceeds the maximum age, removes all batches older than the low mark's share of
/// that age. So the start of contexts then stays unchanged for a while. If the budget requires it,
/// also removes the oldest of the other batches.
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
    /// The same plan without batches that must be kept after all. These must be newer than all
    /// batches that the plan still removes.
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

    /// The compaction with the id assigned when it was planned. `summary` is newly written or
    /// carried over.
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
