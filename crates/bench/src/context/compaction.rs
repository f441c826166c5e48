//! Compaction of very many batches at once, in a thread whose agent gets a budget after years
//! without one.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use batches::{
    Batch, BatchHeader, Compaction,
    compaction::{self, PlanInput},
    context::{Builder, ContextRules, LastMessages},
};
use model::{Position, Timestamp};
use sqlx::Connection as _;
use store::Store;

use super::{
    super::table::Row,
    super::timing::Timings,
    context_build,
    environment::{BUDGETS, ContextEnvironment, execute},
    export_import::copy_out,
    threads::{BenchThread, MESSAGES, agent, now},
};

/// The token budget of the context after the compaction.
const BUDGET: u64 = BUDGETS[1];
/// Maximum number of contexts that are built before and after the compaction in each round.
const CONTEXTS: u32 = 100;

/// The steps of a compaction, its effect on contexts, and a plain Postgres read of the same rows.
#[derive(Debug, Default)]
struct Steps {
    reading: Timings,
    weighing: Timings,
    planning: Timings,
    writing: Timings,
    all: Timings,
    copying: Timings,
    /// Times of contexts with the smaller budget, which are the same before and after the
    /// compaction.
    before: Timings,
    after: Timings,
}

/// Compacts the thread and undoes the compaction, `rounds` times.
pub(super) async fn rows(
    environment: &ContextEnvironment,
    thread: &BenchThread,
    rounds: u32,
    contexts: u32,
) -> Result<Vec<Row>> {
    let store = environment.store().await?;
    let mut steps = Steps::default();
    let meter = environment.meter();
    let mut last = None;
    for _ in 0..rounds {
        build(&store, thread, contexts, &mut steps.before).await?;
        let planned = context_build::version(&store, &thread.id).await?;
        let begun = Instant::now();
        let compaction = steps.plan(&store, thread, now()?).await?;
        let write =
            async { Ok(store.add_compaction(&thread.id, &compaction, planned, None, "bench").await?) };
        ensure!(steps.writing.time(write).await?, "there is a compaction already");
        steps.all.since(begun);
        build(&store, thread, contexts, &mut steps.after).await?;
        steps.copying.time(copy_out(environment, thread, |_| ())).await?;
        let mut connection = environment.connection().await?;
        execute(&mut connection, "DELETE FROM compactions").await?;
        execute(&mut connection, "VACUUM compactions").await?;
        connection.close().await?;
        last = Some(compaction);
    }
    let foreign = meter.used().foreign_cores;
    store.close().await;
    let last = last.context("no round")?;
    Ok(steps.rows(thread, &last, foreign))
}

async fn build(store: &Store, thread: &BenchThread, times: u32, timings: &mut Timings) -> Result<()> {
    let agent = agent(BUDGETS[0])?;
    // The first call prepares the statements.
    context_build::build(store, &thread.id, &agent, None).await?;
    for _ in 0..times.min(CONTEXTS) {
        let built = timings.time(context_build::build(store, &thread.id, &agent, None)).await?;
        ensure!(built.is_sound, "something had to be mended");
    }
    Ok(())
}

impl Steps {
    /// Plans like the worker, but with room for all batches. The worker never compacts more than a
    /// few budgets' worth.
    async fn plan(&mut self, store: &Store, thread: &BenchThread, now: Timestamp) -> Result<Compaction> {
        let rules = ContextRules { tokens: BUDGET, ..ContextRules::default() };
        let (counter, how) = (tokenizer::counter(rules.tokenizer), rules.compaction.context("no rules")?);
        let mut request = rules.request(None, None, now);
        request.budget = u64::MAX;
        let mut builder = Builder::new(request, counter.as_ref());
        let begun = Instant::now();
        store.fill(&thread.id, &LastMessages::default(), &mut builder).await?;
        self.reading.since(begun);
        let begun = Instant::now();
        let built = builder.build();
        let weigh = |batch: &Batch| BatchHeader::of(batch, counter.as_ref());
        let headers: Vec<BatchHeader> = built.batches.iter().map(weigh).collect();
        self.weighing.since(begun);
        ensure!(headers.len() == thread.batches as usize, "{} batches", headers.len());
        let begun = Instant::now();
        let load = PlanInput {
            batches: &headers,
            active: None,
            live: None,
            budget: BUDGET,
            system_tokens: 0,
            summary_tokens: 0,
            timeout_ms: rules.timeout_ms,
            now,
        };
        let plan = compaction::plan(&load, &how).context("nothing to compact")?;
        self.planning.since(begun);
        let after_last = thread.batch(thread.batches - 1).get() + i64::from(MESSAGES);
        Ok(plan.into_compaction(Position::from_stored(after_last), None))
    }

    fn rows(&self, thread: &BenchThread, compaction: &Compaction, foreign: f64) -> Vec<Row> {
        let made = &compaction.provenance;
        let step = |name: &str, timings: &Timings| {
            let (what, ms) = (format!("compaction of {} batches: {name}", thread.batches), timings.p50_ms());
            Row::new('c', what, format!("p50 {ms:.1} ms"))
                .figure("p50_ms", ms)
                .figure("foreign_cores", foreign)
        };
        let context = |name: &str, timings: &Timings| {
            let (what, p50) = (format!("context, {} tokens, {name}", BUDGETS[0]), timings.p50_ms());
            Row::new('c', what, format!("p50 {p50:.2} ms"))
                .column("p99 ms", format!("{:.2}", timings.p99_ms()))
                .figure("p50_ms", p50)
        };
        let left = format!("{} batches leave, {} tokens stay", made.batches.len(), made.tokens_after);
        let of_copy = self.all.p50_ms() / self.copying.p50_ms();
        let of_before = self.after.p50_ms() / self.before.p50_ms();
        vec![
            step("reading and grouping", &self.reading)
                .note(format!("{} rows; others used {foreign:.1} cores", thread.messages())),
            step("weighing", &self.weighing).note("complete or not, tokens, bytes"),
            step("planning", &self.planning).note(left),
            step("writing", &self.writing).note("one row that names all that left"),
            step("all of it", &self.all),
            step("COPY TO of the same rows", &self.copying),
            Row::new('c', "all of it / COPY TO of the same rows, time", format!("{of_copy:.2}"))
                .figure("ratio", of_copy),
            context("before", &self.before),
            context("after", &self.after),
            Row::new('c', "context after / before, p50", format!("{of_before:.2}"))
                .figure("ratio", of_before)
                .note("the same messages; what counts is read with every turn"),
        ]
    }
}
