//! The goals of the figures, evaluated on the medians of the contenders' rounds.

use super::{
    super::table::{Row, median},
    contender::ContenderRounds,
    end_to_end,
    peer::{self, sized_worker},
    raw_insert::raw,
    report::rate,
    round::TaskRound,
};

/// Goals for message rows in completed turns, relative to raw inserts of the same rows. Each is for
/// a number of turns per statement.
const OF_RAW: [(usize, f64); 2] = [(16, 0.6), (1, 0.35)];
/// Goal for the number of tasks, relative to a queue whose handler writes the same message rows.
const SAME_ROWS: f64 = 2.5;
/// Goal for the processor time of Postgres and the worker for a turn with history, relative to a
/// turn without.
const HISTORY_RATIO: f64 = 1.05;
/// Goal for the WAL, relative to that of the messages alone.
const WAL_RATIO: f64 = 1.25;
const IDLE_P99_MS: f64 = 20.0;
const BESIDE_FAILING: f64 = 1.2;
const BESIDE_SNAPSHOT: f64 = 0.95;
const TAKEOVER_MS: f64 = 1_000.0;
const ROWS: [usize; 2] = [4, 2];
const CONNECTIONS: usize = 8;

/// The ratio of one contender's figure to that of another. There is a row only if both were
/// measured.
struct Beside<'a> {
    entries: &'a [ContenderRounds],
    part: char,
    figure: fn(&TaskRound) -> f64,
}

impl Beside<'_> {
    fn of(&self, name: &str) -> Option<f64> {
        let entry =
            self.entries.iter().find(|entry| entry.part == self.part && entry.contender.name() == name)?;
        let is_good = entry.failure.is_none() && !entry.rounds.is_empty();
        is_good.then(|| median(entry.rounds.iter().map(self.figure)))
    }

    fn ratio(&self, one: &str, other: &str) -> Option<f64> {
        let (one, other) = (self.of(one)?, self.of(other)?);
        (other > 0.0).then_some(one / other)
    }

    fn at_least(&self, one: &str, other: &str, goal: f64) -> Option<Row> {
        let ratio = self.ratio(one, other)?;
        Some(self.row(one, other, ratio).goal(format!(">= {goal}"), ratio >= goal))
    }

    fn at_most(&self, one: &str, other: &str, goal: f64) -> Option<Row> {
        let ratio = self.ratio(one, other)?;
        Some(self.row(one, other, ratio).goal(format!("<= {goal}"), ratio <= goal))
    }

    fn row(&self, one: &str, other: &str, ratio: f64) -> Row {
        Row::new(self.part, format!("{one} / {other}"), format!("{ratio:.2}")).figure("ratio", ratio)
    }
}

/// All goals for which every figure was measured.
pub(super) fn rows(entries: &[ContenderRounds]) -> Vec<Row> {
    let rates = |part| Beside { entries, part, figure: rate };
    let mut rows: Vec<Option<Row>> = Vec::new();
    let alone = rates('a');
    let others = [
        (peer::GRAPHILE_BATCHED, 2.0),
        (peer::GRAPHILE, 5.0),
        (peer::GRAPHILE_CRATE, 1.5),
        (peer::RIVER, 1.5),
    ];
    for ours in [peer::WORKER, peer::WORKER_INGESTING] {
        rows.extend(others.map(|(other, goal)| alone.at_least(ours, other, goal)));
    }
    let same_work = alone.at_least(peer::WORKER_ROWS, peer::GRAPHILE_ROWS, SAME_ROWS);
    rows.push(same_work.map(|row| row.note("the same work: both leave two messages of 400 B")));
    let wal = Beside { figure: |round| round.wal_bytes_per_task, ..rates('a') };
    for count in ROWS {
        for (turns, goal) in OF_RAW {
            let (ours, raw) = (sized_worker(count, turns), raw(count, turns, CONNECTIONS));
            rows.push(alone.at_least(&ours, &raw, goal));
        }
        let (ours, raw) = (sized_worker(count, 16), raw(count, 16, CONNECTIONS));
        let row = wal.at_most(&ours, &raw, WAL_RATIO);
        rows.push(row.map(|row| row.note("bytes of WAL")));
    }
    let path = rates('b');
    for ours in [end_to_end::END_TO_END, end_to_end::END_TO_END_INGESTING] {
        rows.push(path.at_least(ours, peer::GRAPHILE_NATS, 1.5));
        rows.push(path.at_least(ours, peer::GRAPHILE_NATS_ROWS, 1.5));
    }
    let processors =
        Beside { figure: |round| round.server_cpu_us_per_task + round.client_cpu_us_per_task, ..rates('b') };
    let history = processors.at_most(end_to_end::WITH_HISTORY, end_to_end::END_TO_END, HISTORY_RATIO);
    rows.push(history.map(|row| row.note("processor time of Postgres and worker")));
    let paced = Beside { figure: |round| round.p99_ms.unwrap_or(f64::INFINITY), ..rates('c') };
    rows.push(paced.of(end_to_end::PACED).map(|p99| {
        let row = Row::new('c', "p99 of an idle fleet", format!("{p99:.1} ms")).figure("ms", p99);
        row.goal(format!("<= {IDLE_P99_MS} ms"), p99 <= IDLE_P99_MS)
    }));
    let failing = paced.at_most(end_to_end::PACED_FAILING, end_to_end::PACED, BESIDE_FAILING);
    rows.push(failing.map(|row| row.note("p99 of the agents that do not fail")));
    rows.push(rates('d').at_least(peer::LONG_SNAPSHOT, peer::LONG, BESIDE_SNAPSHOT));
    let first = Beside { figure: |round| round.first_ms.unwrap_or(f64::INFINITY), ..rates('e') };
    rows.push(first.of(peer::TAKEOVER).map(|ms| {
        let row = Row::new('e', "takeover, until its first turn begins", format!("{ms:.0} ms"));
        row.figure("ms", ms).goal(format!("<= {TAKEOVER_MS} ms"), ms <= TAKEOVER_MS)
    }));
    rows.into_iter().flatten().collect()
}
