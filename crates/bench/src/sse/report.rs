//! Converts rounds to rows.

use super::{
    super::table::{Row, median},
    measurement::{Measurement, ServerRounds},
    round::SseRound,
    target::ServerKind,
};

/// A server's rows: medians of its rounds, and the cost of moving the events to the server.
pub(super) fn rows(entry: &ServerRounds) -> Vec<Row> {
    let part = entry.measurement.part();
    let what = format!("{}: {}", entry.measurement.name(), entry.kind.name());
    if let Some(failure) = &entry.failure {
        return vec![Row::failed(part, what, failure)];
    }
    let middle = middle(&entry.rounds);
    let mut row =
        Row::new(part, &what, value(entry.measurement, &middle)).note(remarks(entry.measurement, &middle));
    for (name, value) in columns(entry.measurement, &middle) {
        row = row.column(name, value);
    }
    let rounds = serde_json::to_value(&entry.rounds).unwrap_or_default();
    row = row.figure("median", serde_json::to_value(&middle).unwrap_or_default()).figure("rounds", rounds);
    if entry.kind == ServerKind::Antiphon {
        for (unit, value) in compared(entry.measurement, &middle) {
            row = row.of_binary(unit, value);
        }
    }
    let mut rows = vec![row];
    if !middle.ingest_us.is_empty() {
        let parts: Vec<String> =
            middle.ingest_us.iter().map(|(name, us)| format!("{name} {us:.0}")).collect();
        let all: f64 = middle.ingest_us.iter().map(|(_, us)| us).sum();
        let row = Row::new(part, format!("{what}, ingest cost"), format!("{all:.0} us/published event"));
        rows.push(row.note(parts.join(", ")).figure("us_per_published_event", all));
    }
    rows
}

/// A short line about a round, while the benchmark runs.
pub(super) fn progress(measurement: Measurement, round: &SseRound) -> String {
    let mut parts = vec![value(measurement, round)];
    parts.extend(columns(measurement, round).iter().map(|(name, value)| format!("{name} {value}")));
    parts.push(remarks(measurement, round));
    parts.join("; ")
}

/// The main figure of the measurement.
fn value(measurement: Measurement, round: &SseRound) -> String {
    match measurement {
        Measurement::Fanout(_) | Measurement::Threads(_) | Measurement::Slow(_) => {
            format!("{:.2} us/event", round.server_us)
        }
        Measurement::Storm { .. } => format!("all in {:.0} ms", round.whole_ms),
        Measurement::Idle { .. } => format!("{:.1} KB/connection", round.resident_per_viewer / 1e3),
    }
}

/// The figures by which two builds of the shipped binary are compared.
fn compared(measurement: Measurement, round: &SseRound) -> Vec<(&'static str, f64)> {
    let memory = ("KB/connection", round.resident_per_viewer / 1e3);
    match measurement {
        Measurement::Fanout(_) | Measurement::Threads(_) | Measurement::Slow(_) => {
            vec![("us/event", round.server_us), ("ms, p50", round.p50_ms), ("ms, p99", round.p99_ms), memory]
        }
        Measurement::Storm { .. } => vec![("ms, half", round.half_ms), ("ms, all", round.whole_ms)],
        Measurement::Idle { .. } => vec![memory, ("% of a core", round.idle_cores * 100.0)],
    }
}

fn columns(measurement: Measurement, round: &SseRound) -> Vec<(&'static str, String)> {
    let kept = ("lost / repeated", format!("{} / {}", round.lost, round.repeated));
    let reads = ("events/read", format!("{:.1}", round.events_per_read));
    let bytes = ("B/event", format!("{:.0}", round.bytes_per_event));
    match measurement {
        Measurement::Fanout(_) | Measurement::Threads(_) | Measurement::Slow(_) => {
            let times = format!("{:.2} / {:.2} / {:.1}", round.p50_ms, round.p99_ms, round.p999_ms);
            let memory = ("KB/connection", format!("{:.1}", round.resident_per_viewer / 1e3));
            vec![("p50 / p99 / p99.9 ms", times), reads, bytes, memory, kept]
        }
        Measurement::Storm { .. } => vec![reads, bytes, kept],
        Measurement::Idle { .. } => Vec::new(),
    }
}

