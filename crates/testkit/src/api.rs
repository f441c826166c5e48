//! The gateway's API for tests, with one method per call; each returns the whole answer.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::http::{self, HttpRequest, TextResponse};

/// The API of one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api(pub SocketAddr);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedTurn {
    pub id: String,
    pub thread: String,
    pub answer: String,
    pub input: String,
    /// The run that was opened.
    pub run: u64,
}

impl AcceptedTurn {
    /// Reads the answer of a gateway that has accepted a turn.
    pub fn read(answer: &Value) -> Result<Self> {
        let text = |name: &str| {
            let text = answer[name].as_str().map(str::to_owned);
            text.with_context(|| format!("the answer has no {name}: {answer}"))
        };
        Ok(Self {
            id: text("turn_id")?,
            thread: text("thread_id")?,
            answer: text("message_id")?,
            input: text("input_message_id")?,
            run: answer["run"].as_u64().context("the answer has no run")?,
        })
    }
}

impl Api {
    /// Sends a request; any status is a valid answer.
    pub async fn send(
        self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<TextResponse> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut all = headers.to_vec();
        if body.is_some() {
            all.push(("content-type", "application/json"));
        }
        http::exchange(self.0, HttpRequest { method, path, headers: &all, body: text.as_bytes() }).await
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// A status other than success.
    pub async fn call(self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let answer = self.send(method, path, body, &[]).await?;
        if !(200..300).contains(&answer.status) {
            bail!("{method} {path}: {} {}", answer.status, answer.text);
        }
        answer.json()
    }

    /// Sends a message to a thread.
    pub async fn say(self, thread: &str, content: &str) -> Result<AcceptedTurn> {
        let path = format!("/v1/threads/{thread}/messages");
        AcceptedTurn::read(&self.call("POST", &path, Some(&json!({"content": content}))).await?)
    }

    /// Sends a message with this body to a thread; returns the whole answer.
    pub async fn say_with(
        self,
        thread: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Result<TextResponse> {
        self.send("POST", &format!("/v1/threads/{thread}/messages"), Some(body), headers).await
    }

    /// Sends a message repeatedly under one key until it is accepted, like a client while gateways
    /// restart.
    ///
    /// # Errors
    /// It was not accepted within `limit`, or was refused permanently.
    pub async fn say_until_taken(
        gateways: &[Self],
        thread: &str,
        body: &Value,
        key: &str,
        limit: Duration,
    ) -> Result<AcceptedTurn> {
        let began = Instant::now();
        let mut last = String::new();
        for gateway in gateways.iter().cycle() {
            if began.elapsed() > limit {
                break;
            }
            match gateway.say_with(thread, body, &[("idempotency-key", key)]).await {
                Ok(answer) if answer.status == 202 => return AcceptedTurn::read(&answer.json()?),
                Ok(answer) if answer.status < 500 => {
                    bail!("{thread}: {key} was refused: {} {}", answer.status, answer.text)
                }
                Ok(answer) => last = format!("{} {}", answer.status, answer.text),
                Err(error) => last = format!("{error:#}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!("{thread}: {key} was not taken within {limit:?}: {last}")
    }

    /// Stops a turn that is in progress or queued.
    pub async fn stop(self, turn: &str) -> Result<Value> {
        self.call("POST", &format!("/v1/turns/{turn}/stop"), None).await
    }

    /// Creates a thread.
    pub async fn create_thread(self, body: &Value) -> Result<Value> {
        self.call("POST", "/v1/threads", Some(body)).await
    }

    /// The state of a thread and its turns.
    pub async fn thread(self, thread: &str) -> Result<Value> {
        self.call("GET", &format!("/v1/threads/{thread}"), None).await
    }

    /// The messages of a thread's history.
    pub async fn history(self, thread: &str) -> Result<Vec<Value>> {
        let page = self.call("GET", &format!("/v1/threads/{thread}/history?limit=200"), None).await?;
        Ok(page["messages"].as_array().context("no messages")?.clone())
    }

    pub async fn failed_turns(self, thread: &str) -> Result<Vec<Value>> {
        let page = self.call("GET", &format!("/v1/threads/{thread}/failed-turns"), None).await?;
        Ok(page["failed_turns"].as_array().context("no failed_turns")?.clone())
    }

    /// Retries a failed turn.
    pub async fn retry_turn(self, thread: &str, turn: &str) -> Result<AcceptedTurn> {
        let path = format!("/v1/threads/{thread}/failed-turns/{turn}/retry");
        AcceptedTurn::read(&self.call("POST", &path, None).await?)
    }

    /// Sets the workflow and the settings of an agent.
    pub async fn put_agent(self, agent: &str, workflow: &str, settings: Value) -> Result<Value> {
        let body = json!({"workflow": workflow, "settings": settings});
        self.call("PUT", &format!("/v1/agents/{agent}"), Some(&body)).await
    }

    /// The state of an agent and its queue.
    pub async fn agent(self, agent: &str) -> Result<Value> {
        self.call("GET", &format!("/v1/agents/{agent}"), None).await
    }

    /// Runs an action on an agent: `pause`, `resume` or `clear-backoff`.
    pub async fn act(self, agent: &str, what: &str) -> Result<Value> {
        self.call("POST", &format!("/v1/agents/{agent}/{what}"), None).await
    }

    pub async fn send_task(self, agent: &str, task: &str, content: &str) -> Result<Value> {
        let body = json!({"task_id": task, "content": content});
        self.call("POST", &format!("/v1/agents/{agent}/tasks"), Some(&body)).await
    }

    pub async fn task(self, agent: &str, task: &str) -> Result<Value> {
        self.call("GET", &format!("/v1/agents/{agent}/tasks/{task}"), None).await
    }

    /// Moves a failed task to the end of its queue.
    pub async fn retry_task(self, agent: &str, task: &str) -> Result<Value> {
        self.call("POST", &format!("/v1/agents/{agent}/tasks/{task}/retry"), None).await
    }

    /// Changes the text of a task.
    pub async fn edit_task(self, agent: &str, task: &str, content: &str) -> Result<Value> {
        let body = json!({"content": content});
        self.call("PATCH", &format!("/v1/agents/{agent}/tasks/{task}"), Some(&body)).await
    }

    pub async fn drop_task(self, agent: &str, task: &str) -> Result<Value> {
        self.call("DELETE", &format!("/v1/agents/{agent}/tasks/{task}"), None).await
    }

    /// The audit of an agent, newest first, as the API returns it.
    pub async fn acts_on_agent(self, agent: &str) -> Result<Vec<Value>> {
        let page = self.call("GET", &format!("/v1/agents/{agent}/audit"), None).await?;
        Ok(page["entries"].as_array().context("no acts")?.clone())
    }
}
