//! Refused payloads that carry the token of a turn.

use super::*;

fn refused(token: &TurnToken) -> EntryBody {
    let answer =
        RefusedAnswer { thread: thread("t"), token: token.clone(), dead_letter: "entry:0:1:2".to_owned() };
    EntryBody::Refused {
        subject: "chunks.0.t".into(),
        payload: "?".into(),
        refusal: RejectedEntry { code: "invalid_chunk", detail: "chunk_id is -1".to_owned() },
        answer: Some(answer),
    }
}

fn failures(script: &TurnScript) -> Vec<(&str, &str)> {
    let failed = script.commits.iter().flat_map(|commit| &commit.failed_turns);
    failed.map(|failed| (failed.code.as_str(), failed.text.as_str())).collect()
}

#[test]
fn a_refused_payload_fails_the_turn_of_its_token_at_once() {
    for words in [&[][..], &["some", "text"]] {
        let mut script = TurnScript::new();
        script.open("x");
        let start = script.last_start();
        if !words.is_empty() {
            script.say(0, words);
        }
        script.entry(refused(&start.token));
        let text = "a chunk of the answer was refused: chunk_id is -1 (dead letter entry:0:1:2)";
        assert_eq!(failures(&script), [("invalid_chunk", text)]);
        let letters: usize = script.commits.iter().map(|commit| commit.dead_letters.len()).sum();
        assert_eq!(letters, 1, "the payload is kept");
        let ends: Vec<_> = script.endings.iter().map(|end| end.outcome.clone()).collect();
        assert!(matches!(&ends[..], [MessageOutcome::Failed(MessageFailure::Refused { .. })]), "{ends:?}");
        // The turn fails once, whatever comes after it.
        script.entry(refused(&start.token));
        script.say_as(&start, 0, 0, &["late!"]);
        assert_eq!(failures(&script).len(), 1);
    }
}

#[test]
fn a_token_that_is_not_the_turns_own_changes_nothing() {
    let mut script = TurnScript::new();
    script.open("x");
    let start = script.last_start();
    let other = key().token(&thread("t"), &turn("x"), 1);
    for token in [TurnToken::received("guess"), other, key().token(&thread("t"), &turn("y"), 0)] {
        script.entry(refused(&token));
    }
    assert_eq!(failures(&script), []);
    script.say_as(&start, 0, 0, &["all is well!"]);
    assert_eq!(script.commits.iter().flat_map(|commit| &commit.turns).count(), 1);
}

/// When the stream is read again, the input is checked first.
#[test]
fn a_refused_payload_waits_for_the_input_of_its_turn() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.command(opened("x", 0, BusyPolicy::Enqueue));
    script.entry(refused(&key().token(&thread("t"), &turn("x"), 0)));
    assert_eq!(script.machine.stats(script.now).active_turns, 0);
    script.auto = true;
    let asked = script.checks.pop().unwrap();
    script.handle(Input::Checked(vec![(asked, CommandVerdict::New)]));
    // The commit of the dead letter.
    script.handle(Input::Committed(Vec::new()));
    assert_eq!(failures(&script).iter().map(|(code, _)| *code).collect::<Vec<_>>(), ["invalid_chunk"]);
}

#[test]
fn a_task_whose_workflow_breaks_the_contract_is_given_up() {
    let mut script = TurnScript::new();
    script.task("t1");
    let start = script.last_start();
    let mut body = refused(&start.token);
    if let EntryBody::Refused { answer: Some(answer), .. } = &mut body {
        answer.thread = start.thread.clone();
    }
    script.entry(body);
    let failed: Vec<_> = script.commits.iter().flat_map(|commit| &commit.failed_tasks).collect();
    assert_eq!((failed.len(), failed[0].code.as_str()), (1, "invalid_chunk"));
}

#[test]
fn the_code_of_a_workflow_is_the_code_of_the_failure() {
    let code = |metadata: serde_json::Value| {
        let mut script = TurnScript::new();
        script.open("x");
        let start = script.last_start();
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        let error = Chunk { kind: ChunkKind::Error, metadata, ..Chunk::content(0, "no model", true) };
        let chunks = vec![IncomingChunk {
            message: start.turn.answer(0),
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: error.into(),
        }];
        let frame = Frame { thread: start.thread.clone(), chunks, token: Some(start.token) };
        script.entry(EntryBody::Frame(frame));
        let failed = script.commits.iter().flat_map(|commit| &commit.failed_turns).next().unwrap();
        (failed.code.clone(), failed.text.clone())
    };
    let text = || "no model".to_owned();
    assert_eq!(code(json!({"code": "rate_limited"})), ("rate_limited".to_owned(), text()));
    for metadata in [
        json!({}),
        json!({"code": ""}),
        json!({"code": "a b"}),
        json!({"code": 7}),
        json!({"code": "x".repeat(65)}),
    ] {
        assert_eq!(code(metadata), ("producer_error".to_owned(), text()));
    }
}
