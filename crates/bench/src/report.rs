//! From figures to rows: units, ratios and goals.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::{
    drain::Drain,
    event_rate::{self, EventCost},
    latency::{Latency, load::PathTiming},
    reorder_rate,
    rounds::BacklogRounds,
    table::{Row, median},
    usage::Used,
};

/// The worker's rate beside raw reading, single-chunk frames.
const READING_RATIO: f64 = 0.6;
/// Turns beside raw insert.
const INSERT_RATIO: f64 = 0.5;
/// Entries read for each one in the stream.
const READS: f64 = 1.02;
/// Nanoseconds per chunk inside the reorder buffer.
const REORDER_NS: f64 = 150.0;
/// What is left of allocations per chunk when only the digests' vector grows.
const REORDER_ALLOCATIONS: f64 = 0.05;
/// What the fleet may add to core NATS, in milliseconds.
const ADDED_P50_MS: f64 = 1.0;
const ADDED_P99_MS: f64 = 5.0;
/// Memory is flat when it grows by no more than this from its first to its last sample.
const FLAT_RATIO: f64 = 1.15;
const FLAT_BYTES: u64 = 8 << 20;

/// The rows of the reorder buffer.
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

/// The rows of an event at a gateway.
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

/// The rows of the three backlogs.
pub(super) fn backlogs(single: &BacklogRounds, sixteen: &BacklogRounds, short: &BacklogRounds) -> Vec<Row> {
    let all = [single, sixteen, short];
    let mut rows = Vec::new();
    rows.extend([single, sixteen].iter().filter_map(|rounds| reading(rounds)));
    rows.extend([single, short].iter().filter_map(|rounds| insert(rounds)));
    rows.extend(
        [(single, Some(READING_RATIO)), (sixteen, None)].iter().filter_map(|(it, goal)| drained(it, *goal)),
    );
    rows.extend(turns(short));
    rows.extend(all.iter().filter_map(|rounds| processors(rounds)));
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

fn drained(rounds: &BacklogRounds, ratio_goal: Option<f64>) -> Option<Row> {
    let rate = rounds.drain_rate()?;
    let row = Row::new('b', format!("worker, {}", rounds.backlog.shape.name), rate_text(rate, "chunks"));
    let turns = median(rounds.drains.iter().map(|it| it.turns));
    let row = row.figure("chunks_per_second", rate).figure("turns_per_second", turns);
    let Some(limit) = rounds.reading_rate() else { return Some(row) };
    let ratio = rate / limit;
    let row = row.figure("of_raw_reading", ratio).note(match rounds.insert_rate() {
        Some(insert) => {
            format!("{ratio:.2} of raw reading; {turns:.0} turns/s = {:.2} of raw insert", turns / insert)
        }
        None => format!("{ratio:.2} of raw reading"),
    });
    Some(match ratio_goal {
        Some(goal) => row.goal(format!(">= {goal} of raw reading"), ratio >= goal),
        None => row,
    })
}

fn turns(rounds: &BacklogRounds) -> Option<Row> {
    let rate = rounds.drain_rate()?;
    let turns = median(rounds.drains.iter().map(|it| it.turns));
    let row = Row::new('b', format!("worker, {}", rounds.backlog.shape.name), rate_text(turns, "turns"));
    let row = row.figure("turns_per_second", turns).figure("chunks_per_second", rate);
    let Some(insert) = rounds.insert_rate() else { return Some(row) };
    let ratio = turns / insert;
    let row =
        row.note(format!("{ratio:.2} of raw insert; {rate:.0} chunks/s")).figure("of_raw_insert", ratio);
    Some(row.goal(format!(">= {INSERT_RATIO} of raw insert"), ratio >= INSERT_RATIO))
}

fn processors(rounds: &BacklogRounds) -> Option<Row> {
    rounds.drains.first()?;
    let chunks = rounds.backlog.chunks;
    let cost = |name: &str| median(rounds.drains.iter().map(|it| per_chunk(of(&it.used, name), chunks)));
    let foreign = median(rounds.drains.iter().map(|it| it.used.foreign_cores));
    let (worker, nats, postgres) = (cost("worker"), cost("nats-server"), cost("postgres"));
    let row = Row::new(
        'd',
        format!("drain, {}", rounds.backlog.shape.name),
        format!("worker {worker:.2} us/chunk"),
    );
    let row =
        row.note(format!("nats-server {nats:.2}, postgres {postgres:.2}; others used {foreign:.1} cores"));
    Some(row.figure("us_per_chunk", json!({"worker": worker, "nats-server": nats, "postgres": postgres})))
}

/// The round that read most counts.
fn reads(rounds: &BacklogRounds) -> Option<Row> {
    let most = rounds.drains.iter().map(|drain| drain.reads).max_by(f64::total_cmp)?;
    let what = format!("entries read / in the stream, {}", rounds.backlog.shape.name);
    let row = Row::new('d', what, format!("{most:.3}")).figure("reads_per_entry", most);
    Some(row.goal(format!("<= {READS}"), most <= READS))
}

/// The round that grew most counts.
fn memory(rounds: &BacklogRounds) -> Option<Row> {
    let growth = |drain: &&Drain| drain.memory[2].saturating_sub(drain.memory[0]);
    let memory = rounds.drains.iter().max_by_key(growth)?.memory;
    Some(flat(&format!("worker memory, {}", rounds.backlog.shape.name), &memory))
}

/// The rows of the latency measurement.
pub(super) fn latency(latency: &Latency) -> Vec<Row> {
    let Latency { core, fleet, worker_memory, gateway_memory } = latency;
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
        Row::new('c', what, quantiles(timed))
            .note(note)
            .figure("ms", figures)
            .figure("chunks_per_second", timed.rate)
    };
    let added = |what: &str, ms: f64, goal: f64| {
        let row = Row::new('c', what, format!("{ms:.2} ms")).figure("ms", ms);
        row.goal(format!("<= {goal} ms"), ms <= goal)
    };
    let wrong = core.lost + core.repeated + fleet.lost + fleet.repeated;
    let lost = format!("{} lost, {} repeated of {}", fleet.lost, fleet.repeated, fleet.sent);
    let mut rows = vec![
        row("core NATS, publish to subscriber", core),
        row("fleet, publish to event stream", fleet),
        added("the fleet adds, p50", fleet.p50 - core.p50, ADDED_P50_MS),
        added("the fleet adds, p99", fleet.p99 - core.p99, ADDED_P99_MS),
        Row::new('c', "chunks at clients", lost)
            .goal("0 and 0", wrong == 0)
            .note(format!("core NATS: {} lost, {} repeated", core.lost, core.repeated))
            .figure("wrong", wrong),
        costs(core, "core NATS"),
        costs(fleet, "live streams"),
    ];
    rows.push(flat("worker memory, live", worker_memory));
    rows.push(flat("gateway memory, live", gateway_memory));
    rows
}

