//! What the chart makes of values, beyond the golden manifests.

use std::process::Command;

use devservices::tools;
use testkit::fleet::invoke;

use super::{deploy, said};
use crate::fixture::Fixture;

/// What `helm install` prints at its end.
fn notes() -> String {
    let mut helm = Command::new(tools::helm().unwrap().path);
    helm.args(["install", "antiphon", "--dry-run=client"]).arg(deploy().join("chart/antiphon"));
    helm.arg("--values").arg(deploy().join("chart/values/minimal.yaml"));
    let output = helm.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_once("\nNOTES:\n").expect("no notes").1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_key_is_made_as_the_notes_say() {
    let notes = notes();
    let (_, command) = notes.split_once(" -- ").expect("no command in a pod");
    let mut words = command.lines().next().unwrap().split_whitespace();
    assert_eq!(words.next(), Some("/antiphon"), "the image has no shell and no PATH");
    let fixture = Fixture::new().await;
    let env = [("DATABASE_URL".to_owned(), fixture.database_url())];
    let made = invoke(&words.collect::<Vec<_>>(), &env).await.unwrap();
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(made.stdout.starts_with("ant_"), "{}", made.stdout);
}
