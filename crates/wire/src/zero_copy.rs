//! Reads chunks from a payload without copying them first.
//!
//! The generated types own every text. With them a chunk would be allocated twice: by these types
//! and by the model. This code runs for every chunk of the fleet, at its owner and at its gateways.
//! It accepts the same input as the generated types.

use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field};
use prost_types::Struct;

use crate::pb;

/// Bytes that are not the expected protobuf message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Malformed {
    #[error(transparent)]
    Protobuf(#[from] prost::DecodeError),
    /// A field is longer than its container.
    #[error("field {0} is cut off")]
    CutOff(u32),
    /// A text field is not UTF-8.
    #[error("field {0} is not UTF-8")]
    NotText(u32),
}

/// A [`pb::Chunk`] whose texts are in the payload.
#[derive(Debug, Default)]
pub(crate) struct ChunkRef<'a> {
    pub(crate) session_id: &'a str,
    pub(crate) message_id: &'a str,
    pub(crate) chunk_id: i64,
    pub(crate) chunk: &'a str,
    pub(crate) chunk_type: i32,
    pub(crate) is_final: bool,
    pub(crate) metadata: Option<Struct>,
    pub(crate) timestamp: &'a str,
    pub(crate) correlation_id: &'a str,
    pub(crate) attempt: u32,
    pub(crate) step: u32,
    pub(crate) role: i32,
}

impl<'a> ChunkRef<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut chunk = Self::default();
        let mut fields = Fields(bytes);
        while let Some(mut field) = fields.next()? {
            match field.tag {
                1 => chunk.session_id = field.text()?,
                2 => chunk.message_id = field.text()?,
                3 => chunk.chunk_id = field.varint()? as i64,
                4 => chunk.chunk = field.text()?,
                5 => chunk.chunk_type = field.varint()? as i32,
                6 => chunk.is_final = field.varint()? != 0,
                7 => chunk.metadata.get_or_insert_default().merge(field.bytes()?)?,
                8 => chunk.timestamp = field.text()?,
                9 => chunk.correlation_id = field.text()?,
                10 => chunk.attempt = field.varint()? as u32,
                11 => chunk.step = field.varint()? as u32,
                12 => chunk.role = field.varint()? as i32,
                _ => field.skip()?,
            }
        }
        Ok(chunk)
    }
}

impl<'a> From<&'a mut pb::Chunk> for ChunkRef<'a> {
    fn from(chunk: &'a mut pb::Chunk) -> Self {
        Self {
            metadata: chunk.metadata.take(),
            session_id: &chunk.session_id,
            message_id: &chunk.message_id,
            chunk_id: chunk.chunk_id,
            chunk: &chunk.chunk,
            chunk_type: chunk.chunk_type,
            is_final: chunk.is_final,
            timestamp: &chunk.timestamp,
            correlation_id: &chunk.correlation_id,
            attempt: chunk.attempt,
            step: chunk.step,
            role: chunk.role,
        }
    }
}

/// The fields of a message, one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field. The caller must take or skip its value.
    pub(crate) fn next(&mut self) -> Result<Option<Field<'a, '_>>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (tag, wire_type) = decode_key(&mut self.0)?;
        Ok(Some(Field { tag, wire_type, rest: &mut self.0 }))
    }
}

/// One field, before its value.
pub(crate) struct Field<'a, 'f> {
    pub(crate) tag: u32,
    wire_type: WireType,
    rest: &'f mut &'a [u8],
}

impl<'a> Field<'a, '_> {
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        check_wire_type(WireType::Varint, self.wire_type)?;
        Ok(decode_varint(self.rest)?)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        check_wire_type(WireType::LengthDelimited, self.wire_type)?;
        let length = usize::try_from(decode_varint(self.rest)?).unwrap_or(usize::MAX);
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed::CutOff(self.tag))?;
        *self.rest = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::NotText(self.tag))
    }

    pub(crate) fn skip(&mut self) -> Result<(), Malformed> {
        Ok(skip_field(self.wire_type, self.tag, self.rest, DecodeContext::default())?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that both readers agree on the same bytes.
    fn agree(bytes: &[u8]) -> Result<(), TestCaseError> {
        let (ours, theirs) = (ChunkRef::read(bytes), pb::Chunk::decode(bytes));
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?}", ours, theirs);
        if let (Ok(ours), Ok(mut theirs)) = (ours, theirs) {
            prop_assert_eq!(format!("{ours:?}"), format!("{:?}", ChunkRef::from(&mut theirs)));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn both_readers_agree_on_anything(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            agree(&bytes)?;
        }

        #[test]
        fn both_readers_agree_on_damaged_chunks(
            text in "\\PC{0,40}", id in any::<i64>(), kind in any::<i32>(), attempt in any::<u32>(),
            at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let chunk = pb::Chunk {
                session_id: "t1".to_owned(), message_id: "m1".to_owned(), chunk_id: id, chunk: text,
                chunk_type: kind, is_final: id % 2 == 0, attempt, step: 1, role: 2,
                metadata: Some(Struct { fields: [("k".to_owned(), prost_types::Value::default())].into() }),
                timestamp: "2026-01-02T03:04:05Z".to_owned(), correlation_id: "c".to_owned(),
            };
            let mut bytes = chunk.encode_to_vec();
            agree(&bytes)?;
            let length = bytes.len();
            bytes[at.index(length)] = byte;
            agree(&bytes)?;
            bytes.truncate(cut.index(length));
            agree(&bytes)?;
        }
    }
}
