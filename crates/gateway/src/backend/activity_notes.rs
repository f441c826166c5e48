//! Which activities of threads this gateway has noted in the list of threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{ThreadId, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of notes that are written at once, so that they leave connections to requests.
const MAX_AT_ONCE: usize = 2;
/// An activity is noted again after this time, ms.
const NOTED_MS: i64 = 60_000;
/// Maximum number of threads that are remembered.
const MAX_THREADS: usize = 10_000;

/// The threads noted in the last minute.
#[derive(Debug)]
pub(crate) struct ActivityNotes {
    places: Arc<Semaphore>,
    noted: Mutex<HashMap<ThreadId, Timestamp>>,
}

impl Default for ActivityNotes {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_AT_ONCE)), noted: Mutex::default() }
    }
}

impl ActivityNotes {
    /// A place to write a note. `None`: the thread has one of the last minute, or all places are
    /// taken.
    pub(crate) fn begin(&self, thread: &ThreadId, now: Timestamp) -> Option<OwnedSemaphorePermit> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.get(thread).is_some_and(|at| now.since_ms(*at) < NOTED_MS) {
            return None;
        }
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        if noted.len() >= MAX_THREADS {
            noted.retain(|_, at| now.since_ms(*at) < NOTED_MS);
            if noted.len() >= MAX_THREADS {
                noted.clear();
            }
        }
        noted.insert(thread.clone(), now);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(number: usize) -> ThreadId {
        ThreadId::parse(&format!("t{number}")).unwrap()
    }

    #[test]
    fn a_thread_is_noted_once_a_minute() {
        let notes = ActivityNotes::default();
        assert!(notes.begin(&thread(1), Timestamp(1_000)).is_some());
        assert!(notes.begin(&thread(1), Timestamp(60_999)).is_none());
        assert!(notes.begin(&thread(2), Timestamp(1_000)).is_some());
        assert!(notes.begin(&thread(1), Timestamp(61_000)).is_some());
    }

    #[test]
    fn what_finds_no_place_is_noted_with_the_next_input() {
        let notes = ActivityNotes::default();
        let places: Vec<_> = (0..=MAX_AT_ONCE).map(|n| notes.begin(&thread(n), Timestamp(0))).collect();
        assert_eq!(places.iter().flatten().count(), MAX_AT_ONCE);
        drop(places);
        assert!(notes.begin(&thread(MAX_AT_ONCE), Timestamp(1)).is_some());
    }

    #[test]
    fn few_threads_are_remembered() {
        let notes = ActivityNotes::default();
        for number in 0..3 * MAX_THREADS {
            assert!(notes.begin(&thread(number), Timestamp(0)).is_some());
        }
        assert!(notes.noted.lock().unwrap().len() <= MAX_THREADS);
    }
}
