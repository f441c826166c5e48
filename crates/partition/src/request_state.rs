//! Known state of a turn's request, in addition to the chunks of its answer.

use model::{RequestInfo, Timestamp, Unanswered, WaitReason};

/// Time without news after which a turn is silent, ms.
pub(crate) const SILENT_MS: i64 = 1_000;

/// Time to read chunks that were published before the last delivery was handed back, ms.
const LAST_CHUNKS_MS: i64 = 1_000;

/// News about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestNews {
    /// The request is stored, and no service has taken it.
    NotTaken,
    /// A service has the request.
    Taken {
        /// Deliveries up to now; 0: not known.
        deliveries: u32,
        /// True: the service has just sent progress. False: inferred from what the server has
        /// delivered.
        is_alive: bool,
    },
    /// A service handed the request back; it will be delivered again.
    HandedBack {
        /// Deliveries up to now.
        deliveries: u32,
        /// Delay until the next delivery, ms.
        again_ms: i64,
    },
    /// The service that took the request missed its acknowledgment deadline: the request is
    /// delivered again when a service asks for requests.
    Lost,
    /// A service acknowledged the request, or refused it permanently: it is not delivered again.
    Acknowledged,
    /// The request is not delivered again, because it was handed back the maximum number of times.
    GivenUp {
        /// Deliveries up to now.
        deliveries: u32,
    },
}

/// State of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RequestState {
    place: Place,
    deliveries: u32,
    handed_back: u32,
    /// Number of the delivery that was handed back last.
    last_back: u32,
    /// Time of the next delivery.
    again_at: Option<Timestamp>,
    /// Time at which the last permitted delivery of the request was handed back.
    given_up_at: Option<Timestamp>,
    /// Time at which a service last reported progress.
    alive_at: Option<Timestamp>,
    /// Chunks for the answer have come without its token.
    has_unproven: bool,
    /// Notice that subscribers were sent last, and when.
    pub(crate) last_notice: Option<(WaitReason, Timestamp)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Unknown,
    NotTaken,
    Taken,
    HandedBack,
    Lost,
    Acknowledged,
}

impl RequestState {
    pub(crate) fn on(&mut self, news: RequestNews, now: Timestamp) {
        self.again_at = None;
        self.place = match news {
            RequestNews::NotTaken => Place::NotTaken,
            RequestNews::Taken { deliveries, is_alive } => {
                self.deliveries = self.deliveries.max(deliveries).max(1);
                self.alive_at = if is_alive { Some(now) } else { self.alive_at };
                Place::Taken
            }
            RequestNews::Lost => Place::Lost,
            RequestNews::Acknowledged => Place::Acknowledged,
            RequestNews::HandedBack { deliveries, again_ms } => {
                self.again_at = Some(now.plus_ms(again_ms));
                self.came_back(deliveries)
            }
            RequestNews::GivenUp { deliveries } => {
                self.given_up_at.get_or_insert(now);
                self.came_back(deliveries)
            }
        };
    }

    fn came_back(&mut self, deliveries: u32) -> Place {
        if self.last_back < deliveries {
            self.handed_back += 1;
        }
        (self.last_back, self.deliveries) = (deliveries, self.deliveries.max(deliveries));
        Place::HandedBack
    }

    /// True if the request is not delivered again, and there was time to read the chunks that were
    /// published before its last delivery ended.
    pub(crate) fn is_given_up(self, now: Timestamp) -> bool {
        self.given_up_at.is_some_and(|at| now.since_ms(at) >= LAST_CHUNKS_MS)
    }

    /// State of the request, for people.
    pub(crate) fn info(self, now: Timestamp) -> RequestInfo {
        RequestInfo {
            deliveries: self.deliveries,
            handed_back: self.handed_back,
            again_ms: self.again_at.map(|at| at.since_ms(now).max(0)),
            alive_ms: self.alive_at.map(|at| now.since_ms(at).max(0)),
            fails_ms: None,
        }
    }

    /// Notes a chunk for the answer that came without the turn's token.
    pub(crate) fn on_unproven(&mut self) {
        self.has_unproven = true;
    }

    /// True if no service can take the request again: one has it or has acknowledged it.
    fn is_in_hand(self) -> bool {
        matches!(self.place, Place::Taken | Place::Acknowledged)
    }

