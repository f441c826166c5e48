//! Makes pages of HTML of the book's sources, so that every gateway has the book of its version.
//!
//! The addresses are those of mdbook: `guides/memory.md` becomes `guides/memory.html`, and a
//! heading has the same anchor.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

/// From the folder of this crate.
const SOURCES: &str = "../../deploy/docs/src";
const SUMMARY: &str = "SUMMARY.md";
/// What links of the table of contents begin with; the server replaces it by the way to the root.
const ROOT: &str = "@root@";

/// Writes the pages and files into `out`, and `book.rs`, the table of them.
pub(crate) fn write(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCES}");
    let sources = fs::canonicalize(SOURCES)?;
    let folder = out.join("book");
    fs::create_dir_all(&folder)?;
    let summary = fs::read_to_string(sources.join(SUMMARY))?;
    let contents = rendered(summary.trim_start_matches("# Summary"), ROOT);
    let mut table = format!("const CONTENTS: &str = {:?};\n", contents.html);
    table.push_str("const FILES: &[BookFile] = &[\n");
    let mut number = 0;
    for name in files(&sources, "")? {
        let text = fs::read_to_string(sources.join(&name))?;
        let (name, kind, title, text) = match name.strip_suffix(".md") {
            Some(_) if name == SUMMARY => continue,
            Some(page) => {
                let page_of = rendered(&text, "");
                (format!("{page}.html"), "Page", page_of.title, page_of.html)
            }
            None if name.ends_with(".svg") => (name, "Image", String::new(), text),
            None => (name, "Text", String::new(), text),
        };
        number += 1;
        let file = folder.join(number.to_string());
        fs::write(&file, text)?;
        writeln!(
            table,
            "    BookFile {{ path: {name:?}, kind: FileKind::{kind}, title: {title:?}, text: include_str!({:?}) }},",
            file.display().to_string()
        )?;
    }
    table.push_str("];\n");
    Ok(fs::write(out.join("book.rs"), table)?)
}

/// The files below a folder, by their path from the root, in order.
fn files(root: &Path, below: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        match entry.file_type()?.is_dir() {
            true => found.extend(files(root, &path)?),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}

struct Rendered {
    /// Of the first heading.
    title: String,
    html: String,
}

fn rendered(text: &str, link_prefix: &str) -> Rendered {
    let mut events: Vec<Event<'_>> = Vec::new();
    let (mut heading, mut title, mut anchors) = (None, None, BTreeMap::new());
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        let event = match event {
            // Comments are for the tests of the blocks.
            Event::Html(text) | Event::InlineHtml(text) if text.trim_start().starts_with("<!--") => continue,
            Event::Start(Tag::Heading { .. }) => {
                heading = Some((events.len(), String::new()));
                event
            }
            Event::End(TagEnd::Heading(_)) => {
                if let Some((at, text)) = heading.take() {
                    if let Event::Start(Tag::Heading { id, .. }) = &mut events[at] {
                        *id = Some(CowStr::from(anchor(&text, &mut anchors)));
                    }
                    title.get_or_insert(text);
                }
                event
            }
            Event::Text(ref text) | Event::Code(ref text) => {
                if let Some((_, heading)) = &mut heading {
                    heading.push_str(text);
                }
                event
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let dest_url = CowStr::from(target(&dest_url, link_prefix));
                Event::Start(Tag::Link { link_type, dest_url, title, id })
            }
            event => event,
        };
        events.push(event);
    }
    let mut page = String::with_capacity(text.len() * 3 / 2);
    html::push_html(&mut page, events.into_iter());
    Rendered { title: title.unwrap_or_default(), html: page }
}

/// The address of a link's target, which is a page or an address outside of the book.
fn target(link: &str, prefix: &str) -> String {
    if link.contains("://") {
        return link.to_owned();
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let path =
        path.strip_suffix(".md").map_or_else(|| path.to_owned(), |page| format!("{prefix}{page}.html"));
    anchor.map_or(path.clone(), |anchor| format!("{path}#{anchor}"))
}

/// The anchor of a heading. A second heading with the same text has a number.
fn anchor(text: &str, taken: &mut BTreeMap<String, u32>) -> String {
    let kept = text.trim().to_lowercase();
    let kept: String = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect();
    let times = taken.entry(kept.clone()).or_default();
    *times += 1;
    if *times == 1 { kept } else { format!("{kept}-{}", *times - 1) }
}
