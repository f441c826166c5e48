//! Starts turns: reads settings and history for many turns at once, and publishes their requests
//! concurrently.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use batches::memory::RecalledFacts;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use model::{Message, Seq, TimerId, Timestamp, TurnId, WorkflowName};
use partition::{Input, NotNow, Start, Started, TurnCause, TurnRules};
use runtime::traces::TraceContext;
use runtime::{Backoff, retry_until};
use store::{ContextWanted, StartContext, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use wire::work::RememberedFact;

use super::compaction::Compactor;
use super::outbox_publisher::publish_once;
use super::store_lookups::StoreReader;
use super::thread_cache::{ThreadCache, ThreadEnd, complete};
use super::timers::due;
use super::turn_context::{PreparedTurn, facts_of_adopted, prepare};
use super::turn_request;
use crate::context::Context;
use crate::refusals::{RefusedItem, note_item};
use crate::request_watch::RunKey;

/// Maximum number of turns whose settings and history are read in one query.
const MOST_READ: usize = 32;
/// Maximum number of requests published concurrently.
const MOST_PUBLISHED: usize = 256;
/// Maximum number of stored requests that can be withdrawn; the oldest are forgotten.
const MOST_REMEMBERED: usize = 8_192;
/// Timeout of one try to publish. Between tries, the starter checks whether the turn is still
/// wanted.
const REQUEST_PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason for refusing a turn whose text must not be used any more.
const ERASED: &str = "the thread was erased";

/// A request of the machine.
#[derive(Debug)]
pub(super) enum TurnTask {
    /// Start a turn; its request belongs to this trace.
    Start(Arc<Start>, Option<TraceContext>),
    Abandon(TurnId, u32),
    /// Cache messages that were committed.
    Written(Vec<Message>),
}

/// A turn that is being started.
#[derive(Clone, Default)]
struct Beginning {
    /// Cancelled when the turn is abandoned.
    wanted: CancellationToken,
    trace: Option<TraceContext>,
}

/// Result of an operation in progress.
enum StarterOutcome {
    /// Data read for these turns.
    Read(Vec<(Arc<Start>, Result<StartContext, NotRead>)>),
    /// A turn has started, or cannot start.
    Begun(Box<Begun>),
    /// An operation without a result.
    Nothing,
}

/// Result of starting a turn.
struct Begun {
    start: Arc<Start>,
    /// Data read for it.
    found: StartContext,
    outcome: BeginOutcome,
}

/// Result for the machine.
struct BeginOutcome {
    inputs: Vec<Input>,
    /// Sequence of its request.
    seq: Option<Seq>,
}

impl BeginOutcome {
    fn of(start: &Start, started: Started) -> Self {
        Self { inputs: vec![answer(start, started)], seq: None }
    }

    /// The session has ended, or the turn is no longer wanted.
    const NOTHING: Self = Self { inputs: Vec::new(), seq: None };
}

/// Cause of superseding a follow-up if no other is known.
const SUPERSEDED: &str = "message";

/// Why nothing was read for a turn.
enum NotRead {
    /// The turn belongs to a follow-up that is no longer wanted; names the cause.
    Superseded(&'static str),
    /// The store permanently refuses to read the turn's data.
    Unreadable(String),
}

struct TurnStarter {
    context: Context,
    reader: StoreReader,
    /// Turns not read yet.
    waiting: VecDeque<Arc<Start>>,
    /// Turns read, but not published yet.
    ready: VecDeque<(Arc<Start>, StartContext)>,
    is_reading: bool,
    publishing: usize,
    under_way: FuturesUnordered<BoxFuture<'static, StarterOutcome>>,
    compacting: Compactor,
    cache: ThreadCache,
    /// Turns being started.
    beginning: HashMap<RunKey, Beginning>,
    /// Stored requests that can be withdrawn; `stored_order` lists them in the order of storing.
    stored: HashMap<RunKey, Seq>,
    stored_order: VecDeque<RunKey>,
}

pub(super) async fn run(
    context: Context,
    mut background: mpsc::UnboundedReceiver<TurnTask>,
    reader: StoreReader,
) {
    let cache = ThreadCache::new(Arc::clone(&context.thread_cache));
    let mut starts = TurnStarter {
        context,
        cache,
        reader,
        waiting: VecDeque::new(),
        ready: VecDeque::new(),
        is_reading: false,
        publishing: 0,
        under_way: FuturesUnordered::new(),
        compacting: Compactor::new(),
        beginning: HashMap::new(),
        stored: HashMap::new(),
        stored_order: VecDeque::new(),
    };
    loop {
        starts.go_on();
        tokio::select! {
            task = background.recv() => match task {
                Some(task) => starts.take(task, &mut background),
                None => return,
            },
            Some(outcome) = starts.under_way.next() => {
                if starts.settle(outcome).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl TurnStarter {
    /// Takes this task and all others waiting, so that they are handled together.
    fn take(&mut self, first: TurnTask, background: &mut mpsc::UnboundedReceiver<TurnTask>) {
        let mut next = Some(first);
        while let Some(task) = next {
            match task {
                TurnTask::Start(start, trace) => {
                    let name = (start.turn.clone(), start.run);
                    self.beginning.insert(name, Beginning { wanted: CancellationToken::new(), trace });
                    self.waiting.push_back(start);
                }
                TurnTask::Abandon(turn, run) => self.abandon(turn, run),
                TurnTask::Written(messages) => {
                    self.cache.extend(messages, Timestamp(self.context.clock.now_ms()));
                }
            }
            next = background.try_recv().ok();
        }
    }

    /// Publishes a cancel notice for the workflow. A stored request is withdrawn. A request that is
    /// being made is not stored, or is withdrawn after it was stored.
    fn abandon(&mut self, turn: TurnId, run: u32) {
        let name = (turn, run);
        if let Some(beginning) = self.beginning.get(&name) {
            beginning.wanted.cancel();
        }
        let seq = self.stored.remove(&name);
        self.under_way.push(withdraw(self.context.clone(), name, seq).boxed());
    }

    /// Starts as many turns as there is room for.
    fn go_on(&mut self) {
        if !self.is_reading && !self.waiting.is_empty() {
            self.is_reading = true;
            let count = self.waiting.len().min(MOST_READ);
            let known = |start: Arc<Start>| {
                let known = self.cache.get(&start.thread);
                (start, known)
            };
            let starts = self.waiting.drain(..count).map(known).collect();
            self.under_way.push(read(self.context.clone(), starts, self.reader.clone()).boxed());
        }
        while self.publishing < MOST_PUBLISHED
            && let Some((start, found)) = self.ready.pop_front()
        {
            let name = (start.turn.clone(), start.run);
            let beginning = self.beginning.get(&name).cloned().unwrap_or_default();
            self.publishing += 1;
            let (context, reader) = (self.context.clone(), self.reader.clone());
            let compacting = self.compacting.clone();
            let span = of_turn(&start, beginning.trace.as_ref());
            let begun = begin(context, start, found, beginning, reader, compacting).instrument(span);
            self.under_way.push(begun.boxed());
        }
    }

    /// Handles a result. `Err` when the session has ended.
    async fn settle(&mut self, outcome: StarterOutcome) -> Result<(), ()> {
        match outcome {
            StarterOutcome::Nothing => {}
            StarterOutcome::Read(found) => {
                self.is_reading = false;
                for (start, found) in found {
                    match found {
                        Ok(found) => self.ready.push_back((start, found)),
                        Err(NotRead::Superseded(by)) => {
                            self.begun(&start, BeginOutcome::of(&start, Started::Superseded(by))).await?;
                        }
                        Err(NotRead::Unreadable(detail)) => {
                            let rules = self.context.config.rules;
                            let unreadable = BeginOutcome::of(&start, Started::Unreadable { rules, detail });
                            self.begun(&start, unreadable).await?;
                        }
                    }
                }
            }
            StarterOutcome::Begun(begun) => {
                let Begun { start, found, outcome } = *begun;
                self.publishing -= 1;
                if !turn_request::says_all(&start) {
                    self.cache.insert(&start.thread, &found);
                }
                self.begun(&start, outcome).await?;
            }
        }
        Ok(())
    }

    async fn begun(&mut self, start: &Start, outcome: BeginOutcome) -> Result<(), ()> {
        let BeginOutcome { inputs, seq } = outcome;
        let name = (start.turn.clone(), start.run);
        let beginning = self.beginning.remove(&name);
        if beginning.is_some_and(|beginning| beginning.wanted.is_cancelled()) {
            if seq.is_some() {
                self.under_way.push(withdraw(self.context.clone(), name, seq).boxed());
            }
            return Ok(());
        }
        if let Some(seq) = seq {
            self.remember(name, seq);
        }
        for input in inputs {
            self.reader.answered.send(input).await.map_err(drop)?;
        }
        Ok(())
    }

    fn remember(&mut self, name: RunKey, seq: Seq) {
        self.stored_order.push_back(name.clone());
        self.stored.insert(name, seq);
        if self.stored_order.len() > MOST_REMEMBERED
            && let Some(oldest) = self.stored_order.pop_front()
        {
            self.stored.remove(&oldest);
        }
    }
}

/// Span with the fields of every log line written while the turn is started. Its level is ERROR so
/// that no log filter removes it.
fn of_turn(start: &Start, trace: Option<&TraceContext>) -> tracing::Span {
    tracing::error_span!("turn", turn = %start.turn, run = start.run, thread = %start.thread,
        correlation_id = start.options.correlation_id.as_deref(), trace_id = trace.map(TraceContext::trace_id))
}

/// Input that passes the facts given to a turn to the machine, if they matter later. The machine
/// must know them before the turn starts.
fn recalled(start: &Start, rules: &TurnRules, facts: &[RememberedFact]) -> Option<Input> {
    let facts = RecalledFacts::of_texts(facts.iter().map(|fact| fact.text.as_str()));
    let is_wanted = is_remembered(start, rules) && facts != RecalledFacts::default();
    is_wanted.then(|| Input::Recalled { turn: start.turn.clone(), run: start.run, facts })
}

/// True if facts from the turn are remembered afterwards.
fn is_remembered(start: &Start, rules: &TurnRules) -> bool {
    rules.memory && matches!(start.cause, TurnCause::Input(_))
}

fn answer(start: &Start, started: Started) -> Input {
    Input::Started { turn: start.turn.clone(), run: start.run, started }
}

/// Best effort: a workflow that does not receive the notice works in vain, and its chunks are
/// dropped.
async fn withdraw(context: Context, (turn, run): RunKey, seq: Option<Seq>) -> StarterOutcome {
    if let Err(error) = context.bus.publish_cancel(&turn, run).await {
        tracing::debug!(%turn, run, %error, "the cancel notice was not published");
    }
    if let Some(seq) = seq
        && let Err(error) = context.bus.delete_work(seq).await
    {
        tracing::debug!(%turn, run, %error, "the turn request was not taken back");
    }
    StarterOutcome::Nothing
}

/// Reads data for all turns at once; a turn that the store refuses fails alone.
async fn read(
    context: Context,
    starts: Vec<(Arc<Start>, Option<Arc<ThreadEnd>>)>,
    reader: StoreReader,
) -> StarterOutcome {
    let (starts, known): (Vec<_>, Vec<_>) = starts.into_iter().unzip();
    let wanted: Vec<_> =
        starts.iter().zip(&known).map(|(start, known)| wanted(start, known.as_deref())).collect();
    let Some(superseded) = superseded(&context, &starts, &reader).await else {
        return StarterOutcome::Nothing;
    };
    let name = (RefusedItem::Turn, thread_of as fn(&ContextWanted) -> &dyn Display);
    let ask = |wanted| context.store.contexts(wanted);
    let Some(found) = reader.each("reading contexts", &wanted, name, ask).await else {
        return StarterOutcome::Nothing;
    };
    let found = found.into_iter().zip(known).zip(superseded).map(|((found, known), superseded_by)| {
        let unreadable = |error: StoreError| NotRead::Unreadable(error.to_string());
        if let Some(by) = superseded_by.map_err(unreadable)? {
            return Err(NotRead::Superseded(by));
        }
        let mut found = found.map_err(unreadable)?;
        complete(&mut found, known.as_deref());
        Ok(found)
    });
    StarterOutcome::Read(starts.into_iter().zip(found).collect())
}

fn thread_of(wanted: &ContextWanted) -> &dyn Display {
    &wanted.thread
}

/// For each turn: the cause, if the turn is a follow-up that is no longer wanted. `None` when the
/// session has ended.
async fn superseded(
    context: &Context,
    starts: &[Arc<Start>],
    reader: &StoreReader,
) -> Option<Vec<Result<Option<&'static str>, StoreError>>> {
    let timers: Vec<TimerId> = starts.iter().filter_map(|start| start.cause.timer().cloned()).collect();
    let mut found = match timers.is_empty() {
        true => Vec::new().into_iter(),
        false => due(reader, &context.store, None, &timers).await?.into_iter(),
    };
    let of = |start: &Arc<Start>| {
        let Some(found) = start.cause.timer().and_then(|_| found.next()) else { return Ok(None) };
        Ok(match found? {
            // The timer was erased, or a store that has gone back in time does not know it.
            None => Some(SUPERSEDED),
            // A workflow is already answering the turn.
            Some(timer) if start.is_adopted => timer.is_superseded().then_some(SUPERSEDED),
            Some(timer) => timer.superseded_by(),
        })
    };
    Some(starts.iter().map(of).collect())
}

fn wanted(start: &Start, known: Option<&ThreadEnd>) -> ContextWanted {
    let source_thread = start.cause.source_thread().cloned();
    let (thread, agent) = (start.thread.clone(), start.agent.agent());
    let known = known.map(ThreadEnd::version);
    ContextWanted { thread, agent, gate: turn_request::gate(start), source_thread, known }
}

async fn begin(
    context: Context,
    start: Arc<Start>,
    mut found: StartContext,
    beginning: Beginning,
    reader: StoreReader,
    compacting: Compactor,
) -> StarterOutcome {
    let outcome = requested(&context, &start, &mut found, &beginning, &reader, &compacting).await;
    StarterOutcome::Begun(Box::new(Begun { start, found, outcome }))
}

/// Sends the request of the turn to its workflow, if the turn may start.
async fn requested(
    context: &Context,
    start: &Start,
    found: &mut StartContext,
    beginning: &Beginning,
    reader: &StoreReader,
    compacting: &Compactor,
) -> BeginOutcome {
    let config = &context.config;
    if found.is_temporary {
        turn_request::remove_later_work(&mut found.settings);
    }
    let rules = turn_request::rules(&found.settings, &config.rules);
    let workflow = turn_request::workflow(found, &config.default_workflow);
    let limits = match &workflow {
        Ok(workflow) => context.limiter.of_turn(&start.agent, workflow, &found.settings),
        Err(_) => Vec::new(),
    };
    let partition = start.thread.bucket().partition(config.partitions);
    if found.is_erased {
        // The erasure will soon make the owner forget the turn as well.
        return BeginOutcome::of(start, Started::Refused { rules, text: ERASED.to_owned() });
    }
    if start.is_adopted {
        // A workflow is already answering the turn.
        if !limits.is_empty() {
            context.limiter.enter(&start.turn, partition, &limits);
        }
        // The facts given to the turn were lost with the previous owner, so they are recalled
        // again.
        let facts = match is_remembered(start, &rules) {
            true => facts_of_adopted(context, start, found, reader).await,
            false => Some(Vec::new()),
        };
        let Some(facts) = facts else { return BeginOutcome::NOTHING };
        let known = recalled(start, &rules, &facts).into_iter();
        let inputs = known.chain([answer(start, Started::Requested(rules))]).collect();
        return BeginOutcome { inputs, seq: None };
    }
    if let Some(why) = turn_request::not_now(found) {
        return BeginOutcome::of(start, Started::NotNow(why));
    }
    let workflow = match workflow {
        Ok(workflow) => workflow,
        Err(text) => {
            return BeginOutcome::of(start, Started::Refused { rules, text });
        }
    };
    if !limits.is_empty() {
        let ask = || context.limiter.admit(&context.store, &start.turn, partition, &limits);
        match reader.unless_refused("counting a turn for its limits", ask).await {
            None => return BeginOutcome::NOTHING,
            Some(Ok(None)) => {}
            Some(Ok(Some(for_ms))) => {
                return BeginOutcome::of(start, Started::NotNow(NotNow::Limited { for_ms }));
            }
            Some(Err(error)) => {
                note_item(RefusedItem::Turn, &start.turn, &error);
                return BeginOutcome::of(start, Started::Unreadable { rules, detail: error.to_string() });
            }
        }
    }
    let (payload, known) = match prepare(context, start, found, &workflow, &rules, reader, compacting).await {
        None => return BeginOutcome::NOTHING,
        Some(Ok(PreparedTurn::Request(payload, facts))) => (payload, recalled(start, &rules, &facts)),
        Some(Ok(PreparedTurn::Answer(chunks, facts))) => {
            let (turn, run) = (start.turn.clone(), start.run);
            let begun = [answer(start, Started::Requested(rules)), Input::Answered { turn, run, chunks }];
            let inputs = recalled(start, &rules, &facts).into_iter().chain(begun).collect();
            return BeginOutcome { inputs, seq: None };
        }
        Some(Err(instead)) => return BeginOutcome::of(start, instead),
    };
    match publish(context, start, &workflow, &payload, rules.deadline_ms, beginning).await {
        Published::At(seq) => {
            let run = (start.turn.clone(), start.run);
            context.requests.insert(partition, run, seq, workflow);
            let inputs = known.into_iter().chain([answer(start, Started::Requested(rules))]).collect();
            BeginOutcome { inputs, seq: Some(seq) }
        }
        Published::Refused(text) => BeginOutcome::of(start, Started::Refused { rules, text }),
        Published::Unwanted => BeginOutcome::NOTHING,
    }
}

enum Published {
    At(Seq),
    Refused(String),
    Unwanted,
}

/// Retries as long as the turn is wanted: an outage of NATS is not a failure of the agent. If
/// another owner starts the same run, it publishes under the same id, and the stream keeps only the
/// first request.
async fn publish(
    context: &Context,
    start: &Start,
    workflow: &WorkflowName,
    payload: &[u8],
    deadline_ms: i64,
    beginning: &Beginning,
) -> Published {
    let subject = wire::subject::work(workflow);
    let answer_subject = wire::subject::partition_chunks(context.config.partitions, &start.thread);
    let id = wire::subject::work_id(start.turn.as_str(), start.run, &answer_subject);
    let (wanted, trace) = (&beginning.wanted, beginning.trace.as_ref());
    if wanted.is_cancelled() {
        return Published::Unwanted;
    }
    let published =
        retry_until(wanted.cancelled(), Backoff::default(), "publishing turn requests", || async {
            let (json, timeout) = (wire::CONTENT_TYPE_JSON, REQUEST_PUBLISH_TIMEOUT);
            let now = Timestamp(context.clock.now_ms());
            let payload = turn_request::stamped(payload, now.plus_ms(deadline_ms));
            publish_once(&context.bus, &subject, payload, json, &id, trace, timeout).await
        });
    match published.await {
        Ok(Ok(seq)) => Published::At(seq),
        Ok(Err(error)) => Published::Refused(error.to_string()),
        Err(()) => Published::Unwanted,
    }
}
