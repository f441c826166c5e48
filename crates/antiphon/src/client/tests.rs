//! Compares the table with the description of the API, and checks the requests of command lines.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Command;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};

use super::arguments::{Call, Pages, with_commands};
use super::description::{Operation, secured_operations};
use super::refusal::refusal;
use super::table::{ApiCommand, COMMANDS, NOUNS, rows};
use crate::exit::ExitError;
use crate::options::Options;

/// Operations without a command.
const WITHOUT_COMMAND: &[&str] = &[
    // Protocols whose clients are libraries.
    "postChat",
    "listChatMessages",
    "resumeChat",
    "stopChat",
    "createCompletion",
    "listModels",
    "showModel",
    "createResponse",
    "listInputItems",
    "showResponse",
    "cancelResponse",
    "runAgent",
    "connectAgent",
];

fn call(words: &str) -> Result<Call, ExitError> {
    let words = words.split(' ').map(|word| word.replace('_', " "));
    let matches =
        Options::whole_command().try_get_matches_from(["antiphon".to_owned()].into_iter().chain(words));
    Call::read(&matches.unwrap()).unwrap()
}

fn refused(words: &str) -> String {
    let words = ["antiphon"].into_iter().chain(words.split(' '));
    Options::whole_command().try_get_matches_from(words).unwrap_err().to_string()
}

#[test]
fn every_operation_has_a_command() {
    let described: BTreeSet<_> = secured_operations().into_iter().collect();
    let called = COMMANDS.iter().map(|command| command.operation);
    let known: BTreeSet<_> = called.chain(WITHOUT_COMMAND.iter().copied()).map(str::to_owned).collect();
    let missing: Vec<_> = described.difference(&known).collect();
    assert!(missing.is_empty(), "give them rows in client/commands.txt: {missing:?}");
    let unknown: Vec<_> = known.difference(&described).collect();
    assert!(unknown.is_empty(), "no operation has these ids: {unknown:?}");
}

#[test]
fn the_table_fits_the_description() {
    for line in rows() {
        assert!(ApiCommand::read(line).is_some(), "this is no command: {line}");
    }
    for row in COMMANDS.iter() {
        let operation = Operation::of(row.operation).unwrap();
        let names: Vec<_> = operation.inputs.iter().map(|input| input.name.as_str()).collect();
        let used = row.arguments.iter().copied().chain(row.flags.iter().map(|(name, _)| *name));
        for name in used {
            assert!(names.contains(&name), "{} {}: {name} is none of {names:?}", row.noun, row.verb);
        }
        // The client reads pages of this size.
        let limit = operation.inputs.iter().find(|input| input.name == "limit");
        assert!(limit.is_none_or(|limit| limit.maximum > Some(1)), "{} {}", row.noun, row.verb);
    }
    let nouns: BTreeSet<_> = COMMANDS.iter().map(|row| row.noun).collect();
    let mut last = "";
    for row in COMMANDS.iter() {
        assert!(row.noun >= last, "{} stands behind {last}", row.noun);
        last = row.noun;
    }
    assert!(NOUNS.iter().all(|(noun, _)| nouns.contains(noun)));
    with_commands(Command::new("antiphon")).debug_assert();
}

#[test]
fn arguments_and_flags_become_a_request() {
    let sent =
        call("tasks send ann do_it --task-id t1 --metadata {\"a\":[1]} --actor ada --url http://h:1/x/")
            .unwrap();
    assert_eq!((sent.method.as_str(), sent.path.join("/")), ("POST", "v1/agents/ann/tasks".to_owned()));
    assert_eq!(sent.headers, [("X-Antiphon-Actor".to_owned(), "ada".to_owned())]);
    let body = serde_json::json!({"content": "do it", "task_id": "t1", "metadata": {"a": [1]}});
    assert_eq!((sent.body, sent.server.url.as_str()), (Some(body), "http://h:1/x/"));

    let edited = call("tasks edit ann t1 --body {\"content\":\"a\",\"metadata\":{}} --content b").unwrap();
    assert_eq!(edited.body, Some(serde_json::json!({"content": "b", "metadata": {}})));
    assert_eq!(call("agents pause ann").unwrap().body, None);
    assert_eq!(call("turns drop a/b t~1").unwrap().path[2], "a/b", "it is escaped in the address");

    let list = call("tasks list ann --status failed --limit 500").unwrap();
    assert_eq!(list.query, [("status".to_owned(), "failed".to_owned())]);
    assert_eq!(list.pages, Some(Pages { wanted: Some(500), longest: 200 }));
    assert_eq!(call("agents list").unwrap().pages, Some(Pages { wanted: None, longest: 200 }));
    assert_eq!(
        call("agents list --all").unwrap().pages,
        Some(Pages { wanted: Some(u64::MAX), longest: 200 })
    );
}

