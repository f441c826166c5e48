//! The stream of one answer; its turn is opened only once the stream has joined the thread.

use feed::Subscription;
use http_server::error::Problem;
use http_server::transport::extensions::ConnectionHandle;
use model::ThreadId;
use protocols::Cursor;

use crate::app::request_context::RequestContext;
use crate::commands::publish;
use crate::commands::submit::Submission;
use crate::streaming::response;
use crate::streaming::send_queue::SendQueueBody;
use crate::streaming::store_reads;

/// Subscribes to the thread up to the answer's end, then opens the turn, if it is new.
pub(crate) async fn watch(
    ctx: &RequestContext,
    connection: ConnectionHandle,
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
    let (send_queue, mut body, place) = ctx.send_queue(connection)?;
    let (permit, verdict) =
        ctx.feeds()?.subscribe(thread, send_queue, after, subscription).map_err(response::refused)?;
    // When the body is dropped because of an error, it frees the place of the subscriber.
    body.keep(permit, place);
    if is_brought {
        response::until_verdict(verdict).await?;
    }
    if let Submission::New(opened) = submission {
        publish::publish_turn(backend, opened).await?;
    }
    Ok(body)
}
