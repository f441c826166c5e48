//! The commands of the runbooks, run word for word against a fleet in the situations that they are
//! for.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{fleet::invoke, http, http::HttpRequest};

use super::{deploy, read};
use crate::{
    api_client::{SOON, scripted},
    fixture::Fixture,
};

/// Programs that are not part of this project, or that other tests run: `nats` and `kubectl` need a
/// cluster or a separate installation.
const NOT_RUN_HERE: [&str; 5] = ["nats ", "kubectl ", "cargo xtask ", "promtool ", "nats-server "];

/// The code spans of a page, without blocks.
fn code_spans(page: &str) -> Vec<&str> {
    page.split('`').skip(1).step_by(2).filter(|span| !span.contains('\n')).collect()
}

/// The commands of the page, each once, in order.
fn commands(page: &str) -> Vec<&str> {
    let is_command = |span: &str| ["antiphon ", "GET /", "POST /"].iter().any(|it| span.starts_with(it));
    let mut seen = BTreeSet::new();
    code_spans(page).into_iter().filter(|span| is_command(span) && seen.insert(*span)).collect()
}

/// Values that replace the placeholders in a runbook.
struct Situation {
    letters: [String; 2],
    failed_turn: String,
    running_turn: String,
}

impl Situation {
    fn fill(&self, command: &str) -> String {
        let [replayed, dropped] = &self.letters;
        let letter = if command.contains(" drop ") { dropped } else { replayed };
        let turn = if command.contains("failed-turns") { &self.failed_turn } else { &self.running_turn };
        let known = [
            ("<letter>", letter.as_str()),
            ("<turn>", turn),
            ("<thread>", "talk"),
            ("<agent>", "unlucky"),
            ("<partition>", "3"),
        ];
        known.iter().fold(command.to_owned(), |command, (name, value)| command.replace(name, value))
    }
}

impl Fixture {
    /// Creates two dead letters that can be replayed, a failed turn, one that is being answered,
    /// and an agent that backs off.
    async fn in_trouble(&self) -> Situation {
        self.send_tasks("stray", [("t1".to_owned(), "a".to_owned()), ("t2".to_owned(), "b".to_owned())])
            .await;
        let letters = async || self.letters("?reason=unknown_agent").await["dead_letters"].clone();
        self.until("there are two letters", SOON, async || letters().await.as_array().unwrap().len() == 2)
            .await;
        let letters = letters().await;
        let letters = [0, 1].map(|number| letters[number]["id"].as_str().unwrap().to_owned());
        self.settle("stray", json!({})).await;

        self.settle("writer", json!({})).await;
        self.api().create_thread(&json!({"thread_id": "talk", "agent_id": "writer"})).await.unwrap();
        let failed_turn = self.api().say("talk", "fails-for-good").await.unwrap().id;
        self.until_failed("talk", 1).await;

        self.api().put_agent("held", "manual", json!({})).await.unwrap();
        self.api().create_thread(&json!({"thread_id": "held", "agent_id": "held"})).await.unwrap();
        let running_turn = self.api().say("held", "hello").await.unwrap().id;

        self.settle("unlucky", json!({"backoff_base_ms": 60_000})).await;
        self.send_tasks("unlucky", [("t".to_owned(), "fails-always".to_owned())]).await;
        let backs_off = async || {
            let agent = self.api().agent("unlucky").await;
            agent.is_ok_and(|agent| agent["waiting"]["reason"] == "backoff")
        };
        self.until("the agent backs off", SOON, backs_off).await;
        Situation { letters, failed_turn, running_turn }
    }

    /// Runs a command of a runbook; `Err` with the reason why it does not work.
    async fn run_of_runbook(&self, command: &str) -> Result<(), String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        if words[0] == "antiphon" {
            let run = invoke(&words[1..], &self.command_env()).await.unwrap();
            return match run.code {
                Some(0) => Ok(()),
                code => Err(format!("{code:?}: {}{}", run.stderr, run.stdout)),
            };
        }
        let request = HttpRequest { method: words[0], path: words[1], headers: &[], body: b"" };
        let answer = http::exchange(self.fleet.gateways[0].http_addr(), request).await.unwrap();
        match answer.status {
            200..=299 => Ok(()),
            status => Err(format!("{status}: {}", answer.text)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_runbooks_works_word_for_word() {
    let page = read(&deploy().join("alerts/README.md"));
    let fixture =
        Fixture::with(|options| scripted(options).with_env("ANTIPHON_AUTO_CREATE_AGENTS", false)).await;
    let workflow = fixture.manual_workflow_of("manual", Duration::from_secs(60)).await;
    let situation = fixture.in_trouble().await;
    let _held = workflow.next(SOON).await.unwrap();
    let commands = commands(&page);
    assert!(commands.len() >= 15, "{commands:?}");
    let mut wrong = Vec::new();
    for command in &commands {
        let filled = situation.fill(command);
        if filled.contains(['<', '…', '{']) {
            wrong.push(format!("{command}: a reader cannot fill it in"));
        } else if let Err(why) = fixture.run_of_runbook(&filled).await {
            wrong.push(format!("{filled}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), commands.len(), wrong.join("\n"));
    println!("{} commands work", commands.len());

    // The commands have had their effects.
    let replayed = fixture.letters("?reason=unknown_agent").await;
    let letters: Vec<&Value> = replayed["dead_letters"].as_array().unwrap().iter().collect();
    assert!(letters.len() == 1 && letters[0]["replayed_at"].is_string(), "{letters:?}");
    let acts = fixture.api().acts_on_agent("unlucky").await.unwrap();
    assert!(acts.iter().any(|act| act["action"] == "clear_backoff"), "{acts:?}");
}

#[test]
fn runbooks_have_no_command_of_another_form() {
    let page = read(&deploy().join("alerts/README.md"));
    let known = commands(&page);
    for span in code_spans(&page) {
        let is_known = known.contains(&span) || NOT_RUN_HERE.iter().any(|it| span.starts_with(it));
        let program = span.split(' ').next().unwrap_or_default();
        let is_command = span.contains(' ')
            && ["antiphon", "nats", "kubectl", "GET", "POST", "PUT", "DELETE"].contains(&program);
        assert!(is_known || !is_command, "{span} is not tested");
    }
}
