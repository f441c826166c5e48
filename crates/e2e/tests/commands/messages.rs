//! Messages in the notation of scripts.

/// One message of a script: see [`super::CommandFixture::put`].
pub(super) struct Written<'a> {
    pub(super) position: i64,
    pub(super) batch: i64,
    pub(super) number: i32,
    pub(super) role: &'static str,
    pub(super) call: Option<&'a str>,
    pub(super) is_apart: bool,
}

impl<'a> Written<'a> {
    pub(super) fn read(word: &'a str) -> Self {
        let (word, is_apart) = word.strip_suffix('!').map_or((word, false), |word| (word, true));
        let (word, call) = word.split_once('=').map_or((word, None), |(word, call)| (word, Some(call)));
        let (position, rest) = word.split_once(':').unwrap();
        let (batch, rest) = rest.split_once('.').unwrap();
        let (number, role) = rest.split_at(rest.len() - 1);
        let role = match role {
            "u" => "user",
            "t" => "tool",
            _ => "assistant",
        };
        let (position, batch) = (position.parse().unwrap(), batch.parse().unwrap());
        Self { position, batch, number: number.parse().unwrap(), role, call, is_apart }
    }
}
