//! Converts figures to rows: units, ratios and goals.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use serde_json::json;

use crate::{
    drain::Drain,
    event_rate::{self, EventCost},
    latency::{
        Latency,
        load::{LatencyLoad, PathTiming},
    },
    reorder_rate,
    rounds::BacklogRounds,
    table::{Row, median},
    usage::Used,
};

/// Goals for the worker's rate relative to raw reading, with frames of one chunk, and of sixteen.
const READING_RATIO: f64 = 0.6;
const SIXTEEN_READING_RATIO: f64 = 0.2;
/// Goal for turns relative to raw inserts.
const INSERT_RATIO: f64 = 0.5;
/// Goal for the number of entries read, relative to the entries in the stream.
const READS: f64 = 1.02;
/// Goal in microseconds of all processes per drained chunk, with one chunk per frame.
const DRAIN_US: f64 = 11.0;
/// Goal for the resident bytes of a worker.
const WORKER_BYTES: u64 = 100 << 20;
/// Goal in nanoseconds per chunk inside the reorder buffer.
const REORDER_NS: f64 = 150.0;
/// Goal for the allocations per chunk: those that remain when only the digests' vector grows.
const REORDER_ALLOCATIONS: f64 = 0.05;
/// Maximum rate in chunks per second at which the milliseconds that the fleet adds to core NATS are
/// compared with a goal.
const JUDGED_RATE: f64 = 18_000.0;
const ADDED_P50_MS: f64 = 1.0;
const ADDED_P99_MS: f64 = 5.0;
/// Goals in microseconds of all processes per live chunk, each with its rate in chunks per second.
const LIVE_US: [(f64, f64); 2] = [(9_000.0, 90.0), (30_000.0, 40.0)];
/// Memory is flat if it grows by no more than this from its first to its last sample.
const FLAT_RATIO: f64 = 1.15;
const FLAT_BYTES: u64 = 8 << 20;

pub(super) fn ordering(allocations: fn() -> u64) -> Vec<Row> {
    let runs = |window| {
        let runs: Vec<_> = (0..7).map(|_| reorder_rate::order(window, allocations)).collect();
        (median(runs.iter().map(|run| run.ns)), median(runs.iter().map(|run| run.allocations)))
    };
    let row = |what: &str, ns: f64| {
        let goal = format!("<= {REORDER_NS} ns");
        Row::new('e', what, format!("{ns:.0} ns/chunk")).goal(goal, ns <= REORDER_NS).figure("ns", ns)
    };
    let ((in_order, per_chunk), (shuffled, held)) = (runs(1), runs(16));
    let allocated = Row::new('e', "reorder, in order: allocations", format!("{per_chunk:.3} per chunk"))
        .goal("0 but the digests' growth", per_chunk <= REORDER_ALLOCATIONS)
        .note(format!("window 16: {held:.3}"))
        .figure("allocations", per_chunk);
    vec![
        row("reorder, 1,000 messages, in order", in_order),
        row("reorder, shuffled by 16", shuffled),
        allocated,
    ]
}

pub(super) fn events(allocations: fn() -> u64) -> Result<Vec<Row>> {
    const SUBSCRIBERS: usize = 10;
    let runs = |subscribers| {
        let runs = (0..7).map(|_| event_rate::encode(subscribers, allocations));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let ns = median(runs.iter().map(|run| run.ns));
        anyhow::Ok(EventCost { ns, allocations: median(runs.iter().map(|run| run.allocations)) })
    };
    let (native, ten) = (runs(0)?, runs(SUBSCRIBERS)?);
    let of_one = |ten: f64, native: f64| (ten - native) / SUBSCRIBERS as f64;
    let row = |what: &str, allocations: f64, ns: f64| {
        Row::new('f', what, format!("{allocations:.2} allocations/event"))
            .note(format!("{ns:.0} ns"))
            .figure("allocations", allocations)
            .figure("ns", ns)
    };
    Ok(vec![
        row("frame to native event", native.allocations, native.ns),
        row(
            "each subscriber of the AI SDK adds",
            of_one(ten.allocations, native.allocations),
            of_one(ten.ns, native.ns),
        ),
    ])
}

