//! Compacts threads whose contexts have become large, without delaying their turns.
//!
//! Compaction is considered whenever a turn of the thread starts, and its result applies from the
//! next turn on. A failed compaction is tried again with the next turn. A summary is written by the
//! agent's own workflow, as a task of the agent; the compaction takes effect once the summary
//! exists.

use std::sync::Arc;
use std::time::Duration;

use batches::compaction::{
    self, Compaction, CompactionRules, Plan, PlanInput, Strategy, Summary, transcript,
};
use batches::context::{Builder, ContextRules, Inclusion, LastMessages, Reason};
use batches::{Batch, BatchHeader, Context as Built, TokenCounter};
use metrics::counter;
use model::{AgentId, Metadata, Position, Task, TaskId, TaskKind, TaskOrigin, ThreadId, Timestamp};
use partition::Start;
use store::{PendingCompaction, StartContext, StoreError, ThreadVersion, Written};
use tokio::sync::Semaphore;

use crate::context::Context;

/// Maximum number of threads that one session compacts at a time; others wait for their next turn.
const MOST_AT_ONCE: usize = 2;
/// Messages are read up to this multiple of the context budget; older batches are compacted unread.
const BUDGETS_READ: u64 = 4;
/// Maximum bytes of the text to summarize.
const TRANSCRIPT_BYTES: usize = 192 << 10;
/// Timeout for publishing a task.
const SUMMARY_PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
const ACTOR: &str = "compaction";

/// Limits concurrent compactions.
#[derive(Debug, Clone)]
pub(super) struct Compactor(Arc<Semaphore>);

/// A thread that may need compaction.
struct Due {
    thread: ThreadId,
    /// Queue of the agent that writes the summary.
    agent: AgentId,
    /// Batch that the turn continues.
    active: Option<Position>,
    live: Option<Compaction>,
    pending: Option<PendingCompaction>,
    /// Tokens of the active batch, including the input: it is not stored yet, but will be by the
    /// next turn.
    active_tokens: u64,
    /// Last messages of the thread, as far as they are in memory.
    messages: LastMessages,
    /// Position of the last message.
    newest: Position,
    /// Version of the thread when these data were read.
    version: ThreadVersion,
    rules: ContextRules,
    how: CompactionRules,
}

impl Compactor {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MOST_AT_ONCE)))
    }

    /// Starts a compaction if the context of a turn shows that one is needed.
    pub(super) fn consider(
        &self,
        context: &Context,
        start: &Start,
        found: &StartContext,
        rules: &ContextRules,
        built: &Built,
    ) {
        let is_own = start.cause.task_kind() == Some(TaskKind::Compaction);
        let (Some(how), Some(newest), Some(version)) =
            (rules.compaction, found.messages.newest.first(), found.version)
        else {
            return;
        };
        let how = in_thread(how, &start.thread);
        let now = Timestamp(context.clock.now_ms());
        if is_own || !(found.pending.is_some() || may_be_due(&how, rules, built, now)) {
            return;
        }
        let Ok(permit) = self.0.clone().try_acquire_owned() else { return };
        let active = built.decisions.iter().find(|decision| built.active == Some(decision.batch));
        let due = Due {
            active_tokens: active.map_or(0, |decision| decision.tokens),
            thread: start.thread.clone(),
            agent: start.agent.queue_of(TaskKind::Compaction),
            active: start.cause.continues(),
            live: found.compaction.clone(),
            pending: found.pending.clone(),
            newest: newest.position,
            version,
            messages: found.messages.clone(),
            rules: rules.clone(),
            how,
        };
        let context = context.clone();
        runtime::spawn_named("compaction", async move {
            let outcome = match due.compact(&context, now).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::warn!(thread = %due.thread, %error, "a thread was not compacted; its next turn tries again");
                    "failed"
                }
            };
            counter!(crate::metrics::COMPACTIONS, "outcome" => outcome).increment(1);
            drop(permit);
        });
    }
}

/// In the thread of a background queue, each batch contains text of another thread. A summary of
/// several batches could not be erased together with one of those threads.
fn in_thread(how: CompactionRules, thread: &ThreadId) -> CompactionRules {
    match (how.strategy, thread.background_kind()) {
        (Strategy::Summarise, Some(_)) => CompactionRules { strategy: Strategy::DropOldest, ..how },
        _ => how,
    }
}

/// Tokens of the active batch that are missing in the batches read: those of the input, and of
/// messages too old to be read.
fn unread_tokens(active_tokens: u64, active: Option<Position>, read: &[BatchHeader]) -> u64 {
    let stored = read.iter().find(|batch| active == Some(batch.id));
    active_tokens.saturating_sub(stored.map_or(0, |batch| batch.tokens))
}

