//! The short form of the chaos program.

use std::time::Duration;

use chaos::{self, ChaosSettings};

#[tokio::test(flavor = "multi_thread")]
async fn chaos_of_every_kind_breaks_no_rule() {
    let settings = ChaosSettings::new(Duration::from_secs(45), rand::random::<u32>().into());
    println!("seed {}", settings.seed);
    let report = chaos::run(&settings).await.unwrap();
    println!("{report}");
    assert!(report.is_good(), "{report}");
}