pub(super) fn backlogs(single: &BacklogRounds, sixteen: &BacklogRounds, short: &BacklogRounds) -> Vec<Row> {
    let all = [single, sixteen, short];
    let mut rows = Vec::new();
    rows.extend([single, sixteen].iter().filter_map(|rounds| reading(rounds)));
    rows.extend([single, short].iter().filter_map(|rounds| insert(rounds)));
    rows.extend(
        [(single, READING_RATIO), (sixteen, SIXTEEN_READING_RATIO)]
            .iter()
            .filter_map(|(rounds, goal)| drained(rounds, *goal)),
    );
    rows.extend(turns(short));
    let costs = [(single, Some(DRAIN_US)), (sixteen, None), (short, None)];
    rows.extend(costs.iter().filter_map(|(rounds, goal)| processors(rounds, *goal)));
    rows.extend(all.iter().filter_map(|rounds| reads(rounds)));
    rows.extend(all.iter().filter_map(|rounds| memory(rounds)));
    rows
}

fn reading(rounds: &BacklogRounds) -> Option<Row> {
    let rate = rounds.reading_rate()?;
    let chunks = rounds.backlog.chunks;
    let client = median(rounds.readings.iter().map(|it| per_chunk(it.used.own, chunks)));
    let server = median(rounds.readings.iter().map(|it| per_chunk(of(&it.used, "nats-server"), chunks)));
    let row = Row::new('a', format!("raw reading, {}", rounds.backlog.shape.name), rate_text(rate, "chunks"));
    let row = row.note(format!("client {client:.2} us/chunk, nats-server {server:.2}; {}", noise(rounds)));
    Some(row.figure("chunks_per_second", rate).figure("client_us_per_chunk", client))
}

fn insert(rounds: &BacklogRounds) -> Option<Row> {
    let one = rounds.insert_rate()?;
    let two = median(rounds.inserts.iter().map(|both| both[1]));
    let kind =
        if rounds.backlog.shape.lengths.end() > &16 { "long messages" } else { rounds.backlog.shape.name };
    let row = Row::new('a', format!("raw UNNEST insert, {kind}"), rate_text(one, "turns"));
    let row = row.note(format!("two connections: {two:.0} turns/s"));
    Some(row.figure("turns_per_second", one).figure("turns_per_second_two_connections", two))
}

fn drained(rounds: &BacklogRounds, goal: f64) -> Option<Row> {
    let rate = rounds.drain_rate()?;
    let row = Row::new('b', format!("worker, {}", rounds.backlog.shape.name), rate_text(rate, "chunks"));
    let turns = median(rounds.drains.iter().map(|it| it.turns));
    let row = row.figure("chunks_per_second", rate).figure("turns_per_second", turns);
    let row = row.of_binary("chunks/s", rate);
    let Some(limit) = rounds.reading_rate() else { return Some(row) };
    let ratio = rate / limit;
    let row = row.figure("of_raw_reading", ratio).note(match rounds.insert_rate() {
        Some(insert) => {
            format!("{ratio:.2} of raw reading; {turns:.0} turns/s = {:.2} of raw insert", turns / insert)
        }
        None => format!("{ratio:.2} of raw reading"),
    });
    Some(row.goal(format!(">= {goal} of raw reading"), ratio >= goal))
}

fn turns(rounds: &BacklogRounds) -> Option<Row> {
    let rate = rounds.drain_rate()?;
    let turns = median(rounds.drains.iter().map(|it| it.turns));
    let row = Row::new('b', format!("worker, {}", rounds.backlog.shape.name), rate_text(turns, "turns"));
    let row = row.figure("turns_per_second", turns).figure("chunks_per_second", rate);
    let row = row.of_binary("turns/s", turns);
    let Some(insert) = rounds.insert_rate() else { return Some(row) };
    let ratio = turns / insert;
    let row =
        row.note(format!("{ratio:.2} of raw insert; {rate:.0} chunks/s")).figure("of_raw_insert", ratio);
    Some(row.goal(format!(">= {INSERT_RATIO} of raw insert"), ratio >= INSERT_RATIO))
}

