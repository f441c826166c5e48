//! The committed messages of a thread.

use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{Position, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{Range, StoredMessage};
use utoipa::{IntoParams, ToSchema};

use crate::api::additions::Additions;
use crate::api::pending_inputs::{PendingInputView, PendingInputs};
use crate::api::respond::json_no_store;
use crate::api::threads;
use crate::api::views;
use crate::api::views::MessageView;
use crate::app::request_context::RequestContext;
use crate::openapi::examples::message_example;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/threads/{thread}/history",
            "showHistory",
            "List the committed messages of a thread",
            list,
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .query::<HistoryQuery>()
        .response::<HistoryPage>(
            200,
            "Messages, oldest first",
            json!({ "thread_id": "hello", "messages": [message_example()], "next": null }),
        )
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidLimit,
            ErrorCode::InvalidRange,
        ]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// Only messages after this position; the page begins there.
    #[param(value_type = Option<schemas::PositionSchema>)]
    after: Option<String>,
    /// Only messages before this position; the page ends there, unless `after` is given, too.
    #[param(value_type = Option<schemas::PositionSchema>)]
    before: Option<String>,
    /// `next` of the previous page; it continues in the direction of that page.
    #[param(value_type = Option<schemas::PositionSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
    /// Whether to include synthetic messages, and the calls and results of an agent's reasoning
    /// tools; for operators.
    synthetic: Option<bool>,
    /// Whether to include `pending`.
    pending: Option<bool>,
}

/// A page of messages, oldest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryPage {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    messages: Vec<MessageView>,
    /// Questions that are accepted and not in the history yet, in the order in which they will be
    /// answered. Only with `pending=true`, and only on the page with the newest messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pending: Option<Vec<PendingInputView>>,
    /// The last questions of `pending` were left out, because all of them would be too large.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pending_is_cut: bool,
    /// Only with `pending`. If it is `unavailable`, questions may be missing from `pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::OwnerStatusSchema, required = false)]
    owner_status: Option<&'static str>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// Maximum number of messages of a page that consists of one batch.
const LONGEST: u32 = 1_000;

/// Returns the whole batches that fit the limit, and whether there are more; `None` if not even one
/// batch fits. An input is never shown without its answer. If there are further messages,
/// `messages` holds one of them, at the end where the page stops.
fn whole_batches(
    mut messages: Vec<StoredMessage>,
    limit: usize,
    is_backwards: bool,
) -> Option<(Vec<StoredMessage>, bool)> {
    if messages.len() <= limit {
        return Some((messages, false));
    }
    let begins = |at: &usize| messages[*at].batch_id != messages[at - 1].batch_id;
    let cut = match is_backwards {
        true => (1..messages.len()).find(begins)?,
        false => (1..messages.len()).rev().find(begins)?,
    };
    let rest = messages.split_off(cut);
    Some((if is_backwards { rest } else { messages }, true))
}

/// The batch at the end where the page begins, cut if it is too long, and whether there are more
/// messages.
fn nearest_batch(mut messages: Vec<StoredMessage>, is_backwards: bool) -> (Vec<StoredMessage>, bool) {
    let count = messages.len();
    if is_backwards {
        messages.reverse();
    }
    let batch = messages.first().map(|message| message.batch_id);
    messages.truncate(LONGEST as usize);
    messages.truncate(messages.iter().take_while(|message| Some(message.batch_id) == batch).count());
    if is_backwards {
        messages.reverse();
    }
    let has_more = messages.len() < count;
    (messages, has_more)
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<HistoryQuery>,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    let range = Range {
        after: query::position("after", query.after)?,
        before: query::position("before", query.before)?,
        with_synthetic: query.synthetic.unwrap_or(false),
    };
    if range.after.zip(range.before).is_some_and(|(after, before)| after > before) {
        return Err(Problem::from(ErrorCode::InvalidRange));
    }
    let pending = match query.pending {
        Some(true) => Some(PendingInputs::read(ctx.backend()?, &thread).await),
        Some(false) | None => None,
    };
    let page = PagePlace { next: query.next, limit: query.limit };
    let (mut messages, additions, next, pending) = read(&ctx, &thread, range, page, true, pending).await?;
    if !range.with_synthetic {
        views::withhold(&mut messages);
    }
    let mut messages: Vec<MessageView> = messages.into_iter().map(MessageView::from).collect();
    additions.add_to(&mut messages);
    let owner_status = pending.as_ref().map(|pending| pending.owner_status().name());
    let pending_is_cut = pending.as_ref().is_some_and(PendingInputs::is_cut);
    let pending = pending.map(PendingInputs::into_views);
    let thread_id = thread.name().to_owned();
    Ok(json_no_store(HistoryPage { thread_id, messages, pending, pending_is_cut, owner_status, next }))
}

/// Which page a client requests, and its size.
pub(crate) struct PagePlace {
    pub(crate) next: Option<String>,
    pub(crate) limit: Option<String>,
}

