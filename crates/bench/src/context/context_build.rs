//! The context of a turn: the worker's steps from the settings to the messages for a workflow.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use batches::{
    Context,
    context::{Builder, ContextRules, input},
    render,
};
use model::{AgentId, MessageId, Metadata, ThreadId};
use store::{ContextWanted, StartContext, Store, ThreadVersion};

use super::{
    super::table::Row,
    super::timing::Timings,
    environment::{BUDGETS, ContextEnvironment, Reads},
    threads::{BenchThread, agent, now},
};

/// Goal for the time of the longest thread relative to that of the next shorter one.
const LENGTH_RATIO: f64 = 1.5;
const P50_MS: f64 = 2.0;
/// Calls before the timed ones, which prepare the statements.
const WARM_UP: u32 = 20;
/// Number of calls for which the counters of Postgres are read.
const COUNTED: u32 = 5;
const INPUT: &str =
    "And what follows from that for the second of the two, if the first one is left as it is?";

/// A context, and figures about it.
pub(super) struct Built {
    pub(super) context: Context,
    /// Number of messages that a workflow receives.
    pub(super) shown: usize,
    /// True if no message had to be repaired.
    pub(super) is_sound: bool,
}

/// One thread with one budget.
struct ContextCase<'a> {
    thread: &'a BenchThread,
    budget: u64,
    agent: AgentId,
    timings: Timings,
    /// The part of `timings` until all messages were read.
    reading: Timings,
    built: Built,
    reads: Reads,
}

/// The start state of a turn of the agent in the thread.
async fn found(store: &Store, thread: &ThreadId, agent: &AgentId) -> Result<StartContext> {
    let wanted = ContextWanted {
        thread: thread.clone(),
        agent: agent.clone(),
        gate: store::Gate::Foreground,
        source_thread: None,
        known: None,
    };
    store.contexts(&[wanted]).await?.pop().context("no answer")
}

/// The version for which a compaction of the thread is planned.
pub(super) async fn version(store: &Store, thread: &ThreadId) -> Result<ThreadVersion> {
    found(store, thread, &AgentId::parse("any")?).await?.version.context("the thread has no message")
}

/// Builds the context of a turn of the agent in the thread, like the worker.
pub(super) async fn build(
    store: &Store,
    thread: &ThreadId,
    agent: &AgentId,
    reading: Option<&mut Timings>,
) -> Result<Built> {
    let begun = Instant::now();
    let found = found(store, thread, agent).await?;
    let (rules, complaints) = ContextRules::of(&found.settings);
    ensure!(complaints.is_empty(), "{complaints:?}");
    let (counter, now) = (tokenizer::counter(rules.tokenizer), now()?);
    let input = input(MessageId::parse("input-q")?, INPUT.to_owned(), Metadata::EMPTY, None, now);
    let request = rules.request(Some(input.batch_id), found.compaction.clone(), now);
    let mut builder = Builder::new(request, counter.as_ref());
    builder.page([input]);
    store.fill(thread, &found.messages, &mut builder).await?;
    if let Some(reading) = reading {
        reading.since(begun);
    }
    let context = builder.build();
    let view = render::view(&context, &render::Rules::ANY);
    let (shown, is_sound) = (view.messages.len(), view.repairs.is_empty());
    Ok(Built { context, shown, is_sound })
}

/// Contexts of all threads with both budgets.
pub(super) async fn rows(
    environment: &ContextEnvironment,
    threads: &[BenchThread],
    times: u32,
) -> Result<Vec<Row>> {
    let mut cases = Vec::new();
    for budget in BUDGETS {
        for thread in threads {
            cases.push(ContextCase::new(environment, thread, budget).await?);
        }
    }
    let store = environment.store().await?;
    for case in &cases {
        for _ in 0..times.min(WARM_UP) {
            build(&store, &case.thread.id, &case.agent, None).await?;
        }
    }
    let meter = environment.meter();
    for _ in 0..times {
        for case in &mut cases {
            let ContextCase { thread, agent, reading, .. } = case;
            let begun = Instant::now();
            build(&store, &thread.id, agent, Some(reading)).await?;
            case.timings.since(begun);
        }
    }
    let foreign = meter.used().foreign_cores;
    store.close().await;
    let mut rows: Vec<Row> = cases.iter().map(|case| case.row(foreign)).collect();
    rows.extend(goals(&cases));
    Ok(rows)
}

impl<'a> ContextCase<'a> {
    async fn new(environment: &ContextEnvironment, thread: &'a BenchThread, budget: u64) -> Result<Self> {
        let (id, agent) = (&thread.id, agent(budget)?);
        let reads = environment
            .reads(COUNTED, async |store| {
                build(store, id, &agent, None).await?;
                Ok(())
            })
            .await?;
        let store = environment.store().await?;
        let built = build(&store, id, &agent, None).await?;
        store.close().await;
        let Context { tokens, batches, .. } = &built.context;
        ensure!(built.is_sound && built.context.over_budget() == 0, "this is no context of whole batches");
        // The context is as full as whole batches allow, or contains all batches.
        let is_full = *tokens * 10 > budget * 8 || batches.len() == thread.batches as usize + 1;
        ensure!(is_full, "{tokens} tokens of {budget} in {} batches", batches.len());
        let (timings, reading) = (Timings::default(), Timings::default());
        Ok(Self { thread, budget, agent, timings, reading, built, reads })
    }

    fn row(&self, foreign: f64) -> Row {
        let (p50, p99) = (self.timings.p50_ms(), self.timings.p99_ms());
        let Context { tokens, batches, .. } = &self.built.context;
        let what = format!("context, {} tokens, thread of {} batches", self.budget, self.thread.batches);
        let shown = format!("{} batches, {} messages, {tokens} tokens", batches.len(), self.built.shown);
        Row::new('a', what, format!("p50 {p50:.2} ms"))
            .column("p99 ms", format!("{p99:.2}"))
            .column("rows read", format!("{:.0}", self.reads.rows))
            .note(format!(
                "{shown}; p50 {:.2} ms until all was read; others used {foreign:.1} cores",
                self.reading.p50_ms()
            ))
            .figure("p50_ms", p50)
            .figure("p99_ms", p99)
            .figure("rows", self.reads.rows)
            .figure("foreign_cores", foreign)
    }
}

fn goals(cases: &[ContextCase<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for budget in BUDGETS {
        let of_budget: Vec<_> = cases.iter().filter(|case| case.budget == budget).collect();
        let [.., shorter, longest] = of_budget.as_slice() else { continue };
        let (long, short) = (longest.timings.p50_ms(), shorter.timings.p50_ms());
        let ratio = long / short;
        let of = |case: &ContextCase<'_>| case.thread.batches;
        let what = format!("{budget} tokens: {} / {} batches, p50", of(longest), of(shorter));
        let row = Row::new('a', what, format!("{ratio:.2}")).figure("ratio", ratio);
        rows.push(row.goal(format!("<= {LENGTH_RATIO}"), ratio <= LENGTH_RATIO));
        if budget == BUDGETS[0] {
            let what = format!("{budget} tokens: {} batches, p50 with Postgres", of(longest));
            let row = Row::new('a', what, format!("{long:.2} ms")).figure("ms", long);
            rows.push(row.goal(format!("<= {P50_MS} ms"), long <= P50_MS));
        }
    }
    rows
}
