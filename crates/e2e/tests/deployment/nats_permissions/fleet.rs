//! A fleet and external services with the users of deploy/nats.conf: nothing that they do is
//! refused.

use std::time::Duration;

use sqlx::PgPool;
use testkit::{
    db_snapshot::turns,
    examples,
    fleet::{Fleet, FleetOptions, invoke},
    services::TestDatabase,
    sse::{FollowOptions, Follower},
};
use tokio::time::{Instant, sleep};

use super::ShippedNats;
use crate::api_client::{SOON, scripted};

/// Runs each role as its user, and workflow services as the user `workflow`.
pub(super) fn as_users(nats: &ShippedNats, workflow: &'static str, options: FleetOptions) -> FleetOptions {
    let roles =
        [("worker", "worker"), ("gateway", "gateway"), ("workflow", workflow), ("migrate", "operator")];
    let options = options.with_env("ANTIPHON_STREAM_MAX_BYTES", 1 << 28);
    let options = options.with_env("ANTIPHON_WORKFLOWS", "default,research");
    roles.into_iter().fold(options, |options, (role, user)| {
        let options = options.with_role_env(role, "NATS_URL", nats.url(user));
        options.with_role_env(role, "ANTIPHON_NATS_INBOX_PREFIX", format!("_INBOX_{user}"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_works_with_the_nats_users_of_its_roles() {
    let (nats, database) = (ShippedNats::start().await, TestDatabase::create().await.unwrap());
    let options =
        as_users(&nats, "workflow", scripted(FleetOptions::new("nats://nowhere:1", database.url())));
    let fleet = Fleet::start(options).await.unwrap();
    let api = testkit::api::Api(fleet.gateway_addrs()[0]);
    let pool = database.pool().await.unwrap();
    let follower = Follower::start(&fleet.gateway_addrs(), "users", FollowOptions::default());
    follower.opened().await.unwrap();
    api.put_agent("robot", "default", serde_json::json!({})).await.unwrap();
    api.say("users", "Hello").await.unwrap();
    api.send_task("robot", "task-1", "Hello").await.unwrap();
    let stopped = api.say("others", &format!("slowly {}", "and on ".repeat(200))).await.unwrap();
    follower.wait(SOON, |progress| progress.terminals > 0).await.unwrap();
    api.stop(&stopped.id).await.unwrap();
    until_messages(&pool, 4, &fleet).await;
    let env = [
        ("NATS_URL".to_owned(), nats.url("operator")),
        ("DATABASE_URL".to_owned(), database.url().to_owned()),
        ("ANTIPHON_NATS_INBOX_PREFIX".to_owned(), "_INBOX_operator".to_owned()),
    ];
    let erased = invoke(&["erase", "--thread", "users", "--yes"], &env).await.unwrap();
    assert_eq!(erased.code, Some(0), "{} {}", erased.stdout, erased.stderr);
    assert_eq!(nats.violations(), [""; 0]);
}

/// Each service runs as the user of its own workflow, which is not allowed to create a consumer or
/// to use the consumer of the other workflow.
#[tokio::test(flavor = "multi_thread")]
async fn example_services_answer_as_the_nats_users_of_their_workflows() {
    let (nats, database) = (ShippedNats::with_examples().await, TestDatabase::create().await.unwrap());
    let services = [
        ("workflow", "default", examples::python("default").await.unwrap()),
        ("research", "research", examples::typescript("research").await.unwrap()),
    ];
    for (number, (user, workflow, service)) in services.into_iter().enumerate() {
        let options = FleetOptions::new("nats://nowhere:1", database.url()).with_workflow(service);
        let fleet = Fleet::start(as_users(&nats, user, options)).await.unwrap();
        let api = testkit::api::Api(fleet.gateway_addrs()[0]);
        api.put_agent(workflow, workflow, serde_json::json!({})).await.unwrap();
        api.say(workflow, "Hello").await.unwrap();
        until_messages(&database.pool().await.unwrap(), 2 * (number + 1), &fleet).await;
    }
    assert_eq!(nats.violations(), [""; 0]);
}

async fn until_messages(pool: &PgPool, count: usize, fleet: &Fleet) {
    let began = Instant::now();
    while turns::messages(pool).await.unwrap().len() < count {
        assert!(began.elapsed() < SOON, "{}", fleet.log_tails());
        sleep(Duration::from_millis(50)).await;
    }
}
