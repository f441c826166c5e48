//! The basis of tests of turns and tasks besides the fixture: the API, manual workflows, and
//! queries of the tables.

use std::time::Duration;

use model::AgentId;
use serde_json::{Value, json};
use testkit::{
    WAIT_TIMEOUT,
    api::{AcceptedTurn, Api},
    db_snapshot::turns::{self, StoredTask, TurnMessage},
    fleet::{FleetOptions, WorkflowOptions},
    http,
    manual_workflow::{DeliveredRequest, ManualWorkflow},
    sse::{Follower, Parser, SseItem, StreamEvent},
};

use crate::fixture::Fixture;

/// Limit for anything that waits only for a busy machine.
pub(crate) const SOON: Duration = WAIT_TIMEOUT;
/// Time for which a test checks that something does not happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(700);

/// One worker and no workflow service: the test itself answers.
pub(crate) fn alone(mut options: FleetOptions) -> FleetOptions {
    options.workers = 1;
    options
}

/// One worker, and a service that plays [`script`].
pub(crate) fn scripted(options: FleetOptions) -> FleetOptions {
    alone(options).with_workflow(WorkflowOptions::script(script()))
}

/// The answers of the scripted service, by words in the input.
pub(crate) fn script() -> Value {
    let error = |class: &str| json!({"class": class, "message": format!("a {class} failure by script")});
    let said = json!({"text": {"content": "You said: {input}", "chars": 6}});
    let when =
        |word: &str, steps: Value| json!({"name": word, "when": {"input_contains": word}, "steps": steps});
    let slowly =
        json!({"text": {"content": "Slowly {input} and {input} and {input}", "chars": 4, "every_ms": 40}});
    let calls = json!([
        {"name": "clock", "arguments": {"zone": "UTC"}, "result": "noon"},
        {"name": "sky", "arguments": {}, "result": "blue"},
    ]);
    json!({"scenarios": [
        when("fails-once", json!([{"text": {"content": "I try. "}}, {"fail_first": {"runs": 1, "error": error("transient")}}, said])),
        when("fails-twice", json!([{"fail_first": {"runs": 2, "error": error("transient")}}, said])),
        when("fails-always", json!([{"error": error("transient")}])),
        when("fails-for-good", json!([{"text": {"content": "Half of"}}, {"error": error("permanent")}])),
        when("fails-auth", json!([{"fail_first": {"runs": 1, "error": error("auth")}}, said])),
        when("tools", json!([{"text": {"content": "Let me look."}}, {"tools": calls}, said])),
        when("slowly", json!([slowly])),
        when("large...", json!([{"text": {"content": "You said: {input}"}}])),
        {"name": "echo", "steps": [said]},
    ]})
}

impl Fixture {
    /// The API of the first gateway.
    pub(crate) fn api(&self) -> Api {
        Api(self.fleet.gateways[0].http_addr())
    }

    /// A manual workflow for the workflow `default`.
    pub(crate) async fn manual_workflow(&self) -> ManualWorkflow {
        self.manual_workflow_of("default", Duration::from_secs(30)).await
    }

    pub(crate) async fn manual_workflow_of(&self, workflow: &str, ack_wait: Duration) -> ManualWorkflow {
        ManualWorkflow::connect(self.nats.url(), workflow, ack_wait).await.unwrap()
    }

    /// Creates an agent of the workflow `default` with these settings.
    pub(crate) async fn settle(&self, agent: &str, settings: Value) {
        self.api().put_agent(agent, "default", settings).await.unwrap();
    }

    /// Sends tasks over NATS, as any client may.
    pub(crate) async fn send_tasks(&self, agent: &str, tasks: impl IntoIterator<Item = (String, String)>) {
        for (id, content) in tasks {
            let task = json!({"task_id": id, "content": content});
            self.send_entry(agent, task.to_string().into_bytes()).await;
        }
    }

    /// Sends one payload to an agent's subject.
    pub(crate) async fn send_entry(&self, agent: &str, payload: Vec<u8>) {
        let subject = self.task_subject(agent);
        self.publisher.publish_raw(&subject, None, payload.into()).await.unwrap();
    }

    pub(crate) fn task_subject(&self, agent: &str) -> String {
        let count = model::PartitionCount::new(crate::fixture::PARTITIONS.into()).unwrap();
        wire::subject::partition_tasks(count, &AgentId::parse(agent).unwrap())
    }

    pub(crate) async fn tasks_of(&self, agent: &str) -> Vec<StoredTask> {
        turns::tasks_of(&self.pool, agent).await.unwrap()
    }

    /// Waits until an agent's tasks have these statuses, in the order of the queue.
    pub(crate) async fn until_tasks(&self, agent: &str, wanted: &[&str]) {
        let mut seen = Vec::new();
        let what = format!("the tasks of {agent} are {wanted:?}");
        let began = tokio::time::Instant::now();
        while began.elapsed() < SOON {
            let tasks = turns::tasks_of(&self.pool, agent).await.unwrap_or_default();
            seen = tasks.into_iter().map(|task| task.status).collect::<Vec<_>>();
            if seen == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what}; they are {seen:?}");
    }

