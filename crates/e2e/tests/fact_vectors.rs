//! Memory searched by vectors, on a Postgres with pgvector, with an endpoint that works, is slow or
//! is unreachable; and a fleet without the extension.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::post,
};
use serde_json::{Value, json};
use testkit::{
    WAIT_TIMEOUT,
    fleet::{Fleet, FleetOptions},
    services::{NatsServer, PostgresServer, TestDatabase},
};

use crate::{
    api_client::{SOON, alone},
    fixture::{Fixture, options, pool},
};

const MODEL: &str = "concepts";
const KEY: &str = "key-of-the-endpoint";
const DIMENSIONS: u32 = 8;
const ANSWERS: u32 = 0;
const HANGS: u32 = 1;
const FAILS: u32 = 2;

/// Words of one meaning. A text without any of them has a different vector.
const CONCEPTS: [&[&str]; 3] =
    [&["vegetarian", "meat", "vegan"], &["boat", "ship", "sails"], &["dog", "pet", "animal"]];

/// An embedding model that knows [`CONCEPTS`], behind an OpenAI-compatible endpoint.
#[derive(Clone, Default)]
struct Endpoint {
    mode: Arc<AtomicU32>,
    /// Number of requests with a single text, which are those for questions.
    questions: Arc<AtomicU32>,
}

impl Endpoint {
    /// Serves the model, and returns the base url of `/embeddings`.
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/embeddings", post(embed)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn set(&self, mode: u32) {
        self.mode.store(mode, Ordering::Relaxed);
    }
}