fn processors(rounds: &BacklogRounds, goal: Option<f64>) -> Option<Row> {
    rounds.drains.first()?;
    let chunks = rounds.backlog.chunks;
    let cost = |name: &str| median(rounds.drains.iter().map(|it| per_chunk(of(&it.used, name), chunks)));
    let foreign = median(rounds.drains.iter().map(|it| it.used.foreign_cores));
    let (worker, nats, postgres) = (cost("worker"), cost("nats-server"), cost("postgres"));
    let all = worker + nats + postgres;
    let what = format!("drain, {}", rounds.backlog.shape.name);
    let row = Row::new('d', what, format!("{all:.2} us/chunk"))
        .note(format!(
            "worker {worker:.2}, nats-server {nats:.2}, postgres {postgres:.2}; others used {foreign:.1} cores"
        ))
        .figure("us_per_chunk", json!({"worker": worker, "nats-server": nats, "postgres": postgres}))
        .of_binary("us/chunk, all", all)
        .of_binary("us/chunk, worker", worker)
        .of_binary("us/chunk, nats-server", nats)
        .of_binary("us/chunk, Postgres", postgres);
    Some(match goal {
        Some(goal) => row.goal(format!("<= {goal} us/chunk"), all <= goal),
        None => row,
    })
}

/// A row with the round that read the most entries.
fn reads(rounds: &BacklogRounds) -> Option<Row> {
    let most = rounds.drains.iter().map(|drain| drain.reads).max_by(f64::total_cmp)?;
    let what = format!("entries read / in the stream, {}", rounds.backlog.shape.name);
    let row = Row::new('d', what, format!("{most:.3}")).figure("reads_per_entry", most);
    let row = row.of_binary("entries read / in the stream", most);
    Some(row.goal(format!("<= {READS}"), most <= READS))
}

/// A row with the round in which memory grew most.
fn memory(rounds: &BacklogRounds) -> Option<Row> {
    let growth = |drain: &&Drain| drain.memory[2].saturating_sub(drain.memory[0]);
    let memory = rounds.drains.iter().max_by_key(growth)?.memory;
    let most = rounds.drains.iter().flat_map(|drain| drain.memory).max()?;
    Some(bounded(flat(format!("worker memory, {}", rounds.backlog.shape.name), &memory), most))
}

