//! A NATS server and a workflow service for tests, and queries on their streams.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::jetstream;
use async_nats::jetstream::consumer::pull::{self, OrderedConfig};
use async_nats::jetstream::consumer::{DeliverPolicy, PullConsumer};
use bus::{Bus, BusConfig, StreamOptions, WorkOptions};
use model::{Metadata, PartitionCount, Price, PriceTable, RetryHint, WorkflowName};
use prost::Message as _;
use runtime::{Clock, Health};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wire::pb;
use workflow::{
    EndpointLimits, EngineConfig, Interface, OpenAiConfig, Script, ScriptServer, ServedCounts, Tools,
    WorkflowConfig,
};

/// Long enough for anything that a test waits for, including a redelivery after missing progress
/// reports.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(50);

pub(crate) struct Fixture {
    child: Child,
    store: PathBuf,
    port: u16,
    pub(crate) bus: Bus,
}

impl Fixture {
    pub(crate) async fn new() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let store = std::env::temp_dir().join(format!("workflow-test-{}", uuid::Uuid::new_v4()));
        let program =
            std::env::var("ANTIPHON_NATS_SERVER").context("ANTIPHON_NATS_SERVER names no nats-server")?;
        let child = Command::new(program)
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(&store)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let listens = (0..400).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        ensure!(listens, "nats-server does not listen on {port}");
        let bus = Bus::connect(&BusConfig::new(format!("nats://127.0.0.1:{port}"), "test")).await?;
        let streams = StreamOptions { max_bytes: 64 << 20, ..StreamOptions::default() };
        bus.ensure_streams(PartitionCount::new(1)?, &streams).await?;
        Ok(Self { child, store, port, bus })
    }

    /// Starts a service of the workflow `default`.
    pub(crate) async fn service(&self, engine: EngineConfig) -> Result<Service> {
        self.service_with(engine, Duration::from_secs(20)).await
    }

    pub(crate) async fn service_with(&self, engine: EngineConfig, drain: Duration) -> Result<Service> {
        let bus = Bus::connect(&BusConfig::new(format!("nats://127.0.0.1:{}", self.port), "service")).await?;
        let config =
            WorkflowConfig { workflow: WorkflowName::parse("default")?, concurrency: 4, drain, engine };
        let stop = CancellationToken::new();
        let serving = workflow::run(config, bus, Health::default(), Clock::start(), stop.clone());
        Ok(Service { stop, serving: tokio::spawn(async move { Ok(serving.await?) }) })
    }

    pub(crate) async fn publish(&self, request: &Value) -> Result<()> {
        let payload = request.to_string().into_bytes().into();
        self.bus.publish_acked("work.default", payload, Some(wire::CONTENT_TYPE_JSON), TEST_TIMEOUT).await?;
        Ok(())
    }

    /// `-STOP`: connections stay open but nothing answers; `-CONT` ends it.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let pid = self.child.id().to_string();
        ensure!(Command::new("kill").args([signal, &pid]).status()?.success());
        Ok(())
    }

    async fn jetstream(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(async_nats::connect(format!("nats://127.0.0.1:{}", self.port)).await?))
    }

    /// The stored frames of a thread up to its last chunk, in stream order.
    pub(crate) async fn frames_until_final(&self, thread: &str) -> Result<Vec<pb::Frame>> {
        self.frames_until(thread, |frame| frame.chunks.iter().any(|chunk| chunk.is_final)).await
    }

    pub(crate) async fn frames_until(
        &self,
        thread: &str,
        last: impl Fn(&pb::Frame) -> bool,
    ) -> Result<Vec<pb::Frame>> {
        use futures_util::StreamExt;
        let mut messages = self.messages(thread).await?;
        let mut frames = Vec::new();
        let reading = async {
            while let Some(message) = messages.next().await {
                let message = message?;
                let headers = message.headers.as_ref().context("headers")?;
                ensure!(
                    headers.get("Content-Type").context("a type")?.as_str() == wire::CONTENT_TYPE_PROTOBUF
                );
                frames.push(pb::Frame::decode(message.payload.clone())?);
                if frames.last().is_some_and(&last) {
                    return Ok(());
                }
            }
            anyhow::bail!("the stream ended")
        };
        timeout(TEST_TIMEOUT, reading).await.context("the expected frame")??;
        Ok(frames)
    }

    pub(crate) async fn chunks_until_final(&self, thread: &str) -> Result<Vec<pb::Chunk>> {
        let frames = self.frames_until_final(thread).await?;
        Ok(frames.into_iter().flat_map(|frame| frame.chunks).collect())
    }

    /// The stored chunks of a thread once nothing more has arrived for `silence`.
    pub(crate) async fn chunks_until_silence(
        &self,
        silence: Duration,
        thread: &str,
    ) -> Result<Vec<pb::Chunk>> {
        use futures_util::StreamExt;
        let mut messages = self.messages(thread).await?;
        let mut chunks = Vec::new();
        while let Ok(Some(message)) = timeout(silence, messages.next()).await {
            chunks.extend(pb::Frame::decode(message?.payload.clone())?.chunks);
        }
        Ok(chunks)
    }

    async fn messages(&self, thread: &str) -> Result<pull::Ordered> {
        let filter_subject = format!("chunks.0.{thread}");
        let config =
            OrderedConfig { filter_subject, deliver_policy: DeliverPolicy::All, ..OrderedConfig::default() };
        let stream = self.jetstream().await?.get_stream("PARTITION_0").await?;
        Ok(stream.create_consumer(config).await?.messages().await?)
    }

    /// Number of requests that are not acknowledged.
    pub(crate) async fn requests_left(&self) -> Result<u64> {
        Ok(self.jetstream().await?.get_stream("WORK").await?.cached_info().state.messages)
    }

    pub(crate) async fn all_requests_are_done(&self) -> Result<()> {
        eventually(async || Ok(self.requests_left().await? == 0)).await
    }

    /// Takes the first request, as a service that dies would, and gives it back.
    pub(crate) async fn take_and_give_back(&self) -> Result<()> {
        let mut work = self.bus.work(&WorkflowName::parse("default")?, WorkOptions::default());
        let item = timeout(TEST_TIMEOUT, work.next()).await??;
        item.nak(Duration::ZERO).await?;
        work.end().await;
        Ok(())
    }

    /// Number of deliveries of requests so far.
    pub(crate) async fn deliveries(&self) -> Result<u64> {
        let consumer: PullConsumer =
            self.jetstream().await?.get_consumer_from_stream("WORKFLOW_default", "WORK").await?;
        Ok(consumer.cached_info().delivered.consumer_sequence)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.store);
    }
}

