//! Serves a script as an OpenAI-compatible endpoint, for tests of its clients: streams and whole
//! answers, tool calls, errors, cuts. A scenario continues after a tools step when a request brings
//! the results.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use runtime::endpoint::{self, BindError};
use runtime::spawn_named;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::play::arguments;
use super::scenario::TurnVariables;
use super::step::{ErrorStep, ScriptStep, TextStep, ToolCallStep};
use super::{Script, pieces};
use crate::metrics::{self, Served};

/// Characters per piece of a call's arguments, so that clients have pieces to join.
const ARGUMENT_CHARS: usize = 6;
/// Maximum number of inputs whose failures are counted.
const MOST_FAILED: usize = 10_000;
/// How long open responses may continue after the stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A scripted endpoint that listens on an address.
pub struct ScriptServer {
    listener: TcpListener,
    addr: SocketAddr,
    state: Arc<ServerState>,
}

#[derive(Debug, Default)]
pub struct ServedCounts {
    completed: AtomicU64,
    error: AtomicU64,
    cut: AtomicU64,
    disconnected: AtomicU64,
}

impl ServedCounts {
    /// Number of complete responses.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Number of errors that the script asked for.
    pub fn errors(&self) -> u64 {
        self.error.load(Ordering::Relaxed)
    }

    /// Number of responses that the script cut.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    /// Number of responses whose client disconnected early.
    pub fn disconnected(&self) -> u64 {
        self.disconnected.load(Ordering::Relaxed)
    }

    fn count(&self, served: Served) {
        metrics::served(served);
        let counter = match served {
            Served::Completed => &self.completed,
            Served::Error => &self.error,
            Served::Cut => &self.cut,
            Served::Disconnected => &self.disconnected,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct ServerState {
    script: Script,
    counts: Arc<ServedCounts>,
    failed: Mutex<HashMap<(String, String), u32>>,
}

impl ScriptServer {
    /// Binds the address; port 0 takes any free port.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(addr: SocketAddr, script: Script) -> Result<Self, BindError> {
        let listener = endpoint::bind(addr).await?;
        let addr = listener.local_addr().map_err(|source| BindError { addr, source })?;
        let state = ServerState { script, counts: Arc::default(), failed: Mutex::default() };
        Ok(Self { listener, addr, state: Arc::new(state) })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Counts how its responses end; shared with the running server.
    pub fn counts(&self) -> Arc<ServedCounts> {
        self.state.counts.clone()
    }

    /// Serves until `stop` is cancelled.
    ///
    /// # Errors
    /// The listener failed permanently.
    pub async fn serve(self, stop: CancellationToken) -> io::Result<()> {
        metrics::describe();
        let router = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/models", get(models))
            .with_state(self.state);
        tracing::info!(addr = %self.addr, "serving the script as an OpenAI-compatible endpoint");
        let serving = endpoint::serve(self.listener, router, stop.clone());
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(SHUTDOWN_GRACE).await;
        };
        tokio::select! {
            served = serving => served,
            () = too_late => Ok(()),
        }
    }
}

async fn models() -> Json<Value> {
    Json(json!({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "antiphon"}]}))
}

/// A part of the script's response, in order.
#[derive(Debug)]
enum ResponsePart {
    Delta(Value),
    /// The scenario has ended or waits for tools: the finish reason and the usage.
    Finished(&'static str, Value),
    Error(ErrorStep),
    Cut,
}

async fn complete(State(state): State<Arc<ServerState>>, Json(request): Json<Value>) -> Response {
    let streams = request.get("stream").and_then(Value::as_bool).unwrap_or(false);
    let wants_usage =
        request.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false);
    let (sender, mut said) = mpsc::channel(1);
    spawn_named("scripted response", state.clone().perform(request, sender));
    // An error or a cut in the first part decides the status; later ones occur within the response.
    match said.recv().await {
        Some(ResponsePart::Error(error)) => refusal(&error),
        Some(first) if streams => streamed(first, said, wants_usage),
        Some(first) => collected(first, said).await,
        None => cut_response(),
    }
}

impl ServerState {
    async fn perform(self: Arc<Self>, request: Value, sender: mpsc::Sender<ResponsePart>) {
        let performed = tokio::select! {
            served = self.play(&request, &sender) => served,
            () = sender.closed() => Served::Disconnected,
        };
        self.counts.count(performed);
    }

