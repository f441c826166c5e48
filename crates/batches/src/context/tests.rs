use serde_json::json;

use super::builder::BATCHES_AT_ONCE;
use super::*;
use crate::EstimatingCounter;
use crate::SharedItem;
use crate::compaction::{Provenance, Strategy};
use crate::testing::{item, items, position, with_metadata};

/// A request with room for all batches, in which no batch is abandoned.
fn request() -> ContextRequest {
    ContextRequest {
        system: None,
        active: None,
        budget: 1_000_000,
        compaction: None,
        now: Timestamp(0),
        timeout_ms: i64::MAX,
        until: None,
    }
}

fn compaction(id: i64, through: i64, kept: &[i64], summary: Option<&str>) -> Compaction {
    Compaction {
        id: position(id),
        through: position(through),
        kept: kept.iter().copied().map(position).collect(),
        summary: summary.map(str::to_owned),
        strategy: Strategy::Summarise,
        provenance: Provenance::default(),
        previous: None,
        counts_from: position(id),
        undone_at: None,
    }
}

/// Renders `10 +` for an included batch and `20 -code` for an omitted one.
fn rendered(context: &Context) -> String {
    let line = |decision: &Decision| match &decision.inclusion {
        Inclusion::In => format!("{} +", decision.batch),
        Inclusion::Out(reason) => format!("{} -{}", decision.batch, reason.code()),
    };
    context.decisions.iter().map(line).collect::<Vec<_>>().join(" | ")
}

fn decided(request: ContextRequest, script: &str) -> String {
    rendered(&build(request, &EstimatingCounter, items(script)))
}

const THREE: &str = "1.0u 1.1a 2.0u 2.1A:c 2.2t:c 2.3a 3.0u 3.1a";

#[test]
fn complete_batches_are_in_and_the_others_only_when_active() {
    let script = "1.0u 1.1a 2.0u 2.1A:c 3.0u 3.1a 4.0u";
    assert_eq!(decided(request(), script), "10 + | 20 -incomplete | 30 + | 40 -incomplete");
    let active = ContextRequest { active: Some(position(40)), ..request() };
    let context = build(active, &EstimatingCounter, items(script));
    assert_eq!(rendered(&context), "10 + | 20 -incomplete | 30 + | 40 +");
    assert_eq!(context.batches.iter().map(|batch| batch.id().get()).collect::<Vec<_>>(), [10, 30, 40]);
    assert_eq!(context.older, Older::Nothing);
    let Inclusion::Out(reason) = &context.decisions[1].inclusion else { panic!() };
    assert_eq!(reason.to_string(), "incomplete: calls have no results: c");
}

#[test]
fn newest_first_until_the_budget_is_used_and_never_a_part() {
    // The batches have 14, 36 and 14 tokens.
    let context = |budget| build(ContextRequest { budget, ..request() }, &EstimatingCounter, items(THREE));
    let tokens: Vec<u64> = context(100).decisions.iter().map(|decision| decision.tokens).collect();
    assert_eq!(tokens, [14, 36, 14]);
    assert_eq!(rendered(&context(64)), "10 + | 20 + | 30 +");
    assert_eq!(rendered(&context(63)), "10 -budget_used | 20 + | 30 +");
    assert_eq!(
        rendered(&context(49)),
        "10 -budget_used | 20 -budget_used | 30 +",
        "10 has room, but a hole is none"
    );
    assert_eq!(rendered(&context(35)), "10 -budget_used | 20 -larger_than_budget | 30 +");
    assert_eq!(
        rendered(&context(13)),
        "10 -larger_than_budget | 20 -larger_than_budget | 30 -larger_than_budget"
    );
    assert!((13..70).all(|budget| context(budget).tokens <= budget));
}

#[test]
fn instructions_summary_and_active_batch_may_exceed_budget() {
    let request = ContextRequest {
        system: Some("x".repeat(32)),
        compaction: Some(compaction(15, 10, &[], Some("four"))),
        active: Some(position(30)),
        budget: 20,
        ..request()
    };
    let context = build(request, &EstimatingCounter, items(THREE));
    assert_eq!(rendered(&context), "10 -compacted | 20 -larger_than_budget | 30 +");
    assert_eq!((context.tokens, context.over_budget()), ((10 + 4) + (2 + 4) + 14, 14));
    assert_eq!(context.summary.as_deref(), Some("four"));
}

