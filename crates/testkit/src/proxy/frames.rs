//! The part of Postgres' wire protocol that shows which statement is about to run.

use std::{collections::HashSet, io};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest message that is accepted; anything longer is a defect here or in the peer.
const MAX_LEN: usize = 64 * 1024 * 1024;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// A message with its header, as it was on the wire.
#[derive(Debug)]
pub(super) struct PgMessage {
    /// Message type; `None` for the first message of a client, which has none.
    pub(super) tag: Option<u8>,
    pub(super) bytes: Vec<u8>,
}

impl PgMessage {
    /// Reads a message; `None` if the peer has closed between two messages.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut bytes = vec![0; 1];
        if from.read(&mut bytes).await? == 0 {
            return Ok(None);
        }
        let tag = Some(bytes[0]);
        Self::read_rest(from, tag, bytes).await.map(Some)
    }

    pub(super) async fn read_startup(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        Self::read_rest(from, None, Vec::new()).await
    }

    async fn read_rest(
        from: &mut (impl AsyncRead + Unpin),
        tag: Option<u8>,
        mut bytes: Vec<u8>,
    ) -> io::Result<Self> {
        let len = from.read_u32().await?;
        let header = bytes.len();
        let wanted = len as usize;
        if !(4..=MAX_LEN).contains(&wanted) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {wanted} bytes")));
        }
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.resize(header + wanted, 0);
        from.read_exact(&mut bytes[header + 4..]).await?;
        Ok(Self { tag, bytes })
    }

    /// True if the client asks for encryption, which the proxy declines.
    pub(super) fn asks_for_encryption(&self) -> bool {
        let code = self.bytes.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
        self.tag.is_none() && matches!(code, Some(SSL_REQUEST | GSS_REQUEST))
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(5..).unwrap_or_default()
    }
}

/// Follows one client's messages, and detects when a marked statement is about to run.
#[derive(Debug)]
pub(super) struct StatementWatch {
    markers: Vec<String>,
    /// Names of prepared statements that contain a marker.
    marked: HashSet<Vec<u8>>,
}

impl StatementWatch {
    pub(super) fn new(markers: &[String]) -> Self {
        Self { markers: markers.to_vec(), marked: HashSet::new() }
    }

    /// True if this message makes a marked statement run: a Bind of it, or a simple query.
    pub(super) fn runs_marked(&mut self, message: &PgMessage) -> bool {
        let (first, rest) = split_text(message.body());
        match message.tag {
            Some(b'P') => {
                let (text, _) = split_text(rest);
                match self.has_marker(text) {
                    true => self.marked.insert(first.to_vec()),
                    false => self.marked.remove(first),
                };
                false
            }
            Some(b'B') => self.marked.contains(split_text(rest).0),
            Some(b'Q') => self.has_marker(first),
            _ => false,
        }
    }

    fn has_marker(&self, text: &[u8]) -> bool {
        let text = String::from_utf8_lossy(text);
        self.markers.iter().any(|marker| text.contains(marker.as_str()))
    }
}

/// The text up to the next NUL, and the rest.
fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> PgMessage {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(body);
        PgMessage { tag: Some(tag), bytes }
    }

    #[test]
    fn a_marked_statement_is_known_by_its_name() {
        let mut watch = StatementWatch::new(&["/* mark */".to_owned()]);
        assert!(!watch.runs_marked(&message(b'P', b"s1\0/* mark */ SELECT 1\0\0\0")));
        assert!(!watch.runs_marked(&message(b'P', b"s2\0SELECT 2\0\0\0")));
        assert!(watch.runs_marked(&message(b'B', b"\0s1\0\0\0")));
        assert!(!watch.runs_marked(&message(b'B', b"\0s2\0\0\0")));
        assert!(watch.runs_marked(&message(b'Q', b"SELECT /* mark */ 1\0")));
        assert!(!watch.runs_marked(&message(b'P', b"s1\0SELECT 3\0\0\0")));
        assert!(!watch.runs_marked(&message(b'B', b"\0s1\0\0\0")));
    }

    #[tokio::test]
    async fn messages_are_read_whole() {
        let mut wire: &[u8] = b"Q\0\0\0\x08abc\0Z\0\0\0\x05I";
        let first = PgMessage::read(&mut wire).await.unwrap().unwrap();
        assert_eq!((first.tag, first.body()), (Some(b'Q'), b"abc\0".as_slice()));
        let second = PgMessage::read(&mut wire).await.unwrap().unwrap();
        assert_eq!((second.tag, second.body()), (Some(b'Z'), b"I".as_slice()));
        assert!(PgMessage::read(&mut wire).await.unwrap().is_none());
        assert!(PgMessage::read(&mut b"Q\0\0\0\x01".as_slice()).await.is_err());
    }
}