/// The rows of the latency measurement with one load.
pub(super) fn latency(load: LatencyLoad, latency: &Latency) -> Vec<Row> {
    let Latency { core, relay, fleet, worker_memory, gateway_memory } = latency;
    let (offered, named) = (load.offered(), |what: &str| format!("{} threads: {what}", load.streams));
    let quantiles = |timed: &PathTiming| {
        format!(
            "p50 {:.2} ms, p99 {:.2} ms (p99.9 {:.1}, max {:.0})",
            timed.p50, timed.p99, timed.p999, timed.max
        )
    };
    let row = |what: &str, timed: &PathTiming| {
        let figures = json!({"p50": timed.p50, "p99": timed.p99, "p999": timed.p999, "max": timed.max});
        let note =
            format!("{:.0} chunks/s sent; others used {:.1} cores", timed.rate, timed.used.foreign_cores);
        Row::new('c', named(what), quantiles(timed))
            .note(note)
            .figure("ms", figures)
            .figure("chunks_per_second", timed.rate)
    };
    let added = |what: &str, ms: f64, goal: f64| {
        let row = Row::new('c', named(what), format!("{ms:.2} ms")).figure("ms", ms);
        // Above this rate two cores are fully used, and the latency depends on the length of
        // queues.
        if offered > JUDGED_RATE { row } else { row.goal(format!("<= {goal} ms"), ms <= goal) }
    };
    let wrong = core.lost + core.repeated + relay.lost + relay.repeated + fleet.lost + fleet.repeated;
    let lost = format!("{} lost, {} repeated of {}", fleet.lost, fleet.repeated, fleet.sent);
    let memory = worker_memory.iter().max().copied().unwrap_or_default();
    vec![
        row("core NATS, publish to subscriber", core),
        row("a relay without order and storage, publish to client", relay),
        row("fleet, publish to event stream", fleet)
            .of_binary("ms, p50", fleet.p50)
            .of_binary("ms, p99", fleet.p99),
        added("the fleet adds, p50", fleet.p50 - core.p50, ADDED_P50_MS),
        added("the fleet adds, p99", fleet.p99 - core.p99, ADDED_P99_MS),
        Row::new('c', named("chunks at clients"), lost)
            .goal("0 and 0", wrong == 0)
            .note(format!(
                "core NATS: {} lost, {} repeated; relay: {}, {}",
                core.lost, core.repeated, relay.lost, relay.repeated
            ))
            .figure("wrong", wrong),
        LiveCost::of(core).row(named("core NATS")),
        LiveCost::of(relay).row(named("a relay without order and storage")),
        LiveCost::of(fleet).judged(named("live streams"), offered),
        bounded(flat(named("worker memory, live"), worker_memory), memory),
        flat(named("gateway memory, live"), gateway_memory),
    ]
}
/// Microseconds of processor time per live chunk: of each process, and of all including publisher
/// and receivers.
struct LiveCost {
    parts: Vec<(&'static str, f64)>,
    all: f64,
}

impl LiveCost {
    fn of(timed: &PathTiming) -> Self {
        let chunks = (timed.rate * timed.used.seconds) as u64;
        let processes = timed.used.processes.iter().copied().chain([("client", timed.used.own)]);
        let parts: Vec<_> = processes.map(|(name, used)| (name, per_chunk(used, chunks))).collect();
        let all = parts.iter().map(|(_, us)| us).sum();
        Self { parts, all }
    }

    fn row(&self, what: String) -> Row {
        let text: Vec<_> = self.parts.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
        let figures: BTreeMap<_, _> = self.parts.iter().copied().collect();
        Row::new('d', what, format!("{:.1} us/chunk", self.all))
            .note(text.join(", "))
            .figure("us_per_chunk", json!(figures))
    }

    /// The row of the fleet with its goal, at this rate in chunks per second.
    fn judged(&self, what: String, offered: f64) -> Row {
        let row = self.row(what).of_binary("us/chunk, all", self.all);
        let row =
            self.parts.iter().fold(row, |row, (name, us)| row.of_binary(&format!("us/chunk, {name}"), *us));
        match LIVE_US.iter().find(|(rate, _)| (rate - offered).abs() < 1.0) {
            Some((_, goal)) => row.goal(format!("<= {goal} us/chunk"), self.all <= *goal),
            None => row,
        }
    }
}

fn flat(what: String, samples: &[u64]) -> Row {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let texts: Vec<_> = samples.iter().map(|bytes| format!("{:.0}", mib(*bytes))).collect();
    let (first, last) = (samples.first().copied().unwrap_or(0), samples.last().copied().unwrap_or(0));
    let is_flat = last <= ((first as f64 * FLAT_RATIO) as u64).max(first + FLAT_BYTES);
    Row::new('d', what, format!("{} MiB", texts.join(" -> ")))
        .goal("flat", is_flat)
        .figure("bytes", json!(samples))
        .of_binary("MiB", mib(last))
}

/// Adds the goal for the memory of a worker, which had at most `most` bytes in any round.
fn bounded(row: Row, most: u64) -> Row {
    let is_met = row.is_met != Some(false) && most <= WORKER_BYTES;
    row.goal(format!("flat, <= {} MiB", WORKER_BYTES >> 20), is_met)
}

/// A short line about a round, while the benchmark runs.
pub(super) fn progress(rounds: &BacklogRounds) -> String {
    let mut parts = Vec::new();
    if let (Some(reading), Some(insert)) = (rounds.readings.last(), rounds.inserts.last()) {
        parts.push(format!("raw reading {:.0} chunks/s", reading.rate));
        parts.push(format!("raw insert {:.0} and {:.0} turns/s", insert[0], insert[1]));
    }
    if let Some(drain) = rounds.drains.last() {
        parts.push(format!("worker {:.0} chunks/s, {:.0} turns/s", drain.rate, drain.turns));
        parts.push(format!("{:.1} cores elsewhere", drain.used.foreign_cores));
    }
    parts.join("; ")
}

impl BacklogRounds {
    fn reading_rate(&self) -> Option<f64> {
        (!self.readings.is_empty()).then(|| median(self.readings.iter().map(|it| it.rate)))
    }