pub(crate) struct Service {
    stop: CancellationToken,
    serving: JoinHandle<Result<()>>,
}

impl Service {
    /// Drains the service and waits for its end.
    pub(crate) async fn drain(self) -> Result<()> {
        self.stop.cancel();
        timeout(TEST_TIMEOUT, self.serving).await??
    }
}

/// An endpoint that plays a script.
pub(crate) struct Upstream {
    pub(crate) base_url: String,
    pub(crate) counts: std::sync::Arc<ServedCounts>,
}

impl Upstream {
    pub(crate) async fn new(script: &Value) -> Result<Self> {
        let server = ScriptServer::bind("127.0.0.1:0".parse()?, Script::parse(&script.to_string())?).await?;
        let (base_url, counts) = (format!("http://{}/v1", server.addr()), server.counts());
        tokio::spawn(server.serve(CancellationToken::new()));
        Ok(Self { base_url, counts })
    }

    pub(crate) fn engine(&self, tools: Tools) -> EngineConfig {
        self.engine_with_retries(tools, Duration::ZERO)
    }

    pub(crate) fn engine_of(&self, interface: Interface, tools: Tools) -> EngineConfig {
        match self.engine(tools) {
            EngineConfig::OpenAi(config) => EngineConfig::OpenAi(OpenAiConfig { interface, ..config }),
            other => other,
        }
    }

    pub(crate) fn engine_with_retries(&self, tools: Tools, retry: Duration) -> EngineConfig {
        EngineConfig::OpenAi(OpenAiConfig {
            interface: Interface::default(),
            base_url: self.base_url.clone(),
            api_key: Some("key".to_owned()),
            model: "m".to_owned(),
            silence: Duration::from_secs(5),
            retry,
            limits: EndpointLimits::default(),
            max_steps: 3,
            tools,
            prices: Some(Arc::new(prices())),
        })
    }
}

