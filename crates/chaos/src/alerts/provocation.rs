//! The provocations that make a fleet's alerts fire.

mod chunks;
mod commits;
mod processes;
mod turns;

use anyhow::Result;

use super::scene::{Fired, Scene};

/// A provocation. They are made in this order, because the effects of later ones last longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Provocation {
    Garbage,
    LostChunks,
    ForeignChunks,
    ForgedCommands,
    FailingTurns,
    FailingTasks,
    FailingModel,
    SilentTool,
    DyingWorkflow,
    RefusedEnds,
    FailedErasures,
    SlowClients,
    LongMessage,
    LargeMessages,
    UnpublishedEnds,
    FullStream,
    CutCommits,
    SlowCommits,
    DamagedPages,
    MissingTable,
    LockedTable,
    SilentPostgres,
    SilentNats,
    OtherVersion,
    FrozenWorker,
    KilledWorker,
    RestartingWorker,
    LateWorkflow,
    RemovedEntries,
    PurgedEntries,
    NoWorkers,
    NoGateways,
    NothingLeft,
    NoWorkflow,
}

impl Provocation {
    pub(super) const ALL: [Self; 34] = [
        Self::Garbage,
        Self::LostChunks,
        Self::ForeignChunks,
        Self::ForgedCommands,
        Self::FailingTurns,
        Self::FailingTasks,
        Self::FailingModel,
        Self::SilentTool,
        Self::DyingWorkflow,
        Self::RefusedEnds,
        Self::FailedErasures,
        Self::SlowClients,
        Self::LongMessage,
        Self::LargeMessages,
        Self::UnpublishedEnds,
        Self::FullStream,
        Self::CutCommits,
        Self::SlowCommits,
        Self::DamagedPages,
        Self::MissingTable,
        Self::LockedTable,
        Self::SilentPostgres,
        Self::SilentNats,
        Self::OtherVersion,
        Self::FrozenWorker,
        Self::KilledWorker,
        Self::RestartingWorker,
        Self::LateWorkflow,
        Self::RemovedEntries,
        Self::PurgedEntries,
        Self::NoWorkers,
        Self::NoGateways,
        Self::NothingLeft,
        Self::NoWorkflow,
    ];

