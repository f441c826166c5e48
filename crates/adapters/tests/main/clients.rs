//! The real clients read the golden files: what they understood is in `tests/golden/understood`, and the bodies that they post
//! are requests.

use std::process::Command;

use adapters::{agui, chat_completions, responses, ui_message};
use serde_json::Value;
use xtask::{npm, workspace};

use crate::golden::{check, folder};

#[test]
fn the_real_clients_understand_it() {
    let programs = folder().with_file_name("clients");
    let installed = workspace::target_dir().join("clients").join("adapters");
    npm::install(&programs, &installed).unwrap();
    let mut node = Command::new("node");
    let output = node.arg("read.mjs").arg(folder()).current_dir(&installed).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let understood: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (client, told) in understood.as_object().unwrap() {
        check(&format!("understood/{client}.json"), format!("{told:#}\n").as_bytes());
    }
    no_client_takes_a_part_for_the_whole(&understood["cuts"]);
    each_body_is_a_request(understood["posted"].as_array().unwrap());
}

fn no_client_takes_a_part_for_the_whole(cuts: &Value) {
    for (client, told) in cuts.as_object().unwrap() {
        assert!(told["cuts"].as_u64().unwrap() > 9, "{client}: {told}");
        assert_eq!(told["mistaken"], 0, "{client}: {told}");
    }
    assert_eq!(cuts["ui_message"]["differ"], 0, "after a return everything is there once");
}

fn each_body_is_a_request(posted: &[Value]) {
    for body in posted {
        let bytes = body.to_string().into_bytes();
        let text = match body {
            body if body.get("runId").is_some() => agui::Request::parse(&bytes).unwrap().text,
            body if body.get("trigger").is_some() => ui_message::Request::parse(&bytes).unwrap().text,
            body if body.get("input").is_some() => responses::Request::parse(&bytes).unwrap().text,
            _ => chat_completions::Request::parse(&bytes, None).unwrap().text,
        };
        assert_eq!(text, "hello", "{body}");
    }
    assert!(posted.len() >= 5, "each client has posted something: {posted:?}");
}
