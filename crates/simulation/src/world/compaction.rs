//! Contexts and their compaction, concurrent with everything else. When a turn begins, the
//! production builder builds its context. If a compaction is due, the production planner plans it,
//! and a worker that believes it owns the partition writes it a little later.

use std::collections::BTreeSet;

use batches::compaction::{Compaction, Plan, PlanInput, Summary, plan};
use batches::context::{Builder, ContextRequest, ContextRules, Inclusion, NextRead, Reason};
use batches::{BatchHeader, Context, EstimatingCounter, Item, tokens};
use model::{Position, Role, ThreadId, Timestamp};
use partition::Start;

use super::World;
use crate::bug::PlantedBug;
use crate::checker::{Invariant, Violation};
use crate::log::START;
use crate::world::event::{Address, WorldEvent};
use crate::world::state::compaction::DueCompaction;

/// Messages to read, as a multiple of the context budget; older messages are compacted unread.
const BUDGETS_READ: u64 = 4;

impl World {
    /// Builds the context of a turn that begins, and checks whether its thread needs compaction.
    pub(super) fn build_context(&mut self, address: Address, start: &Start) {
        let Some(rules) = self.compacting.rules.clone() else { return };
        let (thread, active) = (&start.thread, start.cause.continues());
        let (items, live) = (self.store.items(thread), self.store.live_compaction(thread));
        let shown = live.clone().filter(|_| self.bug != Some(PlantedBug::CompactionIgnored));
        let context = built(rules.request(active, shown, self.true_time()), &items, self.compacting.page);
        self.coverage.contexts += 1;
        if let Some((expected, seen)) = wrong(&context, &items, live.as_ref(), active) {
            let subject = format!("the context of run {} of {}", start.run, start.turn);
            self.violate(Violation::new(Invariant::Compacted, subject, expected, seen));
        }
        if self.compacting.rng.chance(0.05) && self.store.undo_compaction(thread) {
            self.coverage.compactions_undone += 1;
        }
        let pending = self.store.compactions(thread).iter().find(|row| row.is_pending);
        if let Some(id) = pending.map(|row| row.compaction.id) {
            let delay = self.compacting.rng.range(0, 300);
            return self.schedule(delay, WorldEvent::Summary(address, thread.clone(), id));
        }
        let planned = self.plan_compaction(&rules, &items, live.as_ref(), active);
        let (Some(plan), Some(newest)) = (planned, items.last()) else { return };
        let id = Position::from_stored(newest.position.get() + 1);
        let is_pending = matches!(plan.summary, Summary::Wanted { .. });
        let summary = match plan.summary {
            Summary::Carried(_) => live.and_then(|live| live.summary),
            Summary::None | Summary::Wanted { .. } => None,
        };
        let compaction = plan.into_compaction(id, summary);
        let planned = DueCompaction { thread: thread.clone(), compaction, is_pending };
        let delay = self.compacting.rng.pick([0, 5, 50, 400, 2_000]);
        self.schedule(delay, WorldEvent::Compact(address, Box::new(planned)));
    }

    fn true_time(&self) -> Timestamp {
        Timestamp(START + self.time)
    }

    fn plan_compaction(
        &self,
        rules: &ContextRules,
        items: &[Item],
        live: Option<&Compaction>,
        active: Option<Position>,
    ) -> Option<Plan> {
        let mut request = rules.request(None, live.cloned(), self.true_time());
        request.budget = request.budget.saturating_mul(BUDGETS_READ);
        let context = built(request, items, self.compacting.page);
        let mut headers: Vec<BatchHeader> =
            context.batches.iter().map(|batch| BatchHeader::of(batch, &EstimatingCounter)).collect();
        for decision in &context.decisions {
            if matches!(decision.inclusion, Inclusion::Out(Reason::Incomplete(_))) {
                let of_batch = items.iter().filter(|item| item.batch_id == decision.batch).cloned();
                let of_header = batches::group(of_batch)
                    .iter()
                    .map(|batch| BatchHeader::of(batch, &EstimatingCounter))
                    .next();
                let Some(mut header) = of_header else { continue };
                header.is_complete |= self.bug == Some(PlantedBug::CompactedOpen);
                headers.push(header);
            }
        }
        let load = PlanInput {
            batches: &headers,
            active,
            live,
            budget: rules.tokens,
            system_tokens: 0,
            summary_tokens: live.and_then(|live| live.summary.as_ref()).map_or(0, |text| text.len() as u64),
            timeout_ms: rules.timeout_ms,
            now: self.true_time(),
        };
        plan(&load, rules.compaction.as_ref()?)
    }

