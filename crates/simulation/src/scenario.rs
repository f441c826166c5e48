//! The parameters of one seed: sizes, limits and fault rates. Each seed draws its own.

use partition::{PartitionLimits, TurnRules};

use crate::rng::Rng;

mod follow_ups;

pub(crate) use follow_ups::{FollowUpProfile, ZONE};

/// Sizes, times (ms) and rates of one run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) partitions: u16,
    pub(crate) workers: usize,
    pub(crate) threads: usize,
    pub(crate) messages: usize,
    pub(crate) clients: usize,
    pub(crate) gateways: usize,
    /// Latency of NATS messages to each gateway, ms.
    pub(crate) link_ms: Vec<i64>,
    /// Maximum number of open messages in one reply.
    pub(crate) most_shown: usize,
    /// Publishers begin messages, and faults happen, until this time, ms.
    pub(crate) faults_until: i64,
    pub(crate) limits: PartitionLimits,
    pub(crate) max_open: usize,
    pub(crate) lease_ms: i64,
    pub(crate) answer_timeout_ms: i64,
    pub(crate) heartbeat_ms: i64,
    pub(crate) batch: usize,
    pub(crate) ask_bytes: usize,
    /// Chunks may create threads; otherwise the first thread does not exist.
    pub(crate) creates_threads: bool,
    /// Largest error of a worker's clock, ms.
    pub(crate) skew_ms: i64,
    /// When the faults stop, some of the dead workers stay dead.
    pub(crate) dead_stay_dead: bool,
    pub(crate) publishing: PublishProfile,
    pub(crate) turn_profile: TurnProfile,
    pub(crate) follow_ups: Option<FollowUpProfile>,
    pub(crate) faults: FaultRates,
}

/// Turns, tasks, control commands, and the workflows that answer. Without inputs and tasks the
/// world has no turns.
#[derive(Debug, Clone)]
pub(crate) struct TurnProfile {
    /// Number of inputs of persons.
    pub(crate) inputs: usize,
    pub(crate) tasks: usize,
    /// Interval of control commands, retries and queries, ms; 0: never.
    pub(crate) people_ms: i64,
    pub(crate) rules: TurnRules,
    /// A delivery without any reply is repeated after this time, ms.
    pub(crate) ack_wait_ms: i64,
    /// Duplicate window of the request stream, ms.
    pub(crate) window_ms: i64,
    pub(crate) duplicate: f64,
    pub(crate) conflict: f64,
    /// Inputs whose policy is not to wait.
    pub(crate) impatient: f64,
    pub(crate) background: f64,
    /// Inputs of persons wait while their agent backs off.
    pub(crate) refuses: bool,
    /// The workflow never answers.
    pub(crate) silent: f64,
    /// The workflow reports a failure.
    pub(crate) error: f64,
    /// The workflow dies within its answer.
    pub(crate) dies: f64,
    /// Progress reports are lost, so the request is redelivered while the workflow is still
    /// working.
    pub(crate) doubled: f64,
    pub(crate) ack_lost: f64,
    /// Requests are delivered late.
    pub(crate) late: f64,
    pub(crate) tools: f64,
    /// The answer asks for another step of the same batch.
    pub(crate) continues: f64,
    /// A publisher without the token writes into the answer.
    pub(crate) forged: f64,
    pub(crate) shuffled: f64,
}

/// Rates of the faults of publishers.
#[derive(Debug, Clone)]
pub(crate) struct PublishProfile {
    pub(crate) duplicate: f64,
    pub(crate) late_duplicate: f64,
    pub(crate) lost: f64,
    pub(crate) unfinished: f64,
    pub(crate) attempts: f64,
    pub(crate) error: f64,
    pub(crate) conflict: f64,
    pub(crate) final_conflict: f64,
    pub(crate) garbage: f64,
    pub(crate) slow: f64,
    pub(crate) framed: f64,
}

