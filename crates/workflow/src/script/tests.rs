use model::ErrorClass;
use serde_json::{Value, json};

use super::*;
use crate::engine_event::{EngineEnd, EngineEvent, EngineSender, InjectedFault};
use crate::request::TurnAttempt;
use crate::request::tests::{request, turn};

fn script(steps: Value) -> Script {
    Script::parse(&json!({"scenarios": [{"name": "s", "steps": steps}]}).to_string()).unwrap()
}

fn why(text: &str) -> String {
    Script::parse(text).unwrap_err().to_string()
}

fn why_steps(steps: Value) -> String {
    why(&json!({"scenarios": [{"steps": steps}]}).to_string())
}

/// All events of a script for a turn, and its end.
async fn played(script: &Script, turn: &TurnAttempt) -> (Vec<EngineEvent>, EngineEnd) {
    let (events, mut inbox) = EngineSender::channel(std::sync::Arc::default());
    let ended = script.play(turn, &events).await;
    drop(events);
    let mut said = Vec::new();
    while let Some(part) = inbox.recv().await {
        said.push(part);
    }
    (said, ended)
}

fn texts(events: &[EngineEvent]) -> Vec<&str> {
    let mut texts = Vec::new();
    for part in events {
        if let EngineEvent::Text(text) = part {
            texts.push(text.as_str());
        }
    }
    texts
}

