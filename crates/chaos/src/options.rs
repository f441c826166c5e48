//! How a run is set up.

use std::{path::PathBuf, time::Duration};

/// The people who talk, and how many look on.
#[derive(Debug, Clone)]
pub struct TalkSettings {
    /// Number of people, each in a thread of its own.
    pub people: usize,
    /// Followers of each of these threads.
    pub followers: usize,
    /// The longest pause of a person after a message; every pause if the people are calm.
    pub pause: Duration,
    /// Nothing is stopped, tried again or interrupted, nothing fails, and nothing follows a turn: clients wait for nothing but the fleet.
    pub is_calm: bool,
}

/// How a run is set up.
#[derive(Debug, Clone)]
pub struct ChaosSettings {
    /// How long faults are made.
    pub duration: Duration,
    /// Where all randomness comes from.
    pub seed: u64,
    /// Number of workers.
    pub workers: usize,
    /// Number of gateways.
    pub gateways: usize,
    /// Number of workflow services.
    pub workflows: usize,
    /// Number of NATS servers; with three, streams have three replicas, and faults of a cluster are made too.
    pub nats_servers: usize,
    /// Another build of the binary: each process that is started is of either one.
    pub other_binary: Option<PathBuf>,
    /// Number of partitions.
    pub partitions: u16,
    /// Lease of a partition; short, so that takeovers are many.
    pub lease: Duration,
    /// After this long a message with a lost chunk is given up.
    pub gap_timeout: Duration,
    /// Number of threads, each with one client.
    pub threads: usize,
    /// The turns of the run.
    pub talks: TalkSettings,
    /// Messages begun per second.
    pub messages_per_second: f64,
    /// Where logs go; kept when something is wrong.
    pub log_dir: PathBuf,
    /// Says each fault when it is made.
    pub is_verbose: bool,
}

impl ChaosSettings {
    /// Three workers, two gateways and two workflow services on 8 partitions, 25 messages a second.
    pub fn new(duration: Duration, seed: u64) -> Self {
        Self {
            duration,
            seed,
            workers: 3,
            gateways: 2,
            workflows: 2,
            nats_servers: 1,
            other_binary: None,
            partitions: 8,
            lease: Duration::from_secs(3),
            gap_timeout: Duration::from_secs(8),
            threads: 30,
            talks: TalkSettings {
                people: 6,
                followers: 1,
                pause: Duration::from_millis(900),
                is_calm: false,
            },
            messages_per_second: 25.0,
            log_dir: devservices::workspace::target_dir().join("chaos").join(seed.to_string()),
            is_verbose: false,
        }
    }
}
