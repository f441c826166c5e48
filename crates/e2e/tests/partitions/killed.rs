//! A change that is killed at any time, and run again, until it succeeds.

use std::{collections::BTreeMap, env, time::Duration};

use async_nats::jetstream::message::PublishMessage;
use model::Bucket;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::PgPool;
use testkit::{db_snapshot, fleet};
use tokio::time::sleep;

use super::{STREAM_BYTES, count, small_streams};
use crate::{api_client::alone, fixture::Fixture};

const ENTRIES: usize = 8_000;
const KEYS: usize = 51;
const MOST_CHANGES: usize = 100;
/// Entries of each stream that count as used.
const USED: u64 = 3;

/// Payload and a header of the entries of each key, in order.
type EntriesByKey = BTreeMap<String, Vec<(String, String)>>;

/// `ANTIPHON_PARTITION_CHANGES=60` is the long form.
#[tokio::test(flavor = "multi_thread")]
async fn killed_change_moves_each_entry_once_and_in_order() {
    let changes: usize = env::var("ANTIPHON_PARTITION_CHANGES").map_or(4, |text| text.parse().unwrap());
    assert!(changes <= MOST_CHANGES);
    let mut fixture = Fixture::with(|options| small_streams(alone(options))).await;
    fixture.stop_fleet().await;
    publish(&fixture).await;
    sqlx::query("UPDATE partitions SET checkpoint = $1, read_seq = 0, read_at_ns = NULL")
        .bind(USED as i64)
        .execute(&fixture.pool)
        .await
        .unwrap();
    let mut rng = StdRng::seed_from_u64(rand::random());
    let (expected, mut interrupted) = (read(&fixture).await, 0);
    assert!(expected.len() == 2 * KEYS, "{}", expected.len());
    for (round, partitions) in [16, 64, 8, 4, 1, 32, 8].into_iter().cycle().take(MOST_CHANGES).enumerate() {
        // On a busy machine a kill rarely happens between two entries; then there are more changes.
        if round >= changes && interrupted > 0 {
            break;
        }
        let mut kills = 0;
        while !change(&fixture, partitions, &mut rng, kills).await {
            kills += 1;
            interrupted += u32::from(is_between(&fixture).await);
        }
        assert!(read(&fixture).await == expected, "round {round}, {partitions} partitions, {kills} kills");
        check_layout(&fixture, partitions).await;
        println!(
            "{partitions} partitions after {kills} kills, {interrupted} so far with a part of the entries moved"
        );
    }
    assert!(interrupted > 0, "no kill came while entries were moved");
}

/// Every entry has its own message id: a copy with the same id within two minutes would be dropped
/// as a repetition.
async fn publish(fixture: &Fixture) {
    let mut acks = Vec::new();
    for number in 0..ENTRIES {
        let (key, kind) = (format!("key-{}", number * 7 % KEYS), ["chunks", "tasks"][number % 2]);
        let subject = format!("{kind}.{}.{key}", Bucket::of_key(&key).partition(count(8)));
        let message =
            PublishMessage::build().payload(format!("{number} {}", "x".repeat(number % 300)).into());
        let message = message.header("X-Number", number.to_string()).message_id(format!("id-{number}"));
        acks.push(fixture.publisher.context().send_publish(subject, message).await.unwrap());
        if acks.len() == 500 || number + 1 == ENTRIES {
            for ack in acks.drain(..) {
                ack.await.unwrap();
            }
        }
    }
}

/// One run, which is killed: first at any time, later while entries are being moved. True if it has
/// finished.
async fn change(fixture: &Fixture, partitions: u16, rng: &mut StdRng, kills: u32) -> bool {
    let any = rng.random_range(0..2_500);
    let kill = async {
        match kills {
            0 | 1 => sleep(Duration::from_millis(any)).await,
            2 | 3 => {
                while !is_moving(&fixture.pool).await {
                    sleep(Duration::from_millis(2)).await;
                }
                sleep(Duration::from_millis(any % 120)).await;
            }
            // The kill comes at no fixed time, because a machine may be too fast or too slow for
            // it.
            4..=6 => while !has_moved_some(fixture).await {},
            _ => sleep(Duration::from_secs(40)).await,
        }
    };
    let words = ["partitions", "change", &partitions.to_string()];
    let Some(ended) = fleet::invoke_until(&words, &fixture.command_env(), kill).await.unwrap() else {
        return false;
    };
    // A run after one that was killed at the very end finds the work done.
    let is_done = ended.stderr.contains(&format!("there are {partitions} partitions already"));
    assert!(ended.code == Some(0) || is_done, "{}", ended.stderr);
    true
}

