//! Pages of a long thread, at any place.

use anyhow::{Context as _, Result, ensure};
use model::Position;
use store::{Range, Store};

use super::{
    super::table::Row,
    super::timing::Timings,
    environment::{ContextEnvironment, Reads},
    plans,
    threads::{BenchThread, MESSAGES},
};

/// Batches per page.
const BATCHES: u32 = 25;
/// Goal for the time at the slowest place relative to that at the fastest.
const PLACE_RATIO: f64 = 1.5;
const WARM_UP: u32 = 20;
/// Number of calls for which the counters of Postgres are read.
const COUNTED: u32 = 5;

/// The kind of read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageQuery {
    Forwards,
    Backwards,
    BatchIds,
    Batches,
    OneBatch,
}

impl PageQuery {
    const ALL: [Self; 5] = [Self::Forwards, Self::Backwards, Self::BatchIds, Self::Batches, Self::OneBatch];

    fn name(self) -> &'static str {
        match self {
            Self::Forwards => "history forwards, 100 messages",
            Self::Backwards => "history backwards, 100 messages",
            Self::BatchIds => "ids of 25 batches",
            Self::Batches => "25 batches by their ids",
            Self::OneBatch => "one batch by its id",
        }
    }

    /// Reads the batches from `first` on, and checks that it got them.
    async fn read(self, store: &Store, thread: &BenchThread, first: u32) -> Result<()> {
        let (from, to) = (thread.batch(first), thread.batch(first + BATCHES));
        let messages = |count: u32| (count * MESSAGES) as usize;
        let (count, expected, begin) = match self {
            Self::Forwards | Self::Backwards => {
                let after = Some(Position::from_stored(from.get() - 1));
                let forwards = Range { after, ..Range::default() };
                let backwards = Range { before: Some(to), ..Range::default() };
                let range = if self == Self::Forwards { forwards } else { backwards };
                let limit = BATCHES * MESSAGES;
                let page = store.history(&thread.id, range, limit).await?.context("no thread")?;
                (page.len(), messages(BATCHES), page.first().map(|message| message.position))
            }
            Self::BatchIds => {
                let ids = store.batch_ids(&thread.id, Some(to), BATCHES).await?.context("no thread")?;
                (ids.len(), BATCHES as usize, ids.last().copied())
            }
            Self::Batches | Self::OneBatch => {
                let count = if self == Self::Batches { BATCHES } else { 1 };
                let ids: Vec<_> = (first..first + count).map(|number| thread.batch(number)).collect();
                let found = store.batches(&thread.id, &ids).await?;
                (found.len(), messages(count), found.first().map(|message| message.position))
            }
        };
        ensure!(count == expected && begin == Some(from), "{self:?}: {count} from {begin:?} on");
        Ok(())
    }
}

/// One kind of page at one place.
struct PageCase {
    kind: PageQuery,
    place: &'static str,
    first: u32,
    timings: Timings,
    reads: Reads,
}

/// Pages of every kind at the start, in the middle and at the end, in turn.
pub(super) async fn rows(
    environment: &ContextEnvironment,
    thread: &BenchThread,
    times: u32,
) -> Result<Vec<Row>> {
    ensure!(thread.batches >= BATCHES, "too short for a page");
    let last = thread.batches - BATCHES;
    let mut cases = Vec::new();
    for kind in PageQuery::ALL {
        for (place, first) in [("start", 0), ("middle", last / 2), ("end", last)] {
            let reads =
                environment.reads(COUNTED, async |store| kind.read(store, thread, first).await).await?;
            cases.push(PageCase { kind, place, first, timings: Timings::default(), reads });
        }
    }
    let store = environment.store().await?;
    for case in &cases {
        for _ in 0..times.min(WARM_UP) {
            case.kind.read(&store, thread, case.first).await?;
        }
    }
    let meter = environment.meter();
    for _ in 0..times {
        for case in &mut cases {
            case.timings.time(case.kind.read(&store, thread, case.first)).await?;
        }
    }
    let foreign = meter.used().foreign_cores;
    store.close().await;
    let mut rows: Vec<Row> = cases.iter().map(|case| case.row(foreign)).collect();
    rows.extend(PageQuery::ALL.map(|kind| goal(kind, &cases)));
    rows.push(by_counters(&cases));
    rows.push(plans::row(environment, thread, BATCHES).await?);
    Ok(rows)
}

impl PageCase {
    fn row(&self, foreign: f64) -> Row {
        let (p50, p99) = (self.timings.p50_ms(), self.timings.p99_ms());
        Row::new('b', format!("{}, at the {}", self.kind.name(), self.place), format!("p50 {p50:.2} ms"))
            .column("p99 ms", format!("{p99:.2}"))
            .column("rows read", format!("{:.0}", self.reads.rows))
            .note(format!("others used {foreign:.1} cores"))
            .figure("p50_ms", p50)
            .figure("p99_ms", p99)
            .figure("rows", self.reads.rows)
            .figure("foreign_cores", foreign)
    }
}

fn goal(kind: PageQuery, cases: &[PageCase]) -> Row {
    let of_kind = cases.iter().filter(|case| case.kind == kind).map(|case| case.timings.p50_ms());
    let (fastest, slowest) =
        of_kind.fold((f64::INFINITY, 0.0_f64), |(low, high), p50| (low.min(p50), high.max(p50)));
    let ratio = slowest / fastest;
    Row::new('b', format!("{}: slowest / fastest place, p50", kind.name()), format!("{ratio:.2}"))
        .figure("ratio", ratio)
        .goal(format!("<= {PLACE_RATIO}"), ratio <= PLACE_RATIO)
}

/// The reads of the store's sessions, according to the counters of the indexes.
fn by_counters(cases: &[PageCase]) -> Row {
    let pages = cases
        .iter()
        .filter(|case| matches!(case.kind, PageQuery::Forwards | PageQuery::Backwards | PageQuery::BatchIds));
    let (by_key, otherwise) =
        pages.fold((0.0, 0.0), |(key, other), case| (case.reads.by_key + key, case.reads.otherwise + other));
    Row::new('b', "pages and ids by one index, as Postgres counts", "messages_pkey")
        .figure("by_key", by_key)
        .figure("otherwise", otherwise)
        .goal("no other", by_key > 0.0 && otherwise == 0.0)
        .note(format!(
            "{by_key:.0} look-ups in it, {otherwise:.0} elsewhere, for one page of each kind and place"
        ))
}
