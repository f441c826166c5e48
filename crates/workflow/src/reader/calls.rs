//! Assembles tool calls from the pieces of a stream.
//!
//! All properties of a piece decide to which call it belongs: id, index, name, place in its list,
//! and whether it can continue the arguments so far. No single field can be trusted. Endpoints give
//! all calls one index, give each piece an index or id of its own, or send one call several times.

use std::collections::HashSet;

use serde_json::Value;

use super::arguments::{Arguments, ArgumentsState, opens, same_value};
use super::deviations::{Deviation, Deviations};
use super::units::{clean, cleaned};
use crate::engine_event::{CallName, Failure};

/// Maximum length: names and ids are in every chunk of a call.
const LONGEST_NAME: usize = 128;
/// Maximum number of calls in one answer.
const MOST_CALLS: usize = 1_024;

/// A call that the model has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelToolCall {
    pub(crate) name: CallName,
    /// Text of a JSON object; `{}` if the model wrote none.
    pub(crate) arguments: String,
    /// Why the model's text is not an object; the tool is then not called.
    pub(crate) problem: Option<String>,
    /// Data that an endpoint needs back with the call, such as a signature.
    pub(crate) signature: Option<String>,
    /// Data of this kind in OpenAI's format, such as Google's `thought_signature`.
    pub(crate) extra_content: Option<Value>,
}

/// The calls that clients may see, in order.
pub(super) type ShownCalls = Vec<(CallName, String)>;

/// A piece of a call. Endpoints differ in the fields they leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CallDelta {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) signature: Option<String>,
    pub(super) extra_content: Option<Value>,
}

impl CallDelta {
    /// Reads a piece in one of the known formats. `None`: the value is not a call.
    pub(super) fn of(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        // OpenAI nests the function in an object; others put its fields beside the id.
        let function = object.get("function").or_else(|| object.get("custom")).unwrap_or(value);
        let of_keys =
            |keys: &[&str]| keys.iter().find_map(|key| function.get(*key).filter(|value| !value.is_null()));
        let name = match function {
            Value::String(name) => name,
            _ => of_keys(&["name"]).and_then(Value::as_str).unwrap_or_default(),
        };
        let piece = Self {
            index: object.get("index").and_then(index),
            id: ["id", "call_id"]
                .iter()
                .filter_map(|key| object.get(*key))
                .map(plain)
                .find(|id| !id.is_empty())
                .unwrap_or_default(),
            name: name.to_owned(),
            arguments: of_keys(&["arguments", "input", "parameters", "args"]).map(plain).unwrap_or_default(),
            signature: None,
            extra_content: object.get("extra_content").filter(|extra| extra.is_object()).cloned(),
        };
        let is_call = piece != Self::default() || object.contains_key("function");
        is_call.then_some(piece)
    }

    /// Whether the piece has no field, except perhaps an index.
    fn is_blank(&self) -> bool {
        *self == Self { index: self.index, ..Self::default() }
    }

    /// Whether another format of the same message has this call as well.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_same_id = self.id == other.id || self.id.is_empty() || other.id.is_empty();
        let is_same_text = self.arguments == other.arguments || same_value(&self.arguments, &other.arguments);
        is_same_id && self.name == other.name && !self.name.is_empty() && is_same_text
    }
}

/// Accepts 1, 1.0 and "1".
pub(super) fn index(value: &Value) -> Option<u64> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok()?,
        _ => value.as_f64()?,
    };
    (number >= 0.0 && number.fract() == 0.0 && number < 1e15).then_some(number as u64)
}

/// A string as it is; any other value as its JSON text, because the meaning is clear.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The calls of one step while they arrive.
pub(super) struct Calls<'a> {
    step: u32,
    /// Ids already in the turn's context: the fleet distinguishes the calls of a turn by their ids.
    known_ids: &'a mut HashSet<String>,
    /// Names of the tools offered to the model.
    tools: &'a [String],
    calls: Vec<PartialCall>,
    /// The call of the last piece.
    last: Option<usize>,
    /// Calls that the current list has named.
    in_list: Vec<usize>,
    /// Whether there were too many calls.
    overflow: bool,
}

#[derive(Default)]
struct PartialCall {
    indexes: Seen<u64>,
    ids: Seen<String>,
    tool: String,
    /// Set when the first piece is passed on, because the name is complete then.
    name: Option<CallName>,
    arguments: Arguments,
    signature: Option<String>,
    extra_content: Option<Value>,
}

/// The first and the last value (id or index) of a call. An endpoint that changes the value with
/// each piece never returns to a value in between.
#[derive(Default)]
struct Seen<T>(Option<T>, Option<T>);

