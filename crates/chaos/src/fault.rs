//! The kinds of faults.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL to a worker, which is restarted shortly after.
    KillWorker,
    /// SIGSTOP to a worker for longer than its lease; it resumes without a lease.
    FreezeWorker,
    /// SIGTERM to a worker, which hands over its partitions.
    DrainWorker,
    /// SIGKILL to a gateway.
    KillGateway,
    /// SIGTERM to a gateway.
    DrainGateway,
    /// SIGKILL to a workflow service in the middle of its answers.
    KillWorkflow,
    /// SIGTERM to a workflow service.
    DrainWorkflow,
    /// SIGKILL to a NATS server.
    KillNats,
    /// SIGSTOP to a NATS server: its connections stay open, but it does not answer.
    FreezeNats,
    /// SIGKILL to the NATS server that leads the stream of a partition.
    KillStreamLeader,
    /// One NATS server and the others receive nothing from each other. Clients are connected to all
    /// of them.
    IsolateNats,
    /// SIGTERM to each NATS server in turn, after the previous one has caught up.
    RestartNatsInTurn,
    /// SIGKILL to Postgres.
    KillPostgres,
    /// The connection breaks before a commit reaches Postgres.
    CutBefore,
    /// The connection breaks after a commit was executed.
    CutAfter,
    /// The connection breaks, and the commit arrives later.
    CutLate,
    /// Postgres is half open for a while: connections stay open, but it does not answer.
    HalfOpen,
}

impl Fault {
    pub const ALL: [Self; 17] = [
        Self::KillWorker,
        Self::FreezeWorker,
        Self::DrainWorker,
        Self::KillGateway,
        Self::DrainGateway,
        Self::KillWorkflow,
        Self::DrainWorkflow,
        Self::KillNats,
        Self::FreezeNats,
        Self::KillStreamLeader,
        Self::IsolateNats,
        Self::RestartNatsInTurn,
        Self::KillPostgres,
        Self::CutBefore,
        Self::CutAfter,
        Self::CutLate,
        Self::HalfOpen,
    ];

    /// The kinds of faults that are possible with this number of NATS servers.
    pub fn possible(nats_servers: usize) -> Vec<Self> {
        let of_cluster = [Self::KillStreamLeader, Self::IsolateNats, Self::RestartNatsInTurn];
        Self::ALL.into_iter().filter(|fault| nats_servers > 1 || !of_cluster.contains(fault)).collect()
    }

    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillWorker => "worker killed (SIGKILL)",
            Self::FreezeWorker => "worker frozen beyond its lease",
            Self::DrainWorker => "worker drained (SIGTERM)",
            Self::KillGateway => "gateway killed (SIGKILL)",
            Self::DrainGateway => "gateway drained (SIGTERM)",
            Self::KillWorkflow => "workflow service killed (SIGKILL)",
            Self::DrainWorkflow => "workflow service drained (SIGTERM)",
            Self::KillNats => "NATS server killed (SIGKILL)",
            Self::FreezeNats => "NATS server frozen",
            Self::KillStreamLeader => "leader of a stream killed (SIGKILL)",
            Self::IsolateNats => "NATS server cut off from the others",
            Self::RestartNatsInTurn => "NATS servers restarted in turn",
            Self::KillPostgres => "Postgres killed (SIGKILL)",
            Self::CutBefore => "connection cut before a commit",
            Self::CutAfter => "connection cut after a commit",
            Self::CutLate => "commit arrives after the cut",
            Self::HalfOpen => "Postgres silent (half open)",
        }
    }
}
