//! The turn token of a payload that was refused.

use model::TurnToken;

use crate::frame::{Form, form, is_frame};
use crate::zero_copy::{Fields, Malformed};

/// The turn token of a refused payload, as far as it is readable. The rest of the payload is not
/// trusted. The holder of the token acts for the turn, and so learns at once that the payload was
/// refused.
///
/// If there are several tokens, the outermost is used, and of these the first. Returns `None` if
/// there is none, or the payload is cut off before it.
pub fn token_of_refused(content_type: Option<&str>, payload: &[u8]) -> Option<TurnToken> {
    let token = match form(content_type, payload, is_frame) {
        Form::Json => token_in_json(payload)?,
        Form::Protobuf => token_in_protobuf(payload).ok()??,
    };
    (!token.is_empty()).then(|| TurnToken::received(token))
}

/// Finds the key as text, because the payload may not be valid JSON. Within a string the quotes of
/// the key would be escaped.
fn token_in_json(payload: &[u8]) -> Option<&str> {
    const KEY: &[u8] = b"\"turn_token\"";
    let mut found: Option<(usize, &str)> = None;
    let mut depth = 0_usize;
    let mut is_text = false;
    let mut at = 0;
    while let Some(byte) = payload.get(at) {
        let after = payload[at..].strip_prefix(KEY);
        // The same text may also be a value, or a field of the metadata.
        if let Some(token) = after.and_then(text_after_colon)
            && found.is_none_or(|(outermost, _)| depth < outermost)
        {
            found = Some((depth, token));
        }
        match byte {
            b'"' => is_text = !is_text,
            b'\\' if is_text => at += 1,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    found.map(|(_, token)| token)
}

/// The string value after the key.
fn text_after_colon(after: &[u8]) -> Option<&str> {
    let value = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let end = value.iter().position(|byte| *byte == b'"')?;
    str::from_utf8(&value[..end]).ok()
}

fn token_in_protobuf(payload: &[u8]) -> Result<Option<&str>, Malformed> {
    let mut fields = Fields(payload);
    while let Some(mut field) = fields.next()? {
        match field.tag {
            2 => return field.text().map(Some),
            _ => field.skip()?,
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(payload: &[u8]) -> Option<String> {
        token_of_refused(None, payload).map(|token| token.as_str().to_owned())
    }

    #[test]
    fn a_token_is_found_whatever_else_is_wrong() {
        for payload in [
            r#"{"session_id": "t", "chunk_id": "seven", "turn_token": "abc"}"#,
            r#"[{"chunk": "x", "turn_token" : "abc"}, {"turn_token": "other"}"#,
            r#"{"turn_token":"abc","chunk":"cut off"#,
            r#"{"chunk": "\"turn_token\": \"quoted\"", "turn_token": "abc"}"#,
            r#"{"correlation_id":"turn_token","turn_token":"abc"}"#,
            r#"{"correlation_id" : "turn_token" , "tags": ["turn_token"], "turn_token" : "abc", "chunk_id": "#,
            r#"{"metadata": {"turn_token": "theirs"}, "chunk": "}{\"", "turn_token": "abc""#,
            r#"{"turn_token": null, "turn_token": "abc"}"#,
        ] {
            assert_eq!(found(payload.as_bytes()).as_deref(), Some("abc"), "{payload}");
        }
        let pb = crate::pb::Frame { turn_token: "abc".to_owned(), ..Default::default() };
        let mut bytes = prost::Message::encode_to_vec(&pb);
        assert_eq!(found(&bytes).as_deref(), Some("abc"));
        bytes.push(0xff);
        assert_eq!(found(&bytes).as_deref(), Some("abc"), "what follows the token is not read");
    }

    #[test]
    fn without_a_token_there_is_none() {
        for payload in [
            "",
            "{",
            r#"{"chunk": "x"}"#,
            r#"{"turn_token": ""}"#,
            r#"{"turn_token": 7}"#,
            r#"{"turn_token": "cut"#,
            r#"{"correlation_id": "turn_token"}"#,
            r#"{"correlation_id": "turn_token", "#,
        ] {
            assert_eq!(found(payload.as_bytes()), None, "{payload}");
        }
    }
}