#[test]
fn erasures_change_nothing_without_yes_and_are_awaited() {
    let dry = call("threads erase t").unwrap();
    assert_eq!((dry.method.as_str(), dry.path.join("/")), ("DELETE", "v1/threads/t".to_owned()));
    assert_eq!(dry.query, [("dry_run".to_owned(), "true".to_owned())]);
    assert_eq!((dry.is_confirmed, dry.wait), (false, Some(Duration::from_secs(300))));
    let sent = call("tenants erase acme --yes --wait-seconds 0").unwrap();
    assert_eq!((sent.query.len(), sent.is_confirmed, sent.wait), (0, true, Some(Duration::ZERO)));
    let look = sent.to_place("/v1/erasures/x");
    assert_eq!((look.method.as_str(), look.path.join("/")), ("GET", "v1/erasures/x".to_owned()));
    assert!(refused("threads erase t --dry-run").contains("--dry-run"), "--yes decides");
}

#[test]
fn an_import_sends_a_file_as_it_is() {
    let sent = call("import --file a/b.jsonl --keep-invalid --actor ada").unwrap();
    assert_eq!((sent.method.as_str(), sent.path.join("/")), ("POST", "v1/import".to_owned()));
    assert_eq!((sent.file, sent.body), (Some("a/b.jsonl".into()), None));
    assert_eq!(sent.query, [("keep_invalid".to_owned(), "true".to_owned())]);
    assert_eq!(sent.headers, [("X-Antiphon-Actor".to_owned(), "ada".to_owned())]);
    assert_eq!(call("import").unwrap().file, None, "standard input");
}

#[test]
fn wrong_words_are_refused_before_anything_is_sent() {
    assert!(refused("tasks send ann").contains("<content>"), "{}", refused("tasks send ann"));
    assert!(refused("tasks send ann x --metadata []").contains("it is not a JSON object"));
    assert!(refused("agents list --limit ten").contains("it is not a number"));
    assert!(refused("agents list --all --limit 3").contains("cannot be used with"));
    assert!(refused("agents pause").contains("<agent>"));
    assert!(call("agents show ..").is_err(), "an address would lose it");
    assert!(call("tasks send ann x --body nonsense").is_err());
}

#[test]
fn refusals_say_what_to_do_and_choose_the_exit_code() {
    let sent = call("agents list --api-key k").unwrap();
    let why = |status: u16, code: &str, retryable: bool| {
        let body = serde_json::json!({"code": code, "detail": "why", "retryable": retryable}).to_string();
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("5"))]);
        refusal(&sent, StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes())
    };
    for (status, code, retryable, line) in [
        (400, "invalid_limit", false, "why (invalid_limit)"),
        (422, "idempotency_key_reused", false, "why (idempotency_key_reused)"),
    ] {
        assert!(
            matches!(why(status, code, retryable), ExitError::Configuration(said) if said == line),
            "{code}"
        );
    }
    for (status, code, retryable, line) in [
        (404, "unknown_agent", false, "why (unknown_agent)"),
        (503, "nats_unavailable", true, "why (nats_unavailable): try again in 5 s"),
        (
            403,
            "insufficient_scope",
            false,
            "why (insufficient_scope): use a key that has it; `antiphon keys list` shows what keys may",
        ),
    ] {
        assert!(matches!(why(status, code, retryable), ExitError::Failed(said) if said == line), "{code}");
    }
    let proxy = refusal(&sent, StatusCode::BAD_GATEWAY, &HeaderMap::new(), b"<html>");
    assert!(
        matches!(proxy, ExitError::Failed(said) if said.contains("is ANTIPHON_URL the address of a gateway?"))
    );
}