fn costs(timed: &PathTiming, what: &str) -> Row {
    let chunks = (timed.rate * timed.used.seconds) as u64;
    let cost = |used: Duration| per_chunk(used, chunks);
    let parts: Vec<_> = timed.used.processes.iter().map(|(name, used)| (*name, cost(*used))).collect();
    let text: Vec<_> = parts.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
    let all = parts.iter().map(|(_, us)| us).sum::<f64>() + cost(timed.used.own);
    let row = Row::new('d', what, format!("{all:.1} us/chunk"));
    let row = row.note(format!("{}, client {:.1}", text.join(", "), cost(timed.used.own)));
    row.figure("us_per_chunk", json!(parts.into_iter().collect::<std::collections::BTreeMap<_, _>>()))
}

fn flat(what: &str, samples: &[u64]) -> Row {
    let mib: Vec<_> =
        samples.iter().map(|bytes| format!("{:.0}", *bytes as f64 / f64::from(1 << 20))).collect();
    let (first, last) = (samples.first().copied().unwrap_or(0), samples.last().copied().unwrap_or(0));
    let is_flat = last <= ((first as f64 * FLAT_RATIO) as u64).max(first + FLAT_BYTES);
    Row::new('d', what, format!("{} MiB", mib.join(" -> ")))
        .goal("flat", is_flat)
        .figure("bytes", json!(samples))
}

/// A round in short, while it runs.
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