async fn embed(
    State(endpoint): State<Endpoint>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> axum::response::Response {
    match endpoint.mode.load(Ordering::Relaxed) {
        ANSWERS => {}
        HANGS => std::future::pending().await,
        _ => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
    assert_eq!((&body["model"], &body["dimensions"]), (&json!(MODEL), &json!(DIMENSIONS)));
    assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
    let texts = body["input"].as_array().unwrap();
    // Vectors of facts are requested together with those of questions. Vectors of questions are
    // also requested alone.
    endpoint.questions.fetch_add(u32::from(texts.len() == 1), Ordering::Relaxed);
    let item =
        |(index, text): (usize, &Value)| json!({"index": index, "embedding": vector(text.as_str().unwrap())});
    Json(json!({"data": texts.iter().enumerate().map(item).collect::<Vec<_>>()})).into_response()
}

fn vector(text: &str) -> [f32; DIMENSIONS as usize] {
    let text = text.to_lowercase();
    let has = |concept: &[&str]| concept.iter().any(|word| text.contains(word));
    let mut vector = [0.0; DIMENSIONS as usize];
    vector[CONCEPTS.len()] = 0.1;
    for (number, concept) in CONCEPTS.into_iter().enumerate() {
        vector[number] = f32::from(u8::from(has(concept)));
    }
    vector
}

fn with_endpoint(options: FleetOptions, url: &str) -> FleetOptions {
    alone(options)
        .with_env("ANTIPHON_EMBEDDINGS_URL", url)
        .with_env("ANTIPHON_EMBEDDINGS_MODEL", MODEL)
        .with_env("ANTIPHON_EMBEDDINGS_API_KEY", KEY)
        .with_env("ANTIPHON_EMBEDDINGS_DIMENSIONS", DIMENSIONS)
        .with_env("ANTIPHON_EMBEDDINGS_TIMEOUT_MS", 300)
}

impl Fixture {
    async fn remembers(&self, text: &str) {
        let given = json!({"text": text, "user_id": "ann"});
        self.api().call("POST", "/v1/agents/helper/memory", Some(&given)).await.unwrap();
    }

    async fn talks_of_ann(&self) {
        self.settle("helper", json!({"memory": true})).await;
        let body = json!({"thread_id": "talk", "agent_id": "helper", "metadata": {"user_id": "ann"}});
        self.api().call("POST", "/v1/threads", Some(&body)).await.unwrap();
    }

    /// The facts in the request for this input; the turn is answered, and nothing is remembered
    /// afterwards.
    async fn asked(&self, text: &str) -> Vec<String> {
        let workflow = self.manual_workflow().await;
        self.api().say("talk", text).await.unwrap();
        let turn = workflow.next(SOON).await.unwrap();
        let given = turn.request.memory.iter().map(|fact| fact.text.clone()).collect();
        turn.answer("well").await.unwrap();
        workflow.next(SOON).await.unwrap().answer(r#"{"facts": []}"#).await.unwrap();
        given
    }

    /// The facts that a search for this text finds.
    async fn found(&self, text: &str) -> Vec<String> {
        let path = format!(
            "/v1/agents/helper/memory?thread_id=talk&q={}",
            text.replace(' ', "+").replace('?', "%3F")
        );
        let page = self.api().call("GET", &path, None).await.unwrap();
        let facts = page["facts"].as_array().unwrap();
        facts.iter().map(|fact| fact["text"].as_str().unwrap().to_owned()).collect()
    }

    async fn until_embedded(&self, count: f64) {
        self.until("all facts have vectors", SOON, async || {
            self.metric("antiphon_worker_embedded_facts_total").await == count
        })
        .await;
    }

    async fn questions(&self, outcome: &str) -> f64 {
        let metrics = self.fleet.workers[0].metrics().await.unwrap();
        let wanted = format!("outcome=\"{outcome}\"");
        let all = metrics.series("antiphon_embeddings_requests_total");
        all.filter(|(name, _)| name.contains("purpose=\"question\"") && name.contains(&wanted))
            .map(|(_, value)| value)
            .sum()
    }

    async fn stored(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_in_other_words_are_found_by_vectors() {
    let (nats, server) =
        (NatsServer::start().await.unwrap(), PostgresServer::start_with_vector().await.unwrap());
    let database = TestDatabase::create_on(server.url()).await.unwrap();
    database.create_extension("vector").await.unwrap();
    let endpoint = Endpoint::default();
    let url = endpoint.start().await;
    let fleet = Fleet::start(with_endpoint(options(&nats, database.url()), &url)).await.unwrap();
    let pool = pool(database.url()).await;
    let fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    fixture.talks_of_ann().await;
    for text in ["The user is vegetarian", "The user keeps a dog", "The user sails on Sunday"] {
        fixture.remembers(text).await;
    }
    fixture.until_embedded(3.0).await;

    let given = fixture.asked("Anything without meat?").await;
    assert_eq!(given[0], "The user is vegetarian");
    assert_eq!(given.len(), 3);
    let context = fixture.api().call("GET", "/v1/threads/talk/context", None).await.unwrap();
    let best = &context["memory"]["facts"][0];
    assert_eq!((&best["text"], &best["place_by_vector"]), (&json!("The user is vegetarian"), &json!(1)));
    assert!(best.get("place_by_words").is_none(), "{best}");
    let path = "/v1/agents/helper/memory?thread_id=talk&q=a+pet+on+sunday";
    let found = fixture.api().call("GET", path, None).await.unwrap()["facts"].clone();
    let places =
        found.as_array().unwrap().iter().map(|fact| [&fact["place_by_words"], &fact["place_by_vector"]]);
    // Sunday is first by words, the dog by its vector.
    assert_eq!(places.take(2).filter(|places| places.contains(&&json!(1))).count(), 2, "{found}");

    // A corrected fact gets its own vector.
    let path = format!("/v1/agents/helper/memory/{}", best["fact_id"].as_str().unwrap());
    fixture.api().call("PATCH", &path, Some(&json!({"text": "The user is vegan"}))).await.unwrap();
    fixture.until_embedded(4.0).await;
    assert_eq!(fixture.stored("SELECT count(*) FROM fact_vectors WHERE vector IS NOT NULL").await, 3);
    assert_eq!(fixture.asked("Anything without meat?").await[0], "The user is vegan");

    // The endpoint is slow, and then unreachable: turns continue with words alone, and new facts
    // wait for vectors.
    for (mode, outcome) in [(HANGS, "timeout"), (FAILS, "failed")] {
        endpoint.set(mode);
        fixture.remembers(&format!("The user likes {outcome}")).await;
        let (question, likes) = (format!("without meat, {outcome}?"), format!("The user likes {outcome}"));
        // There are only a few facts, so the turn gets all of them, the matching ones first.
        assert_eq!(fixture.asked(&question).await[0], likes);
        assert_eq!(fixture.found(&question).await, [likes]);
        assert!(fixture.questions(outcome).await >= 1.0);
    }
    assert_eq!(fixture.stored("SELECT count(*) FROM fact_vectors WHERE vector IS NULL").await, 2);
    endpoint.set(ANSWERS);
    fixture
        .until("what has waited has vectors", WAIT_TIMEOUT, async || {
            fixture.metric("antiphon_worker_embedded_facts_total").await == 6.0
        })
        .await;
    let erased = fixture.command("erase --user ann --yes --actor ada --wait-seconds 40").await;
    assert!(erased.to_string().contains("facts"), "{erased}");
    assert_eq!(fixture.stored("SELECT count(*) FROM fact_vectors").await, 0);
    assert_eq!(fixture.stored("SELECT count(*) FROM facts").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_extension_words_alone_are_searched() {
    let endpoint = Endpoint::default();
    let url = endpoint.start().await;
    let fixture = Fixture::with(|options| with_endpoint(options, &url)).await;
    fixture.talks_of_ann().await;
    fixture.remembers("The user is vegetarian").await;
    assert_eq!(fixture.asked("Which menu for a vegetarian?").await, ["The user is vegetarian"]);
    assert!(fixture.found("Anything without meat?").await.is_empty());
    assert_eq!(fixture.asked("Anything without meat?").await, ["The user is vegetarian"], "all of a few");
    assert_eq!(endpoint.questions.load(Ordering::Relaxed), 0, "the endpoint was asked in vain");
    let log = std::fs::read_to_string(fixture.fleet.workers[0].log()).unwrap();
    assert_eq!(log.matches("the database has no vectors of this model").count(), 1, "{log}");
    let settings = [("ANTIPHON_EMBEDDINGS_URL", url.as_str()), ("ANTIPHON_EMBEDDINGS_MODEL", MODEL)];
    let (code, findings) = fixture.diagnosed(&settings).await;
    let found = findings.iter().find(|line| line.starts_with("warning memory"));
    assert!(found.is_some_and(|line| line.contains("concepts is to make them")), "{findings:?}");
    assert_eq!(code, Some(0));
    assert!(!fixture.diagnosed(&[]).await.1.iter().any(|line| line.contains("memory")));
}