#[test]
fn what_is_compacted_is_out_and_what_is_kept_is_in() {
    let with = |compaction| decided(ContextRequest { compaction: Some(compaction), ..request() }, THREE);
    assert_eq!(with(compaction(25, 20, &[], None)), "10 -compacted | 20 -compacted | 30 +");
    assert_eq!(with(compaction(25, 20, &[10], None)), "10 + | 20 -compacted | 30 +");
    // Batch 20 continued after the compaction.
    let gone_on = format!("{THREE} 2.4u@40 2.5a@41");
    let compacted = ContextRequest { compaction: Some(compaction(35, 30, &[], None)), ..request() };
    assert_eq!(decided(compacted, &gone_on), "10 -compacted | 20 + | 30 -compacted");
}

#[test]
fn abandoned_and_superseded_batches_say_so() {
    let open = items("1.0u 1.1A:c");
    let at = |now| ContextRequest { now: Timestamp(now), timeout_ms: 5_000, ..request() };
    let of = |now| rendered(&build(at(now), &EstimatingCounter, open.clone()));
    assert_eq!((of(15_999).as_str(), of(16_000).as_str()), ("10 -incomplete", "10 -abandoned"));
    let own = with_metadata(item("1.0u"), json!({"timeout_ms": 100}));
    assert_eq!(rendered(&build(at(10_100), &EstimatingCounter, [own])), "10 -abandoned");
    let again = with_metadata(item("2.0u"), json!({"supersedes": "10"}));
    let context =
        build(request(), &EstimatingCounter, [item("1.0u"), item("1.1a"), again.clone(), item("2.1a")]);
    assert_eq!(rendered(&context), "10 -superseded | 20 +");
    let context = build(request(), &EstimatingCounter, [item("1.0u"), item("1.1a"), again]);
    assert_eq!(rendered(&context), "10 + | 20 -incomplete", "what is not there takes no place");
}

#[test]
fn the_context_of_a_past_turn_can_be_built_again() {
    let past = ContextRequest { active: Some(position(20)), until: Some(position(20)), ..request() };
    let context = build(past, &EstimatingCounter, items(THREE));
    assert_eq!(rendered(&context), "10 + | 20 +");
    assert_eq!(context.batches[1].items().len(), 1, "the answer was not there yet");
    let past = ContextRequest { active: Some(position(20)), until: Some(position(20)), ..request() };
    let (paged, asked) = paged(past, &items(THREE), 2);
    assert_eq!(asked[..2], [NextRead::Older(Some(position(21))), NextRead::Older(Some(position(11)))]);
    assert_eq!(paged.batches, context.batches);
}

/// Feeds pages of `size` rows, and batches on request. Returns the context and the reads.
fn paged(request: ContextRequest, rows: &[Item], size: usize) -> (Context, Vec<NextRead>) {
    let mut newest_first = rows.to_vec();
    newest_first.sort_by_key(|item| std::cmp::Reverse(item.position));
    let mut builder = Builder::new(request, &EstimatingCounter);
    let mut asked = Vec::new();
    loop {
        let next_read = builder.next_read();
        asked.push(next_read.clone());
        match next_read {
            NextRead::Nothing => return (builder.build(), asked),
            NextRead::Older(before) => {
                let older =
                    newest_first.iter().filter(|item| before.is_none_or(|before| item.position < before));
                builder.page(older.take(size).cloned().collect::<Vec<_>>());
            }
            NextRead::Batches(ids) => {
                for id in ids {
                    builder.batch(id, rows.iter().filter(|item| item.batch_id == id).cloned());
                }
            }
        }
    }
}

#[test]
fn pages_of_any_size_make_the_same_context() {
    let script =
        "1.0u@10 2.0u@20 1.1A@21:c 2.1a@22 1.2t@23:c 3.0u@30 1.3a@31 3.1a@32 4.0u@40 2.2u@41 2.3a@42";
    let rows = items(script);
    for compaction in [None, Some(compaction(25, 20, &[10], None)), Some(compaction(33, 30, &[], Some("s")))]
    {
        let request = ContextRequest { compaction, active: Some(position(40)), ..request() };
        let whole = build(request.clone(), &EstimatingCounter, rows.clone());
        for size in 1..12 {
            let (context, _) = paged(request.clone(), &rows, size);
            assert_eq!(context.batches, whole.batches, "pages of {size}");
            assert_eq!(context.tokens, whole.tokens);
        }
    }
}

/// A counter that counts how often it is called.
#[derive(Default)]
struct NotingCounter(std::sync::atomic::AtomicU64);

