//! Measures how long clients receive nothing while an answer is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::turns::AwaitedAnswer;
use testkit::sse::{StreamEvent, Transcript};

/// A phase of the run, which ends when the next one begins.
#[derive(Debug, Clone)]
pub(super) struct RunPhase {
    pub(super) name: String,
    pub(super) began: Instant,
}

/// The silences of a phase.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Silences {
    pub(super) longest: Duration,
    /// The client with the longest silence, and when that silence began.
    pub(super) place: Option<(String, Instant)>,
    /// Count of silences longer than [`LIMIT`].
    pub(super) too_long: usize,
}

/// The longest acceptable silence.
pub(super) const LIMIT: Duration = Duration::from_secs(2);

/// One event in the timeline of a client.
enum Moment<'a> {
    Awaited(&'a str),
    Seen(&'a StreamEvent),
}

/// Silences by the number of their phase. A silence begins with an event, or with the acceptance of
/// an answer's input, and ends with the next event. It counts only while an answer is due whose end
/// the client has not received.
pub(super) fn by_phase(
    phases: &[RunPhase],
    awaited: &[AwaitedAnswer],
    views: &[(String, Vec<Transcript>)],
) -> Vec<Silences> {
    let mut found = vec![Silences::default(); phases.len()];
    let mut by_thread: BTreeMap<&str, Vec<(Instant, Moment<'_>)>> = BTreeMap::new();
    let mut awaited_of: BTreeMap<&str, Vec<&AwaitedAnswer>> = BTreeMap::new();
    awaited.iter().for_each(|answer| awaited_of.entry(&answer.thread).or_default().push(answer));
    for (thread, transcripts) in views {
        let moments = by_thread.entry(thread).or_default();
        moments.clear();
        let inputs = awaited_of.get(thread.as_str()).into_iter().flatten();
        moments.extend(inputs.map(|answer| (answer.since, Moment::Awaited(&answer.message))));
        let events = transcripts.iter().flat_map(|transcript| &transcript.events);
        moments.extend(events.map(|received| (received.at, Moment::Seen(&received.event))));
        moments.sort_by_key(|(at, _)| *at);
        for (from, to) in of_client(moments) {
            let Some(silences) = cause(phases, from, to).and_then(|phase| found.get_mut(phase)) else {
                continue;
            };
            if to - from > silences.longest {
                silences.longest = to - from;
                silences.place = Some((thread.clone(), from));
            }
            silences.too_long += usize::from(to - from > LIMIT);
        }
    }
    found
}

fn of_client(moments: &[(Instant, Moment<'_>)]) -> Vec<(Instant, Instant)> {
    let (mut due, mut ended, mut found) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut last = None;
    for (at, moment) in moments {
        match moment {
            // The end may arrive before the client that sent the input has the response.
            Moment::Awaited(answer) if ended.contains(answer) => {}
            Moment::Awaited(answer) => {
                if due.is_empty() {
                    last = Some(*at);
                }
                due.insert(*answer);
            }
            Moment::Seen(event) => {
                if let Some(last) = last.filter(|_| !due.is_empty()) {
                    found.push((last, *at));
                }
                last = Some(*at);
                if let Some(answer) = event.terminal() {
                    due.remove(answer);
                    ended.insert(answer);
                }
            }
        }
    }
    found
}

/// The first phase that begins within the interval, or otherwise the phase that contains the
/// interval.
fn cause(phases: &[RunPhase], from: Instant, to: Instant) -> Option<usize> {
    let within = phases.iter().position(|phase| (from..=to).contains(&phase.began));
    within.or_else(|| phases.iter().rposition(|phase| phase.began <= from))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use testkit::sse::Received;

    #[test]
    fn silence_counts_while_an_answer_is_due() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let phase = |name: &str, ms| RunPhase { name: name.to_owned(), began: at(ms) };
        let phases = [phase("steady", 0), phase("upgrade", 4_000)];
        let awaited = |message: &str, ms| AwaitedAnswer {
            thread: "t".to_owned(),
            message: message.to_owned(),
            since: at(ms),
        };
        let complete = |message: &str| StreamEvent::Complete {
            message: message.to_owned(),
            position: None,
            is_stopped: false,
        };
        let seen = [(300, "a"), (3_000, "b"), (6_500, "c")];
        let events = seen.map(|(ms, message)| Received { id: None, at: at(ms), event: complete(message) });
        let transcript = Transcript {
            began_at: began,
            events: events.to_vec(),
            ..Transcript::new(SocketAddr::from(([127, 0, 0, 1], 1)), None)
        };
        // The client receives answer b before its input is known to be accepted. No answer is due
        // from 3.1 s to 3.9 s.
        let awaited = [awaited("a", 100), awaited("b", 3_100), awaited("c", 3_900)];
        let found = by_phase(&phases, &awaited, &[("t".to_owned(), vec![transcript])]);
        let silences = |began, longest, too_long| Silences {
            longest: Duration::from_millis(longest),
            place: Some(("t".to_owned(), at(began))),
            too_long,
        };
        assert_eq!(found, [silences(100, 200, 0), silences(3_900, 2_600, 1)]);
    }
}