    /// Reason why no chunk comes; `is_heard`: a chunk has come already.
    pub(crate) fn reason(self, is_heard: bool) -> Option<WaitReason> {
        let unanswered = |why| Some(WaitReason::Unanswered(why));
        match self.place {
            // This check precedes the place, even after an acknowledgment: the service must learn
            // that its chunks are not accepted.
            _ if self.has_unproven && !is_heard => unanswered(Unanswered::NoToken),
            Place::HandedBack => unanswered(Unanswered::HandedBack),
            Place::Lost => unanswered(Unanswered::LostService),
            Place::Acknowledged if is_heard => unanswered(Unanswered::Unfinished),
            Place::Acknowledged => unanswered(Unanswered::NoAnswer),
            Place::Taken | Place::NotTaken | Place::Unknown if is_heard => None,
            Place::Taken => Some(WaitReason::Taken),
            Place::NotTaken => Some(WaitReason::NoWorkflow),
            Place::Unknown => Some(WaitReason::Requested),
        }
    }

    /// Cause for failing a turn that misses its deadline; `None`: nothing more specific is known.
    pub(crate) fn error(self, is_heard: bool) -> Option<Unanswered> {
        match self.reason(is_heard)? {
            WaitReason::Unanswered(why) => Some(why),
            WaitReason::NoWorkflow => Some(Unanswered::NoWorkflow),
            _ => None,
        }
    }

    /// Notes a chunk of the answer: a service has the request.
    pub(crate) fn on_chunk(&mut self) {
        if !self.is_in_hand() {
            self.place = Place::Taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);
    const TAKEN: RequestNews = RequestNews::Taken { deliveries: 1, is_alive: true };

    fn back(deliveries: u32) -> RequestNews {
        RequestNews::HandedBack { deliveries, again_ms: 500 }
    }

    fn after(news: &[RequestNews]) -> RequestState {
        let mut state = RequestState::default();
        news.iter().for_each(|news| state.on(*news, NOW));
        state
    }

    #[test]
    fn reason_is_the_last_that_was_heard() {
        let name = |state: RequestState, is_heard| state.reason(is_heard).map(WaitReason::name);
        for (news, unheard, heard) in [
            (&[][..], "requested", None),
            (&[RequestNews::NotTaken], "no_workflow", None),
            (&[TAKEN], "taken", None),
            (&[TAKEN, back(1)], "handed_back", Some("handed_back")),
            (&[back(1), TAKEN], "taken", None),
            (&[TAKEN, RequestNews::Lost], "lost_service", Some("lost_service")),
            (&[RequestNews::Acknowledged], "no_answer", Some("unfinished")),
            (&[RequestNews::GivenUp { deliveries: 16 }], "handed_back", Some("handed_back")),
        ] {
            assert_eq!(
                (name(after(news), false), name(after(news), true)),
                (Some(unheard), heard),
                "{news:?}"
            );
        }
    }

    #[test]
    fn chunks_without_the_token_are_named_until_one_has_it() {
        let mut state = after(&[RequestNews::Acknowledged]);
        state.on_unproven();
        assert_eq!(state.error(false), Some(Unanswered::NoToken));
        assert_eq!(state.error(true), Some(Unanswered::Unfinished));
    }

    #[test]
    fn handing_back_is_counted_by_the_deliveries_that_are_said() {
        let state = after(&[TAKEN, back(1), back(1), back(2), RequestNews::GivenUp { deliveries: 2 }]);
        let known =
            RequestInfo { deliveries: 2, handed_back: 2, again_ms: None, alive_ms: Some(0), fails_ms: None };
        assert_eq!(state.info(NOW), known, "each delivery is handed back once, however often that is said");
        assert_eq!(after(&[back(1)]).info(NOW.plus_ms(100)).again_ms, Some(400));
    }

    #[test]
    fn a_chunk_shows_that_the_request_is_in_hand() {
        let mut state = after(&[back(1)]);
        state.on_chunk();
        assert_eq!(state.reason(true), None);
        let mut acknowledged = after(&[RequestNews::Acknowledged]);
        acknowledged.on_chunk();
        assert_eq!(acknowledged.error(true), Some(Unanswered::Unfinished));
    }
}
