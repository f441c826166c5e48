//! The demo without a terminal.

use std::time::{Duration, Instant};

use demo::{DemoOptions, DemoOutcome};
use testkit::services::{NatsServer, TestDatabase};

/// Time limit on two cores.
const LIMIT: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_passes_in_time() {
    let nats = NatsServer::start().await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let options = DemoOptions {
        nats_url: nats.url().to_owned(),
        database_url: database.url().to_owned(),
        partitions: 8,
        is_once: true,
    };
    let began = Instant::now();
    assert_eq!(demo::run(&options).await.unwrap(), DemoOutcome::Pass);
    assert!(began.elapsed() < LIMIT, "it took {:?}", began.elapsed());
}