fn may_be_due(how: &CompactionRules, rules: &ContextRules, built: &Built, now: Timestamp) -> bool {
    let is_high = built.tokens.saturating_mul(100) > rules.tokens.saturating_mul(how.high_percent.into());
    let is_cut = built.decisions.iter().any(|decision| {
        matches!(&decision.inclusion, Inclusion::Out(Reason::BudgetUsed | Reason::LargerThanBudget { .. }))
    });
    let is_old = how.strategy == Strategy::Age
        && how
            .max_age_ms
            .is_some_and(|age| built.batches.iter().any(|batch| now.since_ms(batch.last_at()) > age));
    is_high || is_cut || is_old
}

impl Due {
    async fn compact(&self, context: &Context, now: Timestamp) -> Result<&'static str, Trouble> {
        if let Some(pending) = &self.pending {
            return self.settle(context, pending).await;
        }
        let counter = tokenizer::counter(self.rules.tokenizer);
        let (batches, unfinished) = self.read(context, counter.as_ref(), now).await?;
        let Some(plan) = self.plan(&batches, &unfinished, counter.as_ref(), now) else {
            return Ok("not_due");
        };
        let id = Position::from_stored(self.newest.get() + 1);
        match plan.summary {
            Summary::None => self.add(context, plan.into_compaction(id, None), None).await,
            Summary::Carried(_) => {
                let summary = self.live.as_ref().and_then(|live| live.summary.clone());
                self.add(context, plan.into_compaction(id, summary), None).await
            }
            Summary::Wanted { .. } => {
                self.ask_for_summary(context, plan, id, &batches, counter.as_ref()).await
            }
        }
    }

    /// Settles a pending compaction, unless its summary is still being written.
    async fn settle(&self, context: &Context, pending: &PendingCompaction) -> Result<&'static str, Trouble> {
        let written = match self.thread.background_kind() {
            None => context.store.find_summary(pending).await?,
            // An older version, which still summarized such threads, started this compaction: see
            // `in_thread`.
            Some(_) => Written::Never,
        };
        let (summary, outcome) = match written {
            Written::NotYet => return Ok("waiting"),
            Written::Text(text) => (Some(text), "summarised"),
            Written::Never => (None, "without_summary"),
        };
        let is_ours = context.store.finish_compaction(&self.thread, pending.id, summary.as_deref()).await?;
        if is_ours {
            tracing::info!(thread = %self.thread, compaction = %pending.id, outcome, "a compaction was settled");
        }
        Ok(if is_ours { outcome } else { "not_due" })
    }

    /// Batches since the last compaction: complete ones and incomplete ones.
    async fn read(
        &self,
        context: &Context,
        counter: &dyn TokenCounter,
        now: Timestamp,
    ) -> Result<(Vec<Batch>, Vec<Batch>), StoreError> {
        let mut request = self.rules.request(None, self.live.clone(), now);
        request.budget = request.budget.saturating_mul(BUDGETS_READ);
        let mut builder = Builder::new(request, counter);
        context.store.fill(&self.thread, &self.messages, &mut builder).await?;
        let built = builder.build();
        let is_unfinished =
            |inclusion: &Inclusion| matches!(inclusion, Inclusion::Out(Reason::Incomplete(_)));
        let unfinished: Vec<_> = built
            .decisions
            .iter()
            .filter(|decision| is_unfinished(&decision.inclusion))
            .map(|decision| decision.batch)
            .collect();
        let unfinished = context.store.batches(&self.thread, &unfinished).await?;
        Ok((built.batches, batches::group(unfinished.into_iter().map(Into::into))))
    }

    fn plan(
        &self,
        whole: &[Batch],
        unfinished: &[Batch],
        counter: &dyn TokenCounter,
        now: Timestamp,
    ) -> Option<Plan> {
        let headers: Vec<BatchHeader> =
            whole.iter().chain(unfinished).map(|batch| BatchHeader::of(batch, counter)).collect();
        let tokens = |text: Option<&String>| text.map_or(0, |text| counter.count(text));
        let load = PlanInput {
            batches: &headers,
            active: self.active,
            live: self.live.as_ref(),
            budget: self.rules.tokens,
            system_tokens: tokens(self.rules.system.as_ref())
                + unread_tokens(self.active_tokens, self.active, &headers),
            summary_tokens: tokens(self.live.as_ref().and_then(|live| live.summary.as_ref())),
            timeout_ms: self.rules.timeout_ms,
            now,
        };
        compaction::plan(&load, &self.how)
    }

    async fn add(
        &self,
        context: &Context,
        compaction: Compaction,
        pending: Option<(&AgentId, &TaskId)>,
    ) -> Result<&'static str, Trouble> {
        let is_new =
            context.store.add_compaction(&self.thread, &compaction, self.version, pending, ACTOR).await?;
        if is_new {
            let (id, made) = (compaction.id, &compaction.provenance);
            tracing::info!(
                thread = %self.thread, compaction = %id, strategy = compaction.strategy.name(),
                batches = made.batches.len(), tokens_before = made.tokens_before, tokens_after = made.tokens_after,
                is_waiting = pending.is_some(), "a thread was compacted"
            );
        }
        Ok(match (is_new, pending) {
            (false, _) => "not_due",
            (true, None) => "compacted",
            (true, Some(_)) => "summary_wanted",
        })
    }

    /// Writes the row first and then the task: a summary without a row would be useless.
    async fn ask_for_summary(
        &self,
        context: &Context,
        plan: Plan,
        id: Position,
        batches: &[Batch],
        counter: &dyn TokenCounter,
    ) -> Result<&'static str, Trouble> {
        let before = self.live.as_ref().and_then(|live| live.summary.as_deref());
        let leaving: Vec<Batch> =
            batches.iter().filter(|batch| plan.replaces.contains(&batch.id())).cloned().collect();
        let (content, count) = transcript(before, &leaving, TRANSCRIPT_BYTES);
        // Batches that the summary does not cover are left to a later compaction.
        let staying: Vec<_> = leaving[count..].iter().map(|batch| BatchHeader::of(batch, counter)).collect();
        let plan = plan.without(&staying, self.live.as_ref());
        let name = format!("compaction-{id}");
        let task = TaskId::parse(&name).map_err(|error| Trouble::Task(error.to_string()))?;
        let outcome = self.add(context, plan.into_compaction(id, None), Some((&self.agent, &task))).await?;
        if outcome == "summary_wanted" {
            self.publish(context, task, content, id).await?;
        }
        Ok(outcome)
    }

    async fn publish(
        &self,
        context: &Context,
        id: TaskId,
        content: String,
        compaction: Position,
    ) -> Result<(), Trouble> {
        let task = Task {
            agent: self.agent.clone(),
            id,
            kind: TaskKind::Compaction,
            content,
            origin: TaskOrigin::Summary { thread: self.thread.clone(), compaction },
            metadata: Metadata::EMPTY,
        };
        let subject = wire::subject::partition_commands(context.config.partitions, task.agent.as_str());
        let (payload, name) = (wire::encode_task_of_fleet(&task), format!("{}.{}", task.agent, task.id));
        let content_type = Some(wire::CONTENT_TYPE_PROTOBUF);
        let published = context
            .bus
            .publish_with_id(&subject, payload.clone(), content_type, &name, SUMMARY_PUBLISH_TIMEOUT)
            .await;
        match published {
            Ok(_) => Ok(()),
            Err(error) => {
                // If the task was stored anyway, its summary is not used.
                context.store.finish_compaction(&self.thread, compaction, None).await?;
                Err(error.into())
            }
        }
    }
}

