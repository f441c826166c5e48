//! Where a stream is read on, and what a stream that is not what it was has cost.
//!
//! Entry point: [`place`]. Nothing is skipped on a guess: a stream that is not known to be the one that was read is read from its
//! beginning, and what is read twice meets its unique key.

use model::{Mark, Seq};

/// What the store keeps of a partition's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Everything up to here has been used.
    pub checkpoint: Seq,
    /// The stream that it counts in; `None` when there was none yet.
    pub incarnation: Option<&'a str>,
}

/// An entry that is known to have been read, and what the stream has there now.
///
/// The store knows one and the worker another one: a store that has gone back in time remembers a stream that the worker has
/// never read, and each of the two may be what shows that the stream is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// What was read. At the checkpoint or above it.
    pub read: Mark,
    /// When the stream stored what it has at that sequence, if it has anything there.
    pub found: Option<i64>,
}

/// What the stream says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The stream.
    pub incarnation: &'a str,
    /// The lowest sequence that is there, or the one after the last.
    pub first: Seq,
    /// The last sequence ever given.
    pub last: Seq,
}

impl Found<'_> {
    /// Whether it has, or has purged, what was read of it.
    pub fn agrees(&self, compared: Compared) -> bool {
        let Compared { read, found } = compared;
        self.last >= read.seq && read.agrees(self.first, found)
    }
}

/// What went back in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IncidentKind {
    /// The store lost commits that it had acknowledged. The stream still has what they were made of, or else there is another incident.
    StoreSteppedBack,
    /// The stream was made anew: whatever the old one had that was not committed is gone.
    StreamRenewed,
    /// The stream lost its end and was written past it: whatever it had there that was not committed is gone.
    StreamParted,
    /// The stream lacks entries that the store needs.
    EntriesGone,
}

impl IncidentKind {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::StoreSteppedBack, Self::StreamRenewed, Self::StreamParted, Self::EntriesGone];

    /// In the store and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::StoreSteppedBack => "store_stepped_back",
            Self::StreamRenewed => "stream_renewed",
            Self::StreamParted => "stream_parted",
            Self::EntriesGone => "entries_gone",
        }
    }
}

/// Something that was lost, or may have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// What happened.
    pub kind: IncidentKind,
    /// The stream that the sequences count in.
    pub incarnation: String,
    /// The first entry that may be gone.
    pub first: Seq,
    /// The last one; `None` when it is not known how far the stream had come.
    pub last: Option<Seq>,
}

/// Where to read on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPlace {
    /// The checkpoint from now on: what comes after it is read.
    pub checkpoint: Seq,
    /// The last entry that is known to have been read and to be there still.
    pub read: Option<Mark>,
    /// What has to be recorded with it.
    pub incidents: Vec<Incident>,
}

