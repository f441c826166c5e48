//! A whole session in memory: base layers, temp layer and compressions.

use std::collections::BTreeSet;

use model::{ReasoningSessionId, Timestamp};

use crate::layer::{Checkpoint, Layer, LayerId, checkpoint_name, restorable};
use crate::{
    Compression, CompressionRequest, MAX_CHECKPOINTS, MAX_MESSAGES_PER_SESSION, NewMessage, Number, Reason,
    ReasoningRole, Refusal, Runs, SessionMessage, ShownMessage, ShownThread, ViewLine, append, compress,
    message_id, render,
};

/// Read-only base layers and a temp layer, with the layers of compressions on top of both.
#[derive(Debug, Clone)]
pub struct ReasoningThreadStack {
    session: ReasoningSessionId,
    /// All messages of the session, including hidden ones: the message with number n has index n -
    /// 1.
    messages: Vec<SessionMessage>,
    layers: Vec<Layer>,
    /// The newest layer that is not undone.
    head: LayerId,
    waiting: BTreeSet<String>,
    checkpoints: Vec<Checkpoint>,
}

/// An entry of the discarded log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discarded<'a> {
    pub layer: &'a Layer,
    /// The message that replaces the others.
    pub summary: &'a SessionMessage,
}

impl ReasoningThreadStack {
    /// A session with these base messages, which are numbered in their order.
    pub fn new(session: ReasoningSessionId, base: Vec<SessionMessage>) -> Self {
        let numbered = base.into_iter().zip(1..).map(|(message, number)| SessionMessage {
            number,
            in_temp: false,
            ..message
        });
        Self {
            session,
            messages: numbered.collect(),
            layers: Vec::new(),
            head: 0,
            waiting: BTreeSet::new(),
            checkpoints: Vec::new(),
        }
    }

    /// All messages of the session, including hidden ones, by number.
    pub fn messages(&self) -> &[SessionMessage] {
        &self.messages
    }

    /// The shown messages, in order.
    pub fn shown(&self) -> Vec<&SessionMessage> {
        let (runs, through) = match self.layer(self.head) {
            Some(layer) => (layer.shown.clone(), layer.summary),
            None => (Runs::default(), 0),
        };
        // Summaries come only from the layers, because the summary of an undone layer is not shown.
        let later = self.messages.iter().filter(|message| message.number > through);
        let later = later.filter(|message| message.role != ReasoningRole::Summary);
        runs.numbers().filter_map(|number| self.message(number)).chain(later).collect()
    }

    /// The shown messages, in the form that decisions need.
    pub fn thread(&self) -> ShownThread {
        let entries = self.shown().into_iter().map(ShownMessage::from).collect();
        ShownThread { session: self.session.clone(), entries, last_number: self.messages.len() as Number }
    }

    /// The view for a model.
    pub fn view(&self) -> String {
        let (shown, thread) = (self.shown(), self.thread());
        let called = thread.called_tools();
        let lines = shown.iter().zip(&called).map(|(message, called)| {
            let line = ViewLine::from(*message);
            ViewLine { tool: line.tool.or(*called), ..line }
        });
        render(lines, None, thread.token())
    }

    /// Appends messages to the temp layer and returns the number of the first one.
    ///
    /// # Errors
    /// A message is invalid.
    pub fn append(&mut self, messages: Vec<NewMessage>) -> Result<Number, Refusal> {
        let new = append(messages)?;
        let waiting = new.settle(&self.waiting)?;
        let first = self.messages.len() as Number + 1;
        let last = first - 1 + new.messages.len() as Number;
        if last > MAX_MESSAGES_PER_SESSION {
            let max = MAX_MESSAGES_PER_SESSION;
            return Err(Reason::TooMany { what: "messages of the session", count: last, max }.into());
        }
        self.waiting = waiting;
        self.messages.extend(new.messages.into_iter().zip(first..).map(|(message, number)| SessionMessage {
            number,
            in_temp: true,
            role: message.role,
            content: message.content,
            thinking: message.thinking,
            signature: message.signature,
            calls: message.calls,
            answers: message.answers,
            tool: message.tool,
        }));
        Ok(first)
    }

