//! The goals of the figures, evaluated on the medians of the servers' rounds.

use super::{
    super::table::Row,
    measurement::{Measurement, ServerRounds},
    report::middle,
    round::SseRound,
    target::ServerKind,
};

/// Goals for our processor time per delivered event relative to nchan's: for single events, and for
/// bursts.
const SINGLE_RATIO: f64 = 1.0;
const BURST_RATIO: f64 = 0.25;
const P99_RATIO: f64 = 1.0;
/// Goals for the memory per idle connection: with its own thread, and with a hundred connections
/// per thread.
const IDLE_KB: f64 = 12.0;
const SHARED_IDLE_KB: f64 = 6.0;
/// Goal for the p99 of other subscribers while there are slow ones, relative to that without slow
/// ones.
const SLOW_RATIO: f64 = 1.1;
/// Maximum memory that slow subscribers may add to the server: pages that an allocator takes or
/// releases.
const SLOW_BYTES: u64 = 2 << 20;

/// All goals for which every figure was measured, and ratios without a goal.
pub(super) fn rows(entries: &[ServerRounds]) -> Vec<Row> {
    let good = |entry: &&ServerRounds| entry.failure.is_none() && !entry.rounds.is_empty();
    let mut rows = Vec::new();
    let mut alone: Option<SseRound> = None;
    for ours in entries.iter().filter(|entry| entry.kind == ServerKind::Antiphon).filter(good) {
        let name = ours.measurement.name();
        let beside = |kind| {
            let same = |entry: &&ServerRounds| entry.kind == kind && entry.measurement.name() == name;
            entries.iter().filter(good).find(same).map(|entry| middle(&entry.rounds))
        };
        let (figures, nchan, durable) =
            (middle(&ours.rounds), beside(ServerKind::Nchan), beside(ServerKind::Durable));
        let cpu = |goal| {
            let theirs = nchan.as_ref().map(|it| it.server_us);
            ratio(ours, "processor time / nchan's", figures.server_us, theirs, goal)
        };
        let p99 = |goal| {
            let theirs = durable.as_ref().map(|it| it.p99_ms);
            ratio(ours, "p99 / that of durable-streams", figures.p99_ms, theirs, goal)
        };
        let time = |what, theirs: &Option<SseRound>| {
            ratio(ours, what, figures.whole_ms, theirs.as_ref().map(|it| it.whole_ms), None)
        };
        match ours.measurement {
            Measurement::Fanout(load) => {
                let goal = if load.burst > 1 { BURST_RATIO } else { SINGLE_RATIO };
                rows.extend(cpu(Some(goal)));
                rows.extend(p99(Some(P99_RATIO)));
            }
            Measurement::Threads(_) => rows.extend([cpu(None), p99(None)].into_iter().flatten()),
            Measurement::Storm { .. } => {
                rows.extend(time("time / nchan's", &nchan));
                rows.extend(time("time / that of durable-streams", &durable));
            }
            Measurement::Idle { threads, connections, .. } => {
                let goal = if threads == connections { IDLE_KB } else { SHARED_IDLE_KB };
                let kb = figures.resident_per_viewer / 1e3;
                let row = Row::new(
                    ours.measurement.part(),
                    format!("{name}: memory of ours"),
                    format!("{kb:.1} KB"),
                );
                rows.push(row.figure("kb", kb).goal(format!("<= {goal} KB"), kb <= goal));
            }
            Measurement::Slow(load) if load.slow_every.is_none() => alone = Some(figures),
            Measurement::Slow(load) => {
                rows.extend(slow(ours, &figures, alone.as_ref(), slow_viewers(load.viewers, load.slow_every)))
            }
        }
    }
    rows.extend(kept(entries));
    rows
}

fn slow_viewers(viewers: usize, every: Option<usize>) -> u64 {
    every.map_or(0, |every| (viewers / every) as u64)
}

fn ratio(entry: &ServerRounds, what: &str, one: f64, other: Option<f64>, goal: Option<f64>) -> Option<Row> {
    let ratio = other.filter(|other| *other > 0.0).map(|other| one / other)?;
    let row = Row::new(
        entry.measurement.part(),
        format!("{}: {what}", entry.measurement.name()),
        format!("{ratio:.2}"),
    );
    let row = row.figure("ratio", ratio);
    Some(match goal {
        Some(goal) => row.goal(format!("<= {goal}"), ratio <= goal),
        None => row,
    })
}

fn slow(ours: &ServerRounds, beside: &SseRound, alone: Option<&SseRound>, slow_viewers: u64) -> Vec<Row> {
    let Some(alone) = alone else { return Vec::new() };
    let what = |what: &str| format!("{}: {what}", ours.measurement.name());
    let part = ours.measurement.part();
    let added = beside.memory_grown.saturating_sub(alone.memory_grown);
    let memory =
        Row::new(part, what("memory above that without them"), format!("{:.1} MB", added as f64 / 1e6));
    let cuts = Row::new(part, what("cut"), format!("{} of {slow_viewers}", beside.cuts));
    let mut rows: Vec<Row> =
        ratio(ours, "p99 of the others / without them", beside.p99_ms, Some(alone.p99_ms), Some(SLOW_RATIO))
            .into_iter()
            .collect();
    rows.push(memory.figure("bytes", added).goal("none but noise (2 MiB)", added <= SLOW_BYTES));
    rows.push(cuts.figure("cuts", beside.cuts).goal("all", beside.cuts == slow_viewers));
    rows
}

