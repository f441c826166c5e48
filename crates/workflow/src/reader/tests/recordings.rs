//! Recorded streams of providers. The recordings are not part of the project: without them the test
//! prints a notice.

use std::path::Path;

use super::*;

/// Recordings for which the index, written by a simpler reader, differs.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    (
        "vercel-ai/cerebras--cererebras-structured-output-tools.1.sse",
        "calls",
        "three responses one after the other: two calls of index 0 with ids of their own, and not one call with both arguments",
    ),
    (
        "pydantic-ai/test_openrouter--test_openrouter_stream_error.0.sse",
        "failure",
        "an error object: the answer has failed, although it had a finish reason before",
    ),
];

fn differs(file: &str, what: &str) -> bool {
    DIFFERENCES.iter().any(|(of, field, _)| (*of, *field) == (file, what))
}

#[test]
fn recorded_streams_give_what_was_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/recordings");
    let Ok(index) = std::fs::read(folder.join("index.json")) else {
        eprintln!("SKIPPED, nothing was tested: recorded streams are expected in {}", folder.display());
        return;
    };
    let index: Vec<Value> = serde_json::from_slice(&index).unwrap();
    assert!(index.len() >= 30, "{} recordings", index.len());
    for entry in &index {
        let file = entry["file"].as_str().unwrap();
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let whole = read(&bytes);
        let chars = |text: &str| json!(text.encode_utf16().count());
        let is_length =
            |text: &str, key: &str| entry[key] == chars(text) || entry[key] == json!(text.chars().count());
        assert!(is_length(&whole.text, "text_chars"), "{file}: text of {}", chars(&whole.text));
        assert!(
            is_length(&whole.reasoning, "reasoning_chars"),
            "{file}: reasoning of {}",
            chars(&whole.reasoning)
        );
        let begins = |text: &str, key: &str| text.starts_with(entry[key].as_str().unwrap_or_default());
        assert!(begins(&whole.text, "text") && begins(&whole.reasoning, "reasoning"), "{file}");
        let calls: Vec<String> = entry["calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| format!("{} {}", call["name"].as_str().unwrap(), call["arguments"].as_str().unwrap()))
            .collect();
        if !differs(file, "calls") {
            assert_eq!(whole.calls, calls, "{file}");
            assert_eq!(whole.shown, calls, "{file}");
        }
        let finish = whole.finish.map(Finish::name);
        assert_eq!(json!(finish), entry["finish"], "{file}");
        let usage = TokenCounts::of_usage(&entry["usage"]).max(TokenCounts::of_usage(&entry["xusage"]));
        assert_eq!(whole.counts, (usage.input(), usage.output()), "{file}");
        let has_errors = entry["errors"].as_array().is_some_and(|errors| !errors.is_empty());
        assert_eq!(whole.failure.is_some(), has_errors, "{file}: {:?}", whole.failure);
        for size in [1, 13, 1_000] {
            assert_eq!(read_pieces(bytes.chunks(size)), whole, "{file} in pieces of {size}");
        }
    }
}
