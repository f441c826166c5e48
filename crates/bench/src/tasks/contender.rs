//! The compared queues.

use anyhow::{Context as _, Result};

use super::{
    end_to_end::EndToEnd, environment::TaskEnvironment, load::TaskLoad, peer::Peer, raw_insert::Raw,
    round::TaskRound,
};

/// One of the compared queues.
#[derive(Debug)]
pub(super) enum Contender {
    /// Another queue, in its own program.
    Peer(Box<Peer>),
    /// The upper limit, which only inserts the messages of the turns.
    Raw(Raw),
    /// The shipped binary with an external workflow.
    EndToEnd(Box<EndToEnd>),
}

impl Contender {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Peer(peer) => peer.name(),
            Self::Raw(raw) => raw.name(),
            Self::EndToEnd(path) => path.name(),
        }
    }

    /// True if the contender is so slow that it gets only one round.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::Peer(peer) if peer.is_slow())
    }

    /// The reason why the contender cannot be measured here.
    pub(super) fn missing(&self) -> Option<String> {
        match self {
            Self::Peer(peer) => peer.missing(),
            Self::Raw(_) | Self::EndToEnd(_) => None,
        }
    }

    /// Creates a fresh database for the round, and opens all connections.
    pub(super) async fn prepare(&mut self, environment: &mut TaskEnvironment, load: TaskLoad) -> Result<()> {
        match self {
            Self::Peer(peer) => peer.prepare(environment, load).await,
            Self::Raw(raw) => raw.prepare(environment, load).await,
            Self::EndToEnd(path) => path.prepare(environment, load).await,
        }
    }

    /// Runs the prepared round and removes its database.
    pub(super) async fn run(&mut self, environment: &mut TaskEnvironment) -> Result<TaskRound> {
        match self {
            Self::Peer(peer) => peer.run(environment).await,
            Self::Raw(raw) => raw.run(environment).await,
            Self::EndToEnd(path) => path.run(environment).await,
        }
    }
}

/// A contender with its rounds.
#[derive(Debug)]
pub(super) struct ContenderRounds {
    pub(super) part: char,
    pub(super) contender: Contender,
    pub(super) rounds: Vec<TaskRound>,
    /// The error, after which the contender is not measured again.
    pub(super) failure: Option<String>,
}

impl ContenderRounds {
    pub(super) async fn round(
        &mut self,
        environment: &mut TaskEnvironment,
        load: TaskLoad,
    ) -> Result<TaskRound> {
        self.contender.prepare(environment, load).await.context("preparing")?;
        self.contender.run(environment).await
    }
}

/// The contenders of each part.
pub(super) fn contenders(part: char, nats_url: &str) -> Vec<Contender> {
    let (mut peers, mut raws, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    match part {
        'a' => {
            peers = Peer::workers(nats_url);
            peers.extend(Peer::alone());
            peers.extend(Peer::sized_workers(nats_url));
            raws = Raw::all();
        }
        'b' => (peers, paths) = (Peer::behind_nats(nats_url), EndToEnd::backlog()),
        'c' => {
            peers = vec![Peer::antiphon(nats_url)];
            peers.extend(Peer::paced());
            paths = EndToEnd::paced();
        }
        'd' => peers = Peer::snapshots(nats_url),
        'e' => peers = vec![Peer::takeover(nats_url)],
        _ => {}
    }
    let paths = paths.into_iter().map(|path| Contender::EndToEnd(Box::new(path)));
    let peers = peers.into_iter().map(|peer| Contender::Peer(Box::new(peer)));
    paths.chain(peers).chain(raws.into_iter().map(Contender::Raw)).collect()
}