/// Probabilities of faults, each at its own kind of occasion.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultRates {
    pub(crate) crash: f64,
    pub(crate) pause: f64,
    pub(crate) drain: f64,
    pub(crate) refused: f64,
    pub(crate) request_lost: f64,
    pub(crate) request_late: f64,
    pub(crate) aborted: f64,
    pub(crate) reply_lost: f64,
    pub(crate) slow_statement: f64,
    pub(crate) slow_look_up: f64,
    pub(crate) cut: f64,
    pub(crate) repeat: f64,
    pub(crate) outage: f64,
    pub(crate) shed: f64,
    pub(crate) frame_lost: f64,
    pub(crate) ask_lost: f64,
    pub(crate) client_cut: f64,
    pub(crate) data_refused: f64,
    pub(crate) request_slow: f64,
    pub(crate) unrequestable: f64,
    pub(crate) stop_lost: f64,
    pub(crate) relay_repeat: f64,
    pub(crate) relay_slow: f64,
}

impl Scenario {
    /// `timers` draws follow-ups and schedules.
    pub(crate) fn draw(rng: &mut Rng, timers: &mut Rng) -> Self {
        let mut scenario = Self::without_timers(rng);
        let (has_inputs, faults_until) = (scenario.turn_profile.inputs > 0, scenario.faults_until);
        scenario.follow_ups = FollowUpProfile::draw(timers, has_inputs, faults_until);
        if let Some(profile) = &scenario.follow_ups {
            scenario.limits.timer_window = profile.timer_window;
        }
        scenario
    }

    fn without_timers(rng: &mut Rng) -> Self {
        let tick_ms = rng.range(80, 250);
        let gap_timeout_ms = rng.range(1_500, 4_000);
        let faults_until = rng.range(4_000, 16_000);
        let turn_profile = TurnProfile::draw(rng);
        let has_turns = turn_profile.inputs + turn_profile.tasks > 0;
        let (least_open, max_messages) = if has_turns { (5, 12) } else { (2, 40) };
        Self {
            partitions: rng.pick([1, 1, 2]),
            workers: rng.range(2, 4) as usize,
            threads: rng.range(1, 6) as usize,
            messages: rng.range(if has_turns { 0 } else { 8 }, max_messages) as usize,
            clients: rng.range(1, 4) as usize,
            gateways: 2,
            link_ms: (0..2).map(|_| rng.pick([0, 0, 0, 0, 300, 1_500])).collect(),
            most_shown: rng.pick([2, 64, 64]),
            faults_until,
            limits: limits(rng, tick_ms, gap_timeout_ms),
            max_open: rng.range(least_open, 8 + least_open * 2) as usize,
            lease_ms: rng.range(800, 2_500),
            answer_timeout_ms: rng.range(300, 900),
            heartbeat_ms: rng.range(50, 200),
            batch: rng.pick([1, 4, 16, 64]),
            ask_bytes: rng.pick([1, 40, 200, 100_000]),
            creates_threads: !rng.chance(0.15),
            skew_ms: rng.pick([0, 50, 5_000, 3_600_000]),
            dead_stay_dead: rng.chance(0.5),
            publishing: PublishProfile::draw(rng),
            turn_profile,
            follow_ups: None,
            faults: FaultRates::draw(rng),
        }
    }
}

fn limits(rng: &mut Rng, tick_ms: i64, gap_timeout_ms: i64) -> PartitionLimits {
    let stall_timeout_ms = gap_timeout_ms * rng.range(1, 3) + 500;
    PartitionLimits {
        chunks_per_message: rng.pick([24, 64, 64]),
        message_bytes: 1 << 20,
        gap_timeout_ms,
        stall_timeout_ms,
        sweep_ms: rng.range(200, 1_000),
        tick_ms,
        replay_entries: rng.pick([2, 4, 20, 100, 1_000_000]) as u64,
        replay_bytes: rng.pick([500, 5_000, 1_000_000]) as u64,
        replay_command_bytes: rng.pick([300, 3_000, 1_000_000]) as usize,
        save_bytes: rng.pick([1, 200, 100_000]) as usize,
        commit_turns: rng.range(1, 4) as usize,
        commit_bytes: rng.pick([200, 1_000, 100_000]),
        checkpoint_ms: rng.range(50, 1_000),
        remembered_bytes: rng.pick([0, 150, 1_000, 2_000]),
        stream_step_ms: tick_ms * 2,
        active_turns: rng.pick([1, 2, 1_000]),
        // Above this limit an input fails, which nothing here expects.
        postponed_turns: PartitionLimits::default().postponed_turns,
        queue_window: rng.pick([1, 2, 8]),
        timer_window: PartitionLimits::default().timer_window,
        frame_bytes: rng.pick([1, 300, 100_000]),
        numbered_threads: rng.pick([1, 2, 1_000]),
        refused_bytes: PartitionLimits::default().refused_bytes,
        create_agents: true,
        reports_chunks: true,
    }
}