    /// Stores the planned compaction, unless the worker has died in the meantime.
    pub(super) fn compact(&mut self, address: Address, planned: Box<DueCompaction>) {
        let worker = &self.workers[address.worker];
        let rest = worker.paused_until - self.time;
        if worker.is_paused && rest > 0 {
            return self.schedule(rest + 1, WorldEvent::Compact(address, planned));
        }
        if worker.incarnation != address.incarnation {
            return;
        }
        let DueCompaction { thread, compaction, is_pending } = *planned;
        let (id, gone) = (compaction.id, compaction.provenance.batches.clone());
        if !self.store.add_compaction(&thread, compaction, is_pending) {
            self.coverage.compactions_outrun += 1;
            return;
        }
        self.coverage.compactions += 1;
        self.note(94, [id.get() as u64, gone.len() as u64, 0], || {
            format!("{thread}: compaction {id} puts {gone:?} away")
        });
        if let Some((expected, seen)) = self.wrong_compaction(&thread, &gone) {
            let subject = format!("compaction {id} of {thread}");
            self.violate(Violation::new(Invariant::Compacted, subject, expected, seen));
        }
    }

    fn wrong_compaction(&self, thread: &ThreadId, gone: &[Position]) -> Option<(&'static str, String)> {
        if self.store.is_erased(thread) {
            return Some(("nothing: the thread was erased", "a compaction".to_owned()));
        }
        let items = self.store.items(thread);
        let is_open = |id: &&Position| {
            let last = items.iter().rfind(|item| item.batch_id == **id);
            last.is_some_and(|last| !ends_well(last))
        };
        if let Some(open) = gone.iter().find(is_open) {
            return Some(("whole batches put away", format!("batch {open}, which is not")));
        }
        let rows = self.store.compactions(thread).iter().map(|row| &row.compaction);
        let mut counting: Vec<_> = rows.filter(|one| one.undone_at.is_none()).collect();
        counting.sort_by_key(|one| one.id);
        let broken = counting.windows(2).find(|pair| pair[1].previous != Some(pair[0].id));
        broken.map(|pair| ("each made from the one before", format!("{} after {}", pair[1].id, pair[0].id)))
    }

    /// The summary was written, or never will be.
    pub(super) fn summarise(&mut self, address: Address, thread: &ThreadId, id: Position) {
        if self.workers[address.worker].incarnation != address.incarnation {
            return;
        }
        let summary = self.compacting.rng.chance(0.7).then(|| "what was".to_owned());
        self.coverage.compactions_settled += u64::from(self.store.settle_compaction(thread, id, summary));
    }
}

/// True if the last message of a batch is an answer that waits for nothing.
fn ends_well(last: &Item) -> bool {
    let goes_on = last.metadata.get("continuation").is_some_and(|goes_on| goes_on == true);
    last.role == Role::Assistant && !last.has_open_calls() && !goes_on
}

fn built(request: ContextRequest, items: &[Item], page: usize) -> Context {
    let mut builder = Builder::new(request, &EstimatingCounter);
    loop {
        match builder.next_read() {
            NextRead::Nothing => return builder.build(),
            NextRead::Older(before) => {
                let is_older = |item: &&Item| before.is_none_or(|before| item.position < before);
                let older: Vec<Item> = items.iter().rev().filter(is_older).take(page).cloned().collect();
                match older.is_empty() {
                    true => builder.end(),
                    false => builder.page(older),
                }
            }
            NextRead::Batches(ids) => {
                for id in ids {
                    builder.batch(id, items.iter().filter(|item| item.batch_id == id).cloned());
                }
            }
        }
    }
}

/// Names content that a context wrongly contains or lacks, computed again from the stored rows.
fn wrong(
    context: &Context,
    items: &[Item],
    live: Option<&Compaction>,
    active: Option<Position>,
) -> Option<(&'static str, String)> {
    let ids: BTreeSet<Position> = items.iter().map(|item| item.batch_id).collect();
    let of = |id: Position| items.iter().filter(move |item| item.batch_id == id);
    let is_hidden = |id: Position| {
        let last = of(id).map(|item| item.position).max().unwrap_or(id);
        live.is_some_and(|live| id <= live.through && last < live.id && !live.kept.contains(&id))
    };
    let mut shown = BTreeSet::new();
    for batch in &context.batches {
        let id = batch.id();
        if !shown.insert(id) {
            return Some(("each batch once", format!("batch {id} twice")));
        }
        let whole: BTreeSet<Position> = of(id).map(|item| item.position).collect();
        let has: BTreeSet<Position> = batch.items().iter().map(|item| item.position).collect();
        if has != whole || batch.items().len() != whole.len() {
            return Some(("whole batches", format!("{has:?} of {whole:?}")));
        }
        if is_hidden(id) && active != Some(id) {
            return Some(("nothing that was put away", format!("batch {id}")));
        }
    }
    let open: Vec<Position> = ids.into_iter().filter(|id| !is_hidden(*id) || active == Some(*id)).collect();
    let weight: u64 =
        open.iter().flat_map(|id| of(*id)).map(|item| tokens::of_item(item, &EstimatingCounter)).sum();
    let summary = live.and_then(|live| live.summary.as_ref()).map_or(0, |text| 4 + text.len() as u64);
    let is_missing = |id: &&Position| !shown.contains(*id) && of(**id).next_back().is_some_and(ends_well);
    let missing = open.iter().find(is_missing).filter(|_| weight + summary <= context.budget)?;
    let verdict = context.decisions.iter().find(|decision| decision.batch == *missing);
    let verdict = verdict.map(|decision| &decision.inclusion);
    Some(("every whole batch that has room", format!("not batch {missing}: {verdict:?}")))
}