/// A row that shows whether our subscribers lost no event and received none twice, including slow
/// and reconnected ones.
fn kept(entries: &[ServerRounds]) -> Option<Row> {
    let rounds = || ours(entries).flat_map(|entry| &entry.rounds);
    let (lost, repeated): (u64, u64) =
        rounds().fold((0, 0), |(lost, repeated), round| (lost + round.lost, repeated + round.repeated));
    let events: u64 = rounds().map(|round| round.events).sum();
    let last = ours(entries).last()?;
    let row = Row::new(
        last.measurement.part(),
        "all parts: events at the viewers of ours",
        format!("{lost} lost, {repeated} repeated"),
    );
    let row = row.note(format!("{events} delivered while it was measured"));
    Some(row.figure("lost", lost).figure("repeated", repeated).goal("0 and 0", lost + repeated == 0))
}

/// True if none of our subscribers missed an event or received one twice.
pub(super) fn is_nothing_lost(entries: &[ServerRounds]) -> bool {
    ours(entries).flat_map(|entry| &entry.rounds).all(|round| round.lost + round.repeated == 0)
}

fn ours(entries: &[ServerRounds]) -> impl Iterator<Item = &ServerRounds> {
    entries.iter().filter(|entry| entry.kind == ServerKind::Antiphon)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::load::SteadyLoad, *};

    fn load(burst: u32, slow_every: Option<usize>) -> SteadyLoad {
        let (warm_up, duration) = (Duration::ZERO, Duration::from_secs(1));
        SteadyLoad { threads: 1, viewers: 100, slow_every, rate: 50.0, burst, bytes: 256, warm_up, duration }
    }

    fn entry(measurement: Measurement, kind: ServerKind, round: SseRound) -> ServerRounds {
        ServerRounds { measurement, kind, rounds: vec![round], failure: None }
    }

    fn verdicts(entries: &[ServerRounds]) -> Vec<(String, Option<bool>)> {
        rows(entries).into_iter().map(|row| (row.value, row.is_met)).collect()
    }

    #[test]
    fn bursts_must_cost_a_quarter_and_single_events_no_more() {
        let round = |server_us, p99_ms| SseRound { server_us, p99_ms, ..SseRound::default() };
        for (burst, is_met) in [(1, true), (4, false)] {
            let measurement = Measurement::Fanout(load(burst, None));
            let entries = [
                entry(measurement, ServerKind::Antiphon, round(6.0, 2.0)),
                entry(measurement, ServerKind::Nchan, round(8.0, 1.0)),
                entry(measurement, ServerKind::Durable, round(1.0, 1.0)),
            ];
            let expected =
                [("0.75", Some(is_met)), ("2.00", Some(false)), ("0 lost, 0 repeated", Some(true))];
            assert_eq!(verdicts(&entries), expected.map(|(value, is_met)| (value.to_owned(), is_met)));
        }
    }

    #[test]
    fn idle_connections_of_one_thread_must_cost_half() {
        for (threads, is_met) in [(100, true), (1, false)] {
            let duration = Duration::from_secs(1);
            let measurement = Measurement::Idle { threads, connections: 100, duration };
            let round = SseRound { resident_per_viewer: 9e3, ..SseRound::default() };
            let verdicts = verdicts(&[entry(measurement, ServerKind::Antiphon, round)]);
            assert_eq!(verdicts[0], ("9.0 KB".to_owned(), Some(is_met)));
        }
    }

    #[test]
    fn slow_viewers_are_judged_beside_the_same_without_them() {
        let round =
            |p99_ms, memory_grown, cuts| SseRound { p99_ms, memory_grown, cuts, ..SseRound::default() };
        let entries = [
            entry(Measurement::Slow(load(1, None)), ServerKind::Antiphon, round(2.0, 1 << 20, 0)),
            entry(Measurement::Slow(load(1, Some(10))), ServerKind::Antiphon, round(2.1, 9 << 20, 10)),
        ];
        let met: Vec<Option<bool>> = verdicts(&entries).into_iter().map(|(_, is_met)| is_met).collect();
        assert_eq!(met, [Some(true), Some(false), Some(true), Some(true)]);
    }

    #[test]
    fn losses_of_others_are_not_ours() {
        let round = |lost| SseRound { lost, ..SseRound::default() };
        let measurement = Measurement::Storm { threads: 1, viewers: 9 };
        assert!(is_nothing_lost(&[
            entry(measurement, ServerKind::Nchan, round(3)),
            entry(measurement, ServerKind::Antiphon, round(0))
        ]));
        assert!(!is_nothing_lost(&[entry(measurement, ServerKind::Antiphon, round(1))]));
    }
}