/// Prices of the model that the script names, and of no other.
fn prices() -> PriceTable {
    let price =
        Price { model: "scripted".to_owned(), from: None, input: 1.0, cached_input: None, output: 1.0 };
    PriceTable { currency: "USD".to_owned(), prices: vec![price] }
}

pub(crate) fn scripted(script: &Value) -> Result<EngineConfig> {
    Ok(EngineConfig::Scripted(Script::parse(&script.to_string())?))
}

/// A script of one scenario.
pub(crate) fn steps(steps: Value) -> Value {
    json!({"scenarios": [{"name": "one", "steps": steps}]})
}

/// A request as an owner sends it: run 0 of a turn in the thread of the same name.
pub(crate) fn request(thread: &str, input: &str) -> Value {
    let turn = format!("u0001-{thread}");
    json!({
        "turn_id": turn, "run": 0, "attempt": 0, "workflow": "default", "agent_id": "a", "thread_id": thread,
        "message_id": format!("{turn}-a"), "turn_token": "secret", "subject": format!("chunks.0.{thread}"),
        "stop_subject": format!("stop.{turn}.0"), "deadline_ms": 60_000,
        "context": [{"role": "user", "content": input, "message_id": format!("{turn}-q")}],
    })
}

pub(crate) async fn eventually(mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let waiting = async {
        while !holds().await? {
            sleep(Duration::from_millis(30)).await;
        }
        Ok(())
    };
    timeout(TEST_TIMEOUT, waiting).await.context("it never held")?
}

/// `type:text` of each chunk in the order of the chunk ids, without reports of model calls.
/// Neighbours of one type and call are joined.
pub(crate) fn story(chunks: &[pb::Chunk]) -> Vec<String> {
    let reports = |chunk: &&pb::Chunk| metadata(chunk).contains_key("model_calls");
    let mut chunks: Vec<_> = chunks.iter().filter(|chunk| !reports(chunk)).collect();
    chunks.sort_by_key(|chunk| chunk.chunk_id);
    let mut story: Vec<(String, String)> = Vec::new();
    for chunk in chunks {
        let call = match metadata(chunk).get("tool_call_id").and_then(Value::as_str) {
            Some(id) => format!(" {id}"),
            None => String::new(),
        };
        let kind =
            format!("{}.{}{call}", chunk.step, model::ChunkKind::ALL[chunk.chunk_type as usize].name());
        match story.last_mut() {
            Some((last, text)) if *last == kind => text.push_str(&chunk.chunk),
            _ => story.push((kind, chunk.chunk.clone())),
        }
    }
    story.into_iter().map(|(kind, text)| format!("{kind}:{text}")).collect()
}

pub(crate) fn metadata(chunk: &pb::Chunk) -> serde_json::Map<String, Value> {
    let value = |value: &prost_types::Value| json_of(value);
    let fields = chunk.metadata.iter().flat_map(|metadata| &metadata.fields);
    fields.map(|(key, field)| (key.clone(), value(field))).collect()
}

fn json_of(value: &prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match &value.kind {
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 => json!(*number as i64),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::StructValue(map)) => {
            map.fields.iter().map(|(key, value)| (key.clone(), json_of(value))).collect()
        }
        Some(Kind::ListValue(list)) => list.values.iter().map(json_of).collect(),
        Some(Kind::NullValue(_)) | None => Value::Null,
    }
}

/// How an owner reads an error chunk: class, minimum delay in ms, code.
pub(crate) fn hint(chunk: &pb::Chunk) -> Result<(&'static str, Option<i64>, String)> {
    ensure!(chunk.chunk_type == pb::ChunkType::Error as i32 && chunk.is_final, "{chunk:?}");
    let metadata = metadata(chunk);
    let code = metadata.get("code").and_then(Value::as_str).context("a code")?.to_owned();
    let hint = RetryHint::of(&Metadata::new(metadata)?);
    Ok((hint.class.name(), hint.retry_after_ms, code))
}