/// Why a compaction failed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bus(#[from] bus::BusError),
    #[error("the task for its summary: {0}")]
    Task(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_batch_counts_once() {
        let header = |id| BatchHeader {
            id: Position::from_stored(id),
            last: Position::from_stored(id + 1),
            batch_type: model::BatchType::UserRequest,
            is_complete: true,
            messages: 2,
            tokens: 100,
            bytes: 300,
            last_at: Timestamp(0),
            is_pinned: false,
            importance: 0.5,
        };
        let active = Some(Position::from_stored(20));
        assert_eq!(unread_tokens(130, active, &[header(10), header(20)]), 30, "its input");
        assert_eq!(unread_tokens(130, active, &[header(10)]), 130, "it was too old to be read");
        assert_eq!(unread_tokens(30, None, &[header(10), header(20)]), 30, "a batch of its own");
    }

    #[test]
    fn threads_of_queues_are_not_summed_up() {
        let rules = |strategy| CompactionRules { strategy, ..CompactionRules::default() };
        let of = |strategy, thread: &str| in_thread(rules(strategy), &ThreadId::parse(thread).unwrap());
        for thread in ["a+work_request", "acme~a+memory", "a+compaction"] {
            assert_eq!(of(Strategy::Summarise, thread), rules(Strategy::DropOldest), "{thread}");
            assert_eq!(of(Strategy::Importance, thread), rules(Strategy::Importance), "{thread}");
        }
        assert_eq!(of(Strategy::Summarise, "a"), rules(Strategy::Summarise));
    }
}
