//! The bytes of every scenario in every protocol, from `tests/golden/<protocol>/<scenario>.txt`.
//! `GOLDEN=write` rewrites the files: read the diff before you commit it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use protocols::{Protocol, chat_completions, request::RequestRejection, responses::Resume};

use crate::encoders::{self, ALL, NAMES};
use crate::scenarios::{self, encode_all};

#[test]
fn the_streams() {
    for name in ALL {
        for scenario in scenarios::all() {
            let bytes = encode_all(&mut *encoders::of(name), &scenario.events());
            check(&format!("{name}/{}.txt", scenario.name), &bytes);
        }
    }
}

#[test]
fn the_objects() {
    for scenario in scenarios::all() {
        let mut response = encoders::response(false, Resume::Start);
        let mut completion = encoders::completion();
        for happening in scenario.events() {
            response.apply(happening);
            assert_eq!(completion.object(), None, "only at the end");
            completion.apply(happening);
        }
        check(&format!("responses/{}.json", scenario.name), &line(&response.object()));
        let object = completion.object().unwrap().unwrap_or_else(|failure| {
            chat_completions::error_body(&RequestRejection::new(502, &*failure.code, &*failure.text)).bytes
        });
        check(&format!("chat_completions/{}.json", scenario.name), &line(&object));
    }
}

#[test]
fn no_reader_breaks_a_line_where_none_ends() {
    for name in NAMES {
        for scenario in scenarios::all() {
            let encoded = encode_all(&mut *encoders::of(name), &scenario.events());
            let text = String::from_utf8(encoded).unwrap();
            assert!(!text.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r']), "{name} {}", scenario.name);
            for event in text.split_terminator("\n\n") {
                let lines: Vec<&str> = event.lines().collect();
                let is_event = |line: &str| line.starts_with("data: ") || line.starts_with("event: ");
                assert!(lines.len() <= 2 && lines.iter().all(|line| is_event(line)), "{event:?}");
            }
        }
    }
}

#[test]
fn a_stream_grows_no_faster_than_its_answer() {
    for name in NAMES {
        let size =
            |pieces| encode_all(&mut *encoders::of(name), &scenarios::alternating(pieces).events()).len();
        let (short, long) = (size(100), size(400));
        assert!(long < 5 * short, "{name}: {short} bytes of 100 pieces, {long} of 400");
    }
}

fn line(json: &[u8]) -> Vec<u8> {
    [json, b"\n"].concat()
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Compares bytes with a golden file.
pub(crate) fn check(file: &str, bytes: &[u8]) {
    let path = folder().join(file);
    if is_writing() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    let golden = fs::read(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (golden, encoded) = (String::from_utf8(golden).unwrap(), String::from_utf8_lossy(bytes));
    let differs = |(line, (a, b)): (usize, (&str, &str))| (a != b).then(|| format!("line {line}:\n{a}\n{b}"));
    let first = golden.lines().zip(encoded.lines()).enumerate().find_map(differs);
    assert!(golden == encoded, "{file} differs: {}", first.unwrap_or_else(|| "in its length".to_owned()));
}

#[allow(clippy::disallowed_methods, reason = "a test has no command line")]
fn is_writing() -> bool {
    env::var("GOLDEN").is_ok_and(|value| value == "write")
}
