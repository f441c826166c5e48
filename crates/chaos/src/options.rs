//! The settings of a run.

use std::{path::PathBuf, time::Duration};

/// The people who talk, and their subscribers.
#[derive(Debug, Clone)]
pub struct TalkSettings {
    /// Number of people, each in their own thread.
    pub people: usize,
    /// Number of subscribers of each of these threads.
    pub followers: usize,
    /// Maximum pause of a person after a message. If the people are calm, every pause has this
    /// length.
    pub pause: Duration,
    /// True if people do not stop, retry or interrupt anything, no turn fails, and no work follows
    /// a turn. Clients then wait only for the fleet.
    pub is_calm: bool,
}

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct ChaosSettings {
    /// Duration of the faults.
    pub duration: Duration,
    pub seed: u64,
    pub workers: usize,
    pub gateways: usize,
    pub workflows: usize,
    /// Number of NATS servers. With three, streams have three replicas, and cluster faults are made
    /// too.
    pub nats_servers: usize,
    /// Another build of the binary. Each process start uses either one.
    pub other_binary: Option<PathBuf>,
    pub partitions: u16,
    /// Lease of a partition. It is short, so that there are many takeovers.
    pub lease: Duration,
    /// Time after which a message with a lost chunk fails.
    pub gap_timeout: Duration,
    /// Number of threads; each has one client.
    pub threads: usize,
    pub talks: TalkSettings,
    /// Messages begun per second.
    pub messages_per_second: f64,
    /// Folder of the logs. It is kept if a violation was found.
    pub log_dir: PathBuf,
    /// True to print each fault when it is made.
    pub is_verbose: bool,
}

impl ChaosSettings {
    /// The settings with three workers, two gateways and two workflow services on 8 partitions, and
    /// 25 messages per second.
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
            gap_timeout: Duration::from_secs(14),
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
