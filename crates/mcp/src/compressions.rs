//! Tools that compress and undo.

use auth::Permission;
use model::{ReasoningSessionId, quoting};
use reasoning::{
    Compression, CompressionRequest, Reason, Refusal, Selection, compress, message_id, restorable,
};
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use store::{EarlierCompression, EarlierReturn, ReasoningThread, RequestId, UndoneReasoning};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::ToolArguments;
use crate::context::ToolContext;
use crate::tools::ToolName;

/// Maximum tries of a compression while other calls change the session: of all concurrent writers,
/// one succeeds with each try.
const COMPRESS_TRIES: u32 = 64;

pub(crate) async fn last(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::CompressLast.known())?;
    let selection = Selection::Last(arguments.required_integer("count")?);
    run(context, ToolName::CompressLast, &arguments, selection).await
}

pub(crate) async fn range(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::CompressRange.known())?;
    let selection =
        match (arguments.integer("from")?, arguments.integer("to")?, arguments.integers("numbers")?) {
            (Some(from), Some(to), None) => Selection::Range(from, to),
            (None, None, Some(numbers)) => Selection::Numbers(numbers),
            _ => return Err(ToolError::argument("give either from and to, or numbers")),
        };
    run(context, ToolName::CompressRange, &arguments, selection).await
}

async fn run(
    context: &ToolContext,
    tool: ToolName,
    arguments: &ToolArguments,
    selection: Selection,
) -> Result<ToolAnswer, ToolError> {
    let id = arguments.session(context.tenant.as_ref())?;
    let summary = arguments.required_text("summary")?.to_owned();
    let token = arguments.text("token")?.map(str::to_owned);
    let request = CompressionRequest { selection, summary, token };
    let digest = arguments.digest(tool.as_str());
    let once = arguments.name("request_id")?.map(|id| RequestId { id, digest: &digest });
    require_its_thread(context, &id).await?;
    let mut seen = read(context, &id, once).await?;
    for _ in 0..COMPRESS_TRIES {
        if let (Some(earlier), Some(once)) = (&seen.earlier, once) {
            let answer = repeated(earlier, once)?;
            return applied(context, &seen, answer).await;
        }
        let decided = compress(&seen.thread, &request)?;
        let written =
            context.store.compress_reasoning(&seen, &decided, &request.summary, once, &context.actor);
        if written.await?.is_some() {
            return applied(context, &seen, done(&seen, &decided)).await;
        }
        let now = read(context, &id, once).await?;
        if now.earlier.is_none() && !names_the_same(&request, &seen, &now) {
            return Err(changed(&now, &request));
        }
        seen = now;
    }
    Err(changed(&seen, &request))
}

/// Updates the thread to which the session applies. It runs after each change, and again when a
/// request is repeated, so that a change whose process died is completed.
async fn applied(
    context: &ToolContext,
    seen: &ReasoningThread,
    mut answer: ToolAnswer,
) -> Result<ToolAnswer, ToolError> {
    let Some(thread) = &seen.session.applies_to else { return Ok(answer) };
    let name = quoting::one_line(thread.name());
    let batches = match context.store.apply_reasoning(&seen.session.id, thread, &context.actor).await {
        Ok(batches) => batches,
        // The change itself is stored. An error would look like its failure, and the client would
        // repeat it.
        Err(error) => {
            tracing::warn!(session = %seen.session.id, %error, "a session's change has not reached its thread");
            answer.text.push_str(&format!(
                "\nThe contexts of the thread {name} have not changed yet; the next change of the session makes them so."
            ));
            answer.json["compressed_batches"] = Value::Null;
            return Ok(answer);
        }
    };
    answer.text.push_str(&match batches {
        0 => format!("\nThe contexts of the thread {name} are as they were: only whole batches leave them."),
        1 => format!("\nFrom its next turn on, contexts of the thread {name} have the summary instead of 1 batch."),
        more => format!("\nFrom its next turn on, contexts of the thread {name} have the summary instead of {more} batches."),
    });
    answer.json["compressed_batches"] = batches.into();
    Ok(answer)
}

/// The answer to a request that was executed before.
async fn applied_again(
    context: &ToolContext,
    id: &ReasoningSessionId,
    answer: ToolAnswer,
) -> Result<ToolAnswer, ToolError> {
    let now = read(context, id, None).await?;
    applied(context, &now, answer).await
}

