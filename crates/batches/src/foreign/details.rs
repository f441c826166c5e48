//! Calls and reasoning that Open WebUI has written into the text of an answer, as `<details type="tool_calls" …>`.

use serde_json::Value;

use super::parts::{Part, PartResult, arguments, result_text};

const END: &str = "</details>";

/// The parts of a text. What is no block of these types stays text.
pub(super) fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut plain = String::new();
    while let Some(at) = rest.find("<details") {
        let (before, block) = rest.split_at(at);
        plain.push_str(before);
        // A block begins a line; within a line it is an example.
        let begins_line = plain.is_empty() || plain.ends_with('\n');
        match Some(block).filter(|_| begins_line).and_then(read) {
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

/// One block, and what follows it.
fn read(block: &str) -> Option<(Vec<Part>, &str)> {
    let (attributes, inside) = attributes(block.strip_prefix("<details")?)?;
    let (body, after) = inside.split_once(END)?;
    let body = match body.split_once("</summary>") {
        Some((_, body)) => unescaped(body.trim()),
        None => unescaped(body.trim()),
    };
    let of = |name: &str| attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let parts = match of("type").as_deref() {
        Some("reasoning") => {
            let quoted = body
                .lines()
                .map(|line| line.strip_prefix("> ").or_else(|| line.strip_prefix('>')).unwrap_or(line));
            vec![Part::Reasoning(quoted.collect::<Vec<_>>().join("\n"))]
        }
        Some("tool_calls") => {
            let (id, name) = (of("id").unwrap_or_default(), of("name").unwrap_or_default());
            let call = Part::Call {
                id: id.clone(),
                name,
                arguments: decoded(&of("arguments").unwrap_or_default(), |value| arguments(Some(value))),
            };
            let result = of("result")
                .filter(|result| !result.is_empty())
                .or(Some(body).filter(|body| !body.is_empty()));
            let result = result.map(|result| {
                Part::Result(PartResult {
                    id,
                    name: None,
                    text: decoded(&result, result_text),
                    is_error: false,
                })
            });
            [Some(call), result].into_iter().flatten().collect()
        }
        Some("code_interpreter") => vec![Part::Text(body)],
        _ => return None,
    };
    Some((parts, after))
}

/// Attributes are JSON, sometimes JSON within a JSON text.
fn decoded(text: &str, read: fn(&Value) -> String) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => read(&value),
        Err(_) => text.to_owned(),
    }
}

/// The attributes of a tag, and what follows it.
fn attributes(tag: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found = Vec::new();
    let mut rest = tag.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('>') {
            return Some((found, after));
        }
        let (name, value) = rest.split_once('=')?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
            return None;
        }
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let (value, after) = value.get(1..)?.split_once(quote)?;
        found.push((name.to_owned(), unescaped(value)));
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
        let result =
            PartResult { id: "c1".to_owned(), name: None, text: "12 <kn>".to_owned(), is_error: false };
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
}