impl crate::TokenCounter for NotingCounter {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn count(&self, text: &str) -> u64 {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        EstimatingCounter.count(text)
    }
}

#[test]
fn each_text_is_counted_once() {
    for (budget, active) in [(1_000, None), (1_000, Some(position(30))), (10, None)] {
        let counter = NotingCounter::default();
        let request = ContextRequest { budget, active, ..request() };
        build(request, &counter, items("1.0u 1.1a 2.0u 2.1a 3.0u"));
        assert_eq!(counter.0.into_inner(), 5, "{budget} tokens, {active:?}");
    }
}

#[test]
fn it_reads_no_more_than_it_needs() {
    let long: Vec<Item> = (1..=5_000).flat_map(|n| items(&format!("{n}.0u {n}.1a"))).collect();
    let request = ContextRequest { budget: 200, ..request() };
    let (context, asked) = paged(request.clone(), &long, 50);
    assert_eq!(asked, [NextRead::Older(None), NextRead::Nothing]);
    assert_eq!(context.older, Older::Unread { before: Some(position(49_760)) });
    assert_eq!(context.decisions.len(), 25);
    // With a compaction, newer messages and kept batches are read.
    let compaction = compaction(49_985, 49_980, &[70], Some("what was"));
    let request = ContextRequest { compaction: Some(compaction), budget: 100_000, ..request };
    let (context, asked) = paged(request, &long, 10);
    assert_eq!(asked, [NextRead::Older(None), NextRead::Batches(vec![position(70)]), NextRead::Nothing]);
    assert_eq!(
        context.batches.iter().map(|batch| batch.id().get()).collect::<Vec<_>>(),
        [70, 49_990, 50_000]
    );
    assert_eq!(context.older, Older::Compacted { through: position(49_980) });
}

/// A compaction may keep thousands of batches; those without room are not read.
#[test]
fn of_many_kept_batches_the_newest_are_read_first() {
    let long: Vec<Item> = (1..=1_000).flat_map(|n| items(&format!("{n}.0u {n}.1a"))).collect();
    let kept: Vec<i64> = (1..=900).map(|n| n * 10).collect();
    let with = |budget| {
        let compaction = Some(compaction(9_995, 9_990, &kept, None));
        paged(ContextRequest { compaction, budget, ..request() }, &long, 10)
    };
    let asked_for = |asked: &[NextRead]| -> Vec<usize> {
        let batches = |read: &NextRead| match read {
            NextRead::Batches(ids) => Some(ids.len()),
            _ => None,
        };
        asked.iter().filter_map(batches).collect()
    };
    let (context, asked) = with(14 * 11);
    assert_eq!(asked_for(&asked), [BATCHES_AT_ONCE]);
    let newest: Vec<i64> = (893..=900).map(|n| n * 10).chain([10_000]).collect();
    assert_eq!(context.batches.iter().map(|batch| batch.id().get()).collect::<Vec<_>>(), newest);
    let (context, asked) = with(1_000_000);
    assert_eq!(asked_for(&asked), [[BATCHES_AT_ONCE; 14].as_slice(), &[900 - 14 * BATCHES_AT_ONCE]].concat());
    assert_eq!(context.batches.len(), 901);
}

#[test]
fn an_active_batch_far_back_is_asked_for() {
    let mut rows: Vec<Item> = (1..=100).flat_map(|n| items(&format!("{n}.0u {n}.1a"))).collect();
    rows.push(item("2.2u@2000"));
    let request = ContextRequest { active: Some(position(20)), budget: 100, ..request() };
    let (context, asked) = paged(request, &rows, 10);
    assert_eq!(asked[1], NextRead::Batches(vec![position(20)]));
    assert_eq!(context.batches[0].items().len(), 3);
    assert!(context.tokens <= 100 && context.batches.len() > 1);
}

#[test]
fn an_input_that_is_not_stored_yet_is_given_as_a_batch() {
    let mut input = item("9.0u");
    (input.position, input.batch_id) = (Position::MAX, Position::MAX);
    let mut builder =
        Builder::new(ContextRequest { active: Some(Position::MAX), ..request() }, &EstimatingCounter);
    builder.batch(Position::MAX, [input]);
    assert_eq!(builder.next_read(), NextRead::Older(None));
    builder.page(items("1.1a 1.0u"));
    assert_eq!(builder.next_read(), NextRead::Older(Some(position(10))));
    builder.page(Vec::<Item>::new());
    assert_eq!(builder.next_read(), NextRead::Nothing);
    let context = builder.build();
    assert_eq!(context.batches.len(), 2);
    assert_eq!((context.active, context.older), (Some(Position::MAX), Older::Nothing));
}

