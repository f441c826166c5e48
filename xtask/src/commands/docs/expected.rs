//! Compares the output of a block with the output that its page shows.
//!
//! In a page `…` stands for any text, and a line `…` for any lines. Ids, times and long numbers
//! differ in each run, so only their presence is checked.

use std::sync::LazyLock;

use regex::Regex;

/// Patterns of text that differs in each run, each with its name in a comparison.
static VARYING: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    patterns(&[
        // The beginning of an id.
        (r"\b(w-|[ut])?[0-9a-f]*[0-9][0-9a-f-]*…", ANY),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( UTC|Z)?", "<time>"),
        (r"\b[ut][0-9a-f]{4}-[0-9a-f]{8,}", "<id>"),
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
        (r"\bw-[0-9a-f]{16,}\b", "<id>"),
        (r"\b[0-9a-f]{12,}\b", "<id>"),
        (r"\s+", " "),
    ])
});

fn patterns(texts: &[(&str, &'static str)]) -> Vec<(Regex, &'static str)> {
    texts.iter().filter_map(|(pattern, name)| Some((Regex::new(pattern).ok()?, *name))).collect()
}

const ANY: &str = "…";

/// What a block has printed.
pub(super) struct Printed {
    pub(super) output: String,
    pub(super) errors: String,
}

impl Printed {
    /// Whether the page shows this output. The page may leave out standard error, or have it before
    /// or after standard output.
    pub(super) fn is_shown_by(&self, page: &str) -> bool {
        let Self { output, errors } = self;
        [output.clone(), format!("{errors}\n{output}"), format!("{output}\n{errors}")]
            .iter()
            .any(|printed| matches(page, printed))
    }
}

/// Whether the printed lines match those of the page.
fn matches(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (comparable(shown), comparable(printed));
    // The places in `printed` at which the lines compared so far can end.
    let mut ends = vec![0];
    for line in &shown {
        if line == ANY {
            let first = ends.iter().min().copied().unwrap_or(usize::MAX);
            ends = (first..=printed.len()).collect();
        } else {
            let follows = |end: &usize| printed.get(*end).is_some_and(|text| line_matches(line, text));
            ends = ends.into_iter().filter(follows).map(|end| end + 1).collect();
        }
    }
    ends.contains(&printed.len())
}

fn comparable(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        VARYING.iter().fold(line.trim().to_owned(), |line, (pattern, name)| {
            pattern.replace_all(&line, *name).into_owned()
        })
    });
    lines.filter(|line| !line.is_empty()).collect()
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split(ANY);
    let Some(mut rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let Some(last) = shown.rsplit_once(ANY).map(|(_, last)| last) else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    printed.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_in_each_run_may_differ() {
        for (shown, printed, is_same) in [
            ("a\n\nb", "a\nb\n", true),
            ("a", "a\nb", false),
            ("a\n…", "a\nb\nc", true),
            ("…\nb", "a\nb\nc", false),
            ("…\nb\n…", "a\nb\nc", true),
            ("…", "", true),
            (r#"{"id":"x",…,"n":1}"#, r#"{"id":"x","y":2,"n":1}"#, true),
            (r#"{"id":"x",…,"n":1}"#, r#"{"id":"x","y":2,"n":2}"#, false),
            ("[2,1]", "[2,2]", false),
            ("until 2026-11-29T22:46:34.104Z", "until 2027-01-01T00:00:00Z", true),
            ("u00ab-01a2…-a.0.1", "u0042-01b3c4d5e6f7-a.0.1", true),
            ("u00ab-01a2…-a.0.1", "u0042-01b3c4d5e6f7-a.0.2", false),
            (
                "0          w-01a2296a333075e58a82bd4acd621ea3  ok",
                "0 w-01b3296a333075e58a82bd4acd621ea3 ok",
                true,
            ),
            ("TASK ID  KIND", "TASK ID     KIND", true),
            ("a…b…c", "axbyc-", false),
            ("0  w-01a2…  8…  1", "0  w-01b3296a333075e58a82bd4acd621ea3  912  1", true),
        ] {
            assert_eq!(matches(shown, printed), is_same, "{shown:?} {printed:?}");
        }
    }

    #[test]
    fn the_standard_error_may_be_left_out() {
        let printed = Printed { output: "out".to_owned(), errors: "warning".to_owned() };
        for (shown, is_shown) in
            [("out", true), ("warning\nout", true), ("out\nwarning", true), ("warning", false)]
        {
            assert_eq!(printed.is_shown_by(shown), is_shown, "{shown}");
        }
    }
}
