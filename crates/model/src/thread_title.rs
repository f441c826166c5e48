//! Titles of threads.

use serde::{Deserialize, Serialize};

/// Who gave a thread its title. A title takes the place of one of an earlier kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TitleSource {
    /// The title is the beginning of the first message.
    Input,
    Workflow,
    Client,
}

impl TitleSource {
    /// In ascending rank.
    pub const ALL: [Self; 3] = [Self::Input, Self::Workflow, Self::Client];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Workflow => "workflow",
            Self::Client => "client",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.name() == name)
    }
}

/// The title of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTitle {
    /// One line of 1 to [`ThreadTitle::MAX_LEN`] characters.
    pub text: String,
    pub by: TitleSource,
}

impl ThreadTitle {
    /// Maximum length, in characters.
    pub const MAX_LEN: usize = 256;

    /// Whether a text can be a title: one line, with more than blanks.
    pub fn is_valid(text: &str) -> bool {
        let is_blank = text.trim().is_empty();
        !is_blank && text.chars().count() <= Self::MAX_LEN && !text.chars().any(char::is_control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_one_line() {
        let longest = "x".repeat(ThreadTitle::MAX_LEN);
        let valid = ["a", "é b", longest.as_str()];
        assert!(valid.into_iter().all(ThreadTitle::is_valid));
        let longer = format!("{longest}x");
        let invalid = ["", " ", "a\nb", "\u{7}", "a\0", longer.as_str()];
        assert!(!invalid.into_iter().any(ThreadTitle::is_valid));
    }

    #[test]
    fn sources_have_names() {
        for source in TitleSource::ALL {
            assert_eq!(TitleSource::from_name(source.name()), Some(source));
            assert_eq!(serde_json::to_value(source).unwrap(), source.name());
        }
    }
}