    /// Compresses messages and returns the compression.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn compress(&mut self, request: &CompressionRequest) -> Result<Compression, Refusal> {
        let compression = compress(&self.thread(), request)?;
        self.messages.push(SessionMessage {
            number: compression.summary,
            in_temp: compression.in_temp,
            role: ReasoningRole::Summary,
            content: request.summary.clone(),
            thinking: None,
            signature: None,
            calls: Vec::new(),
            answers: None,
            tool: None,
        });
        let id = self.layers.len() as LayerId + 1;
        self.layers.push(Layer {
            id,
            previous: self.head,
            replaced: compression.replaced.clone(),
            summary: compression.summary,
            shown: compression.shown.clone(),
            is_undone: false,
        });
        self.head = id;
        Ok(compression)
    }

    /// Undoes the newest compression and returns its layer. With `summary_id`, undoes it only if
    /// that is its summary.
    ///
    /// # Errors
    /// There is no compression, or the newest one has another summary.
    pub fn undo(&mut self, summary_id: Option<&str>) -> Result<LayerId, Refusal> {
        let newest = self.layer(self.head).ok_or(Reason::NothingToUndo)?;
        let (id, previous) = (newest.id, newest.previous);
        if let Some(summary_id) = summary_id.filter(|wanted| **wanted != message_id(newest.summary)) {
            return Err(Reason::NotNewest(summary_id.to_owned()).into());
        }
        self.back_to(previous);
        Ok(id)
    }

    /// Gives the newest layer a name.
    ///
    /// # Errors
    /// The name is invalid, or there are too many checkpoints.
    pub fn checkpoint(&mut self, name: &str, at: Timestamp) -> Result<LayerId, Refusal> {
        checkpoint_name(name)?;
        self.checkpoints.retain(|checkpoint| checkpoint.name != name);
        if self.checkpoints.len() >= MAX_CHECKPOINTS {
            let (count, max) = (self.checkpoints.len() as u64 + 1, MAX_CHECKPOINTS as u64);
            return Err(Reason::TooMany { what: "checkpoints", count, max }.into());
        }
        self.checkpoints.push(Checkpoint { name: name.to_owned(), layer: self.head, at });
        Ok(self.head)
    }

    /// Undoes all compressions since a checkpoint and returns their number. Messages appended since
    /// then stay.
    ///
    /// # Errors
    /// No checkpoint has this name, or its layer was undone.
    pub fn restore(&mut self, name: &str) -> Result<u64, Refusal> {
        let stands =
            |checkpoint: &Checkpoint| self.layer(checkpoint.layer).is_none_or(|layer| !layer.is_undone);
        let known: Vec<_> = self.checkpoints.iter().map(|known| (known.clone(), stands(known))).collect();
        let layer = restorable(name, &known)?;
        Ok(self.back_to(layer))
    }

    /// The discarded log, oldest first.
    pub fn discarded(&self) -> impl Iterator<Item = Discarded<'_>> {
        self.layers
            .iter()
            .filter_map(|layer| Some(Discarded { layer, summary: self.message(layer.summary)? }))
    }

    fn back_to(&mut self, head: LayerId) -> u64 {
        let newer = self.layers.iter_mut().filter(|layer| layer.id > head && !layer.is_undone);
        let undone = newer.map(|layer| layer.is_undone = true).count();
        self.head = head;
        undone as u64
    }

    fn layer(&self, id: LayerId) -> Option<&Layer> {
        self.layers.get(usize::try_from(id).ok()?.checked_sub(1)?)
    }

    fn message(&self, number: Number) -> Option<&SessionMessage> {
        self.messages.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}
