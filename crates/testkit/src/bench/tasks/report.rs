//! From rounds to rows.

use super::{super::table::Row, Entry, Round};

/// A contender's line: medians of its rounds.
pub(super) fn row(entry: &Entry) -> Row {
    if let Some(failure) = &entry.failure {
        return Row::new(entry.part, entry.contender.name(), "failed").note(failure);
    }
    let of = |figure: fn(&Round) -> f64| median(entry.rounds.iter().map(figure));
    let maybe = |figure: fn(&Round) -> Option<f64>| {
        entry
            .rounds
            .iter()
            .any(|round| figure(round).is_some())
            .then(|| median(entry.rounds.iter().filter_map(figure)))
    };
    let middle = Round {
        tasks: entry.rounds.first().map_or(0, |round| round.tasks),
        seconds: of(|round| round.seconds),
        p50_ms: maybe(|round| round.p50_ms),
        p99_ms: maybe(|round| round.p99_ms),
        server_cpu_us_per_task: of(|round| round.server_cpu_us_per_task),
        wal_bytes_per_task: of(|round| round.wal_bytes_per_task),
        client_cpu_us_per_task: of(|round| round.client_cpu_us_per_task),
        nats_cpu_us_per_task: of(|round| round.nats_cpu_us_per_task),
        // A disorder that happens once is no less a disorder.
        out_of_order: entry.rounds.iter().filter_map(|round| round.out_of_order).max(),
        repeated: entry.rounds.iter().map(|round| round.repeated).max().unwrap_or_default(),
        enqueued: entry.rounds.iter().find_map(|round| round.enqueued),
        is_cut: entry.rounds.iter().any(|round| round.is_cut),
        foreign_cores: of(|round| round.foreign_cores),
    };
    let value = match (entry.part, middle.p50_ms, middle.p99_ms) {
        ('c', Some(p50), Some(p99)) => format!("p50 {p50:.1} ms, p99 {p99:.1} ms"),
        ('c', ..) => "did not keep up".to_owned(),
        _ => format!("{:.0} tasks/s", of(rate)),
    };
    let note = format!("{}; rounds: {}", costs(&middle), entry.rounds.len());
    let row = Row::new(entry.part, entry.contender.name(), value).note(note);
    let row = row.figure("tasks_per_second", of(rate));
    let rounds = serde_json::to_value(&entry.rounds).unwrap_or_default();
    row.figure("median", serde_json::to_value(&middle).unwrap_or_default()).figure("rounds", rounds)
}

/// A round in short, while it runs.
pub(super) fn progress(round: &Round) -> String {
    format!("{:.0} tasks/s; {}", rate(round), costs(round))
}

fn costs(round: &Round) -> String {
    let mut parts = vec![format!(
        "server {:.0} us and {:.0} B of WAL a task",
        round.server_cpu_us_per_task, round.wal_bytes_per_task
    )];
    if round.client_cpu_us_per_task > 0.0 {
        parts.push(format!("client {:.0} us", round.client_cpu_us_per_task));
    }
    if round.nats_cpu_us_per_task >= 1.0 {
        parts.push(format!("nats-server {:.0} us", round.nats_cpu_us_per_task));
    }
    if let Some(enqueued) = round.enqueued {
        parts.push(format!("enqueued for {:.0} us, {:.0} B", enqueued.server_us, enqueued.wal_bytes));
    }
    if let (Some(p50), Some(p99)) = (round.p50_ms, round.p99_ms) {
        parts.push(format!("p50 {p50:.2} ms, p99 {p99:.2} ms"));
    }
    if let Some(count) = round.out_of_order {
        parts.push(format!("{count} out of order"));
    }
    if round.repeated > 0 {
        parts.push(format!("{} repeated", round.repeated));
    }
    if round.is_cut {
        parts.push(format!("cut after {:.0} s and {} tasks", round.seconds, round.tasks));
    }
    parts.push(format!("others used {:.1} cores", round.foreign_cores));
    parts.join(", ")
}

fn rate(round: &Round) -> f64 {
    round.tasks as f64 / round.seconds.max(f64::EPSILON)
}

/// The middle one; 0 without any.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
