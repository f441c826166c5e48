//! What a session has done for it elsewhere, so that it never waits: questions to the store, turn requests, the outbox.
//!
//! Each kind has a task of its own; all of them answer with [`Input`]s on one channel. They end with the session.

mod inquiry;
mod request;
mod sends;
mod starts;

use std::sync::Arc;

use model::{AgentId, MessageKey, Position, TurnId};
use partition::{Input, OrderKey, OutboxBatch, Start};
use runtime::spawn_named;
use tokio::sync::mpsc;

pub use request::{LocalWorkflow, LocalWorkflows};

use crate::Context;
use starts::Errand;

/// Answers that may wait for the session.
const AHEAD: usize = 64;

/// The errands of one session. What is asked is bounded by what the machine has in memory: it asks once for each thing.
#[derive(Debug)]
pub(crate) struct Errands {
    look_ups: mpsc::UnboundedSender<Vec<MessageKey>>,
    checks: mpsc::UnboundedSender<Vec<OrderKey>>,
    loads: mpsc::UnboundedSender<inquiry::Load>,
    starts: mpsc::UnboundedSender<Errand>,
    sends: mpsc::UnboundedSender<OutboxBatch>,
    answers: mpsc::Receiver<Input>,
}

impl Errands {
    pub(crate) fn start(context: &Context) -> Self {
        let (answered, answers) = mpsc::channel(AHEAD);
        let (look_ups, asked) = mpsc::unbounded_channel();
        spawn_named("look-ups", inquiry::look_up_all(context.clone(), asked, answered.clone()));
        let (checks, asked) = mpsc::unbounded_channel();
        spawn_named("checks", inquiry::check_all(context.clone(), asked, answered.clone()));
        let (loads, asked) = mpsc::unbounded_channel();
        spawn_named("queues", inquiry::load_all(context.store.clone(), asked, answered.clone()));
        let (starts, asked) = mpsc::unbounded_channel();
        spawn_named("starts", starts::run(context.clone(), asked, answered.clone()));
        let (sends, asked) = mpsc::unbounded_channel();
        spawn_named("outbox", sends::run(context.bus.clone(), context.config.partitions, asked, answered));
        Self { look_ups, checks, loads, starts, sends, answers }
    }

    // The tasks end only with this value, so that nothing that is sent to them is lost.

    pub(crate) fn look_up(&self, keys: Vec<MessageKey>) {
        let _ = self.look_ups.send(keys);
    }

    pub(crate) fn check(&self, keys: Vec<OrderKey>) {
        let _ = self.checks.send(keys);
    }

    pub(crate) fn load(&self, agent: AgentId, after: Position, limit: usize) {
        let _ = self.loads.send(inquiry::Load { agent, after, limit });
    }

    pub(crate) fn begin(&self, start: Start) {
        let _ = self.starts.send(Errand::Start(Arc::new(start)));
    }

    pub(crate) fn abandon(&self, turn: TurnId, run: u32) {
        let _ = self.starts.send(Errand::Abandon(turn, run));
    }

    pub(crate) fn send(&self, batch: OutboxBatch) {
        let _ = self.sends.send(batch);
    }

    /// The next answer. Cancel-safe; pends for ever when there will be none.
    pub(crate) async fn next(&mut self) -> Input {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}