/// Models of the session's thread see its compressions, so changing the session also needs the
/// permission to write threads.
async fn require_its_thread(context: &ToolContext, id: &ReasoningSessionId) -> Result<(), ToolError> {
    let Err(refusal) = context.require(Permission::WriteThreads) else { return Ok(()) };
    match read(context, id, None).await?.session.applies_to {
        Some(_) => Err(refusal),
        None => Ok(()),
    }
}

async fn read(
    context: &ToolContext,
    id: &ReasoningSessionId,
    once: Option<RequestId<'_>>,
) -> Result<ReasoningThread, ToolError> {
    let seen = context.store.reasoning_thread(id, false, once.map(|once| once.id)).await?;
    seen.ok_or_else(ToolError::no_session)
}

/// Whether the request selects the same messages after another call has changed the session. A
/// selection by numbers always does, and one by positions does while messages were only appended. A
/// selection of the last messages never does.
fn names_the_same(request: &CompressionRequest, seen: &ReasoningThread, now: &ReasoningThread) -> bool {
    request.token.is_none()
        && match request.selection {
            Selection::Last(_) => false,
            Selection::Range(..) => now.head == seen.head,
            Selection::Numbers(_) => true,
        }
}

/// The error when another call has changed the session first.
fn changed(now: &ReasoningThread, request: &CompressionRequest) -> ToolError {
    let reason = Reason::Stale { messages: now.thread.len() };
    Refusal { reason, valid: now.thread.valid(&request.selection, 0) }.into()
}

fn repeated(earlier: &EarlierCompression, once: RequestId<'_>) -> Result<ToolAnswer, ToolError> {
    if earlier.digest != once.digest {
        return Err(Refusal::from(Reason::RequestReused(once.id.to_owned())).into());
    }
    let id = message_id(earlier.summary);
    Ok(ToolAnswer {
        text: format!("This request was made before: its summary message is {id}."),
        json: json!({ "summary_id": id, "number": earlier.summary, "layer": earlier.layer, "repeated": true }),
    })
}

fn done(seen: &ReasoningThread, done: &Compression) -> ToolAnswer {
    let (from, to) = done.positions;
    let id = message_id(done.summary);
    let count = done.replaced.len();
    let what = if count == 1 {
        format!("message [{from}]")
    } else {
        format!("{count} messages, [{from}] to [{to}],")
    };
    let mut text = format!("Compressed {what} into [{from}]. The summary message is {id}.");
    if done.is_widened() {
        let (asked_from, asked_to) = done.asked;
        text.push_str(&format!(
            "\nThe range [{asked_from}] to [{asked_to}] was widened to [{from}] to [{to}], so that no call is split from its result."
        ));
    }
    if done.is_longer() {
        text.push_str(&format!(
            "\nWarning: the summary has {} characters, more than the {} that it stands for.",
            done.chars.1, done.chars.0
        ));
    }
    let token = token_after(seen, done);
    text.push_str(&format!("\nThe thread has {} messages now. Snapshot token: {token}", done.messages));
    ToolAnswer {
        text,
        json: json!({
            "summary_id": id, "number": done.summary, "position": from, "from": from, "to": to, "replaced": done.replaced,
            "widened": done.is_widened(), "longer_than_source": done.is_longer(), "messages": done.messages, "token": token,
            "repeated": false,
        }),
    }
}

fn token_after(seen: &ReasoningThread, done: &Compression) -> String {
    seen.thread.token_of(done.shown.numbers()).to_string()
}

pub(crate) async fn undo(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::Undo.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let (wanted, once) = (arguments.name("summary_id")?, arguments.name("request_id")?);
    require_its_thread(context, &id).await?;
    let undone = context.store.undo_newest_reasoning(&id, wanted, once, &context.actor).await?;
    let UndoneReasoning { summary_id, is_repeated, now } = undone.ok_or_else(ToolError::no_session)??;
    if is_repeated {
        let answer = ToolAnswer {
            text: format!(
                "This request was made before: it has taken the compression into {summary_id} back."
            ),
            json: json!({ "summary_id": summary_id, "repeated": true }),
        };
        return applied(context, &now, answer).await;
    }
    let (messages, token) = (now.thread.len(), now.token().to_string());
    let answer = ToolAnswer {
        text: format!(
            "Took the compression into {summary_id} back. The thread has {messages} messages now. Snapshot token: {token}"
        ),
        json: json!({ "summary_id": summary_id, "messages": messages, "token": token, "repeated": false }),
    };
    applied(context, &now, answer).await
}

