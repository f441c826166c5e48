//! The kinds of deviation of an endpoint from its interface.

/// One kind of deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deviation {
    /// Invalid bytes, or unpaired UTF-16 surrogates.
    InvalidText,
    /// JSON that had to be repaired.
    InvalidJson,
    /// Data that is not a JSON object or not JSON.
    NotJson,
    /// JSON without `data:`, or with it twice.
    NoDataField,
    /// Events without an empty line between them.
    NoEmptyLine,
    /// Content that is neither a text nor a list of parts.
    ContentShape,
    /// A part of the content that is not a text.
    ContentPart,
    /// A value in place of a tool call that is not a call.
    CallShape,
    /// Pieces of a call whose index or id does not identify the call.
    CallIdentity,
    /// A repeated call or repeated arguments.
    Repetition,
    /// Arguments that are not a JSON object.
    Arguments,
    /// A choice beside the first one.
    OtherChoice,
    /// A whole message that does not continue the pieces before it.
    Message,
    /// A finish reason that is not known.
    FinishReason,
    /// The finish reason is missing.
    NoFinishReason,
    /// `[DONE]` is missing.
    NoEnd,
}

impl Deviation {
    pub(crate) const ALL: [Self; 16] = [
        Self::InvalidText,
        Self::InvalidJson,
        Self::NotJson,
        Self::NoDataField,
        Self::NoEmptyLine,
        Self::ContentShape,
        Self::ContentPart,
        Self::CallShape,
        Self::CallIdentity,
        Self::Repetition,
        Self::Arguments,
        Self::OtherChoice,
        Self::Message,
        Self::FinishReason,
        Self::NoFinishReason,
        Self::NoEnd,
    ];

    /// Label of the metric.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InvalidText => "invalid_text",
            Self::InvalidJson => "invalid_json",
            Self::NotJson => "not_json",
            Self::NoDataField => "no_data_field",
            Self::NoEmptyLine => "no_empty_line",
            Self::ContentShape => "content_shape",
            Self::ContentPart => "content_part",
            Self::CallShape => "call_shape",
            Self::CallIdentity => "call_identity",
            Self::Repetition => "repetition",
            Self::Arguments => "arguments",
            Self::OtherChoice => "other_choice",
            Self::Message => "message",
            Self::FinishReason => "finish_reason",
            Self::NoFinishReason => "no_finish_reason",
            Self::NoEnd => "no_end",
        }
    }

    /// What the reader does in response, for the log.
    pub(crate) fn consequence(self) -> &'static str {
        match self {
            Self::InvalidText => "parts of characters without their others were replaced by U+FFFD",
            Self::InvalidJson => {
                "JSON with invalid tokens was mended, and numbers without a value were left out"
            }
            Self::NotJson => "data that is no JSON object was left out",
            Self::NoDataField => "JSON without `data:`, or with it twice, was read as an event",
            Self::NoEmptyLine => "events without an empty line between them were separated",
            Self::ContentShape => "content that is neither a text nor a list of parts was left out",
            Self::ContentPart => "parts of the content that are no text were left out",
            Self::CallShape => "something in place of a tool call was left out",
            Self::CallIdentity => "pieces of a tool call were assigned in spite of their index or id",
            Self::Repetition => "a tool call or its arguments came more than once, and count once",
            Self::Arguments => {
                "arguments of a tool call are no JSON object: the model was asked to correct them"
            }
            Self::OtherChoice => "choices beside the first were left out",
            Self::Message => "a whole message that does not go on from what was said was left out",
            Self::FinishReason => "an unknown finish reason was read as `stop`",
            Self::NoFinishReason => "an answer that ended without a finish reason was taken for whole",
            Self::NoEnd => {
                "an answer that ended without `[DONE]` was taken for whole, because its finish reason had come"
            }
        }
    }
}

/// The kinds of deviation in one response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Deviations(u32);

impl Deviations {
    pub(super) fn note(&mut self, deviation: Deviation) {
        self.0 |= 1 << deviation as u32;
    }

    pub(super) fn note_if(&mut self, holds: bool, deviation: Deviation) {
        if holds {
            self.note(deviation);
        }
    }

    pub(crate) fn has(self, deviation: Deviation) -> bool {
        self.0 & (1 << deviation as u32) != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Deviation> {
        Deviation::ALL.into_iter().filter(move |deviation| self.has(*deviation))
    }
}