#[test]
fn a_batch_of_which_only_the_end_was_read_is_never_in() {
    let mut builder = Builder::new(request(), &EstimatingCounter);
    builder.page(items("2.1a 2.0u 1.1a"));
    let context = builder.build();
    assert_eq!(rendered(&context), "10 -unread | 20 +");
}

fn last_messages(script: &str, is_all: bool) -> LastMessages {
    let mut newest: Vec<_> = items(script).into_iter().map(SharedItem::from).collect();
    newest.reverse();
    LastMessages { newest, is_all }
}

#[test]
fn messages_in_memory_are_given_as_far_as_they_are_wanted() {
    let script: String = (1..=40).map(|turn| format!("{turn}.0u {turn}.1a ")).collect();
    let all = last_messages(&script, true);
    let fed = |known: &LastMessages, budget| {
        let mut builder = Builder::new(ContextRequest { budget, ..request() }, &EstimatingCounter);
        let next = known.feed(&mut builder);
        (next, builder.low(), builder)
    };
    let (next, low, builder) = fed(&all, 1_000_000);
    assert_eq!((next, low), (NextRead::Nothing, Some(position(10))));
    let whole = builder.build();
    assert_eq!((whole.batches.len(), &whole.older), (40, &Older::Nothing));
    // Only some messages are in memory, so the next read is for the messages before them.
    let (known, rest) =
        (LastMessages { newest: all.newest[..30].to_vec(), is_all: false }, &all.newest[30..]);
    let (next, low, mut builder) = fed(&known, 1_000_000);
    assert_eq!((next, low), (NextRead::Older(Some(position(260))), Some(position(260))));
    builder.page(rest.iter().cloned());
    builder.end();
    assert_eq!(builder.build(), whole);
    // If three batches fit, the tokens of most others are not even counted.
    let (next, low, builder) = fed(&all, 3 * 14);
    assert_eq!((next, low), (NextRead::Nothing, Some(position(330))));
    let few = builder.build();
    assert_eq!(few.batches, whole.batches[37..]);
    assert_eq!(few.decisions.len(), 8);
    assert_eq!(fed(&LastMessages::default(), 9).0, NextRead::Older(None));
}

#[test]
fn a_batch_in_memory_is_not_read() {
    let script = "1.0u 1.1a 2.0u 2.1a 3.0u 3.1a";
    let wants = |known: &LastMessages, active: i64| {
        let request = ContextRequest { active: Some(position(active)), ..request() };
        let mut builder = Builder::new(request, &EstimatingCounter);
        builder.page([item(&format!("{}.9u@999", active / 10))]);
        (known.feed(&mut builder), builder)
    };
    let some = last_messages(script, false);
    let known = LastMessages { newest: some.newest[..5].to_vec(), is_all: false };
    let (next, builder) = wants(&known, 20);
    assert_eq!(next, NextRead::Older(Some(position(11))));
    let active = builder.build().batches.remove(0);
    assert_eq!((active.id(), active.items().len()), (position(20), 3));
    assert_eq!(wants(&known, 10).0, NextRead::Batches(vec![position(10)]), "its first message is not there");
    let (next, builder) = wants(&last_messages(script, true), 10);
    assert_eq!((next, builder.build().batches.len()), (NextRead::Nothing, 3));
}

#[test]
fn messages_in_memory_are_kept_as_far_as_they_were_wanted() {
    let (mut last, older) =
        (last_messages("3.0u 3.1a 4.0u 4.1a", false), last_messages("1.0u 1.1a 2.0u", true));
    last.extend(older);
    let positions =
        |last: &LastMessages| last.newest.iter().map(|item| item.position.get()).collect::<Vec<_>>();
    assert_eq!((positions(&last), last.is_all), (vec![41, 40, 31, 30, 20, 11, 10], true));
    last.truncate(position(10), 1);
    assert_eq!((last.newest.len(), last.is_all), (7, true));
    last.truncate(position(11), 1);
    assert_eq!((positions(&last), last.is_all), (vec![41, 40, 31, 30, 20, 11], false));
    last.truncate(position(41), 3);
    assert_eq!(positions(&last), [41, 40, 31]);
    last.truncate(position(10), 9);
    assert_eq!((positions(&last), last.is_all), (vec![41, 40, 31], false));
}