/// Where a stream is read on.
pub fn place(kept: &Kept<'_>, found: &Found<'_>, marks: &[Compared]) -> StreamPlace {
    let beginning = found.first.before();
    let incident = |kind, incarnation: &str, first: Seq, last| Incident {
        kind,
        incarnation: incarnation.to_owned(),
        first,
        last,
    };
    let lacks = |checkpoint: Seq| {
        let first = checkpoint.next();
        (first <= beginning)
            .then(|| incident(IncidentKind::EntriesGone, found.incarnation, first, Some(beginning)))
    };
    let after = kept.checkpoint.next();
    if let Some(old) = kept.incarnation.filter(|old| *old != found.incarnation) {
        let renewed = incident(IncidentKind::StreamRenewed, old, after, None);
        let incidents = std::iter::once(renewed).chain(lacks(Seq(0))).collect();
        return StreamPlace { checkpoint: beginning, read: None, incidents };
    }
    let is_behind = marks.is_empty() && found.last < kept.checkpoint;
    let parted = is_behind || marks.iter().any(|mark| !found.agrees(*mark));
    if parted {
        let incidents = vec![incident(IncidentKind::StreamParted, found.incarnation, after, None)];
        return StreamPlace { checkpoint: beginning, read: None, incidents };
    }
    let incidents: Vec<Incident> = lacks(kept.checkpoint).into_iter().collect();
    let read = marks.iter().map(|mark| mark.read).max_by_key(|read| read.seq);
    StreamPlace { checkpoint: kept.checkpoint.max(beginning), read, incidents }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Mark = Mark { seq: Seq(50), stored_at_ns: 5_000 };
    const KEPT: Kept<'_> = Kept { checkpoint: Seq(40), incarnation: Some("a") };
    const FOUND: Found<'_> = Found { incarnation: "a", first: Seq(30), last: Seq(60) };
    const SAME: Compared = Compared { read: READ, found: Some(5_000) };
    const OTHER: Compared = Compared { read: READ, found: Some(5_001) };
    const GONE: Compared = Compared { read: READ, found: None };

    /// `<checkpoint> [kind stream first..last]…`
    fn placed(kept: Kept<'_>, found: Found<'_>, marks: &[Compared]) -> String {
        let place = place(&kept, &found, marks);
        let incidents = place.incidents.iter().map(|it| {
            let last = it.last.map(|last| last.to_string()).unwrap_or_default();
            format!(" {} {} {}..{last}", it.kind.name(), it.incarnation, it.first)
        });
        let known = if place.read.is_some() { "" } else { " unread" };
        format!("{}{known}{}", place.checkpoint, incidents.collect::<String>())
    }

    #[test]
    fn the_same_stream_is_read_on() {
        assert_eq!(placed(KEPT, FOUND, &[SAME]), "40");
        assert_eq!(
            placed(KEPT, Found { first: Seq(41), ..FOUND }, &[SAME]),
            "40",
            "purged up to the checkpoint"
        );
        let first_time = Kept { checkpoint: Seq(0), incarnation: None };
        assert_eq!(placed(first_time, Found { first: Seq(1), ..FOUND }, &[]), "0 unread");
    }

    #[test]
    fn stream_with_other_entry_at_mark_is_read_from_start() {
        for (found, mark) in [
            (FOUND, OTHER),
            (FOUND, GONE),
            (Found { last: Seq(49), ..FOUND }, GONE),
            // Cut off below the checkpoint and written past: what stands below the end is new as well.
            (Found { last: Seq(35), ..FOUND }, GONE),
        ] {
            assert_eq!(placed(KEPT, found, &[mark]), "29 unread stream_parted a 41..");
        }
        assert_eq!(placed(KEPT, Found { last: Seq(39), ..FOUND }, &[]), "29 unread stream_parted a 41..");
    }

    #[test]
    fn stream_differing_from_store_or_worker_is_another() {
        let later = Compared { read: Mark { seq: Seq(55), stored_at_ns: 5_500 }, found: Some(5_500) };
        assert_eq!(placed(KEPT, FOUND, &[SAME, later]), "40");
        assert_eq!(
            placed(KEPT, FOUND, &[OTHER, later]),
            "29 unread stream_parted a 41..",
            "the store went back"
        );
        assert_eq!(placed(KEPT, FOUND, &[later, OTHER]), "29 unread stream_parted a 41..");
    }

    #[test]
    fn a_stream_that_was_made_anew_is_read_from_its_beginning() {
        let renewed = Found { incarnation: "b", first: Seq(1), ..FOUND };
        assert_eq!(placed(KEPT, renewed, &[SAME]), "0 unread stream_renewed a 41..");
        let purged = Found { first: Seq(9), ..renewed };
        assert_eq!(placed(KEPT, purged, &[SAME]), "8 unread stream_renewed a 41.. entries_gone b 1..8");
    }

    #[test]
    fn what_was_purged_and_is_needed_is_named() {
        let purged = Found { first: Seq(45), ..FOUND };
        assert_eq!(placed(KEPT, purged, &[SAME]), "44 entries_gone a 41..44");
        let beyond = Found { first: Seq(58), ..FOUND };
        assert_eq!(placed(KEPT, beyond, &[GONE]), "57 entries_gone a 41..57");
        let empty_store = Kept { checkpoint: Seq(0), incarnation: None };
        assert_eq!(placed(empty_store, FOUND, &[]), "29 unread entries_gone a 1..29");
    }
}