fn remarks(measurement: Measurement, round: &SseRound) -> String {
    let mut parts = Vec::new();
    match measurement {
        Measurement::Fanout(_) | Measurement::Threads(_) | Measurement::Slow(_) => {
            parts.push(format!(
                "{:.0} published, {:.0} delivered a second",
                round.rate,
                delivered(measurement, round)
            ));
        }
        Measurement::Storm { .. } => {
            parts.push(format!("half in {:.0} ms; {:.1} us/event", round.half_ms, round.server_us));
        }
        Measurement::Idle { .. } => {
            parts.extend(
                round.kernel_per_viewer.map(|bytes| format!("kernel {:.1} KB, both ends", bytes / 1e3)),
            );
            parts.push(format!("{:.2} % of a core", round.idle_cores * 100.0));
        }
    }
    if let Measurement::Slow(load) = measurement {
        let slope = round.memory_slope / 1e3;
        parts
            .push(format!("memory {slope:+.0} KB/s, at most {:.1} MB more", round.memory_grown as f64 / 1e6));
        if load.slow_every.is_some() {
            parts.push(format!("{} cut", round.cuts));
        }
    }
    if round.ends > 0 {
        parts.push(format!("{} connections ended", round.ends));
    }
    parts.push(format!("others used {:.1} cores", round.foreign_cores));
    parts.join("; ")
}

fn delivered(measurement: Measurement, round: &SseRound) -> f64 {
    let (Measurement::Fanout(load) | Measurement::Threads(load) | Measurement::Slow(load)) = measurement
    else {
        return 0.0;
    };
    round.events as f64 / load.duration.as_secs_f64()
}

/// The medians of all rounds; for events that must never happen, the worst value.
pub(super) fn middle(rounds: &[SseRound]) -> SseRound {
    let of = |figure: fn(&SseRound) -> f64| median(rounds.iter().map(figure));
    let worst = |figure: fn(&SseRound) -> u64| rounds.iter().map(figure).max().unwrap_or_default();
    let names = rounds.first().map(|round| round.ingest_us.clone()).unwrap_or_default();
    let ingest = |(at, (name, _)): (usize, &(&'static str, f64))| {
        (*name, median(rounds.iter().filter_map(|round| round.ingest_us.get(at)).map(|(_, us)| *us)))
    };
    let has_kernel = rounds.iter().any(|round| round.kernel_per_viewer.is_some());
    SseRound {
        events: of(|round| round.events as f64) as u64,
        rate: of(|round| round.rate),
        server_us: of(|round| round.server_us),
        ingest_us: names.iter().enumerate().map(ingest).collect(),
        p50_ms: of(|round| round.p50_ms),
        p99_ms: of(|round| round.p99_ms),
        p999_ms: of(|round| round.p999_ms),
        events_per_read: of(|round| round.events_per_read),
        bytes_per_event: of(|round| round.bytes_per_event),
        resident_per_viewer: of(|round| round.resident_per_viewer),
        kernel_per_viewer: has_kernel.then(|| of(|round| round.kernel_per_viewer.unwrap_or_default())),
        idle_cores: of(|round| round.idle_cores),
        half_ms: of(|round| round.half_ms),
        whole_ms: of(|round| round.whole_ms),
        lost: worst(|round| round.lost),
        repeated: worst(|round| round.repeated),
        ends: worst(|round| round.ends),
        cuts: of(|round| round.cuts as f64) as u64,
        memory_slope: of(|round| round.memory_slope),
        memory_grown: of(|round| round.memory_grown as f64) as u64,
        foreign_cores: of(|round| round.foreign_cores),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_in_one_round_is_not_outvoted() {
        let round = |server_us, lost| SseRound {
            server_us,
            lost,
            ingest_us: vec![("worker", server_us * 2.0)],
            ..SseRound::default()
        };
        let middle = middle(&[round(1.0, 0), round(3.0, 7), round(2.0, 0)]);
        assert_eq!((middle.server_us, middle.lost, middle.kernel_per_viewer), (2.0, 7, None));
        assert_eq!(middle.ingest_us, [("worker", 4.0)]);
    }
}
