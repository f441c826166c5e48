//! Part 5 of the demo: an agent that writes first when its question is not answered, and the rules
//! that restrain it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{environment::DemoEnvironment, screen::Screen, workflows::Engine};

/// Limit of each wait, which takes some seconds, or as long as a takeover.
const LIMIT: Duration = Duration::from_secs(60);
const ASKED: &str = "Please book a table.";
const REPLIED: &str = "A table for two, at eight.";

/// Runs the part; true if a follow-up was sent, one was withdrawn, and one was refused.
pub(super) async fn show(environment: &DemoEnvironment, screen: &mut Screen) -> Result<bool> {
    screen.heading(5, "An agent that speaks first");
    let [silent, awake] = ["silent", "awake"].map(|name| Talk::new(environment, name));
    introduce(&silent, screen);
    let (first, second) = tokio::try_join!(silent.begin(), awake.begin())?;
    let shown = silent.texts().await?;
    screen.text(&format!("you:    {ASKED}"));
    screen.text(&format!("agent:  {}", shown.last().map_or("", String::as_str)));
    screen.dim("You say nothing, in this thread:");
    tokio::try_join!(silent.bring_forward(&first), awake.bring_forward(&second))?;
    let (said, is_withdrawn) = tokio::join!(first_words(&silent), withdrawn(&awake, &second));
    let (said, is_withdrawn) = (said?, is_withdrawn?);
    screen.text(&format!("agent:  {said}"));
    let refused = silent.refused(&first).await?;
    screen.text(&format!(
        "Its answer asks for another one, which is refused: {refused}. Nothing more is sent until you write."
    ));
    screen.text("In a second thread you wrote while it was being generated: it was withdrawn, and nothing of it is stored.");
    let is_right = refused == "max_in_a_row" && is_withdrawn && silent.texts().await?.len() == 3;
    if !is_right {
        screen.text("WRONG  the follow-ups were not sent, withdrawn and refused as they should be");
    }
    Ok(is_right)
}

fn introduce(talk: &Talk<'_>, screen: &mut Screen) {
    screen.dim(
        "Its settings let it write again when its question is not answered: 30 s after it at the earliest,",
    );
    screen.dim("and once in a row. So that you need not wait for it here, the follow-up is brought forward:");
    let (api, thread) = (talk.environment.api.0, &talk.thread);
    screen.text(&format!(
        "ANTIPHON_URL=http://{api} antiphon follow-ups snooze {thread} <follow-up> --seconds 1"
    ));
    screen.text("");
}

/// The text with which the agent writes first, without a visible input.
async fn first_words(talk: &Talk<'_>) -> Result<String> {
    talk.until("the agent speaks first", async || talk.texts().await?.into_iter().nth(2).map(Ok).transpose())
        .await
}

/// Writes as a person while the follow-up is being generated; true if nothing of it is stored.
async fn withdrawn(talk: &Talk<'_>, follow_up: &str) -> Result<bool> {
    talk.until_status(follow_up, &["fired"]).await?;
    talk.environment.api.say(&talk.thread, REPLIED).await?;
    talk.until_status(follow_up, &["withdrawn"]).await?;
    let texts = async || {
        Some(talk.texts().await).filter(|texts| texts.as_ref().is_ok_and(|all| all.len() > 3)).transpose()
    };
    let texts = talk.until("the message is answered", texts).await?;
    Ok(texts.len() == 4 && texts.iter().any(|text| text == REPLIED))
}

/// A thread with its own agent.
struct Talk<'a> {
    environment: &'a DemoEnvironment,
    thread: String,
}

impl<'a> Talk<'a> {
    fn new(environment: &'a DemoEnvironment, name: &str) -> Self {
        Self { environment, thread: format!("{name}-{}", environment.tag) }
    }

    /// Sends a message that the agent answers with a question; returns the pending follow-up.
    async fn begin(&self) -> Result<String> {
        let by_default = json!({"trigger_type": "question_unanswered", "after_seconds": 30});
        let rules = json!({"enabled": true, "max_in_a_row": 1, "default": by_default});
        let (api, settings) = (self.environment.api, json!({ "follow_ups": rules }));
        api.put_agent(&self.thread, Engine::Script.workflow(), settings).await?;
        api.say(&self.thread, ASKED).await?;
        self.until("a follow-up waits", async || self.newest("pending").await).await
    }

    async fn bring_forward(&self, follow_up: &str) -> Result<()> {
        let path = format!("/v1/threads/{}/follow-ups/{follow_up}/snooze", self.thread);
        self.environment.api.call("POST", &path, Some(&json!({"seconds": 1}))).await?;
        Ok(())
    }

    /// The rule that refuses the next follow-up.
    async fn refused(&self, before: &str) -> Result<String> {
        self.until_status(before, &["fired"]).await?;
        let next = self.until("another one waits", async || self.newest("pending").await).await?;
        self.bring_forward(&next).await?;
        let ended = self.until_status(&next, &["refused", "fired"]).await?;
        Ok(ended["decided_by"].as_str().unwrap_or("no rule was against it").to_owned())
    }

    async fn until_status(&self, follow_up: &str, wanted: &[&str]) -> Result<Value> {
        let path = format!("/v1/threads/{}/follow-ups/{follow_up}", self.thread);
        let is_wanted =
            |shown: &Value| shown["status"].as_str().is_some_and(|status| wanted.contains(&status));
        let looked =
            async || Ok(Some(self.environment.api.call("GET", &path, None).await?).filter(is_wanted));
        self.until(&format!("follow-up {follow_up} is {wanted:?}"), looked).await
    }

    /// The id of the newest follow-up, if it has this status.
    async fn newest(&self, status: &str) -> Result<Option<String>> {
        let path = format!("/v1/threads/{}/follow-ups", self.thread);
        let page = self.environment.api.call("GET", &path, None).await?;
        let newest = Some(&page["follow_ups"][0]).filter(|newest| newest["status"] == status);
        Ok(newest.and_then(|newest| newest["follow_up_id"].as_str()).map(str::to_owned))
    }

    /// The texts of the thread that people see.
    async fn texts(&self) -> Result<Vec<String>> {
        let history = self.environment.api.history(&self.thread).await?;
        Ok(history.iter().filter_map(|message| message["content"].as_str()).map(str::to_owned).collect())
    }

    /// Polls until there is a result. A partition may have no owner for a moment.
    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let looked = look().await;
            if let Ok(Some(found)) = looked {
                return Ok(found);
            }
            if Instant::now() > deadline {
                looked.with_context(|| format!("thread {}: {what}", self.thread))?;
                bail!("thread {}: not within {} s: {what}", self.thread, LIMIT.as_secs());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
