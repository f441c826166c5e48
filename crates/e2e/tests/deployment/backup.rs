//! The commands of the book's page of steps, run as written there.

use std::{
    path::Path,
    process::{Command, Output},
};

use devservices::{services::ScratchDir, tools};
use testkit::{WAIT_TIMEOUT, db_snapshot, fleet::binary};

use super::{deploy, read, said};
use crate::fixture::Fixture;

/// The commands of the block with this name.
fn steps(name: &str) -> String {
    let page = read(&deploy().join("docs/src/operate/restore-steps.md"));
    let (_, block) =
        page.split_once(&format!("```sh,ignore {name}\n")).unwrap_or_else(|| panic!("no block {name}"));
    block.split_once("```").unwrap().0.to_owned()
}

fn run(name: &str, folder: &Path, env: &[(String, String)]) -> Output {
    let programs = [binary().unwrap(), tools::postgres().unwrap().path.join("pg_dump")];
    let folders: Vec<_> = programs.iter().map(|program| program.parent().unwrap().to_owned()).collect();
    let old = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&old))).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &steps(name)]).current_dir(folder).env("PATH", path);
    shell.envs(env.iter().cloned());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{name}: {}", said(&output));
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_is_restored_by_the_steps_of_the_page() {
    let mut fixture = Fixture::new().await;
    let folder = ScratchDir::new("backup").unwrap();
    let env = fixture.command_env();
    fixture.send_many("before", 10).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    run("backup", folder.path(), &env);
    fixture.send_many("after", 10).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let (workers, gateways) = (&mut fixture.fleet.workers, &mut fixture.fleet.gateways);
    for process in workers.iter_mut().chain(gateways) {
        process.kill().await.unwrap();
    }
    run("restore", folder.path(), &env);
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (10, 0), "what was backed up, and no more");
    fixture.fleet.spawn().unwrap();
    fixture.fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let is_whole = async || db_snapshot::ended(&fixture.pool).await.is_ok_and(|ended| ended == (20, 0));
    fixture.until("what the streams still have is read again", WAIT_TIMEOUT, is_whole).await;
    run("after", folder.path(), &env);
    fixture.audit(vec![]).await;
}