async fn is_moving(pool: &PgPool) -> bool {
    let sql = "SELECT EXISTS (SELECT FROM partition_change WHERE ends IS NOT NULL)";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// Whether entries of the first stream, with which every change begins, have been moved. The check
/// is one small query, because the other streams follow at once.
async fn has_moved_some(fixture: &Fixture) -> bool {
    let sql = "SELECT ends[1] FROM partition_change WHERE ends IS NOT NULL AND NOT is_moved";
    let end: Option<i64> = sqlx::query_scalar(sql).fetch_optional(&fixture.pool).await.unwrap();
    let Some(end) = end else { return false };
    let mut stream = fixture.publisher.context().get_stream("PARTITION_0").await.unwrap();
    while stream.info().await.unwrap().state.last_sequence <= end as u64 {}
    true
}

/// Whether some entries have been moved and others have not.
async fn is_between(fixture: &Fixture) -> bool {
    let sql = "SELECT ends FROM partition_change WHERE ends IS NOT NULL AND NOT is_moved";
    let ends: Option<Vec<i64>> = sqlx::query_scalar(sql).fetch_optional(&fixture.pool).await.unwrap();
    let mut moved = 0;
    for (partition, end) in ends.into_iter().flatten().enumerate() {
        let mut stream =
            fixture.publisher.context().get_stream(format!("PARTITION_{partition}")).await.unwrap();
        moved += stream.info().await.unwrap().state.last_sequence - end as u64;
    }
    (1..ENTRIES as u64 - 8 * USED).contains(&moved)
}

/// All entries behind the checkpoints.
async fn read(fixture: &Fixture) -> EntriesByKey {
    let mut entries = EntriesByKey::new();
    let partitions = db_snapshot::partitions(&fixture.pool).await.unwrap();
    for row in &partitions {
        let name = format!("PARTITION_{}", row.partition_id);
        let mut stream = fixture.publisher.context().get_stream(name).await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        for seq in row.checkpoint as u64 + 1..=last {
            let entry = stream.get_raw_message(seq).await.unwrap();
            let mut tokens = entry.subject.split('.');
            let (kind, partition, key) =
                (tokens.next().unwrap(), tokens.next().unwrap(), tokens.next().unwrap());
            assert_eq!(partition, row.partition_id.to_string());
            assert_eq!(usize::from(Bucket::of_key(key).get()) % partitions.len(), row.partition_id as usize);
            let number = entry.headers.get("X-Number").unwrap().to_string();
            let payload = String::from_utf8(entry.payload.to_vec()).unwrap();
            entries.entry(format!("{kind}.{key}")).or_default().push((payload, number));
        }
    }
    entries
}

/// Checks that there are as many rows and streams as partitions, that the streams accept entries
/// from publishers, and that nothing of the change is left.
async fn check_layout(fixture: &Fixture, partitions: u16) {
    let rows = db_snapshot::partitions(&fixture.pool).await.unwrap();
    assert_eq!(rows.len(), usize::from(partitions));
    assert!(rows.iter().all(|row| !row.leased), "any worker may take them");
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM partition_change").fetch_one(&fixture.pool).await.unwrap();
    assert_eq!(left, 0);
    let context = fixture.publisher.context();
    for partition in 0..64 {
        let stream = context.get_stream(format!("PARTITION_{partition}")).await;
        assert_eq!(stream.is_ok(), partition < partitions, "{partition}");
        let Ok(stream) = stream else { continue };
        let config = &stream.cached_info().config;
        assert_eq!(config.subjects, wire::subject::stream_subjects(model::PartitionId(partition)));
        assert_eq!(
            (config.max_bytes, config.max_message_size, config.subject_transform.is_none()),
            (STREAM_BYTES, 1 << 20, true)
        );
    }
}