    pub(crate) async fn messages_of(&self, thread: &str) -> Vec<TurnMessage> {
        turns::of_thread(&self.pool, thread).await.unwrap()
    }

    /// Waits until a thread has `count` messages.
    pub(crate) async fn until_messages(&self, thread: &str, count: usize) -> Vec<TurnMessage> {
        self.until(&format!("{thread} has {count} messages"), SOON, async || {
            turns::of_thread(&self.pool, thread).await.is_ok_and(|messages| messages.len() >= count)
        })
        .await;
        self.messages_of(thread).await
    }

    /// Waits until a thread has `count` failed turns, and returns the code and run of each.
    pub(crate) async fn until_failed(&self, thread: &str, count: usize) -> Vec<(String, i32)> {
        let failed = async || {
            let all = turns::failed_turns(&self.pool).await.unwrap_or_default();
            all.into_iter()
                .filter(|turn| turn.thread_id == thread)
                .map(|turn| (turn.code, turn.run))
                .collect::<Vec<_>>()
        };
        self.until(&format!("{thread} has {count} failed turns"), SOON, async || {
            failed().await.len() == count
        })
        .await;
        failed().await
    }

    /// The sum of a metric over all workers.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let mut sum = 0.0;
        for worker in &self.fleet.workers {
            sum += worker.metrics().await.map_or(0.0, |metrics| metrics.sum(name));
        }
        sum
    }

    /// Waits until nothing is left to be published.
    pub(crate) async fn until_settled(&self) {
        self.until("nothing is left open or unsent", SOON, async || {
            turns::unsettled(&self.pool).await.is_ok_and(|left| left == (0, 0))
        })
        .await;
    }

    /// Asserts that no turn request arrives for some time.
    pub(crate) async fn no_request_comes(&self, manual_workflow: &ManualWorkflow) {
        let asked = manual_workflow.next_within(A_WHILE).await.unwrap();
        assert!(asked.is_none(), "a request for {:?}", asked.map(|asked| asked.raw));
    }
}

/// The next request, which must be for this turn.
pub(crate) async fn asked_for(manual_workflow: &ManualWorkflow, turn: &AcceptedTurn) -> DeliveredRequest {
    let asked = manual_workflow.next(SOON).await.unwrap();
    assert_eq!((&asked.request.turn_id, &asked.request.message_id), (&turn.id, &turn.answer));
    asked
}

/// Role and text of each message.
pub(crate) fn said(messages: &[TurnMessage]) -> Vec<(&str, &str)> {
    messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect()
}

/// True for the events of a person's input, which tests of answers leave out.
fn is_of_input(event: &StreamEvent) -> bool {
    matches!(event, StreamEvent::Other { name: Some(name), .. } if name == "input" || name == "input_withdrawn")
}

/// What a follower has seen of answers and other messages, over all its connections.
pub(crate) fn events(follower: &Follower) -> Vec<StreamEvent> {
    all_events(follower).into_iter().filter(|event| !is_of_input(event)).collect()
}

/// Everything that a follower has seen, over all its connections.
pub(crate) fn all_events(follower: &Follower) -> Vec<StreamEvent> {
    follower.inspect(|transcripts| {
        let all = transcripts.iter().flat_map(|transcript| &transcript.events);
        all.map(|received| received.event.clone()).collect()
    })
}

/// The events of a stream up to the end of a message.
pub(crate) async fn events_until(api: Api, path: &str, message: &str) -> Vec<StreamEvent> {
    let mut response = http::open(api.0, path, &[]).await.unwrap();
    assert_eq!(response.status, 200);
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    while !events.iter().any(|event: &StreamEvent| event.terminal() == Some(message)) {
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(SOON, response.body.read(&mut bytes)).await;
        assert!(read.expect("no end came").unwrap() > 0, "cut: {events:?}");
        events.extend(parser.feed(&bytes).into_iter().filter_map(|item| match item {
            SseItem::Event { name, data, .. } => {
                Some(StreamEvent::read(name.as_deref(), &data)).filter(|event| !is_of_input(event))
            }
            SseItem::Comment(_) => None,
        }));
    }
    events
}

/// Waits until a follower has seen the end of a message.
pub(crate) async fn until_ended(follower: &Follower, message: &str) {
    let began = tokio::time::Instant::now();
    while !events(follower).iter().any(|event| event.terminal() == Some(message)) {
        assert!(began.elapsed() < SOON, "no end of {message}: {:?}", events(follower));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The text of a message as the follower's client shows it.
pub(crate) fn text_seen(follower: &Follower, message: &str) -> String {
    follower.inspect(|transcripts| transcripts.iter().map(|transcript| transcript.text_of(message)).collect())
}
