//! Reasoning sessions: what an agent sees of them, what was compressed, and taking that back.

use std::io::{self, Write};

use model::ReasoningSessionId;
use reasoning::message_id;
use runtime::escape::is_unsafe;
use serde_json::{Value, json};
use store::{DiscardedLayer, DiscardedMessage, Store};

use crate::exit::ExitError;
use crate::options::{DiscardedReasoning, MessageOfReasoning, OutputFormat, UndoReasoning, ViewReasoning};
use crate::output;

/// In the audit log.
const ACTOR: &str = "cli";

pub(super) async fn view(store: &Store, options: &ViewReasoning) -> Result<(), ExitError> {
    let session = &options.session;
    let seen = store.reasoning_thread(session, true, None).await?.ok_or_else(|| unknown(session))?;
    let view = seen.view(options.plan);
    if let OutputFormat::Json = options.database.format {
        let json = json!({
            "session_id": session.as_str(), "agent_id": seen.session.agent.as_str(), "messages": seen.thread.len(),
            "token": seen.token().to_string(), "view": view,
        });
        return output::print(options.database.format, &json, || output::key_value_table(&json));
    }
    let mut out = io::stdout().lock();
    // Without characters that move the cursor of a terminal, but with lines.
    let plain: String = view.chars().map(|c| if is_unsafe(c) && c != '\n' { ' ' } else { c }).collect();
    writeln!(out, "{plain}").map_err(|error| output::write_error(&error))
}

pub(super) async fn undo(store: &Store, options: &UndoReasoning) -> Result<(), ExitError> {
    let session = &options.session;
    let seen = store.restorable_reasoning(session).await?.ok_or_else(|| unknown(session))?;
    let Some(summary) = seen.summary else {
        return Err(ExitError::Failed(format!("session {session} has no compression to take back")));
    };
    if !store.undo_reasoning(session, &seen, None, ACTOR).await? {
        return Err(ExitError::Failed(format!("session {session} has changed meanwhile: look at it again")));
    }
    let now = store.reasoning_thread(session, false, None).await?.ok_or_else(|| unknown(session))?;
    if let Some(thread) = &now.session.applies_to {
        store.apply_reasoning(session, thread, ACTOR).await.map_err(|error| {
            ExitError::Failed(format!(
                "the compression was taken back, but the contexts of thread {thread} have not changed yet: {error}. The next change of the \
                 session makes them so; do not repeat the command, which would take back one more"
            ))
        })?;
    }
    let json = json!({ "session_id": session.as_str(), "undone": message_id(summary) });
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

pub(super) async fn discarded(store: &Store, options: &DiscardedReasoning) -> Result<(), ExitError> {
    let session = &options.session;
    store.restorable_reasoning(session).await?.ok_or_else(|| unknown(session))?;
    let page = store.discarded_reasoning(session, options.next, options.limit).await?;
    let compressions: Vec<Value> = page.layers.iter().map(shown).collect();
    let next = page.next.map(|next| next.to_string());
    let json = json!({ "session_id": session.as_str(), "compressions": compressions, "next": next });
    output::print(options.database.format, &json, || {
        let mut table = output::Table::new(["LAYER", "SUMMARY", "BY", "TAKEN BACK BY", "ROLE", "TEXT"]);
        for compression in &compressions {
            let cells =
                ["layer", "summary_id", "actor", "undone_by"].map(|key| output::cell(&compression[key]));
            let [layer, id, actor, undone] = cells;
            table.row([
                layer,
                id,
                actor,
                undone,
                "summary".to_owned(),
                output::cell(&compression["summary"]),
            ]);
            for original in compression["originals"].as_array().into_iter().flatten() {
                let none = String::new;
                let cells = ["message_id", "role", "content"].map(|key| output::cell(&original[key]));
                let [id, role, content] = cells;
                table.row([none(), id, none(), none(), role, content]);
            }
        }
        if let Some(next) = &next {
            let none = String::new;
            table.row([none(), none(), none(), none(), "more".to_owned(), format!("--next {next}")]);
        }
        table
    })
}

pub(super) async fn message(store: &Store, options: &MessageOfReasoning) -> Result<(), ExitError> {
    let (session, number) = (&options.session, options.number);
    let read = store.reasoning_message(session, number).await?.ok_or_else(|| unknown(session))?;
    let last = read.last_number;
    let none = || {
        let why =
            format!("session {session} has no message with the number {number}; its last one is {last}");
        ExitError::Failed(why)
    };
    let message = read.message.ok_or_else(none)?;
    let call = |call: &reasoning::SessionCall| json!({ "id": call.id, "name": call.name, "arguments": call.arguments, "signature": call.signature });
    let json = json!({
        "message_id": message_id(message.number), "role": message.role.name(), "content": message.content,
        "thinking": message.thinking, "thinking_signature": message.signature,
        "tool_calls": message.calls.iter().map(call).collect::<Vec<_>>(), "tool_call_id": message.answers,
        "tool_name": message.tool,
    });
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

fn shown(entry: &DiscardedLayer) -> Value {
    let original = |original: &DiscardedMessage| {
        let message = &original.message;
        json!({
            "message_id": message_id(message.number), "role": message.role.name(), "content": message.content,
            "chars": original.chars, "thinking": message.thinking,
        })
    };
    json!({
        "layer": entry.layer.id, "summary_id": message_id(entry.layer.summary), "summary": entry.summary,
        "count": entry.count, "skipped": entry.skipped, "actor": entry.actor, "undone_by": entry.undone.as_ref().map(|(actor, _)| actor),
        "originals": entry.originals.iter().map(original).collect::<Vec<_>>(),
    })
}

fn unknown(session: &ReasoningSessionId) -> ExitError {
    ExitError::Failed(format!("there is no reasoning session {session}"))
}
