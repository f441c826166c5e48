//! The number of partitions is changed: everything open continues, in order and exactly once,
//! whatever interrupts the change.

mod killed;
mod refused;

use std::time::Duration;

use model::{AgentId, PartitionCount, ThreadId};
use serde_json::json;
use testkit::{
    WAIT_TIMEOUT,
    db_snapshot::{self, turns},
    fleet::{self, Fleet, FleetOptions, Invocation},
    load::PlannedMessage,
    manual_workflow::{DeliveredRequest, ManualWorkflow},
    publisher::{Addressing, Publisher},
    text,
};

use crate::{
    api_client::{SOON, said},
    fixture::{self, Fixture, LEASE, PARTITIONS},
    timers::in_seconds,
};

const STREAM_BYTES: i64 = 1 << 28;
const AGENTS: usize = 6;
const OPEN: usize = 24;
/// Chunks that an open message gets between two changes.
const CHUNKS: usize = 12;

fn count(partitions: u16) -> PartitionCount {
    PartitionCount::new(partitions.into()).unwrap()
}

/// A test's server does not have the space that 64 streams of the default size reserve.
fn small_streams(options: FleetOptions) -> FleetOptions {
    options.with_env("ANTIPHON_STREAM_MAX_BYTES", STREAM_BYTES)
}

impl Fixture {
    async fn on_partitions(&self, words: &[&str]) -> Invocation {
        fleet::invoke(&[&["partitions"], words].concat(), &self.command_env()).await.unwrap()
    }

    /// Changes the number, which must succeed, starts a fleet with the new number, and returns the
    /// old fleet.
    async fn change_partitions(&mut self, partitions: u16) -> Fleet {
        let changed = self.on_partitions(&["change", &partitions.to_string(), "-o", "json"]).await;
        println!("{}", changed.stdout);
        assert_eq!(changed.code, Some(0), "{}", changed.stderr);
        let mut options = small_streams(fixture::options(&self.nats, &self.database_url()));
        options.partitions = partitions;
        self.publisher =
            Publisher::connect(self.nats.url(), Addressing::Exact(count(partitions))).await.unwrap();
        std::mem::replace(&mut self.fleet, Fleet::start(options).await.unwrap())
    }

    async fn stop_fleet(&mut self) {
        let processes = self.fleet.workers.iter_mut().chain(&mut self.fleet.gateways);
        for process in processes {
            process.terminate();
            process.ended(WAIT_TIMEOUT).await.unwrap();
        }
    }
}

/// Answers each agent's task of this number. Requests up to `changed_at` must name the current
/// partition; those for later tasks are handed back.
async fn answer_all(workflow: &ManualWorkflow, number: usize, partitions: u16, changed_at: u64) {
    let mut left: Vec<String> = (0..AGENTS).map(|agent| format!("agent-{agent}")).collect();
    let mut later = Vec::new();
    while !left.is_empty() {
        let asked = workflow.next(SOON).await.unwrap_or_else(|error| panic!("{error}: {left:?}"));
        let (agent, task) = (&asked.request.agent_id, &asked.request.task.as_ref().unwrap().task_id);
        if !is_of_today(&asked, partitions) {
            // A worker that was paused while it published a request finishes the publication when
            // it resumes.
            assert!(
                asked.seq().unwrap() > changed_at,
                "it was there when the change ended: {:?}",
                asked.request
            );
            asked.ack().await.unwrap();
            continue;
        }
        match left.iter().position(|left| left == agent) {
            Some(at) => {
                assert_eq!(*task, format!("k-{number}"), "first in, first out: {agent}");
                left.swap_remove(at);
                asked.answer(&format!("did {number}")).await.unwrap();
            }
            None => {
                assert_eq!(*task, format!("k-{}", number + 1), "{agent} is asked once for each");
                later.push(asked);
            }
        }
    }
    hand_back(later).await;
}

fn is_of_today(asked: &DeliveredRequest, partitions: u16) -> bool {
    let thread = ThreadId::parse(&asked.request.thread_id).unwrap();
    asked.request.subject == wire::subject::partition_chunks(count(partitions), &thread)
}

async fn hand_back(all: Vec<DeliveredRequest>) {
    for asked in all {
        asked.hand_back().await.unwrap();
    }
}

/// Answers the task whose agent backed off and the one that waited for its time: each is requested
/// once. Other requests are handed back.
async fn answer_due(workflow: &ManualWorkflow) {
    let (mut left, mut others) = (vec!["late", "timed"], Vec::new());
    while !left.is_empty() {
        let asked = workflow.next(SOON).await.unwrap_or_else(|error| panic!("{error}: {left:?}"));
        match left.iter().position(|agent| *agent == asked.request.agent_id) {
            Some(at) => {
                left.swap_remove(at);
                asked.answer("done").await.unwrap();
            }
            None => {
                assert!(
                    asked.request.agent_id.starts_with("agent-"),
                    "{} is asked twice",
                    asked.request.agent_id
                );
                others.push(asked);
            }
        }
    }
    hand_back(others).await;
}

async fn asked_of(workflow: &ManualWorkflow, agent: &str) -> DeliveredRequest {
    let asked = workflow.next(SOON).await.unwrap();
    assert_eq!(asked.request.agent_id, agent);
    asked
}

