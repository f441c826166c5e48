//! Looking at threads, copying and erasing them.

use gateway::shown::{self, ShownThread};
use model::{Position, ThreadId};
use serde_json::{Map, Value, json};
use store::{Store, TABLES_OF_THREADS};

use super::options::{Erase, Fork, ShowThread};
use super::{output, stored, unknown};
use crate::roles::Stop;

/// Where something of a thread may be that no command reaches.
const ELSEWHERE: [(&str, &str); 4] = [
    ("audit", "who stopped, retried, mended or dropped what; no texts"),
    ("outbox", "ends of turns that are not published yet; gone in seconds"),
    ("streams", "chunks, inputs and ends of turns in NATS; they leave with the retention of the streams"),
    ("copies", "backups of Postgres, exports, and forks of the thread"),
];

pub(super) async fn show(store: &Store, options: &ShowThread) -> Result<(), Stop> {
    let json = output::json(&ShownThread::of_fleet(&stored(store, &options.thread).await?));
    output::print(options.database.format, &json, || output::pairs(&json))
}

pub(super) async fn fork(store: &Store, options: &Fork) -> Result<(), Stop> {
    let (thread, new) = (&options.thread, &options.new);
    stored(store, thread).await?;
    not_erased(store, new).await?;
    if let Some(at) = options.at
        && store.batches(thread, &[at]).await?.is_empty()
    {
        return Err(Stop::Failed(format!("there is no batch {at} in thread {thread}")));
    }
    let copied = store.fork(thread, new, options.at.unwrap_or(Position::MAX)).await?;
    let Some(messages) = copied else {
        return Err(Stop::Failed(format!("there is a thread {new} already")));
    };
    let json = json!({ "thread_id": new.as_str(), "forked_from": thread.as_str(), "at": options.at, "message_count": messages });
    output::print(options.database.format, &json, || output::pairs(&json))
}

/// Fails for a thread that was erased and not named again since.
pub(super) async fn not_erased(store: &Store, thread: &ThreadId) -> Result<(), Stop> {
    let Some(erased) = store.erased(thread).await? else { return Ok(()) };
    match store.thread(thread).await? {
        Some(_) => Ok(()),
        None => {
            let at = shown::rfc3339(erased.at).unwrap_or_default();
            Err(Stop::Failed(format!("thread {thread} was erased at {at} by {}", erased.actor)))
        }
    }
}

pub(super) async fn erase(store: &Store, options: &Erase) -> Result<(), Stop> {
    let thread = &options.thread;
    let there = store.rows_of_thread(thread).await?;
    if there.iter().all(|(_, rows)| *rows == 0) && store.erased(thread).await?.is_none() {
        return Err(unknown(thread));
    }
    if !options.yes {
        let tables: Map<String, Value> =
            there.iter().map(|(table, rows)| ((*table).to_owned(), json!(rows))).collect();
        output::note("nothing was erased; --yes erases");
        return receipt(options, json!({ "thread_id": thread.as_str(), "erased": false, "tables": tables }));
    }
    store.mark_erased(thread, &options.actor).await?;
    // Again until nothing is there: what was under way may have been written meanwhile.
    loop {
        let mut gone = 0;
        for table in TABLES_OF_THREADS {
            loop {
                match store.erase_rows(thread, table).await? {
                    0 => break,
                    rows => gone += rows,
                }
            }
        }
        if gone == 0 {
            break;
        }
    }
    let erased = store.erased(thread).await?.ok_or_else(|| unknown(thread))?;
    let json = json!({
        "thread_id": thread.as_str(),
        "erased": true,
        "erased_at": shown::rfc3339(erased.at),
        "actor": erased.actor,
        "tables": erased.counts,
        "elsewhere": ELSEWHERE.iter().map(|(place, what)| ((*place).to_owned(), json!(what))).collect::<Map<_, _>>(),
    });
    receipt(options, json)
}

fn receipt(options: &Erase, json: Value) -> Result<(), Stop> {
    let table = || {
        let mut table = output::Table::new(["TABLE", "ROWS"]);
        for (name, rows) in json["tables"].as_object().into_iter().flatten() {
            table.row([name.clone(), output::cell(rows)]);
        }
        for (place, what) in json["elsewhere"].as_object().into_iter().flatten() {
            table.row([format!("not: {place}"), output::cell(what)]);
        }
        table
    };
    output::print(options.database.format, &json, table)
}
