//! The short forms of the chaos program.

use std::time::Duration;

use chaos::{self, ChaosSettings};

#[tokio::test(flavor = "multi_thread")]
async fn chaos_of_every_kind_breaks_no_rule() {
    breaks_no_rule(ChaosSettings::new(Duration::from_secs(45), rand::random::<u32>().into())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_with_three_nats_servers_breaks_no_rule() {
    let mut settings = ChaosSettings::new(Duration::from_secs(45), rand::random::<u32>().into());
    settings.nats_servers = 3;
    breaks_no_rule(settings).await;
}

async fn breaks_no_rule(settings: ChaosSettings) {
    println!("seed {}", settings.seed);
    let report = chaos::run(&settings).await.unwrap();
    println!("{report}");
    assert!(report.is_good(), "{report}");
}
