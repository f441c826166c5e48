//! The stream of one answer; its turn is opened only once the stream has joined the thread.

use axum::http::HeaderMap;
use feed::Subscription;
use http_server::error::Problem;
use http_server::extract::headers;
use http_server::transport::extensions::ConnectionHandle;
use model::{ControlKind, ThreadId, TurnId};
use protocols::Cursor;
use runtime::spawn_named;
use store::TurnState;
use tokio::sync::oneshot;

use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::submit::Submission;
use crate::commands::{control, publish};
use crate::streaming::response;
use crate::streaming::send_queue::SendQueueBody;
use crate::streaming::store_reads;

/// The connection of a client that follows an answer.
#[derive(Debug, Clone)]
pub(crate) struct ClientConnection {
    handle: ConnectionHandle,
    /// The actor that stops the turn when the client disconnects before the answer has ended;
    /// `None`: the turn goes on.
    stops_as: Option<String>,
}

impl ClientConnection {
    /// The connection of a request that opens a turn; its headers say what a disconnect does.
    ///
    /// # Errors
    /// A header is invalid.
    pub(crate) fn opening(
        ctx: &RequestContext,
        handle: ConnectionHandle,
        headers: &HeaderMap,
    ) -> Result<Self, Problem> {
        let stops = headers::stops_on_disconnect(headers)?;
        let stops_as = if stops { Some(ctx.actor(headers)?) } else { None };
        Ok(Self { handle, stops_as })
    }

    /// The connection of a request that only reads; its turn goes on after a disconnect.
    pub(crate) fn reading(self) -> ConnectionHandle {
        self.handle
    }
}

/// The connection of a client that reads: the turn goes on when it disconnects.
impl From<ConnectionHandle> for ClientConnection {
    fn from(handle: ConnectionHandle) -> Self {
        Self { handle, stops_as: None }
    }
}

/// Subscribes to the thread up to the answer's end, then opens the turn, if it is new.
pub(crate) async fn watch(
    ctx: &RequestContext,
    connection: ClientConnection,
    thread: &ThreadId,
    submission: &Submission,
    subscription: Subscription,
    after: Option<Cursor>,
) -> Result<SendQueueBody, Problem> {
    let (backend, is_brought) = (ctx.backend()?, after.is_some());
    let after = match (after, subscription.until()) {
        // All events of the answer come after this position.
        (None, Some(answer)) => Some(Cursor::at(store_reads::before(backend.store(), thread, answer).await?)),
        (after, _) => after,
    };
    let (send_queue, mut body, place) = ctx.send_queue(connection.handle)?;
    let (permit, verdict) =
        ctx.feeds()?.subscribe(thread, send_queue, after, subscription).map_err(response::refused)?;
    // When the body is dropped because of an error, it frees the place of the subscriber.
    body.keep(permit, place);
    if is_brought {
        response::until_verdict(verdict).await?;
    }
    // A turn that has ended needs no stop.
    let is_open = matches!(
        submission,
        Submission::New(_) | Submission::Duplicate(_, None | Some(TurnState::Open { .. }))
    );
    if let Some(actor) = connection.stops_as.filter(|_| is_open) {
        // Before the turn is opened: the client may leave while NATS stores the input.
        let stop = stop_after(
            body.early_departure(),
            backend.clone(),
            thread.clone(),
            submission.turn().clone(),
            actor,
        );
        spawn_named("stop after a disconnect", stop);
    }
    if let Submission::New(opened) = submission
        && let Err(problem) = publish::publish_turn(backend, opened).await
    {
        body.discard();
        return Err(problem);
    }
    Ok(body)
}

/// Stops the turn when its client leaves, unless the gateway itself ends the connections.
async fn stop_after(
    departure: oneshot::Receiver<()>,
    backend: Backend,
    thread: ThreadId,
    turn: TurnId,
    actor: String,
) {
    if departure.await.is_err() || backend.drain.is_cancelled() {
        return;
    }
    let stop = ControlKind::StopTurn(turn.clone());
    match control::send(&backend, actor, thread.agent(), stop).await {
        Ok(_) => tracing::info!(%turn, "a turn is stopped because its client has disconnected"),
        Err(problem) => {
            tracing::warn!(%turn, detail = problem.detail(), "a turn whose client has disconnected goes on")
        }
    }
}
