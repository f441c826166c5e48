//! The short form of the program that restores servers to an earlier state.

use chaos::restores;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_there_is_not_missing_and_what_is_gone_is_named() {
    let report = restores::run(1, true).await.unwrap();
    println!("{report}");
    assert!(report.violations.is_empty(), "{report}");
}
