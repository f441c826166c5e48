//! Decides where to resume reading a stream. Also decides what was lost when a stream or the store
//! was replaced or went back in time.
//!
//! Entry point: [`place`]. It never skips entries on a guess: if a stream may be another one than
//! before, it is read from its beginning. Unique keys drop entries that are read twice.

use model::{Mark, Seq};

/// What the store records about a partition's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Every entry up to here has been used.
    pub checkpoint: Seq,
    /// Stream to which the checkpoint belongs; `None` when there was none yet.
    pub incarnation: Option<&'a str>,
}

/// An entry known to have been read, and what the stream has at its sequence now.
///
/// The store knows one such entry and the worker another. A store that went back in time remembers
/// a stream that the worker never read. Each of the entries alone may show that the stream was
/// replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// The entry that was read, at the checkpoint or above it.
    pub read: Mark,
    /// Timestamp of the entry the stream has at that sequence now, if any.
    pub found: Option<i64>,
}

/// State reported by the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// Incarnation of the stream.
    pub incarnation: &'a str,
    /// Lowest sequence in the stream. If the stream is empty, the one after its last entry.
    pub first: Seq,
    /// Last sequence ever assigned.
    pub last: Seq,
}

impl Found<'_> {
    /// True if the stream has, or has purged, the entry that was read.
    pub fn agrees(&self, compared: Compared) -> bool {
        let Compared { read, found } = compared;
        self.last >= read.seq && read.agrees(self.first, found)
    }
}

/// What was lost or went back in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IncidentKind {
    /// The store lost commits that it had acknowledged. The stream still has their entries, or else
    /// there is another incident.
    StoreSteppedBack,
    /// The stream was created again: all uncommitted entries of the old one are lost.
    StreamRenewed,
    /// The stream lost its last entries, and new ones have their sequences: the uncommitted ones
    /// are lost.
    StreamParted,
    /// The stream lacks entries that the store needs.
    EntriesGone,
}

impl IncidentKind {
    pub const ALL: [Self; 4] =
        [Self::StoreSteppedBack, Self::StreamRenewed, Self::StreamParted, Self::EntriesGone];

    /// Name in the store and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::StoreSteppedBack => "store_stepped_back",
            Self::StreamRenewed => "stream_renewed",
            Self::StreamParted => "stream_parted",
            Self::EntriesGone => "entries_gone",
        }
    }
}

/// Entries that are lost, or may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    pub kind: IncidentKind,
    /// Stream to which the sequences belong.
    pub incarnation: String,
    /// First entry that may be lost.
    pub first: Seq,
    /// Last entry that may be lost; `None` when the end of the stream is not known.
    pub last: Option<Seq>,
}

/// Where to resume reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPlace {
    /// Checkpoint from now on; reading starts after it.
    pub checkpoint: Seq,
    /// Last entry known to have been read and to be still there.
    pub read: Option<Mark>,
    /// Incidents to record with the checkpoint.
    pub incidents: Vec<Incident>,
}

/// Decides where to resume reading a stream.
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
            // The stream was cut off below the checkpoint and written past it: the entries below
            // the end are new as well.
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