    fn insert_rate(&self) -> Option<f64> {
        (!self.inserts.is_empty()).then(|| median(self.inserts.iter().map(|both| both[0])))
    }

    fn drain_rate(&self) -> Option<f64> {
        (!self.drains.is_empty()).then(|| median(self.drains.iter().map(|it| it.rate)))
    }
}

fn noise(rounds: &BacklogRounds) -> String {
    format!("others used {:.1} cores", median(rounds.readings.iter().map(|it| it.used.foreign_cores)))
}

fn of(used: &Used, name: &str) -> Duration {
    used.processes.iter().find(|(it, _)| *it == name).map_or(Duration::ZERO, |(_, used)| *used)
}

fn per_chunk(used: Duration, chunks: u64) -> f64 {
    used.as_secs_f64() * 1e6 / chunks.max(1) as f64
}

fn rate_text(rate: f64, unit: &str) -> String {
    format!("{rate:.0} {unit}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: Duration = Duration::from_millis(800);

    /// The rows for invented figures: core NATS takes no time; the fleet takes 2 and 4 ms, and 80
    /// us of a worker for each of 10,000 chunks.
    fn latency_of(streams: usize) -> Vec<Row> {
        let load = LatencyLoad { streams, rate: 30.0, duration: Duration::from_secs(1) };
        let timing = |p50, p99, processes| PathTiming {
            p50,
            p99,
            p999: p99,
            max: p99,
            sent: 10_000,
            lost: 0,
            repeated: 0,
            rate: 10_000.0,
            used: Used { processes, own: Duration::ZERO, seconds: 1.0, foreign_cores: 0.0 },
        };
        let (core, fleet) = (timing(0.0, 0.0, Vec::new()), timing(2.0, 4.0, vec![("worker", LIVE)]));
        let worker_memory = vec![90 << 20, 101 << 20];
        super::latency(
            load,
            &Latency { core: core.clone(), relay: core, fleet, worker_memory, gateway_memory: vec![1, 1] },
        )
    }

    fn verdict(rows: &[Row], what: &str) -> Option<bool> {
        rows.iter().find(|row| row.what.ends_with(what)).unwrap().is_met
    }

    #[test]
    fn latency_is_judged_up_to_a_rate_and_costs_at_two() {
        let judged = [300, 600, 1_000].map(|streams| {
            let rows = latency_of(streams);
            ["adds, p50", "adds, p99", "live streams"].map(|what| verdict(&rows, what))
        });
        let expected = [
            [Some(false), Some(true), Some(true)],
            [Some(false), Some(true), None],
            [None, None, Some(false)],
        ];
        assert_eq!(judged, expected);
    }

    #[test]
    fn a_worker_must_be_flat_and_small() {
        let rows = latency_of(300);
        assert_eq!(verdict(&rows, "worker memory, live"), Some(false));
        assert_eq!(verdict(&rows, "gateway memory, live"), Some(true));
        let grown = bounded(flat("worker".to_owned(), &[50 << 20, 90 << 20]), 90 << 20);
        assert_eq!((grown.is_met, bounded(flat("w".to_owned(), &[9]), 9).is_met), (Some(false), Some(true)));
    }
}