/// Often 0, otherwise spread evenly over the orders of magnitude up to `most`.
fn rate(rng: &mut Rng, often: f64, most: f64) -> f64 {
    if !rng.chance(often) {
        return 0.0;
    }
    most / f64::from(1_u32 << rng.below(5))
}

impl PublishProfile {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            duplicate: rate(rng, 0.7, 0.5),
            late_duplicate: rate(rng, 0.6, 0.1),
            lost: rate(rng, 0.6, 0.3),
            unfinished: rate(rng, 0.5, 0.2),
            attempts: rate(rng, 0.6, 0.5),
            error: rate(rng, 0.5, 0.2),
            conflict: rate(rng, 0.5, 0.5),
            final_conflict: rate(rng, 0.5, 0.2),
            garbage: rate(rng, 0.5, 0.5),
            slow: rate(rng, 0.7, 0.8),
            framed: rate(rng, 0.5, 1.0),
        }
    }
}

impl TurnProfile {
    fn draw(rng: &mut Rng) -> Self {
        let is_without = rng.chance(0.3);
        let base_ms = rng.range(100, 500);
        let deadline_ms = rng.range(1_500, 4_000);
        Self {
            inputs: if is_without { 0 } else { rng.range(0, 7) as usize },
            tasks: if is_without { 0 } else { rng.range(1, 9) as usize },
            people_ms: if is_without || rng.chance(0.3) { 0 } else { rng.range(200, 1_500) },
            rules: TurnRules {
                deadline_ms,
                backoff_base_ms: base_ms,
                backoff_cap_ms: base_ms * rng.range(1, 8),
                max_attempts: rng.pick([None, None, Some(1), Some(3)]),
                ..TurnRules::default()
            },
            ack_wait_ms: rng.range(300, 1_200),
            window_ms: rng.pick([10_000, 1_000_000]),
            duplicate: rate(rng, 0.7, 0.5),
            conflict: rate(rng, 0.5, 0.5),
            impatient: rate(rng, 0.6, 0.8),
            background: rate(rng, 0.6, 0.6),
            refuses: rng.chance(0.3),
            silent: rate(rng, 0.5, 0.3),
            error: rate(rng, 0.6, 0.4),
            dies: rate(rng, 0.6, 0.4),
            doubled: rate(rng, 0.5, 0.3),
            ack_lost: rate(rng, 0.5, 0.3),
            late: rate(rng, 0.5, 0.3),
            tools: rate(rng, 0.7, 0.6),
            continues: rate(rng, 0.4, 0.3),
            forged: rate(rng, 0.4, 0.3),
            shuffled: rate(rng, 0.5, 0.6),
        }
    }
}

impl FaultRates {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            crash: rate(rng, 0.7, 0.02),
            pause: rate(rng, 0.7, 0.02),
            drain: rate(rng, 0.4, 0.01),
            refused: rate(rng, 0.5, 0.2),
            request_lost: rate(rng, 0.6, 0.1),
            request_late: rate(rng, 0.6, 0.1),
            aborted: rate(rng, 0.5, 0.1),
            reply_lost: rate(rng, 0.6, 0.2),
            slow_statement: rate(rng, 0.6, 0.2),
            slow_look_up: rate(rng, 0.6, 0.4),
            cut: rate(rng, 0.6, 0.1),
            repeat: rate(rng, 0.6, 0.2),
            outage: rate(rng, 0.5, 0.03),
            shed: rate(rng, 0.6, 0.2),
            frame_lost: rate(rng, 0.7, 0.3),
            ask_lost: rate(rng, 0.5, 0.3),
            client_cut: rate(rng, 0.6, 0.1),
            data_refused: rate(rng, 0.4, 0.1),
            request_slow: rate(rng, 0.6, 0.3),
            unrequestable: rate(rng, 0.3, 0.1),
            stop_lost: rate(rng, 0.5, 0.5),
            relay_repeat: rate(rng, 0.6, 0.3),
            relay_slow: rate(rng, 0.6, 0.3),
        }
    }
}
