//! The events that subscribers of a thread see. A state machine without I/O merges a consistent cut
//! of the thread and the frames after it into one sequence of events.
//!
//! Entry type: [`Feed`]. Invariant, the *cut*: a feed is at one frame of one owner. All ends up to
//! a position have been shown in order, the open messages are shown with their text so far, and
//! nothing in between is missing. A feed advances by the next frame, whose number proves that none
//! was lost, or by a new cut from the owner. After a new cut, it first reads and shows the ends in
//! between from the store. When frames may be missing (a gap, another epoch, a lost connection),
//! the feed requests a new cut.
//!
//! Inputs are values, and time is an argument. [`Feed::poll_snapshot_request`] and
//! [`Feed::poll_store_read`] return what to fetch; the driver fetches it and passes it back. Once
//! they have joined, all subscribers have the same position, so each event is encoded once, with
//! one id. The value of the event is attached for subscribers of other protocols
//! ([`Subscription::Message`]). Nothing here knows NATS, SQL, HTTP or a clock.

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