/// A page of whole batches with the additions to its messages, if wanted, the `next` value, and
/// the pending inputs if this page has the newest messages. The page ends at `before` unless there
/// is an `after`.
///
/// The inputs were read before the page, so each input is in one of the two: those that were
/// committed in between are in the page.
pub(crate) async fn read(
    ctx: &RequestContext,
    thread: &ThreadId,
    mut range: Range,
    place: PagePlace,
    wants_additions: bool,
    mut pending: Option<PendingInputs>,
) -> Result<(Vec<StoredMessage>, Additions, Option<String>, Option<PendingInputs>), Problem> {
    let is_backwards = range.before.is_some() && range.after.is_none();
    let mut is_newest = !is_backwards || range.before == Some(Position::MAX);
    if let Some(next) = query::position("next", place.next)? {
        is_newest &= !is_backwards;
        let end = if is_backwards { &mut range.before } else { &mut range.after };
        *end = Some(next);
    }
    is_newest &= is_backwards || range.before.is_none();
    let limit = query::limit(place.limit.as_deref())?;
    // A standby may not have what the owner knows to be committed.
    let from_primary = pending.is_some();
    let page = |most: u32| {
        ctx.read_known_from(from_primary, move |store| async move {
            let Some(messages) = store.history(thread, range, most).await? else { return Ok(None) };
            let additions = match wants_additions {
                true => Additions::read(&store, thread, &messages).await?,
                false => Additions::default(),
            };
            Ok(Some((messages, additions)))
        })
    };
    let (messages, mut additions) = match page(limit + 1).await? {
        Some(found) => found,
        None => threads::check_begun(ctx.backend()?, thread).await.map(|()| Default::default())?,
    };
    let (messages, has_more) = match whole_batches(messages, limit as usize, is_backwards) {
        Some(page) => page,
        // A batch that is longer than the page is shown alone.
        None => {
            let (longer, longer_additions) = page(LONGEST + 1).await?.unwrap_or_default();
            additions = longer_additions;
            nearest_batch(longer, is_backwards)
        }
    };
    let last = if is_backwards { messages.first() } else { messages.last() };
    let next = last.filter(|_| has_more).map(|last| last.position.to_string());
    if let Some(pending) = &mut pending {
        pending.remove_committed(&messages);
    }
    let is_newest = is_newest && (is_backwards || !has_more);
    Ok((messages, additions, next, pending.filter(|_| is_newest)))
}

#[cfg(test)]
mod tests {
    use batches::Item;
    use model::{BatchType, MessageId, Metadata, Role, Timestamp};

    use super::*;

    /// Messages of these batches, in the order of their positions.
    fn of(batches: &[i64]) -> Vec<StoredMessage> {
        let item = |position: i64, batch: &i64| Item {
            position: Position::from_stored(position),
            message_id: MessageId::parse(&format!("m{position}")).unwrap(),
            batch_id: Position::from_stored(*batch),
            number: None,
            sequence_num: 0,
            batch_type: BatchType::UserRequest,
            role: Role::User,
            content: String::new(),
            tool_calls: None,
            tool_call_id: None,
            metadata: Metadata::EMPTY,
            token_count: None,
            created_at: Timestamp(0),
            started_at: None,
        };
        let message = |(position, batch)| StoredMessage { item: item(position, batch), parent: None };
        (1..).zip(batches).map(message).collect()
    }

    fn places(page: Option<(Vec<StoredMessage>, bool)>) -> Option<(Vec<i64>, bool)> {
        page.map(|(messages, more)| (messages.iter().map(|message| message.position.get()).collect(), more))
    }

    #[test]
    fn pages_end_between_batches() {
        let all = of(&[1, 1, 3, 3]);
        let part = |count: usize| all[..count].to_vec();
        assert_eq!(places(whole_batches(part(4), 4, false)), Some((vec![1, 2, 3, 4], false)));
        assert_eq!(places(whole_batches(part(4), 3, false)), Some((vec![1, 2], true)));
        assert_eq!(
            places(whole_batches(part(3), 2, false)),
            Some((vec![1, 2], true)),
            "a whole batch, and nothing of the next"
        );
        assert_eq!(places(whole_batches(part(4), 3, true)), Some((vec![3, 4], true)));
        assert_eq!(places(whole_batches(all[1..].to_vec(), 2, true)), Some((vec![3, 4], true)));
        for backwards in [false, true] {
            assert_eq!(places(whole_batches(part(2), 1, backwards)), None);
        }
        // Messages that answer no input are separate batches.
        assert_eq!(places(whole_batches(of(&[1, 2, 3]), 2, false)), Some((vec![1, 2], true)));
    }

    #[test]
    fn a_batch_that_is_longer_than_the_page_comes_alone() {
        let near = |batches: &[i64], backwards| places(Some(nearest_batch(of(batches), backwards))).unwrap();
        assert_eq!(near(&[1, 1, 1, 4], false), (vec![1, 2, 3], true));
        assert_eq!(near(&[1, 2, 2, 2], true), (vec![2, 3, 4], true));
        assert_eq!(near(&[1, 1], false), (vec![1, 2], false));
        let (messages, more) = nearest_batch(of(&[1; 1_001]), true);
        assert_eq!((messages.len(), messages[0].position.get(), more), (1_000, 2, true));
    }
}
