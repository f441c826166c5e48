//! Times of a turn's messages, and the batch of an active turn.

use batches::ChunkRange;
use model::{MessageTimes, OpenBatch, OpenBatchMessage, Role, Timestamp, TurnId};

use super::Partition;
use super::input_message::input_message;
use crate::open::OpenMessage;
use crate::turn_state::TrackedTurn;

/// Maximum bytes of chunks in the batch of an active turn.
const MOST_SHOWN: usize = 1 << 20;

/// Times of the input: its acceptance, and the start of the run.
pub(super) fn of_input(turn: &TrackedTurn, open: Option<&OpenMessage>) -> MessageTimes {
    MessageTimes { created_at: Some(turn.accepted_at()), started_at: began_at(turn, open) }
}

/// Start of the run. If a previous owner started it, the time is not later than that of its first
/// chunk.
pub(super) fn began_at(turn: &TrackedTurn, open: Option<&OpenMessage>) -> Option<Timestamp> {
    let first_chunk = open.and_then(|open| open.times.at(0));
    turn.times.began_at.into_iter().chain(first_chunk).min().map(|at| at.max(turn.accepted_at()))
}

/// Times of a message of the answer. `otherwise`: the end time to use if no chunk shows it.
pub(super) fn of_answer(
    turn: &TrackedTurn,
    open: Option<&OpenMessage>,
    chunks: Option<ChunkRange>,
    otherwise: Option<Timestamp>,
) -> MessageTimes {
    let at = |index| Some(open?.times.at(index)?.max(turn.accepted_at()));
    let (first, last) = chunks.unzip();
    MessageTimes { created_at: last.and_then(at).or(otherwise), started_at: first.and_then(at) }
}

impl Partition {
    /// The batch of an active turn; `None` if the turn may still be withdrawn.
    pub(super) fn open_batch(&self, id: &TurnId) -> Option<OpenBatch> {
        let turn = self.table.turns.get(id).filter(|turn| !turn.is_follow_up())?;
        let open = turn.answer.slot.and_then(|slot| self.messages.get(slot));
        let released = open.map(|open| open.released.as_slice()).unwrap_or_default();
        let mut room = MOST_SHOWN;
        let shown = released.iter().take_while(|chunk| {
            let fits = chunk.size() <= room;
            room = room.saturating_sub(chunk.size());
            fits
        });
        let shown = shown.count();
        let input = input_message(turn, model::Position::MAX);
        let mut messages = vec![OpenBatchMessage {
            id: input.key.message,
            role: input.role,
            content: input.content,
            tool_calls: None,
            tool_call_id: None,
            metadata: input.metadata,
            times: of_input(turn, open),
        }];
        let folded = batches::fold_turn(&released[..shown], batches::Ending::Open).unwrap_or_default();
        let count = folded.len();
        let mut results = (0, 0);
        for (number, folded) in (1..).zip(folded) {
            results = if results.0 == folded.step { (results.0, results.1 + 1) } else { (folded.step, 0) };
            let mut times = of_answer(turn, open, folded.chunks, None);
            // Later chunks may belong to it.
            if number == count && folded.role != Role::Tool {
                times.created_at = None;
            }
            let id = match folded.role {
                Role::Tool => id.result(turn.run, folded.step, results.1),
                // A message with calls is a step, not the answer.
                _ if number == count && folded.tool_calls.is_none() => id.answer(turn.run),
                Role::Assistant | Role::User | Role::System => {
                    results.1 = 0;
                    id.step(turn.run, folded.step)
                }
            };
            messages.push(OpenBatchMessage {
                id,
                role: folded.role,
                content: folded.content,
                tool_calls: folded.tool_calls,
                tool_call_id: folded.tool_call_id,
                metadata: folded.metadata,
                times,
            });
        }
        let continues = turn.continues();
        Some(OpenBatch { continues, batch_type: turn.batch_type(), messages, is_cut: shown < released.len() })
    }
}
