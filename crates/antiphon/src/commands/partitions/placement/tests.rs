use std::collections::BTreeMap;

use model::Bucket;

use super::*;

const MANY: u64 = 200;

fn count(count: u64) -> PartitionCount {
    PartitionCount::new(count).unwrap()
}

/// `many` entries of 40 keys in the streams of `from` partitions, in the order of the move: old
/// partition, subject, number.
fn entries(from: PartitionCount, many: u64) -> Vec<(PartitionId, String, u64)> {
    let mut entries: Vec<_> = (0..many)
        .map(|number| {
            // This order is as good as a random one, and reproducible.
            let (key, kind) =
                (number.wrapping_mul(2_654_435_761) % 40, ["chunks", "tasks"][(number % 2) as usize]);
            let key = format!("key-{key}");
            let partition = Bucket::of_key(&key).partition(from);
            (partition, format!("{kind}.{partition}.{key}"), number)
        })
        .collect();
    entries.sort_by_key(|(partition, _, number)| (*partition, *number));
    entries
}

type Streams = BTreeMap<PartitionId, Vec<(Seq, String, u64)>>;

/// Moves until this run has stored the given number of entries; existing entries stay.
fn run(
    entries: &[(PartitionId, String, u64)],
    (to, most_partitions): (PartitionCount, u16),
    streams: &mut Streams,
    most: usize,
) {
    let targets = (0..most_partitions).map(|number| {
        let stored = streams.get(&PartitionId(number)).map_or(0, Vec::len) as u64;
        MovedStream { end: Seq(u64::from(number) * 100), stored }
    });
    let mut placement = Placement::new(to, targets.collect());
    let mut left = most;
    for (_, subject, number) in entries {
        let place = placement.place(subject).unwrap();
        if place.progress == Progress::Missing {
            if left == 0 {
                return;
            }
            left -= 1;
            streams.entry(place.partition).or_default().push((place.seq, place.subject, *number));
        }
    }
    assert_eq!(placement.with_too_much(), None);
}

#[test]
fn each_entry_is_moved_once_in_the_order_of_its_key() {
    for (from, to) in [(8, 16), (16, 64), (64, 8), (8, 1), (1, 1024), (1024, 2)] {
        let (from, to) = (count(from), count(to));
        let (entries, most_partitions) = (entries(from, MANY), from.get().max(to.get()));
        // Interrupted after each number of entries, then run to the end.
        for step in [3, 7, 100, MANY as usize] {
            let mut streams = Streams::new();
            for _ in 0..=MANY as usize / step {
                run(&entries, (to, most_partitions), &mut streams, step);
            }
            let mut all = Vec::new();
            for (partition, stream) in &streams {
                let mut last_of_key: BTreeMap<&str, u64> = BTreeMap::new();
                for ((seq, subject, number), expected) in stream.iter().zip(1..) {
                    assert_eq!(*seq, Seq(u64::from(partition.0) * 100 + expected), "no hole");
                    let key = subject.rsplit('.').next().unwrap();
                    assert_eq!(Bucket::of_key(key).partition(to), *partition);
                    assert!(subject.split('.').nth(1) == Some(&partition.to_string()), "{subject}");
                    let before = last_of_key.insert(key, *number);
                    assert!(
                        before.is_none_or(|before| before < *number),
                        "{key}: {before:?} before {number}"
                    );
                    all.push(*number);
                }
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..MANY), "each once");
        }
    }
}

#[test]
fn progress_of_an_earlier_run_is_seen_by_how_much_a_stream_has() {
    let (two, one) = (count(2), count(1));
    let mut placement = Placement::new(
        one,
        vec![MovedStream { end: Seq(9), stored: 2 }, MovedStream { end: Seq(5), stored: 0 }],
    );
    let [first, second, third] =
        ["chunks.0.a", "tasks.1.b", "chunks.1.b"].map(|subject| placement.place(subject).unwrap());
    assert_eq!((first.seq, first.progress), (Seq(10), Progress::Stored));
    assert_eq!((second.seq, second.progress), (Seq(11), Progress::StoredLast));
    assert_eq!((third.seq, third.progress), (Seq(12), Progress::Missing));
    assert_eq!(third.subject, "chunks.0.b");
    for strange in ["live.a", "chunks.a", "chunks.0.a.b", ""] {
        assert_eq!(placement.place(strange), None, "{strange}");
    }
    let mut short = Placement::new(
        two,
        vec![MovedStream { end: Seq(0), stored: 0 }, MovedStream { end: Seq(0), stored: 9 }],
    );
    short.place("chunks.0.a");
    assert_eq!(short.with_too_much(), Some(PartitionId(1)), "something else has written there");
}
