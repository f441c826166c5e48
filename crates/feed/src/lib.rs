//! What the subscribers of a thread are shown: a machine without sockets that turns one consistent cut of the thread, and the frames
//! after it, into one sequence of events.
//!
//! Entry type: [`Feed`]. Invariant, the *cut*: a feed stands at one frame of one owner. All ends up to a position have been shown, in their
//! order; open are these messages with this text; nothing between is missing. It moves by the next frame, whose number says that none
//! was lost before it, or by a new cut from the owner: then the ends between the two are read from the store, and nothing else is shown
//! before they are shown. When frames may be missing (a gap, another epoch, a lost connection) the feed requests a new cut.
//!
//! Inputs are values, time is an argument. [`Feed::poll_snapshot_request`] and [`Feed::poll_store_read`] return what to fetch; the driver of
//! the feed fetches it and hands it in. All subscribers have the same position once they have joined, so each event is encoded once, with one
//! id; the value that it was encoded from goes along, for subscribers of another protocol ([`Subscription::Message`]). Nothing here knows
//! NATS, SQL, HTTP or a clock.

mod ended;
mod feed;
mod join;
mod open;
mod subscription;
mod waiting;
mod watch;

pub use ended::{CatchUp, EndKind, EndedMessage, StorePage, StoreRead, catch_up};
pub use feed::{Feed, FeedCounts};
pub use join::JoinResult;
pub use subscription::{FeedEvent, StreamPart, Subscription};
pub use waiting::{BadCursor, WaitOutcome, WaitingSubscribers};
pub use watch::OwnerWatch;

#[cfg(test)]
mod tests;
