use model::{Seq, Timestamp};

use super::*;

fn status(partition: u16, owner: Option<&str>, lease_left_ms: i64) -> PartitionStatus {
    PartitionStatus {
        partition: PartitionId(partition),
        epoch: 1,
        commits: 0,
        owner: owner.map(str::to_owned),
        lease_left_ms: Some(lease_left_ms),
        checkpoint: Seq(100),
        incarnation: None,
        read: None,
        position_high_water: Timestamp(0),
    }
}

fn usage(bytes: u64, last_seq: u64) -> StreamUsage {
    StreamUsage {
        entries: 0,
        bytes,
        max_bytes: Some(1_000),
        last_seq: Seq(last_seq),
        replicas: 3,
        lagging_replicas: 0,
    }
}

fn consumer(pending: u64, in_hand: usize, waiting_pulls: usize) -> WorkflowConsumer {
    WorkflowConsumer { workflow: "w".to_owned(), pending, in_hand, waiting_pulls }
}

fn said(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| format!("{} {}", finding.severity.name(), finding.detail)).collect()
}

#[test]
fn partitions_without_a_living_owner_are_named() {
    let all = [status(0, Some("w1"), 900), status(1, Some("w2"), -5), status(2, None, 0)];
    assert_eq!(said(&[owners(&all)]), ["problem no worker owns partition 1, 2"]);
    assert_eq!(
        said(&[owners(&all[1..])]),
        ["problem no worker owns any of 2 partitions: nothing is answered"]
    );
    assert_eq!(said(&[owners(&all[..1])]), ["ok 1 partitions, 1 workers"]);
}

#[test]
fn streams_are_judged_by_their_room_copies_and_backlog() {
    let named = |number: u16| subject::stream_name(PartitionId(number));
    let lagging = StreamUsage { lagging_replicas: 2, ..usage(1, 100) };
    let examined = Examined {
        owners: (0..6).map(|number| status(number, Some("w"), 1)).collect(),
        streams: vec![
            (named(0), Some(usage(790, 100))),
            (named(1), Some(usage(800, 100))),
            (named(2), Some(usage(985, 100))),
            (named(3), Some(lagging)),
            (named(4), Some(usage(1, 100 + BACKLOG))),
            (named(5), None),
            // When full, this stream drops its oldest entries.
            (subject::TURNS_STREAM.to_owned(), Some(usage(1_000, 1))),
        ],
        ..Examined::default()
    };
    let expected = [
        format!("warning {} is 80 % full", named(1)),
        format!("problem {} is full: publishers are refused", named(2)),
        format!("warning {}: 2 of 3 copies are behind", named(3)),
        format!("warning {} has {BACKLOG} entries that are not committed", named(4)),
        format!("problem {} is not there", named(5)),
        "ok 2 as they are to be".to_owned(),
    ];
    assert_eq!(said(&streams(&examined)), expected);
}

#[test]
fn requests_that_no_service_takes_are_a_problem() {
    let of = |consumer: WorkflowConsumer| {
        said(&workflows(&Examined { consumers: vec![consumer], ..Examined::default() }))
    };
    assert_eq!(of(consumer(3, 0, 0)), ["problem w: 3 requests wait, and no service takes them"]);
    assert_eq!(of(consumer(3, 1, 0)), ["ok w: 3 requests wait, 1 are being answered"]);
    assert_eq!(of(consumer(0, 0, 0)), ["ok w: 0 requests wait, 0 are being answered"]);
    let waiting_requests = BTreeMap::from([("work.w".to_owned(), 1), ("work.gone".to_owned(), 2)]);
    let examined = Examined { waiting_requests, consumers: vec![consumer(0, 1, 1)], ..Examined::default() };
    let expected = [
        "ok w: 0 requests wait, 1 are being answered",
        "problem gone: 2 requests wait, and no service of it has ever run",
    ];
    assert_eq!(said(&workflows(&examined)), expected);
}

#[test]
fn streams_of_another_installation_are_a_problem() {
    let judged = |owners: &[(&str, Option<&str>)]| {
        let owned = |(name, id): &(&str, Option<&str>)| ((*name).to_owned(), id.map(str::to_owned));
        let owners_of_streams = owners.iter().map(owned).collect();
        let examined =
            Examined { installation: Some("ours".to_owned()), owners_of_streams, ..Examined::default() };
        installation(&examined).map(|finding| said(&[finding]).concat())
    };
    assert_eq!(judged(&[]), None, "NATS is away");
    assert_eq!(judged(&[("WORK", Some("ours"))]).unwrap(), "ok ours");
    assert_eq!(
        judged(&[("WORK", Some("ours")), ("TURNS", Some("theirs")), ("PARTITION_0", None)]).unwrap(),
        "problem TURNS belong to installation theirs, and the database is ours"
    );
    let unmarked = judged(&[("WORK", Some("ours")), ("TURNS", None)]).unwrap();
    assert_eq!(unmarked, "warning TURNS do not say which installation they belong to");
}

#[test]
fn streams_that_a_change_has_left_behind_are_named() {
    assert_eq!(left_over(&[]), None);
    let left = ["PARTITION_8", "PARTITION_9"].map(str::to_owned);
    let finding = left_over(&left).unwrap();
    assert_eq!(
        said(&[finding]),
        ["warning PARTITION_8, PARTITION_9 belong to no partition, and reserve room"]
    );
}

#[test]
fn the_worst_comes_first() {
    let found = vec![
        Symptom::DeadLetters { reason: "too_large".to_owned(), count: 3 },
        Symptom::NatsAway("refused".to_owned()),
    ];
    let findings = judge(&Examined { found, ..Examined::default() });
    assert_eq!(said(&findings), ["problem refused", "warning 3 of reason too_large within a day"]);
}

#[test]
fn vectors_that_are_missing_or_of_another_model_are_named() {
    let judged = |stored: Option<&str>| {
        let found = vec![Symptom::NoVectors { wanted: "new".to_owned(), stored: stored.map(str::to_owned) }];
        said(&judge(&Examined { found, ..Examined::default() }))
    };
    let words = "memory is searched by words alone";
    let other = format!("warning the vectors of facts are of old, not of new: {words}");
    assert_eq!(judged(Some("old")), [other]);
    let none = format!("warning there are no vectors of facts, though new is to make them: {words}");
    assert_eq!(judged(None), [none]);
}