impl<T: PartialEq> Seen<T> {
    fn has(&self, value: &T) -> bool {
        self.0.as_ref() == Some(value) || self.1.as_ref() == Some(value)
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn add(&mut self, value: T) {
        match self.0 {
            None => self.0 = Some(value),
            Some(_) => self.1 = Some(value),
        }
    }
}

impl<'a> Calls<'a> {
    pub(super) fn new(step: u32, known_ids: &'a mut HashSet<String>, tools: &'a [String]) -> Self {
        Self { step, known_ids, tools, calls: Vec::new(), last: None, in_list: Vec::new(), overflow: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds the pieces of one list and returns the calls that clients may see.
    pub(super) fn add(&mut self, mut pieces: Vec<CallDelta>, deviations: &mut Deviations) -> ShownCalls {
        if pieces.len() > 1 && pieces.iter().all(|piece| piece.index.is_none()) {
            for (place, piece) in (0..).zip(&mut pieces) {
                piece.index = Some(place);
            }
        }
        self.in_list.clear();
        let mut shown = Vec::new();
        for piece in pieces {
            self.add_piece(piece, &mut shown, deviations);
        }
        shown
    }

    fn add_piece(&mut self, piece: CallDelta, shown: &mut ShownCalls, deviations: &mut Deviations) {
        if piece.is_blank() {
            // Some endpoints send a blank piece with each text. Within a call it adds nothing.
            deviations.note_if(self.calls.is_empty(), Deviation::CallShape);
            return;
        }
        let piece = CallDelta { id: clean(&piece.id), name: clean(&piece.name), ..piece };
        let (place, is_known) = self.place(&piece);
        if place == self.calls.len() {
            if place == MOST_CALLS {
                self.overflow = true;
                return;
            }
            shown.extend(self.finish_begun());
            self.calls.push(PartialCall::default());
        } else {
            deviations.note_if(!is_known, Deviation::CallIdentity);
        }
        self.last = Some(place);
        if !piece.name.is_empty() {
            self.in_list.push(place);
        }
        let (tools, calls) = (self.tools, &mut self.calls);
        let call = &mut calls[place];
        if let Some(index) = piece.index.filter(|index| !call.indexes.has(index)) {
            call.indexes.add(index);
        }
        if !piece.id.is_empty() && !call.ids.has(&piece.id) {
            call.ids.add(piece.id);
        }
        if call.name.is_none() {
            call.tool = joined_name(&call.tool, &piece.name, tools);
        }
        call.signature = piece.signature.or(call.signature.take());
        call.extra_content = piece.extra_content.map(cleaned).or(call.extra_content.take());
        call.arguments.take(&piece.arguments, deviations);
        // Until arguments arrive, a further piece may continue the name. Arguments that arrived
        // whole may arrive again in a longer form.
        if call.arguments.state() == ArgumentsState::Open {
            if call.name.is_none() {
                shown.extend((0..place).filter_map(|before| self.announce(before)).collect::<Vec<_>>());
            }
            shown.extend(self.say(place));
        }
    }

    fn say(&mut self, place: usize) -> Option<(CallName, String)> {
        let call = &mut self.calls[place];
        let is_first = call.name.is_none();
        if is_first {
            if call.tool.is_empty() {
                return None;
            }
            let given = call.ids.0.as_deref().unwrap_or_default();
            let id = unique_id(self.step, place, given, self.known_ids);
            let tool = call.tool.chars().take(LONGEST_NAME).collect::<String>();
            call.name = Some(CallName { id: id.into(), tool: tool.into() });
        }
        let name = call.name.clone()?;
        let more = call.arguments.say();
        (is_first || !more.is_empty()).then_some((name, more))
    }

    /// The complete calls, which clients see before other output. Placeholders wait for the
    /// arguments that may follow, and so do all arguments if the output is blank.
    pub(super) fn pause(&mut self, is_blank: bool) -> ShownCalls {
        let count = self.calls.len();
        let show = |place: usize| match self.is_whole(place) {
            true if is_blank || self.calls[place].arguments.is_placeholder() => self.announce(place),
            true => self.rest(place),
            false => None,
        };
        (0..count).filter_map(show).collect()
    }

    /// The rest of complete calls that were shown as they grew: later output is shown after that
    /// rest.
    fn finish_begun(&mut self) -> ShownCalls {
        let is_begun = |calls: &Self, place: usize| {
            let arguments = &calls.calls[place].arguments;
            calls.is_whole(place) && arguments.is_said() && !arguments.is_placeholder()
        };
        (0..self.calls.len())
            .filter_map(|place| if is_begun(self, place) { self.rest(place) } else { None })
            .collect()
    }

    /// The name of a complete call that was not shown yet.
    fn announce(&mut self, place: usize) -> Option<(CallName, String)> {
        if self.is_whole(place) { self.say(place) } else { None }
    }

    fn is_whole(&self, place: usize) -> bool {
        self.calls[place].arguments.state() == ArgumentsState::Whole
    }

    fn rest(&mut self, place: usize) -> Option<(CallName, String)> {
        let begun = self.say(place);
        let call = &mut self.calls[place];
        let (rest, _) = call.arguments.settle();
        let name = call.name.clone()?;
        let said = begun.map_or_else(|| rest.clone(), |(_, more)| format!("{more}{rest}"));
        (!said.is_empty()).then_some((name, said))
    }

    /// All calls in the order in which the model began them, and the last pieces for clients.
    pub(super) fn finish(
        mut self,
        is_cut: bool,
        deviations: &mut Deviations,
    ) -> (ShownCalls, Result<Vec<ModelToolCall>, Failure>) {
        let bad = |text: &str| Failure::transient("bad_stream", text);
        if self.overflow {
            let text = format!("the model made more than {MOST_CALLS} tool calls in one answer");
            return (Vec::new(), Err(bad(&text)));
        }
        let (mut parts, mut calls) = (Vec::new(), Vec::new());
        // This must precede settling the arguments.
        let repeated: Vec<bool> = (0..self.calls.len()).map(|place| self.is_repeated(place)).collect();
        deviations.note_if(repeated.contains(&true), Deviation::Repetition);
        for place in (0..self.calls.len()).filter(|place| !repeated[*place]) {
            parts.extend(self.say(place));
            let call = &mut self.calls[place];
            let (rest, meant) = call.arguments.settle();
            deviations.note_if(call.arguments.has_lost(), Deviation::InvalidText);
            let Some(name) = call.name.clone() else {
                deviations.note(Deviation::CallShape);
                if is_cut {
                    continue;
                }
                return (parts, Err(bad("a tool call has no name")));
            };
            if call.arguments.is_torn() {
                return (
                    parts,
                    Err(bad("the arguments of a tool call were replaced after they had been shown")),
                );
            }
            if !rest.is_empty() {
                parts.push((name.clone(), rest));
            }
            deviations.note_if(meant.is_err(), Deviation::Arguments);
            let (arguments, problem) = match meant {
                Ok(arguments) => (arguments, None),
                Err(problem) => ("{}".to_owned(), Some(problem)),
            };
            let (signature, extra_content) = (call.signature.take(), call.extra_content.take());
            calls.push(ModelToolCall { name, arguments, problem, signature, extra_content });
        }
        (parts, Ok(calls))
    }

    /// Whether a call without arguments is a duplicate that was announced under several indexes.
    fn is_repeated(&self, place: usize) -> bool {
        let call = &self.calls[place];
        let is_empty = |call: &PartialCall| call.arguments.state() == ArgumentsState::Empty;
        let is_first = |at: usize, other: &PartialCall| at < place || !is_empty(other);
        let mut others = self.calls.iter().enumerate().filter(|(at, _)| *at != place);
        let has_id = |other: &PartialCall| {
            [&call.ids.0, &call.ids.1].into_iter().flatten().any(|id| other.ids.has(id))
        };
        is_empty(call)
            && others.any(|(at, other)| is_first(at, other) && other.tool == call.tool && has_id(other))
    }

    /// The call of a piece, or the place of a new one, and whether its id or index decided it.
    fn place(&self, piece: &CallDelta) -> (usize, bool) {
        let find = |is: &dyn Fn(&PartialCall) -> bool| self.calls.iter().rposition(is);
        let by_index = piece.index.and_then(|index| find(&|call| call.indexes.has(&index)));
        let by_id = Some(&piece.id).filter(|id| !id.is_empty()).and_then(|id| {
            // Calls that share an id differ by their index.
            let by_both = |index| find(&|call| call.ids.has(id) && call.indexes.has(&index));
            piece.index.and_then(by_both).or_else(|| find(&|call| call.ids.has(id)))
        });
        let new = self.calls.len();
        if let Some(place) = by_id {
            let is_same = self.is_same_id(place, piece);
            return if is_same { (place, by_index.is_none_or(|at| at == place)) } else { (new, true) };
        }
        let Some(place) = by_index.or(self.last) else { return (new, true) };
        // A piece that begins no value does not continue a complete call; it continues a call that
        // is being written.
        let begins_nothing =
            piece.name.is_empty() && !piece.arguments.trim().is_empty() && !opens(&piece.arguments);
        let is_open = |last: &usize| self.is_whole(place) && !self.is_whole(*last);
        if let Some(last) = self.last.filter(|last| begins_nothing && is_open(last)) {
            return (last, false);
        }
        let goes_on = self.goes_on(place, piece, by_index.is_some());
        let is_known = piece.id.is_empty() && (by_index.is_some() || piece.index.is_none());
        if goes_on { (place, is_known) } else { (new, true) }
    }

    /// Whether a piece with this call's id belongs to it. Some endpoints give all calls one id.
    fn is_same_id(&self, place: usize, piece: &CallDelta) -> bool {
        let call = &self.calls[place];
        if piece.name.is_empty() || call.tool.is_empty() {
            return true;
        }
        let is_other_index =
            piece.index.is_some_and(|index| !call.indexes.is_empty() && !call.indexes.has(&index));
        let is_same_tool = call.tool == piece.name || self.names_join(&call.tool, &piece.name);
        match call.arguments.state() {
            // Another call may begin here. If no arguments follow, it is dropped at the end.
            ArgumentsState::Whole if is_other_index && piece.arguments.trim().is_empty() => false,
            ArgumentsState::Whole => {
                let is_other_call = opens(&piece.arguments)
                    && !call.arguments.is_placeholder()
                    && !call.arguments.is_repeated_by(&piece.arguments)
                    && !call.arguments.is_grown_by(&piece.arguments);
                // A piece that also has the same index belongs to the same call, whatever it
                // contains.
                let is_same_index = piece.index.is_some_and(|index| call.indexes.has(&index));
                let is_replaced = is_same_index && !self.in_list.contains(&place);
                call.tool == piece.name && (is_replaced || !is_other_call)
            }
            ArgumentsState::Open => call.tool == piece.name,
            ArgumentsState::Empty => is_same_tool && !is_other_index,
        }
    }

    /// Whether a piece with an unknown id or none continues this call. The piece has the index of
    /// this call, or follows its last piece.
    fn goes_on(&self, place: usize, piece: &CallDelta, has_index: bool) -> bool {
        let call = &self.calls[place];
        let (arguments, state) = (&call.arguments, call.arguments.state());
        let is_blank = piece.arguments.trim().is_empty();
        let has_no_index = piece.index.is_none();
        if piece.name.is_empty() {
            return match state {
                ArgumentsState::Whole => {
                    has_index
                        || has_no_index
                        || is_blank
                        || (arguments.is_placeholder() && !call.tool.is_empty())
                }
                ArgumentsState::Empty | ArgumentsState::Open => true,
            };
        }
        if self.in_list.contains(&place) {
            return false;
        }
        if call.tool.is_empty() {
            return has_index || has_no_index;
        }
        let is_other_id = !piece.id.is_empty() && !call.ids.is_empty();
        let is_same_tool = call.tool == piece.name;
        match state {
            ArgumentsState::Whole => {
                has_index
                    && is_same_tool
                    && !is_other_id
                    && (is_blank
                        || arguments.is_placeholder()
                        || arguments.is_repeated_by(&piece.arguments)
                        || arguments.is_grown_by(&piece.arguments))
            }
            ArgumentsState::Empty if has_index && is_other_id => is_same_tool,
            ArgumentsState::Empty => {
                (has_index || has_no_index) && !is_other_id && self.names_join(&call.tool, &piece.name)
            }
            // Unfinished JSON is not followed by another call under its own index.
            ArgumentsState::Open if is_blank => is_same_tool && (has_index || (has_no_index && !is_other_id)),
            ArgumentsState::Open if opens(&piece.arguments) => is_same_tool && has_index && !is_other_id,
            ArgumentsState::Open => is_same_tool,
        }
    }

    /// Whether the second text continues the name that the first one begins, or repeats it.
    fn names_join(&self, begun: &str, more: &str) -> bool {
        let is_tool = |name: &str| self.tools.iter().any(|tool| tool == name);
        let joined = format!("{begun}{more}");
        begun == more
            || self.tools.iter().any(|tool| tool.starts_with(&joined))
            || more.starts_with(begun)
            || !(is_tool(begun) || is_tool(more))
    }
}

/// The name after one more piece. Names arrive whole, in pieces, whole with each piece, or longer
/// with each piece.
fn joined_name(begun: &str, more: &str, tools: &[String]) -> String {
    let joined = format!("{begun}{more}");
    if begun.is_empty() || more.is_empty() || tools.contains(&joined) {
        return joined;
    }
    if more.starts_with(begun) { more.to_owned() } else { joined }
}

/// The endpoint's id if it is unique in the turn, else a generated one.
fn unique_id(step: u32, place: usize, given: &str, known: &mut HashSet<String>) -> String {
    let own = format!("call_{step}_{place}");
    let others = (0..).map(|n| format!("{own}_{n}"));
    let is_fit = |id: &&str| !id.is_empty() && id.len() <= LONGEST_NAME && !id.contains(char::is_control);
    let given = Some(given).filter(is_fit).map(str::to_owned);
    let mut wanted = given.into_iter().chain([own.clone()]).chain(others);
    let id = wanted.find(|id| !known.contains(id)).unwrap_or(own);
    known.insert(id.clone());
    id
}

#[cfg(test)]
mod tests;