    /// The name shown to people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Garbage => "payloads that are no chunks",
            Self::LostChunks => "messages without one of their chunks",
            Self::ForeignChunks => "chunks of a turn without its token",
            Self::ForgedCommands => "commands on the subject of chunks",
            Self::FailingTurns => "turns that fail for good",
            Self::FailingTasks => "tasks of many agents that fail for a passing reason",
            Self::FailingModel => "a model that cannot be reached",
            Self::SilentTool => "a tool that does not answer, and must not be called twice",
            Self::DyingWorkflow => "requests whose workflow service says nothing",
            Self::RefusedEnds => "a stream of turns' ends that takes only smaller entries",
            Self::FailedErasures => "erasures that have been tried too many times",
            Self::SlowClients => "clients that do not read their event streams",
            Self::LongMessage => "a message that goes on and on",
            Self::LargeMessages => "open messages of almost 4 MiB each",
            Self::UnpublishedEnds => "the stream of turns' ends deleted",
            Self::FullStream => "a stream that may hold hardly more than it does",
            Self::CutCommits => "connections cut after commits",
            Self::SlowCommits => "commits that take more than a second",
            Self::DamagedPages => "writes refused as on a broken page",
            Self::MissingTable => "a table renamed by another program",
            Self::LockedTable => "a table locked by another program",
            Self::SilentPostgres => "Postgres halted (SIGSTOP)",
            Self::SilentNats => "NATS halted (SIGSTOP)",
            Self::OtherVersion => "a worker of another version",
            Self::FrozenWorker => "a worker halted beyond its leases",
            Self::KilledWorker => "a worker killed, beside one that lives and takes nothing",
            Self::RestartingWorker => "a worker that starts again and again",
            Self::LateWorkflow => "a workflow service that comes after half a minute",
            Self::RemovedEntries => "entries removed between others that are not read yet",
            Self::PurgedEntries => "entries purged that are not read yet",
            Self::NoWorkers => "all workers killed",
            Self::NoGateways => "all gateways killed",
            Self::NothingLeft => "all processes killed",
            Self::NoWorkflow => "a workflow that no service serves",
        }
    }

    /// The alerts that must fire.
    pub(super) fn alerts(self) -> &'static [&'static str] {
        match self {
            Self::Garbage => &["AntiphonDeadLetters"],
            Self::LostChunks => &["AntiphonGapTimeouts"],
            Self::ForeignChunks => &["AntiphonUnauthorizedChunks"],
            Self::ForgedCommands => &["AntiphonForbiddenEntries"],
            Self::FailingTurns => &["AntiphonTurnsFailing"],
            Self::FailingTasks => &["AntiphonAgentsBackingOff"],
            Self::FailingModel => &["AntiphonModelCallsFailing"],
            Self::SilentTool => &["AntiphonToolCallsUndecided"],
            Self::DyingWorkflow => &["AntiphonRequestsRedelivered"],
            Self::RefusedEnds => &["AntiphonOutboxFailed"],
            Self::FailedErasures => &["AntiphonErasuresFailed"],
            Self::SlowClients => &["AntiphonSubscribersCut"],
            Self::LongMessage => &["AntiphonOldBuffers"],
            Self::LargeMessages => &["AntiphonLargeBuffers"],
            Self::UnpublishedEnds => &["AntiphonOutboxBacklog"],
            Self::FullStream => &["AntiphonStreamFull"],
            Self::CutCommits => &["AntiphonCommitsUnknown"],
            Self::SlowCommits => &["AntiphonCommitsSlow"],
            Self::DamagedPages => &["AntiphonDamagedPostgres"],
            Self::MissingTable => &["AntiphonStatementsRefused"],
            Self::LockedTable => &["AntiphonReaderLag"],
            Self::SilentPostgres => &["AntiphonCommitsStopped", "AntiphonCheckpointStuck"],
            Self::SilentNats => &["AntiphonInputsUnconfirmed", "AntiphonErrors"],
            Self::OtherVersion => &["AntiphonVersionsMixed"],
            Self::FrozenWorker => &["AntiphonLeasesLost"],
            Self::KilledWorker => &["AntiphonPartitionsWithoutOwner"],
            Self::RestartingWorker => &["AntiphonRestarts"],
            Self::LateWorkflow => &["AntiphonFirstChunkSlow"],
            Self::RemovedEntries => &["AntiphonStreamGaps"],
            Self::PurgedEntries => &["AntiphonOpenIncidents"],
            Self::NoWorkers => &["AntiphonNoWorkers", "AntiphonOwnersUnreachable"],
            Self::NoGateways => &["AntiphonGatewaysDown", "AntiphonProcessesDown"],
            Self::NothingLeft => &["AntiphonDown"],
            Self::NoWorkflow => &["AntiphonInputsWaiting", "AntiphonTurnsUnanswered"],
        }
    }

    /// Makes the provocation until its alerts fire, and then undoes it.
    pub(super) async fn make(self, scene: &mut Scene) -> Result<Fired> {
        let alerts = self.alerts();
        match self {
            Self::Garbage => scene.watch_while(alerts, chunks::garbage).await,
            Self::LostChunks => scene.watch_while(alerts, chunks::lost_chunks).await,
            Self::ForeignChunks => scene.watch_while(alerts, chunks::foreign_chunks).await,
            Self::ForgedCommands => scene.watch_while(alerts, chunks::forged_commands).await,
            Self::FailingTurns => {
                scene.watch_while(alerts, async |scene| turns::say_many(scene, "fails-for-good").await).await
            }
            Self::FailingTasks => {
                turns::failing_tasks(scene).await?;
                scene.watch(alerts).await
            }
            Self::FailingModel => scene.watch_while(alerts, turns::failing_model).await,
            Self::SilentTool => {
                turns::silent_tool(scene).await?;
                scene.watch(alerts).await
            }
            Self::DyingWorkflow => {
                scene.watch_while(alerts, async |scene| turns::say_many(scene, "dies").await).await
            }
            Self::RefusedEnds => turns::refused_ends(scene, alerts).await,
            Self::FailedErasures => scene.watch_while(alerts, commits::failed_erasures).await,
            Self::SlowClients => {
                let mut clients = Vec::new();
                let connect = async |scene: &mut Scene| processes::slow_clients(scene, &mut clients).await;
                scene.watch_while(alerts, connect).await
            }
            Self::LongMessage => chunks::long_message(scene, alerts).await,
            Self::LargeMessages => chunks::large_messages(scene, alerts).await,
            Self::UnpublishedEnds => turns::unpublished_ends(scene, alerts).await,
            Self::FullStream => chunks::full_stream(scene, alerts).await,
            Self::CutCommits => scene.watch_while(alerts, commits::cut_commits).await,
            Self::SlowCommits => commits::slow_commits(scene, alerts).await,
            Self::DamagedPages => commits::damaged_pages(scene, alerts).await,
            Self::MissingTable => commits::missing_table(scene, alerts).await,
            Self::LockedTable => commits::locked_table(scene, alerts).await,
            Self::SilentPostgres => commits::silent_postgres(scene, alerts).await,
            Self::SilentNats => processes::silent_nats(scene, alerts).await,
            Self::OtherVersion => processes::other_version(scene, alerts).await,
            Self::FrozenWorker => scene.watch_while(alerts, processes::frozen_worker).await,
            Self::KilledWorker => processes::killed_worker(scene, alerts).await,
            Self::RestartingWorker => scene.watch_while(alerts, processes::restarting_worker).await,
            Self::LateWorkflow => turns::late_workflow(scene, alerts).await,
            Self::RemovedEntries => chunks::removed_entries(scene, alerts).await,
            Self::PurgedEntries => chunks::purged_entries(scene, alerts).await,
            Self::NoWorkers => processes::no_workers(scene, alerts).await,
            Self::NoGateways => processes::no_gateways(scene, alerts).await,
            Self::NothingLeft => processes::nothing_left(scene, alerts).await,
            Self::NoWorkflow => {
                turns::no_workflow(scene).await?;
                scene.watch(alerts).await
            }
        }
    }
}