#[test]
fn what_is_wrong_with_a_script_is_said() {
    assert!(why("{").starts_with("the script is not in the expected form: EOF"));
    assert!(
        why(r#"{"scenarios": [{"steps": [{"txt": {}}]}]}"#)
            .contains("unknown variant `txt`, expected one of `delay_ms`")
    );
    assert!(why(r#"{"scenarios": [{"steps": [], "wenn": {}}]}"#).contains("unknown field `wenn`"));
    assert!(why(r#"{"scenarios": [{"steps": [{"text": {}}]}]}"#).contains("missing field `content`"));
    assert_eq!(why(r#"{"scenarios": []}"#), "the script has no scenario");
    let regex = why(r#"{"scenarios": [{"name": "n", "when": {"input_matches": "("}, "steps": []}]}"#);
    assert!(regex.starts_with("scenario \"n\": input_matches: regex parse error"), "{regex}");
    let task = why(r#"{"scenarios": [{"when": {"task": "memo"}, "steps": []}]}"#);
    assert_eq!(task, "scenario \"#1\": unknown task \"memo\": one of task, work_request, memory, compaction");
    let hello = json!({"text": {"content": "x"}});
    assert_eq!(
        why_steps(json!([{"cut": true}, hello])),
        "scenario \"#1\": step 1 ends the turn: step 2 would never be played"
    );
    assert!(why_steps(json!([{"hang": false}])).contains("only true makes sense here"));
    for (step, what) in [
        (json!({"text": {"content": "x", "chars": 0}}), "chars must be at least 1"),
        (json!({"delay_ms": 4_000_000}), "ms is 4000000; at most 3600000 are allowed"),
        (json!({"tools": []}), "tools must have at least one call"),
        (json!({"tools": [{"name": ""}]}), "a tool needs a name"),
        (json!({"tools": [{"name": "f", "arguments": 7}]}), "the arguments of \"f\" must be an object"),
        (json!({"duplicate": 0}), "a number of frames is from 1 to 50"),
        (json!({"reorder": 51}), "a number of frames is from 1 to 50"),
        (json!({"error": {"class": "auth", "retry_after": -1}}), "retry_after is from 0 to 86400 seconds"),
        (
            json!({"fail_first": {"runs": 1, "error": {"class": "auth", "status": 200}}}),
            "a status is from 400 to 599",
        ),
    ] {
        assert_eq!(why_steps(json!([step])), format!("scenario \"#1\": step 1: {what}"));
    }
    let missing = Script::read(Path::new("/nowhere/script.json")).unwrap_err().to_string();
    assert!(missing.starts_with("the script /nowhere/script.json cannot be read: "), "{missing}");
}

#[test]
fn the_first_scenario_that_fits_is_played() {
    let scenario = |name: &str, when: Value| json!({"name": name, "when": when, "steps": []});
    let script = Script::parse(
        &json!({"scenarios": [
            scenario("both", json!({"input_contains": "rain", "agent": "a"})),
            scenario("regex", json!({"input_matches": "(?i)^ra.n\\b"})),
            scenario("memory", json!({"task": "memory"})),
            scenario("rest", json!({})),
        ]})
        .to_string(),
    )
    .unwrap();
    let chosen = |input: &str, agent: &str, task: Option<&str>| {
        let variables = TurnVariables {
            input: input.to_owned(),
            agent: agent.to_owned(),
            task: task.map(str::to_owned),
            ..TurnVariables::default()
        };
        script.scenario(&variables).unwrap().name.clone()
    };
    assert_eq!(chosen("will it rain", "a", None), "both");
    assert_eq!(chosen("will it rain", "b", None), "rest");
    assert_eq!(chosen("Rain?", "b", Some("memory")), "regex");
    assert_eq!(chosen("x", "b", Some("memory")), "memory");
    assert_eq!(chosen("x", "b", Some("task")), "rest");
}

#[test]
fn variables_are_filled_in_once() {
    let variables = TurnVariables {
        input: "{run} {input}".to_owned(),
        run: 3,
        turn: "u".to_owned(),
        ..TurnVariables::default()
    };
    assert_eq!(variables.fill("{run}/{attempt} of {turn}: {input}"), "3/0 of u: {run} {input}");
    assert_eq!(variables.fill("{} {other} { {run} {\"a\": 1} {"), "{} {other} { 3 {\"a\": 1} {");
}

#[tokio::test]
async fn without_a_script_the_input_comes_back() {
    let (events, ended) = played(&Script::echo(), &turn()).await;
    assert_eq!(texts(&events), ["You said", ": hello"]);
    let EngineEnd::Complete(metadata) = ended else { panic!("{ended:?}") };
    assert_eq!((&metadata["tokens_used"], &metadata["model"]), (&json!(15), &json!("scripted")));
}

#[tokio::test]
async fn each_step_is_played() {
    let script = script(json!([
        {"reasoning": {"content": "hm"}},
        {"text": {"content": "äöü{run}", "chars": 3}},
        {"duplicate": 2},
        {"reorder": 3},
        {"tools": [{"name": "f", "arguments": {"q": "{input}", "n": 1}, "result": "r {attempt}"}, {"name": "g", "is_error": true}]},
        {"tools": [{"name": "f"}]},
        {"text": {"content": "{result}!"}},
    ]));
    let (events, ended) = played(&script, &turn()).await;
    assert!(matches!(ended, EngineEnd::Complete(_)));
    assert_eq!(texts(&events), ["äöü", "2", "!"]);
    let shown: Vec<String> = events
        .iter()
        .filter_map(|part| match part {
            EngineEvent::Call(name, arguments) => Some(format!("{}/{}{arguments}", name.id, name.tool)),
            EngineEvent::Result { call, text, is_error } => Some(format!("{}={text:?} {is_error}", call.id)),
            EngineEvent::InjectedFault(trick) => Some(format!("{trick:?}")),
            _ => None,
        })
        .collect();
    assert_eq!(
        shown,
        [
            "Repeat",
            "Repeat",
            "Reverse(3)",
            "call_0/f{\"n\":1,\"q\":\"hello\"}",
            "call_1/g{}",
            "call_0=\"r 0\" false",
            "call_1=\"\" true",
            "call_2/f{}",
            "call_2=\"\" false",
        ]
    );
    assert_eq!(played(&script, &turn()).await, played(&script, &turn()).await);
}

#[tokio::test]
async fn runs_fail_as_often_as_the_script_says() {
    let script = script(json!([
        {"fail_first": {"runs": 3, "error": {"class": "transient", "message": "run {run}", "retry_after": 1.5}}},
        {"text": {"content": "fine"}},
    ]));
    let (_, ended) = played(&script, &turn()).await;
    let EngineEnd::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!((failure.text.as_str(), failure.code.as_str()), ("run 2", "scripted"));
    assert_eq!(failure.retry_after, Some(std::time::Duration::from_millis(1500)));
    let mut later = request();
    later["run"] = json!(3);
    let later = TurnAttempt::read(later.to_string().as_bytes(), 1).unwrap();
    assert_eq!(texts(&played(&script, &later).await.0), ["fine"]);
}

#[tokio::test(start_paused = true)]
async fn silence_is_silent_and_a_cut_says_nothing_more() {
    let script = script(json!([{"delay_ms": 500}, {"silence_ms": 2_000}, {"cut": true}]));
    let before = tokio::time::Instant::now();
    let (events, ended) = played(&script, &turn()).await;
    assert_eq!(before.elapsed().as_millis(), 2_500);
    assert_eq!(
        events,
        [
            EngineEvent::InjectedFault(InjectedFault::Mute(true)),
            EngineEvent::InjectedFault(InjectedFault::Mute(false))
        ]
    );
    assert_eq!(ended, EngineEnd::Cut);
}

#[tokio::test]
async fn an_input_that_no_scenario_is_for_fails_for_good() {
    let text = json!({"scenarios": [{"when": {"input_contains": "x"}, "steps": []}]}).to_string();
    let (_, ended) = played(&Script::parse(&text).unwrap(), &turn()).await;
    let EngineEnd::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!((failure.class, failure.code.as_str()), (ErrorClass::Permanent, "no_scenario"));
}

#[test]
fn the_files_that_are_shipped_are_right() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/workflow").join(name);
    Script::read(&file("script.json")).unwrap();
    assert_eq!(crate::tools::Tools::read(&file("tools.json")).unwrap().len(), 2);
}
