//! The stream of one answer, whose turn is opened once the stream has its place.

use feed::Subscription;
use model::ThreadId;
use protocols::Cursor;

use crate::app::request_context::RequestContext;
use crate::commands::publish;
use crate::commands::submit::Submission;
use crate::error::Problem;
use crate::http::extensions::ConnectionHandle;
use crate::streaming::response;
use crate::streaming::send_queue::SendQueueBody;
use crate::streaming::store_reads;

/// A place in the thread's feed, up to the answer's end; then the turn is opened, if it is a new one.
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
        // Whatever becomes of the answer becomes of it after this.
        (None, Some(answer)) => Some(Cursor::at(store_reads::before(backend.store(), thread, answer).await?)),
        (after, _) => after,
    };
    let (send_queue, mut body, place) = ctx.send_queue(connection)?;
    let (permit, verdict) =
        ctx.feeds()?.subscribe(thread, send_queue, after, subscription).map_err(response::refused)?;
    // Dropped with an error, the body gives the place back.
    body.keep(permit, place);
    if is_brought {
        response::until_verdict(verdict).await?;
    }
    if let Submission::New(opened) = submission {
        publish::publish_turn(backend, opened).await?;
    }
    Ok(body)
}
