//! Calls and reasoning that Open WebUI writes into the text of an answer, as
//! `<details type="tool_calls" …>`.

use serde_json::Value;

use super::parts::{Part, PartResult, arguments};
use super::results::{ResultContent, result_content};

const END: &str = "</details>";
/// Maximum number of attributes read per tag.
const MAX_ATTRIBUTES: usize = 32;

/// The parts of a text. Everything except blocks of these types stays text.
pub(super) fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut plain = String::new();
    // Number of bytes from the next block end to the end of the text. It is kept so that each end
    // is searched for only once.
    let mut after_end = usize::MAX;
    while let Some(at) = rest.find("<details") {
        let (before, block) = rest.split_at(at);
        plain.push_str(before);
        // A block is at the start of a line; elsewhere in a line it is an example.
        let begins_line = plain.is_empty() || plain.ends_with('\n');
        match Some(block).filter(|_| begins_line).and_then(|block| read(block, &mut after_end)) {
            Some((found, after)) => {
                push_text(&mut parts, &mut plain);
                parts.extend(found);
                rest = after;
            }
            None => {
                let (word, after) = block.split_at("<details".len());
                plain.push_str(word);
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    push_text(&mut parts, &mut plain);
    parts
}

fn push_text(parts: &mut Vec<Part>, plain: &mut String) {
    let text = plain.trim();
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
    plain.clear();
}

/// Reads one block and returns the text after it.
fn read<'a>(block: &'a str, after_end: &mut usize) -> Option<(Vec<Part>, &'a str)> {
    let (attributes, inside) = attributes(block.strip_prefix("<details")?)?;
    let kind = attributes.iter().find(|(name, _)| *name == "type").map(|(_, kind)| *kind)?;
    if !matches!(kind, "reasoning" | "tool_calls" | "code_interpreter") {
        return None;
    }
    if *after_end > inside.len() {
        // If no block end follows here, none follows later blocks either.
        *after_end = inside.find(END).map_or(0, |at| inside.len() - at);
    }
    let body = inside.get(..inside.len().checked_sub(*after_end).filter(|_| *after_end > 0)?)?;
    let after = inside.get(body.len() + END.len()..)?;
    let body = match body.split_once("</summary>") {
        Some((_, body)) => unescaped(body.trim()),
        None => unescaped(body.trim()),
    };
    let of = |name: &str| attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| unescaped(value));
    let parts = match kind {
        "reasoning" => {
            let quoted = body
                .lines()
                .map(|line| line.strip_prefix("> ").or_else(|| line.strip_prefix('>')).unwrap_or(line));
            vec![Part::Reasoning(quoted.collect::<Vec<_>>().join("\n"))]
        }
        "tool_calls" => {
            let (id, name) = (of("id").unwrap_or_default(), of("name").unwrap_or_default());
            let call =
                Part::Call { id: id.clone(), name, arguments: decoded(&of("arguments").unwrap_or_default()) };
            let result = of("result")
                .filter(|result| !result.is_empty())
                .or(Some(body).filter(|body| !body.is_empty()));
            let result = result.map(|result| {
                let content = match serde_json::from_str::<Value>(&result) {
                    Ok(value) => result_content(&value),
                    Err(_) => ResultContent { text: result, kept: Vec::new() },
                };
                Part::Result(PartResult { id, name: None, content, is_error: false })
            });
            [Some(call), result].into_iter().flatten().collect()
        }
        _ => vec![Part::Text(body)],
    };
    Some((parts, after))
}

/// Decodes an attribute, which is JSON, sometimes nested in a JSON string.
fn decoded(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => arguments(Some(&value)),
        Err(_) => text.to_owned(),
    }
}

/// The raw attributes of a tag, and the text after it.
fn attributes(tag: &str) -> Option<(Vec<(&str, &str)>, &str)> {
    let mut found = Vec::new();
    let mut rest = tag.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('>') {
            return Some((found, after));
        }
        if found.len() == MAX_ATTRIBUTES {
            return None;
        }
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let (name, value) = rest.split_at(rest.find(|c| !is_of_name(c))?);
        let value = value.strip_prefix('=')?;
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let (value, after) = value.get(1..)?.split_once(quote)?;
        found.push((name, value));
        rest = after.trim_start();
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let named = [
            ("quot;", '"'),
            ("#34;", '"'),
            ("#x27;", '\''),
            ("#39;", '\''),
            ("apos;", '\''),
            ("lt;", '<'),
            ("gt;", '>'),
            ("amp;", '&'),
        ];
        match named.iter().find_map(|(name, c)| Some((*c, after.strip_prefix(name)?))) {
            Some((c, after)) => {
                out.push(c);
                rest = after;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_parts_and_the_rest_stays_text() {
        let text = "Before\n<details type=\"reasoning\" done=\"true\" duration=\"3\">\n<summary>Thought for 3 seconds</summary>\n&gt; a &amp; b\n&gt; c\n</details>\n\
            <details type=\"tool_calls\" done=\"true\" id=\"c1\" name=\"f\" arguments=\"&quot;{\\&quot;a\\&quot;: 1}&quot;\" result=\"&quot;12 &lt;kn&gt;&quot;\" files=\"\">\n\
            <summary>Tool Executed</summary>\n</details>\nAfter, as in `<details>`.\n<details><summary>More</summary>kept</details>";
        let content = ResultContent { text: "12 <kn>".to_owned(), kept: Vec::new() };
        let result = PartResult { id: "c1".to_owned(), name: None, content, is_error: false };
        assert_eq!(
            parts(text),
            [
                Part::Text("Before".to_owned()),
                Part::Reasoning("a & b\nc".to_owned()),
                Part::Call { id: "c1".to_owned(), name: "f".to_owned(), arguments: "{\"a\": 1}".to_owned() },
                Part::Result(result),
                Part::Text(
                    "After, as in `<details>`.\n<details><summary>More</summary>kept</details>".to_owned()
                ),
            ]
        );
        for broken in ["<details type=\"reasoning\">no end", "<details type=", "<details"] {
            assert_eq!(parts(broken), [Part::Text(broken.to_owned())], "{broken}");
        }
    }

    #[test]
    fn many_blocks_without_an_end_cost_no_more_than_their_length() {
        for block in [
            "<details type=\"reasoning\">\n",
            "<details>\n",
            "<details\n",
            "<details a=\n",
            "<details a='\n<details b=\"\n",
            "<details a='\n<details a=' b='\n",
        ] {
            for end in ["", END] {
                let text = block.repeat(100_000) + end;
                let length: usize = parts(&text).iter().map(|part| format!("{part:?}").len()).sum();
                assert!(length > 100_000, "{block}");
            }
        }
        let two = "<details type=\"reasoning\">\na</details>\n<details type=\"reasoning\">\nb</details>\n<details type=\"reasoning\">\nc";
        let expected = [
            Part::Reasoning("a".to_owned()),
            Part::Reasoning("b".to_owned()),
            Part::Text("<details type=\"reasoning\">\nc".to_owned()),
        ];
        assert_eq!(parts(two), expected);
    }
}
