//! Part 4 of the demo: an agent that keeps its own thread short, with the reasoning tools over MCP.
//!
//! Its model is a script behind an OpenAI-compatible endpoint; everything else works as with any
//! other model.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use devservices::{services::Port, workspace};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{environment::DemoEnvironment, screen::Screen, workflows};
use testkit::fleet::{self, READY_LIMIT, WorkflowOptions, WorkflowProgram};

const WORKFLOW: &str = "demo-agent";
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// Runs the part; true if the thread was compressed as expected.
pub(super) async fn show(environment: &mut DemoEnvironment, screen: &mut Screen) -> Result<bool> {
    screen.heading(4, "An agent that compresses its own search results");
    let thread = format!("research-{}", environment.tag);
    start(environment, &thread).await?;
    screen
        .dim("A scripted model calls tools over MCP: it writes down its steps, looks at them, and replaces");
    screen.dim("the search and its result by one sentence. What was there is kept, and can be taken back:");
    screen.text(&format!("ANTIPHON_URL=http://{} antiphon reasoning discarded {thread}", environment.api.0));
    environment.api.put_agent(&thread, WORKFLOW, json!({})).await?;
    environment.api.say(&thread, "Where are leases renewed?").await?;
    let results = results(environment, &thread).await?;
    let [before, after] = ["before", "after"].map(|when| {
        let mut views = results.iter().filter(|result| result.starts_with("Reasoning Thread ("));
        let view = if when == "before" { views.next() } else { views.next_back() };
        view.cloned().unwrap_or_default()
    });
    for (when, view) in [("before", &before), ("after", &after)] {
        screen.text(&format!("{when}:"));
        view.lines().for_each(|line| screen.dim(&format!("  {line}")));
    }
    let is_right = before.starts_with("Reasoning Thread (4 messages):")
        && after.starts_with("Reasoning Thread (3 messages):")
        && after.contains("[2] Summary: worker/src/ownership.rs");
    if !is_right {
        screen.text("WRONG  the agent's thread was not compressed");
    }
    Ok(is_right)
}

/// Starts the server of the tools, the model, and the workflow that connects them.
async fn start(environment: &mut DemoEnvironment, session: &str) -> Result<()> {
    let ports = [Port::reserve()?, Port::reserve()?];
    let [mcp, model] = [0, 1].map(|at: usize| SocketAddr::from(([127, 0, 0, 1], ports[at].number())));
    let script = environment.fleet.log_dir().join("agent.json");
    std::fs::write(&script, self::script(session).to_string())?;
    let program = |arguments: &[&str]| -> Result<WorkflowOptions> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let program =
            WorkflowProgram::Program { binary: fleet::binary()?, arguments, dir: workspace::root() };
        Ok(WorkflowOptions { workflow: WORKFLOW.to_owned(), program })
    };
    let (mcp_url, model_url) = (format!("http://{mcp}/mcp"), format!("http://{model}/v1"));
    let (mcp, model, script) = (mcp.to_string(), model.to_string(), script.display().to_string());
    let tools = program(&["mcp", "--mcp-addr", &mcp])?;
    let workflow = program(&[
        "workflow",
        "--workflow-engine",
        "openai",
        "--serve-openai",
        &model,
        "--script-file",
        &script,
        "--llm-base-url",
        &model_url,
        "--llm-model",
        "scripted",
        "--mcp-url",
        &mcp_url,
    ])?;
    for options in [tools, workflow] {
        let number = environment.fleet.add_workflow(&options)?;
        let process = environment.fleet.workflows.get_mut(number).context("the process that was added")?;
        process.spawn()?;
        workflows::ready(process, READY_LIMIT).await?;
    }
    Ok(())
}

/// The results of the tools, in the order of the calls.
async fn results(environment: &DemoEnvironment, thread: &str) -> Result<Vec<String>> {
    let deadline = Instant::now() + TURN_LIMIT;
    loop {
        // Results of reasoning tools are hidden from people, and shown to operators.
        let path = format!("/v1/threads/{thread}/history?limit=200&synthetic=true");
        let page = environment.api.call("GET", &path, None).await.unwrap_or_default();
        let history = page["messages"].as_array().cloned().unwrap_or_default();
        let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        if history.last().is_some_and(|last| last["role"] == "assistant" && text(last).starts_with("Found")) {
            let tools = history.iter().filter(|message| message["role"] == "tool");
            return Ok(tools.map(text).collect());
        }
        if Instant::now() > deadline {
            bail!("the agent did not answer within {} s", TURN_LIMIT.as_secs());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn script(session: &str) -> Value {
    let call = |name: &str, mut arguments: Value| {
        arguments["session_id"] = session.into();
        json!({"tools": [{"name": name, "arguments": arguments}]})
    };
    let found = "worker/src/ownership.rs:112: renew(&leases)\n".repeat(60);
    let steps = json!({"messages": [
        {"role": "user", "content": "Where are leases renewed?"},
        {"role": "assistant", "content": "I'll search...", "tool_calls": [{"id": "s1", "name": "search"}]},
        {"role": "tool", "tool_call_id": "s1", "content": found},
        {"role": "assistant", "content": "I have what I need."},
    ]});
    let summary = "worker/src/ownership.rs renews them, in one place.";
    json!({"scenarios": [{"name": "research", "steps": [
        call("frs_create_session", json!({"agent_id": session})),
        call("frs_append", steps),
        call("frs_view_thread", json!({})),
        call("frs_compress_range", json!({"from": 2, "to": 3, "summary": summary})),
        call("frs_view_thread", json!({})),
        {"text": {"content": "Found: worker/src/ownership.rs renews them."}},
    ]}]})
}