fn open_messages() -> Vec<PlannedMessage> {
    let pieces = text::cut(text::LICENSE, 3);
    let open = |number: usize| {
        PlannedMessage::of_pieces(&format!("open-{number}"), "m", &pieces[number..number + 4 * CHUNKS])
            .unwrap()
    };
    (0..OPEN).map(open).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_and_queued_goes_on_under_another_number() {
    let mut fixture = Fixture::with(small_streams).await;
    // Requests in progress during the change are redelivered soon.
    let workflow = fixture.manual_workflow_of("default", Duration::from_secs(5)).await;
    fixture.send_many("done", 30).await;
    fixture.until_ended(SOON).await;
    let open = open_messages();
    for message in &open {
        fixture.send_part(message, 0..CHUNKS).await;
    }
    // One agent backs off during the first change, and one task waits for its time.
    fixture.settle("late", json!({"backoff_base_ms": 3_000})).await;
    fixture.send_tasks("late", [("k".to_owned(), "fail once".to_owned())]).await;
    let mut failing = asked_of(&workflow, "late").await;
    failing.fail("later", json!({"class": "transient"})).await.unwrap();
    failing.ack().await.unwrap();
    fixture
        .until("late backs off", SOON, async || {
            let agent = turns::agent(&fixture.pool, "late").await.unwrap();
            agent.is_some_and(|agent| agent.backoff_attempt_count == 1)
        })
        .await;
    let due = in_seconds(&fixture, 4.0).await;
    let delayed = json!({"task_id": "timed", "content": "call back", "not_before": due});
    fixture.api().call("POST", "/v1/agents/timed/tasks", Some(&delayed)).await.unwrap();
    for agent in 0..AGENTS {
        let tasks = (0..4).map(|number| (format!("k-{number}"), format!("do {number}")));
        fixture.send_tasks(&format!("agent-{agent}"), tasks).await;
    }
    answer_all(&workflow, 0, PARTITIONS, u64::MAX).await;
    // One request is in progress and its answer has begun; the answer of another has not begun.
    // Four requests wait.
    let mut begun = workflow.next(SOON).await.unwrap();
    begun.say("half of ").await.unwrap();
    let _in_hand = workflow.next(SOON).await.unwrap();

    // One worker dies. Another one is only paused, and resumes after everything has changed. The
    // gateway is left running.
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.fleet.workers[1].pause();
    tokio::time::sleep(LEASE).await;
    let mut old = fixture.change_partitions(16).await;
    let changed_at = workflow.last_request().await.unwrap();
    old.workers[1].resume();
    for process in [&mut old.workers[1], &mut old.gateways[0]] {
        let status = process.ended(WAIT_TIMEOUT).await.unwrap();
        let says = process.log_tail();
        assert!(
            !status.success() && says.contains("antiphon: ") && says.contains("partitions"),
            "{status} {says}"
        );
    }

    for (step, partitions) in [16, 64, 8].into_iter().enumerate() {
        if step == 0 {
            answer_due(&workflow).await;
        } else {
            fixture.stop_fleet().await;
            fixture.change_partitions(partitions).await;
        }
        answer_all(&workflow, step + 1, partitions, if step == 0 { changed_at } else { u64::MAX }).await;
        for message in &open {
            fixture.send_part(message, CHUNKS * (step + 1)..CHUNKS * (step + 2)).await;
        }
    }
    for agent in 0..AGENTS {
        fixture.until_tasks(&format!("agent-{agent}"), &["completed"; 4]).await;
        let messages = fixture.messages_of(&format!("agent-{agent}")).await;
        let expected: Vec<_> = (0..4)
            .flat_map(|number| [("user", format!("do {number}")), ("assistant", format!("did {number}"))])
            .collect();
        assert!(
            said(&messages).into_iter().eq(expected.iter().map(|(role, text)| (*role, text.as_str()))),
            "{messages:?}"
        );
    }
    for message in &open {
        let thread = message.key.thread.as_str();
        let messages = fixture.until_messages(thread, 1).await;
        assert_eq!(said(&messages), [("assistant", message.text().as_str())], "{thread}");
    }
    // The 30 finished messages, the open ones, and two messages of each task.
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), ((30 + OPEN + 8 * AGENTS + 4) as i64, 0));
    fixture.no_request_comes(&workflow).await;
    fixture.until_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entry_of_a_publisher_that_knows_the_old_number_is_replayed() {
    let mut fixture = Fixture::with(small_streams).await;
    fixture.stop_fleet().await;
    fixture.change_partitions(16).await;
    // The agent's bucket is 8 to 15 mod 16, and is therefore in another partition than before.
    let moved =
        (0..).map(|n| format!("agent-{n}")).find(|name| model::Bucket::of_key(name).get() % 16 >= 8).unwrap();
    let old = wire::subject::partition_tasks(count(8), &AgentId::parse(&moved).unwrap());
    let workflow = fixture.manual_workflow().await;
    let task = json!({"task_id": "k", "content": "do it"}).to_string();
    fixture.publisher.publish_raw(&old, None, task.into()).await.unwrap();
    let letters = async || fixture.letters("?reason=wrong_partition").await["dead_letters"].clone();
    fixture.until("it is a dead letter", SOON, async || letters().await.as_array().unwrap().len() == 1).await;
    let id = letters().await[0]["id"].as_str().unwrap().to_owned();
    let replayed = fleet::invoke(&["dead-letters", "replay", &id], &fixture.command_env()).await.unwrap();
    assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    asked_of(&workflow, &moved).await.answer("done").await.unwrap();
    fixture.until_tasks(&moved, &["completed"]).await;
    assert_eq!(letters().await.as_array().unwrap().len(), 1, "no further one");
}