    async fn play(&self, request: &Value, sender: &mpsc::Sender<ResponsePart>) -> Served {
        let (mut variables, answered) = cue_of(request);
        let Some(scenario) = self.script.scenario(&variables) else {
            let error = ErrorStep {
                class: super::step::Class::Permanent,
                message: Some("the script has no scenario for this input".to_owned()),
                code: None,
                retry_after: None,
                status: Some(404),
            };
            return said(sender, ResponsePart::Error(error), Served::Error).await;
        };
        let key = (scenario.name.clone(), variables.input.clone());
        variables.run = self.lock().get(&key).copied().unwrap_or(0);
        let mut playing = Playing { variables, sender, chars: 0 };
        let mut rounds = 0;
        for step in &scenario.steps {
            let is_past = rounds < answered;
            match step {
                ScriptStep::Tools(_) if is_past => rounds += 1,
                _ if is_past => {}
                ScriptStep::Tools(calls) => return playing.tools(calls, rounds).await,
                ScriptStep::FailFirst(first) if playing.variables.run < first.runs => {
                    self.count_failed(key);
                    return said(
                        sender,
                        ResponsePart::Error(filled(&first.error, &playing.variables)),
                        Served::Error,
                    )
                    .await;
                }
                ScriptStep::Error(error) => {
                    return said(
                        sender,
                        ResponsePart::Error(filled(error, &playing.variables)),
                        Served::Error,
                    )
                    .await;
                }
                ScriptStep::Cut(_) | ScriptStep::HandBack(_) => {
                    return said(sender, ResponsePart::Cut, Served::Cut).await;
                }
                step => playing.step(step).await,
            }
        }
        playing.finish("stop").await
    }

    fn count_failed(&self, key: (String, String)) {
        let mut failed = self.lock();
        if failed.len() >= MOST_FAILED {
            failed.clear();
        }
        *failed.entry(key).or_default() += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), u32>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn said(sender: &mpsc::Sender<ResponsePart>, said: ResponsePart, served: Served) -> Served {
    if sender.send(said).await.is_ok() { served } else { Served::Disconnected }
}

struct Playing<'a> {
    variables: TurnVariables,
    sender: &'a mpsc::Sender<ResponsePart>,
    chars: usize,
}

impl Playing<'_> {
    /// Plays a step that writes or waits; the caller handles the other steps.
    async fn step(&mut self, step: &ScriptStep) {
        match step {
            ScriptStep::DelayMs(ms) | ScriptStep::SilenceMs(ms) => {
                tokio::time::sleep(Duration::from_millis(*ms)).await
            }
            ScriptStep::Text(text) => self.text(text, "content").await,
            ScriptStep::Reasoning(text) => self.text(text, "reasoning_content").await,
            ScriptStep::Hang(_) => std::future::pending().await,
            // Frames of NATS do not exist here.
            _ => {}
        }
    }

    async fn text(&mut self, step: &TextStep, key: &'static str) {
        for (number, piece) in pieces(&self.variables.fill(&step.content), step.chars).into_iter().enumerate()
        {
            if number > 0 && step.every_ms > 0 {
                tokio::time::sleep(Duration::from_millis(step.every_ms)).await;
            }
            self.chars += piece.chars().count();
            self.send(json!({ key: piece })).await;
        }
    }

    async fn tools(mut self, calls: &[ToolCallStep], round: usize) -> Served {
        for (index, call) in calls.iter().enumerate() {
            let function = json!({"name": call.name, "arguments": ""});
            let id = format!("call_{round}_{index}");
            let begun = json!({"index": index, "id": id, "type": "function", "function": function});
            self.send(json!({"tool_calls": [begun]})).await;
            for piece in pieces(&arguments(call, &self.variables), Some(ARGUMENT_CHARS)) {
                let more = json!({"index": index, "function": {"arguments": piece}});
                self.send(json!({"tool_calls": [more]})).await;
            }
        }
        self.finish("tool_calls").await
    }

    async fn finish(self, reason: &'static str) -> Served {
        let (prompt, completion) = (self.variables.input.chars().count(), self.chars);
        let usage = json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        });
        said(self.sender, ResponsePart::Finished(reason, usage), Served::Completed).await
    }

    /// When the client disconnects, the whole response is dropped.
    async fn send(&mut self, delta: Value) {
        let _ = self.sender.send(ResponsePart::Delta(delta)).await;
    }
}

/// The input of a request, and the number of tool rounds whose results it brings.
fn cue_of(request: &Value) -> (TurnVariables, usize) {
    let messages = request.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let role = |message: &Value, role: &str| message.get("role").and_then(Value::as_str) == Some(role);
    let input = messages.iter().rposition(|message| role(message, "user"));
    let since = &messages[input.map_or(0, |at| at + 1)..];
    let calls = |message: &Value| {
        message.get("tool_calls").and_then(Value::as_array).is_some_and(|it| !it.is_empty())
    };
    let rounds = since.iter().filter(|message| calls(message)).count();
    let result = since.iter().rfind(|message| role(message, "tool")).map(content).unwrap_or_default();
    let input = input.map(|at| content(&messages[at])).unwrap_or_default();
    let user = request.get("user").and_then(Value::as_str).unwrap_or_default().to_owned();
    (
        TurnVariables { input, agent: user, turn: "http".to_owned(), result, ..TurnVariables::default() },
        rounds,
    )
}

