//! The stream of one answer, whose turn is opened once the stream has its place.

use model::{MessageId, ThreadId};
use protocols::Cursor;

use crate::app::request_context::Desk;
use crate::commands::publish;
use crate::commands::submit::Standing;
use crate::error::Problem;
use crate::http::extensions::ConnectionHandle;
use crate::streaming::response;
use crate::streaming::response::Seated;
use crate::streaming::send_queue::LaneBody;
use crate::streaming::store_reads;

/// A place in the thread's feed up to the answer's end; then the turn is opened, if it is a new one.
pub(crate) async fn watch(
    desk: &Desk,
    connection: ConnectionHandle,
    thread: &ThreadId,
    standing: &Standing,
    answer: &MessageId,
    after: Option<Cursor>,
) -> Result<Seated<LaneBody>, Problem> {
    let (backend, is_brought) = (desk.backend()?, after.is_some());

    let after = match after {
        Some(cursor) => cursor,
        // Whatever becomes of the answer becomes of it after this.
        None => Cursor::at(store_reads::before(backend.store(), thread, answer).await?),
    };
    let (lane, body, place) = desk.lane(connection)?;
    let (seat, verdict) =
        desk.feeds()?.attach_until(thread, lane, after, answer).map_err(response::refused)?;
    // Dropped with an error, the body gives the place back.
    let body = Seated::new(body, seat, place);
    if is_brought {
        response::until_verdict(verdict).await?;
    }
    if let Standing::New(opened) = standing {
        publish::open_turn(backend, opened).await?;
    }
    Ok(body)
}
