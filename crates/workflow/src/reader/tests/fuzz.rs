//! Streams with random changes: no panic, the same result wherever they are cut, and no empty
//! answer that counts as complete.
//!
//! `cargo xtask fuzz reader N` reads N of them.

use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;

/// Number of streams in a test run; `ANTIPHON_FUZZ_STREAMS` overrides it.
const STREAMS: u64 = 2_000;

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the number of streams comes from the command that runs the test"
)]
fn mutated_streams_are_whole_or_a_named_failure() {
    let count =
        std::env::var("ANTIPHON_FUZZ_STREAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(STREAMS);
    let completions = streams();
    assert!(completions.len() > 40, "{} streams to begin with", completions.len());
    let completions = (Interface::ChatCompletions, completions);
    // Half of the streams are chat completions.
    let mut seeds = vec![completions.clone(), completions.clone(), completions];
    for (interface, events) in providers::samples() {
        let stream = events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>();
        seeds.push((interface, vec![stream.into_bytes()]));
    }
    let (mut whole, mut failed) = (0_u64, 0_u64);
    for seed in 0..count {
        let mut random = SmallRng::seed_from_u64(seed);
        // Each interface is read as itself, and sometimes as another one.
        let (interface, seeds) = seeds.choose(&mut random).unwrap();
        let interface = if random.random_range(0..20) == 0 { Interface::Anthropic } else { *interface };
        let bytes = mutated(seeds, &mut random);
        let read_whole = read_as(interface, [bytes.as_slice()]);
        check(&read_whole, seed);
        let size = random.random_range(1..64);
        assert_eq!(read_as(interface, bytes.chunks(size)), read_whole, "seed {seed} in pieces of {size}");
        match read_whole.failure {
            None => whole += 1,
            Some(_) => failed += 1,
        }
    }
    println!("{count} mutated streams: {whole} whole, {failed} with a named failure");
    assert!(whole > count / 20 && failed > count / 20, "{whole} whole and {failed} failed");
}

fn check(whole: &Whole, seed: u64) {
    if let Some(code) = &whole.failure {
        assert!(!code.is_empty(), "seed {seed}");
        return;
    }
    let is_cut = whole.finish.is_some_and(Finish::is_cut);
    let is_empty = whole.text.trim().is_empty() && whole.calls.is_empty();
    assert!(!is_empty || is_cut, "seed {seed}: a silent empty answer: {whole:?}");
    for arguments in &whole.arguments {
        let is_object = serde_json::from_str::<serde_json::Map<String, Value>>(arguments).is_ok();
        assert!(is_object, "seed {seed}: {arguments}");
    }
    for text in [&whole.text, &whole.reasoning] {
        assert!(!text.contains(units::MARK), "seed {seed}: {text:?}");
    }
}

/// Streams that the other tests use.
fn streams() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/main/inputs");
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let folders = list(&folder).into_iter().filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| list(&folder));
    let streams = files.filter(|path| path.extension().is_some_and(|kind| kind == "sse"));
    streams.map(|path| std::fs::read(path).unwrap()).chain([sample().into_bytes()]).collect()
}

/// Tokens that a reader interprets, and unexpected ones.
const TOKENS: [&[u8]; 30] = [
    b"\n",
    b"\r",
    b"\n\n",
    b"data: ",
    b"data: [DONE]\n\n",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"NaN",
    b"1e999",
    b"-1",
    b"{}",
    b"[]",
    b"\\ud83d",
    b"\\udea4",
    b"\xF0\x9F",
    b"\x9A\xA4",
    b"\xFF",
    b"\0",
    b"true",
    b"\"content\"",
    b"\"tool_calls\"",
    b"\"finish_reason\":\"stop\"",
    b"event: error\n",
];

fn mutated(seeds: &[Vec<u8>], random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = seeds.choose(random).cloned().unwrap_or_default();
    for _ in 0..random.random_range(1..5) {
        let at = random.random_range(0..=bytes.len());
        let to = (at + random.random_range(0..24)).min(bytes.len());
        match random.random_range(0..8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => {
                drop(bytes.splice(at..to, TOKENS.choose(random).copied().unwrap_or_default().iter().copied()))
            }
            3 => {
                drop(bytes.splice(at..at, TOKENS.choose(random).copied().unwrap_or_default().iter().copied()))
            }
            4 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
            // Reorders, repeats or drops events.
            5 => with_events(&mut bytes, |events| {
                let (one, other) =
                    (random.random_range(0..events.len()), random.random_range(0..events.len()));
                events.swap(one, other);
            }),
            6 => with_events(&mut bytes, |events| {
                let one = random.random_range(0..events.len());
                events.insert(one, events[one].clone());
            }),
            _ => {
                let other = seeds.choose(random).cloned().unwrap_or_default();
                let from = random.random_range(0..=other.len());
                bytes.splice(at..to, other[from..].iter().copied());
            }
        }
    }
    bytes
}

fn with_events(bytes: &mut Vec<u8>, change: impl FnOnce(&mut Vec<String>)) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut events: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
    change(&mut events);
    *bytes = events.join("\n\n").into_bytes();
}