fn repeated_restore(request: &str, earlier: &EarlierReturn) -> Result<ToolAnswer, ToolError> {
    if earlier.is_undo {
        return Err(Refusal::from(Reason::RequestReused(request.to_owned())).into());
    }
    Ok(ToolAnswer {
        text: "This request was made before: it has returned to its checkpoint.".to_owned(),
        json: json!({ "repeated": true }),
    })
}

/// The result of the same request, if it was executed before.
async fn earlier<'a>(
    context: &ToolContext,
    id: &ReasoningSessionId,
    once: Option<&'a str>,
) -> Result<Option<(&'a str, EarlierReturn)>, ToolError> {
    let Some(request) = once else { return Ok(None) };
    Ok(context.store.earlier_return(id, request).await?.map(|earlier| (request, earlier)))
}

async fn changed_meanwhile(context: &ToolContext, id: &ReasoningSessionId) -> ToolError {
    match read(context, id, None).await {
        Ok(now) => Refusal::from(Reason::Stale { messages: now.thread.len() }).into(),
        Err(error) => error,
    }
}

pub(crate) async fn checkpoint(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::Checkpoint.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    if let Some(name) = arguments.text("name")? {
        reasoning::checkpoint_name(name)?;
        let made = context.store.checkpoint_reasoning(&id, name).await?.ok_or_else(ToolError::no_session)?;
        let layer = made?;
        return Ok(ToolAnswer {
            text: format!("The checkpoint {name:?} names the present state."),
            json: json!({ "name": name, "layer": layer }),
        });
    }
    let seen = context.store.restorable_reasoning(&id).await?.ok_or_else(ToolError::no_session)?;
    let line = |(checkpoint, stands): &(reasoning::Checkpoint, bool)| {
        let name = quoting::one_line(&checkpoint.name);
        format!("\n- {name}{}", if *stands { "" } else { " (what it names was taken back)" })
    };
    let count = seen.checkpoints.len();
    let lines: String = seen.checkpoints.iter().map(line).collect();
    let json = |(checkpoint, stands): &(reasoning::Checkpoint, bool)| json!({ "name": checkpoint.name, "layer": checkpoint.layer, "restorable": stands });
    let plural = if count == 1 { "checkpoint" } else { "checkpoints" };
    Ok(ToolAnswer {
        text: format!("{count} {plural}{}{lines}", if count == 0 { "." } else { ":" }),
        json: json!({ "checkpoints": seen.checkpoints.iter().map(json).collect::<Vec<_>>() }),
    })
}

pub(crate) async fn restore(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::Restore.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let name = arguments.required_text("name")?;
    reasoning::checkpoint_name(name)?;
    let once = arguments.name("request_id")?;
    require_its_thread(context, &id).await?;
    let seen = context.store.restorable_reasoning(&id).await?.ok_or_else(ToolError::no_session)?;
    if let Some((request, earlier)) = earlier(context, &id, once).await? {
        return applied_again(context, &id, repeated_restore(request, &earlier)?).await;
    }
    let layer = restorable(name, &seen.checkpoints)?;
    let back = context.store.restore_reasoning(&id, &seen, layer, once, &context.actor);
    let Some(count) = back.await? else {
        return match earlier(context, &id, once).await? {
            Some((request, earlier)) => {
                applied_again(context, &id, repeated_restore(request, &earlier)?).await
            }
            None => Err(changed_meanwhile(context, &id).await),
        };
    };
    let now = read(context, &id, None).await?;
    let (messages, token) = (now.thread.len(), now.token().to_string());
    let plural = if count == 1 { "compression" } else { "compressions" };
    let answer = ToolAnswer {
        text: format!(
            "Took {count} {plural} back, to the checkpoint {name:?}. The thread has {messages} messages now. Snapshot token: {token}"
        ),
        json: json!({ "name": name, "undone": count, "messages": messages, "token": token, "repeated": false }),
    };
    applied(context, &now, answer).await
}
