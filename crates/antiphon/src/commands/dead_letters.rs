//! Dead letters: inputs given up on. Lists, shows, replays and drops them.

use gateway::views;
use serde_json::{Value, json};
use store::{DeadLetterId, ReplayClaim, Store, StoredDeadLetter};

use super::command_id::new_command_id;
use super::timeouts::SERVER_TIMEOUT;
use crate::connect::connect_own_bus;
use crate::exit::ExitError;
use crate::options::{DropDeadLetter, ListDeadLetters, ReplayDeadLetter, ShowDeadLetter};
use crate::output;

pub(super) async fn list(store: &Store, options: &ListDeadLetters) -> Result<(), ExitError> {
    let limit = options.limit;
    let mut letters =
        store.list_dead_letters(options.reason.as_deref(), options.next.as_ref(), limit + 1).await?;
    let has_more = letters.len() > limit as usize;
    letters.truncate(limit as usize);
    let next = letters.last().filter(|_| has_more).map(|last| last.cursor().text());
    let shown: Vec<Value> = letters.iter().map(shown).collect();
    let json = json!({ "dead_letters": shown, "next": next });
    output::print(options.database.format, &json, || {
        let mut table =
            output::Table::new(["ID", "REASON", "SUBJECT", "BYTES", "CREATED", "REPLAYED", "DETAIL"]);
        for letter in &shown {
            let cells = [
                &letter["id"],
                &letter["reason"],
                &letter["subject"],
                &letter["bytes"],
                &letter["created_at"],
                &letter["replayed_at"],
                &letter["detail"]["text"],
            ];
            table.row(cells.map(output::cell));
        }
        table
    })
}

pub(super) async fn show(store: &Store, options: &ShowDeadLetter) -> Result<(), ExitError> {
    let letter = store.dead_letter(&options.letter).await?.ok_or_else(|| unknown(&options.letter))?;
    let mut json = shown(&letter);
    // Text where it is, for people; the bytes in any case.
    json["text"] = json!(std::str::from_utf8(&letter.raw).ok());
    json["hex"] = json!(letter.raw.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

pub(super) async fn replay(store: &Store, options: &ReplayDeadLetter) -> Result<(), ExitError> {
    let id = &options.letter;
    if id.kind != "entry" {
        let why = "a message that failed is not replayed: its clients were told so, and what it lacks is still missing";
        return Err(ExitError::Failed(why.to_owned()));
    }
    let bus = connect_own_bus(store, &options.nats, "antiphon dead-letters", SERVER_TIMEOUT).await?;
    let letter = match store.claim_replay(id).await? {
        ReplayClaim::Claimed(letter) => letter,
        ReplayClaim::Replayed => {
            return Err(ExitError::Failed(format!("{} was replayed already", id.text())));
        }
        ReplayClaim::Busy => {
            return Err(ExitError::Failed(format!(
                "{} is being replayed; look again in a minute",
                id.text()
            )));
        }
        ReplayClaim::Unknown => return Err(unknown(id)),
    };
    let subject =
        letter.subject.as_deref().ok_or_else(|| ExitError::Failed("it has no subject".to_owned()))?;
    // The number of partitions may be another one by now, or the publisher did not know it.
    let place = store.partition_count().await?.and_then(|count| wire::subject::in_fleet(count, subject));
    let subject = place.as_ref().map_or(subject, |(_, subject)| subject);
    // The encoding is detected by the first byte, as it was when it was read. The id: who fails between this and the next line and tries again
    // within two minutes puts nothing into the stream; later, the ids in the payload see to it.
    let stored = bus
        .publish_with_id(subject, letter.raw.clone(), None, &format!("replay.{}", id.text()), SERVER_TIMEOUT)
        .await?;
    let is_ours = store.replayed(id, &new_command_id()?, &options.actor).await?;
    let json =
        json!({ "id": id.text(), "replayed": is_ours, "stream": stored.stream, "stream_seq": stored.seq.0 });
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

pub(super) async fn drop(store: &Store, options: &DropDeadLetter) -> Result<(), ExitError> {
    if !store.drop_dead_letter(&options.letter, &new_command_id()?, &options.actor).await? {
        return Err(unknown(&options.letter));
    }
    let json = json!({ "id": options.letter.text(), "dropped": true });
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

fn unknown(id: &DeadLetterId) -> ExitError {
    ExitError::Failed(format!("there is no dead letter {}", id.text()))
}

fn shown(letter: &StoredDeadLetter) -> Value {
    json!({
        "id": letter.id.text(),
        "kind": letter.id.kind,
        "partition": letter.partition.0,
        "stream_seq": letter.seq.0,
        "subject": letter.subject,
        "thread_id": letter.owner(),
        "message_id": letter.message,
        "reason": letter.reason,
        "detail": letter.detail,
        "bytes": letter.raw.len(),
        "created_at": views::rfc3339(letter.created_at),
        "replayed_at": letter.replayed_at.and_then(views::rfc3339),
    })
}
