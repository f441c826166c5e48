//! Converts rounds to rows.

use std::fmt::Write as _;

use super::{
    super::table::{Row, median},
    contender::{Contender, ContenderRounds},
    environment::Cost,
    round::TaskRound,
};

/// A contender's row: medians of its rounds.
pub(super) fn row(entry: &ContenderRounds) -> Row {
    if let Some(failure) = &entry.failure {
        return Row::failed(entry.part, entry.contender.name(), failure);
    }
    let of = |figure: fn(&TaskRound) -> f64| median(entry.rounds.iter().map(figure));
    let maybe = |figure: fn(&TaskRound) -> Option<f64>| {
        entry
            .rounds
            .iter()
            .any(|round| figure(round).is_some())
            .then(|| median(entry.rounds.iter().filter_map(figure)))
    };
    let middle = TaskRound {
        tasks: entry.rounds.first().map_or(0, |round| round.tasks),
        seconds: of(|round| round.seconds),
        p50_ms: maybe(|round| round.p50_ms),
        p99_ms: maybe(|round| round.p99_ms),
        server_cpu_us_per_task: of(|round| round.server_cpu_us_per_task),
        wal_bytes_per_task: of(|round| round.wal_bytes_per_task),
        pages_per_task: maybe(|round| round.pages_per_task),
        transactions_per_task: maybe(|round| round.transactions_per_task),
        client_cpu_us_per_task: of(|round| round.client_cpu_us_per_task),
        nats_cpu_us_per_task: of(|round| round.nats_cpu_us_per_task),
        // The maximum of all rounds, so that a disorder in a single round is visible.
        out_of_order: entry.rounds.iter().filter_map(|round| round.out_of_order).max(),
        repeated: entry.rounds.iter().map(|round| round.repeated).max().unwrap_or_default(),
        enqueued: entry.rounds.iter().find_map(|round| round.enqueued),
        failures: entry.rounds.iter().map(|round| round.failures).max().unwrap_or_default(),
        first_ms: maybe(|round| round.first_ms),
        is_cut: entry.rounds.iter().any(|round| round.is_cut),
        foreign_cores: of(|round| round.foreign_cores),
    };
    let value = match (entry.part, middle.p50_ms, middle.p99_ms) {
        ('c', Some(p50), Some(p99)) => format!("p50 {p50:.1} ms, p99 {p99:.1} ms"),
        ('c', ..) => "did not keep up".to_owned(),
        _ => format!("{:.0} tasks/s", of(rate)),
    };
    let note = format!("{}; rounds: {}", remarks(&middle), entry.rounds.len());
    let mut row = Row::new(entry.part, entry.contender.name(), value).note(note);
    for (name, value) in columns(&middle) {
        row = row.column(name, value);
    }
    row = row.figure("tasks_per_second", of(rate));
    let rounds = serde_json::to_value(&entry.rounds).unwrap_or_default();
    if matches!(entry.contender, Contender::EndToEnd(_)) {
        for (unit, value) in compared(entry.part, &middle) {
            row = row.of_binary(unit, value);
        }
    }
    row.figure("median", serde_json::to_value(&middle).unwrap_or_default()).figure("rounds", rounds)
}

/// A short line about a round, while the benchmark runs.
pub(super) fn progress(round: &TaskRound) -> String {
    format!("{:.0} tasks/s; {}", rate(round), costs(round))
}

fn costs(round: &TaskRound) -> String {
    let columns = columns(round);
    let figures = columns.iter().filter(|(_, value)| !value.is_empty());
    let figures: Vec<String> = figures.map(|(name, value)| format!("{name} {value}")).collect();
    format!("{}; {}", figures.join(", "), remarks(round))
}

/// The figures by which two builds of the shipped binary are compared.
fn compared(part: char, round: &TaskRound) -> Vec<(&'static str, f64)> {
    let times = [("ms, p50", round.p50_ms), ("ms, p99", round.p99_ms)];
    let counts = [("pages/task", round.pages_per_task), ("transactions/task", round.transactions_per_task)];
    let optional = times.into_iter().chain(counts).filter_map(|(unit, value)| Some((unit, value?)));
    let mut figures = vec![
        ("us/task, Postgres", round.server_cpu_us_per_task),
        ("us/task, worker", round.client_cpu_us_per_task),
        ("us/task, nats-server", round.nats_cpu_us_per_task),
        ("B of WAL/task", round.wal_bytes_per_task),
    ];
    figures.extend(optional);
    // For tasks that arrive at a rate, the throughput is that rate, so it is not a figure.
    figures.extend((part != 'c').then(|| ("tasks/s", rate(round))));
    figures
}

/// The columns of every contender, per task.
fn columns(round: &TaskRound) -> [(&'static str, String); 7] {
    let us = |us: f64| if us >= 1.0 { format!("{us:.0}") } else { String::new() };
    let times = match (round.p50_ms, round.p99_ms) {
        (Some(p50), Some(p99)) => format!("{p50:.1} / {p99:.1}"),
        _ => String::new(),
    };
    [
        ("p50 / p99 ms", times),
        ("server us", us(round.server_cpu_us_per_task)),
        ("WAL B", format!("{:.0}", round.wal_bytes_per_task)),
        ("pages", round.pages_per_task.map(|pages| format!("{pages:.0}")).unwrap_or_default()),
        ("xacts", round.transactions_per_task.map(|count| format!("{count:.2}")).unwrap_or_default()),
        ("client us", us(round.client_cpu_us_per_task)),
        ("nats us", us(round.nats_cpu_us_per_task)),
    ]
}

fn remarks(round: &TaskRound) -> String {
    let mut parts = Vec::new();
    if let Some(count) = round.out_of_order {
        parts.push(format!("{count} out of order"));
    }
    if round.repeated > 0 {
        parts.push(format!("{} repeated", round.repeated));
    }
    if round.failures > 0 {
        parts.push(format!("{} tries failed", round.failures));
    }
    if let Some(enqueued) = round.enqueued {
        let Cost { seconds, server_us, wal_bytes, client_us, nats_us, .. } = enqueued;
        let mut text = format!("enqueued in {seconds:.1} s: server {server_us:.0} us, WAL {wal_bytes:.0} B");
        if client_us >= 1.0 {
            let _ = write!(text, ", client {client_us:.0} us");
        }
        if nats_us >= 1.0 {
            let _ = write!(text, ", nats {nats_us:.0} us");
        }
        parts.push(text);
    }
    if round.is_cut {
        parts.push(format!("cut after {:.0} s and {} tasks", round.seconds, round.tasks));
    }
    parts.push(format!("others used {:.1} cores", round.foreign_cores));
    parts.join(", ")
}

/// Tasks per second.
pub(super) fn rate(round: &TaskRound) -> f64 {
    round.tasks as f64 / round.seconds.max(f64::EPSILON)
}
