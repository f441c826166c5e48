//! Reasoning sessions: what an agent sees of them, what was compressed, and taking that back.

use std::io::{self, Write};

use model::ReasoningSessionId;
use reasoning::message_id;
use runtime::escape::is_unsafe;
use serde_json::{Value, json};
use store::{DiscardedLayer, Store};

use super::output;
use crate::exit::ExitError;
use crate::options::{DiscardedReasoning, OutputFormat, UndoReasoning, ViewReasoning};

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
    let json = json!({ "session_id": session.as_str(), "undone": message_id(summary) });
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

pub(super) async fn discarded(store: &Store, options: &DiscardedReasoning) -> Result<(), ExitError> {
    let session = &options.session;
    store.restorable_reasoning(session).await?.ok_or_else(|| unknown(session))?;
    let page = store.discarded_reasoning(session, options.before, options.limit).await?;
    let compressions: Vec<Value> = page.iter().map(shown).collect();
    let json = json!({ "session_id": session.as_str(), "compressions": compressions });
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
                let cells = [&original["role"], &original["content"]].map(output::cell);
                let [role, content] = cells;
                table.row([none(), none(), none(), none(), role, content]);
            }
        }
        table
    })
}

fn shown(entry: &DiscardedLayer) -> Value {
    let original = |message: &reasoning::SessionMessage| {
        json!({
            "message_id": message_id(message.number), "role": message.role.name(), "content": message.content,
            "thinking": message.thinking,
        })
    };
    json!({
        "layer": entry.layer.id, "summary_id": message_id(entry.layer.summary), "summary": entry.summary,
        "actor": entry.actor, "undone_by": entry.undone.as_ref().map(|(actor, _)| actor),
        "originals": entry.originals.iter().map(original).collect::<Vec<_>>(),
    })
}

fn unknown(session: &ReasoningSessionId) -> ExitError {
    ExitError::Failed(format!("there is no reasoning session {session}"))
}