/// A text, or the texts of its parts.
fn content(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(events)) => {
            events.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn filled(error: &ErrorStep, variables: &TurnVariables) -> ErrorStep {
    let message = error.message.as_deref().unwrap_or("an error by script");
    ErrorStep { message: Some(variables.fill(message)), ..error.clone() }
}

fn error_body(error: &ErrorStep) -> Value {
    let kind = match error.status() {
        401 | 403 => "authentication_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    json!({"error": {"message": error.message, "type": kind, "code": error.code}})
}

fn refusal(error: &ErrorStep) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(error_body(error))).into_response();
    let seconds = error.retry_after.map(|seconds| HeaderValue::from(seconds.ceil() as u64));
    if let Some(seconds) = seconds {
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

/// A chunk of a completion; with another key and object, a whole completion.
fn completion(object: &str, key: &str, value: &Value, reason: Option<&str>) -> Value {
    json!({
        "id": "chatcmpl-script", "object": object, "created": 0, "model": "scripted",
        "choices": [{"index": 0, key: value, "finish_reason": reason}],
    })
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

fn streamed(first: ResponsePart, rest: mpsc::Receiver<ResponsePart>, wants_usage: bool) -> Response {
    let start = (Some(first), rest, false);
    let stream = futures_util::stream::unfold(start, move |(first, mut rest, is_over)| async move {
        if is_over {
            return None;
        }
        let said = match first {
            Some(first) => Some(first),
            None => rest.recv().await,
        };
        let (bytes, is_over) = match said {
            Some(ResponsePart::Delta(delta)) => {
                (Ok(event(&completion("chat.completion.chunk", "delta", &delta, None))), false)
            }
            Some(ResponsePart::Finished(reason, usage)) => {
                (Ok(last_events(reason, &usage, wants_usage)), true)
            }
            Some(ResponsePart::Error(error)) => (Ok(event(&error_body(&error))), true),
            Some(ResponsePart::Cut) | None => (Err(io::Error::other("cut by script")), true),
        };
        Some((bytes, (None, rest, is_over)))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

fn last_events(reason: &'static str, usage: &Value, wants_usage: bool) -> Bytes {
    let finish = completion("chat.completion.chunk", "delta", &json!({}), Some(reason));
    let mut events = event(&finish).to_vec();
    if wants_usage {
        let mut counted = completion("chat.completion.chunk", "delta", &json!({}), None);
        counted["choices"] = json!([]);
        counted["usage"] = usage.clone();
        events.extend_from_slice(&event(&counted));
    }
    events.extend_from_slice(b"data: [DONE]\n\n");
    events.into()
}

/// The whole answer in one response.
async fn collected(first: ResponsePart, mut rest: mpsc::Receiver<ResponsePart>) -> Response {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut next = Some(first);
    while let Some(said) = next {
        match said {
            ResponsePart::Delta(delta) => {
                let text = |key: &str| delta.get(key).and_then(Value::as_str).unwrap_or_default();
                content.push_str(text("content"));
                reasoning.push_str(text("reasoning_content"));
                if let Some(call) = delta.pointer("/tool_calls/0") {
                    join_call(&mut calls, call);
                }
            }
            ResponsePart::Error(error) => return refusal(&error),
            ResponsePart::Cut => return cut_response(),
            ResponsePart::Finished(reason, usage) => {
                let mut message = json!({"role": "assistant", "content": content});
                if !reasoning.is_empty() {
                    message["reasoning_content"] = json!(reasoning);
                }
                if !calls.is_empty() {
                    message["tool_calls"] = json!(calls);
                }
                let mut whole = completion("chat.completion", "message", &message, Some(reason));
                whole["usage"] = usage;
                return Json(whole).into_response();
            }
        }
        next = rest.recv().await;
    }
    cut_response()
}

fn join_call(calls: &mut Vec<Value>, piece: &Value) {
    let arguments = |call: &Value| call["function"]["arguments"].as_str().unwrap_or_default().to_owned();
    if piece.get("id").is_some() {
        let mut call = piece.clone();
        call.as_object_mut().map(|call| call.remove("index"));
        calls.push(call);
    } else if let Some(call) = calls.last_mut() {
        call["function"]["arguments"] = json!(arguments(call) + &arguments(piece));
    }
}

/// Sends the headers and then breaks the connection.
fn cut_response() -> Response {
    let broken = futures_util::stream::iter([Err::<Bytes, _>(io::Error::other("cut by script"))]);
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(broken)).into_response()
}
