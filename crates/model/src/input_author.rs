//! The person who wrote an input, in a thread with several people.

use serde_json::{Map, Value};

use crate::Metadata;

/// Metadata key of an input's author.
const AUTHOR: &str = "author";
const ID: &str = "id";
const NAME: &str = "name";

/// The author of an input. Clients find it in the metadata of the message, as `author`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputAuthor {
    pub id: Option<String>,
    /// Models read it before the text of the input.
    pub name: String,
}

impl InputAuthor {
    /// Maximum length of an id or a name, in bytes.
    pub const MAX_BYTES: usize = 256;
}

impl Metadata {
    /// Names the author of an input, if there is one and the metadata name none.
    #[must_use]
    pub fn with_author(self, author: Option<&InputAuthor>) -> Self {
        let Some(author) = author.filter(|_| self.get(AUTHOR).is_none()) else { return self };
        let id = author.id.iter().map(|id| (ID.to_owned(), Value::from(id.as_str())));
        let named: Map<_, _> = id.chain([(NAME.to_owned(), Value::from(author.name.as_str()))]).collect();
        self.with_value(AUTHOR, Value::Object(named))
    }

    /// The name of the author of an input.
    pub fn author_name(&self) -> Option<&str> {
        self.get(AUTHOR)?
            .get(NAME)?
            .as_str()
            .filter(|name| !name.trim().is_empty() && name.len() <= InputAuthor::MAX_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_name_the_author_of_an_input() {
        let of = |value: Value| Metadata::new(value.as_object().unwrap().clone()).unwrap();
        let kim = InputAuthor { id: Some("u1".to_owned()), name: "Kim".to_owned() };
        let named = of(json!({"k": 1})).with_author(Some(&kim));
        assert_eq!(named.to_value(), json!({"k": 1, "author": {"id": "u1", "name": "Kim"}}));
        assert_eq!(named.author_name(), Some("Kim"));
        let lee = InputAuthor { id: None, name: "Lee".to_owned() };
        assert_eq!(named.with_author(Some(&lee)).author_name(), Some("Kim"));
        assert_eq!(Metadata::EMPTY.with_author(Some(&lee)).to_value(), json!({"author": {"name": "Lee"}}));
        for other in [
            json!({}),
            json!({"author": "Kim"}),
            json!({"author": {"name": " "}}),
            json!({"author": {"name": 1}}),
        ] {
            assert_eq!(of(other.clone()).author_name(), None, "{other}");
        }
    }
}
