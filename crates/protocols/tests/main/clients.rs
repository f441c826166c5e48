//! The real clients read the golden files. `tests/golden/parsed_by_clients` has their
//! interpretation, and the bodies that they post are accepted as requests.

use std::fs;
use std::path::Path;
use std::process::Command;

use devservices::{npm, workspace};
use model::{Chunk, ChunkKind};
use protocols::{agui, chat_completions, responses, ui_message};
use serde_json::{Value, json};

use crate::encoders::{self, NAMES};
use crate::golden::{check, folder};
use crate::scenarios::{self, End, Scenario, encode_all};

/// Number of random answers of producers that follow no rule.
const RANDOM: u64 = 300;

/// One test, because two tests would install the clients at the same time.
#[test]
fn the_real_clients_understand_it() {
    let installed = workspace::target_dir().join("clients/protocols");
    npm::install(&folder().with_file_name("clients"), &installed).unwrap();
    they_read_the_golden_files(&installed);
    they_take_whatever_a_producer_says(&installed);
}

fn they_read_the_golden_files(installed: &Path) {
    let understood = node(installed, "read.mjs", &folder());
    for (client, parsed) in understood.as_object().unwrap() {
        check(&format!("parsed_by_clients/{client}.json"), format!("{parsed:#}\n").as_bytes());
    }
    no_client_takes_a_part_for_the_whole(&understood["cuts"]);
    each_body_is_a_request(understood["posted"].as_array().unwrap());
}

fn they_take_whatever_a_producer_says(installed: &Path) {
    let folder = workspace::target_dir().join("clients/random");
    let scenarios: Vec<Scenario> = (0..RANDOM).map(scenarios::random).collect();
    for name in NAMES {
        fs::create_dir_all(folder.join(name)).unwrap();
        for (number, scenario) in scenarios.iter().enumerate() {
            let encoded = encode_all(&mut *encoders::of(name), &scenario.events());
            fs::write(folder.join(name).join(format!("{number}.txt")), encoded).unwrap();
        }
    }
    let understood = node(installed, "random.mjs", &folder);
    for (number, scenario) in scenarios.iter().enumerate() {
        let texts = texts_of_steps(&scenario.chunks);
        for (client, parsed) in understood.as_object().unwrap() {
            let between = if client == "chat_completions" { "\n\n" } else { "" };
            let expected = json!({"ended": ended(client, &scenario.end), "text": texts.join(between)});
            assert_eq!(parsed[number.to_string()], expected, "{client}: {:?}", scenario.chunks);
        }
    }
}

/// The text of each step that has one: output of the model after a result is another step.
fn texts_of_steps(chunks: &[Chunk]) -> Vec<String> {
    let (mut texts, mut has_results) = (vec![String::new()], false);
    for chunk in chunks {
        match chunk.kind {
            ChunkKind::ToolResult => has_results = true,
            ChunkKind::Content | ChunkKind::Reasoning | ChunkKind::ToolCall => {
                if std::mem::take(&mut has_results) {
                    texts.push(String::new());
                }
            }
            ChunkKind::Metadata | ChunkKind::Error => {}
        }
        if chunk.kind == ChunkKind::Content {
            texts.last_mut().unwrap().push_str(&chunk.text);
        }
    }
    texts.retain(|text| !text.is_empty());
    texts
}

/// The client's name of the end.
fn ended(client: &str, end: &End) -> &'static str {
    match (client, end) {
        ("ui_message", _) => "ready",
        ("chat_completions", _) => "stop",
        ("agui", End::Complete) => "success",
        (_, End::Complete) => "completed",
        (_, _) => "cancelled",
    }
}

/// Runs one of the programs.
fn node(installed: &Path, program: &str, golden: &Path) -> Value {
    let mut node = Command::new("node");
    let output = node.arg(program).arg(golden).current_dir(installed).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn no_client_takes_a_part_for_the_whole(cuts: &Value) {
    for (client, parsed) in cuts.as_object().unwrap() {
        assert!(parsed["cuts"].as_u64().unwrap() > 5, "{client}: {parsed}");
        assert_eq!(parsed["mistaken"], 0, "{client}: {parsed}");
    }
    assert_eq!(cuts["ui_message"]["differ"], 0, "after a return everything is there once");
}

fn each_body_is_a_request(posted: &[Value]) {
    for body in posted {
        let bytes = body.to_string().into_bytes();
        let text = match body {
            body if body.get("runId").is_some() => agui::AgUiRequest::parse(&bytes, None).unwrap().text,
            body if body.get("trigger").is_some() => {
                ui_message::UiMessageRequest::parse(&bytes, None).unwrap().text
            }
            body if body.get("input").is_some() => {
                responses::ResponseRequest::parse(&bytes, None).unwrap().text
            }
            _ => chat_completions::CompletionRequest::parse(&bytes, None, None).unwrap().text,
        };
        assert_eq!(text, "hello", "{body}");
    }
    assert!(posted.len() >= 5, "each client has posted something: {posted:?}");
}
