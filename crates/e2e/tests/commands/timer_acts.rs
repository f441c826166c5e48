//! Commands that change follow-ups and schedules of a running fleet.

use devservices::workspace;
use serde_json::{Value, json};
use testkit::fleet::{Invocation, invoke};

use crate::{
    api_client::SOON,
    fixture::{Fixture, api_url},
    timers::in_seconds,
};

const CRON: [&str; 6] = ["--cron", "0 9 * * 1", "--time-zone", "Europe/Berlin", "--content", "report"];

/// Runs the binary with the API of a fleet and nothing else of it.
async fn run(fixture: &Fixture, words: &str, more: &[&str]) -> Invocation {
    let env = [api_url(fixture.fleet.gateways[0].http_addr())];
    let words: Vec<&str> = words.split_whitespace().chain(more.iter().copied()).collect();
    invoke(&words, &env).await.unwrap()
}

/// The JSON output of a command that must succeed.
async fn json_of(fixture: &Fixture, words: &str, more: &[&str]) -> Value {
    let done = run(fixture, &format!("{words} -o json"), more).await;
    assert_eq!(done.code, Some(0), "{words}: {}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

/// Checks that the command fails with this code and one line that contains these words, and prints
/// nothing else.
async fn refused(fixture: &Fixture, words: &str, more: &[&str], code: i32, line: &str) {
    let done = run(fixture, words, more).await;
    let lines: Vec<_> = done.stderr.lines().filter(|line| line.starts_with("antiphon: ")).collect();
    assert_eq!(
        (done.code, lines.len(), done.stdout.as_str()),
        (Some(code), 1, ""),
        "{words}: {}",
        done.stderr
    );
    assert!(lines[0].contains(line), "{words}: {}", lines[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_put_tried_and_deleted_by_commands() {
    let fixture = Fixture::new().await;
    let api = fixture.api();
    fixture.settle("ann", json!({})).await;
    let listed =
        async || api.call("GET", "/v1/agents/ann/schedules", None).await.unwrap()["schedules"].clone();

    let dry_run = json_of(&fixture, "schedules dry-run ann weekly", &CRON).await;
    assert_eq!(dry_run["next_occurrences"].as_array().unwrap().len(), 5, "{dry_run}");
    let table = run(&fixture, "schedules dry-run ann weekly", &CRON).await.stdout;
    assert!(table.starts_with("NEXT\n") && table.lines().count() == 6, "{table}");
    assert_eq!(listed().await, json!([]), "trying stores nothing");

    let more = [&CRON[..], &["--metadata", "{\"from\": \"shell\"}", "--actor", "ada"]].concat();
    let put = json_of(&fixture, "schedules put ann weekly --overlap queue --missed one", &more).await;
    let shown = listed().await;
    assert_eq!(shown, json!([put.clone()]), "the command shows what HTTP does");
    assert_eq!((&put["version"], &put["created_by"]), (&json!(1), &json!("ada")));
    assert_eq!((&put["overlap"], &put["missed"]), (&json!("queue"), &json!("one")));
    assert_eq!(put["metadata"], json!({"from": "shell"}));
    assert_eq!(put["next_occurrences"], dry_run["next_occurrences"]);
    let again = json_of(&fixture, "schedules put ann weekly --enabled=false", &CRON).await;
    assert_eq!((&again["version"], &again["next_at"]), (&json!(2), &Value::Null));

    let with =
        |cron: &'static str, zone: &'static str| ["--cron", cron, "--time-zone", zone, "--content", "report"];
    for verb in ["put", "dry-run"] {
        let words = format!("schedules {verb} ann weekly");
        refused(&fixture, &words, &with("0 9 * *", "UTC"), 2, "cron").await;
        refused(&fixture, &words, &with("0 9 * * 1", "Europe/Atlantis"), 2, "Europe/Atlantis").await;
        refused(&fixture, &words, &["--content", "report"], 2, "cron").await;
        refused(&fixture, &words, &["--at", "2001-01-01T00:00:00Z", "--content", "late"], 2, "past").await;
        refused(&fixture, &format!("{words} --metadata []"), &CRON, 2, "it is not a JSON object").await;
        refused(&fixture, &format!("{words} --overlap twice"), &CRON, 2, "skip or queue").await;
    }
    refused(&fixture, "schedules put ann a.b", &CRON, 2, "invalid_id").await;
    assert_eq!(listed().await[0]["version"], 2, "what was refused has changed nothing");

    refused(&fixture, "schedules delete ann daily", &[], 1, "no such schedule").await;
    let deleted = json_of(&fixture, "schedules delete ann weekly", &[]).await;
    assert_eq!(deleted["status"], "done", "{deleted}");
    assert_eq!(listed().await, json!([]));
    let acts = api.acts_on_agent("ann").await.unwrap();
    let by = |action: &str| acts.iter().find(|act| act["action"] == action).unwrap()["actor"].clone();
    assert_eq!((by("put_schedule"), by("delete_schedule")), (json!("api"), json!("api")));
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups_are_snoozed_and_cancelled_by_commands() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let by_default = json!({"trigger_type": "question_unanswered", "after_seconds": 3_600});
    fixture.settle("bob", json!({"follow_ups": {"enabled": true, "default": by_default}})).await;
    api.call("POST", "/v1/threads", Some(&json!({"thread_id": "chat", "agent_id": "bob"}))).await.unwrap();
    api.say("chat", "hello").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("where do you live?").await.unwrap();
    let newest =
        async || api.call("GET", "/v1/threads/chat/follow-ups", None).await.unwrap()["follow_ups"][0].clone();
    fixture.until("it waits", SOON, async || newest().await["status"] == "pending").await;
    let waits = newest().await;
    let id = waits["follow_up_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/threads/chat/follow-ups/{id}");

    let until = in_seconds(&fixture, 7_200.0).await;
    let snoozed = json_of(&fixture, &format!("follow-ups snooze chat {id} --until {until}"), &[]).await;
    assert_eq!((&snoozed["status"], snoozed["command_id"].is_string()), (&json!("done"), true));
    // The API leaves out trailing zeros of a second's fraction.
    let moment = |text: &str| wire::parse_rfc3339(text).unwrap();
    assert_eq!(moment(newest().await["due_at"].as_str().unwrap()), moment(&until));
    json_of(&fixture, &format!("follow-ups snooze chat {id} --seconds 86400"), &[]).await;
    assert!(newest().await["due_at"].as_str().unwrap() > until.as_str());
    assert_eq!(json_of(&fixture, &format!("follow-ups show chat {id}"), &[]).await["verdict"], "fire");
    let unknown = format!("{}-1", id.split_once('-').unwrap().0);
    for words in ["--seconds 0", "--seconds 1 --until 2030-01-01T00:00:00Z", "--until tomorrow", ""] {
        refused(&fixture, &format!("follow-ups snooze chat {id} {words}"), &[], 2, "").await;
    }
    refused(&fixture, "follow-ups cancel chat nothing", &[], 2, "invalid_id").await;
    refused(&fixture, &format!("follow-ups cancel chat {unknown}"), &[], 1, "no such follow-up").await;
    refused(&fixture, &format!("follow-ups cancel other {id}"), &[], 1, "no such follow-up").await;

    // A message cancels the follow-up as soon as the message is accepted.
    api.say("chat", "wait").await.unwrap();
    let asked = workflow.next(SOON).await.unwrap();
    let shown = json_of(&fixture, &format!("follow-ups show chat {id}"), &[]).await;
    assert_eq!(shown, api.call("GET", &path, None).await.unwrap());
    assert_eq!((&shown["status"], &shown["decided_by"]), (&json!("cancelled"), &json!("message")));

    asked.answer("yes?").await.unwrap();
    let is_next = async || {
        let newest = newest().await;
        newest["status"] == "pending" && newest["follow_up_id"] != json!(id)
    };
    fixture.until("the next one waits", SOON, is_next).await;
    refused(&fixture, &format!("follow-ups cancel chat {id}"), &[], 1, "does not wait any more").await;
    let next = newest().await["follow_up_id"].as_str().unwrap().to_owned();
    let cancelled = json_of(&fixture, &format!("follow-ups cancel chat {next} --actor ada"), &[]).await;
    assert_eq!(cancelled["status"], "done");
    let ended = newest().await;
    assert_eq!((&ended["status"], &ended["decided_by"]), (&json!("cancelled"), &json!("client")));
    let last = api.acts_on_agent("chat").await.unwrap().into_iter().next().unwrap();
    assert_eq!((&last["action"], &last["actor"]), (&json!("cancel_timer"), &json!("ada")));
}

/// Runs a shell line as it is in a manual, with this follow-up as `$ID`; returns the output.
async fn line(fixture: &Fixture, line: &str, follow_up: &str) -> String {
    let function = format!("antiphon() {{ \"$ANTIPHON_BIN\" \"$@\"; }}\n{line}");
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-ec", &function]).envs([api_url(fixture.fleet.gateways[0].http_addr())]);
    let output = shell.env("ID", follow_up).output().await.unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manuals_commands_do_what_it_says() {
    let manual = std::fs::read_to_string(
        workspace::root().join("deploy/docs/src/reference/follow-ups-and-schedules.md"),
    )
    .unwrap();
    let lines = |of: &str| {
        manual.lines().filter(|line| line.starts_with(&format!("antiphon {of} "))).collect::<Vec<_>>()
    };
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let by_default = json!({"trigger_type": "check_in", "after_seconds": 3_600});
    fixture.settle("hello", json!({"follow_ups": {"enabled": true, "default": by_default}})).await;
    api.say("hello", "hi").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("hello").await.unwrap();
    let newest = async || {
        api.call("GET", "/v1/threads/hello/follow-ups", None).await.unwrap()["follow_ups"][0].clone()
    };
    fixture.until("a follow-up waits", SOON, async || newest().await["status"] == "pending").await;
    let id = newest().await["follow_up_id"].as_str().unwrap().to_owned();
    let [list, show, snooze, cancel] = lines("follow-ups").try_into().unwrap();
    assert!(line(&fixture, list, &id).await.contains(&id));
    assert!(line(&fixture, show, &id).await.contains("max_in_a_row"));
    for act in [snooze, cancel] {
        assert!(line(&fixture, act, &id).await.contains("done"), "{act}");
    }
    assert_eq!(newest().await["status"], "cancelled");

    let [dry_run, put, show, list, delete] = lines("schedules").try_into().unwrap();
    assert_eq!(line(&fixture, dry_run, "").await.lines().count(), 6, "a title and five occurrences");
    for act in [put, show, list] {
        assert!(line(&fixture, act, "").await.contains("Europe/Berlin"), "{act}");
    }
    assert!(line(&fixture, delete, "").await.contains("done"));
    assert!(!line(&fixture, list, "").await.contains("weekly"));
}
