//! Reads the code blocks of a page.

use anyhow::{Result, bail, ensure};

/// Languages of blocks that are run or saved as files of a page.
const CODE: &[&str] = &["sh", "python", "js", "jsx"];

/// Approximate duration of an installation of packages.
const INSTALL_SECONDS: u32 = 60;

/// A page, with its blocks in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// From the root of the book's sources.
    pub(super) name: String,
    pub(super) blocks: Vec<Block>,
}

/// A code block, with the line where its text begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) line: usize,
    pub(super) text: String,
    pub(super) kind: BlockKind,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    Shell,
    /// The expected output of the preceding shell block.
    Output,
    /// A file that the reader saves under this name.
    File(String),
    /// A block that cannot run here; the page has the reason in a comment.
    LeftOut,
    /// The block only illustrates something.
    Illustration,
}

impl Page {
    pub(super) fn parse(name: &str, text: &str) -> Result<Self> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut comment = None;
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let trimmed = line.trim_start();
            if let Some(info) = trimmed.strip_prefix("```") {
                let indent = line.len() - trimmed.len();
                let mut body = String::new();
                for (_, line) in lines.by_ref().take_while(|(_, line)| line.trim() != "```") {
                    body.push_str(line.get(indent..).unwrap_or_default());
                    body.push('\n');
                }
                let follows_shell = blocks.last().is_some_and(|block| block.kind == BlockKind::Shell);
                let kind = kind(info, comment.take(), follows_shell);
                let kind = kind.map_err(|error| error.context(format!("{name}:{}", index + 1)))?;
                blocks.push(Block { line: index + 2, text: body, kind });
            } else if let Some(text) = trimmed.strip_prefix("<!--") {
                comment = Some(text.trim_end_matches("-->").trim());
            } else if !trimmed.is_empty() {
                comment = None;
            }
        }
        Ok(Self { name: name.to_owned(), blocks })
    }

    pub(super) fn is_run(&self) -> bool {
        self.run_blocks() > 0
    }

    pub(super) fn run_blocks(&self) -> usize {
        let is_run = |block: &&Block| matches!(block.kind, BlockKind::Shell | BlockKind::File(_));
        self.blocks.iter().filter(is_run).count()
    }

    /// Whether the page is a starting page, which creates its own threads.
    pub(super) fn begins_with_no_thread(&self) -> bool {
        self.name == "README.md" || self.name.starts_with("start/")
    }

    pub(super) fn left_out(&self) -> usize {
        self.blocks.iter().filter(|block| block.kind == BlockKind::LeftOut).count()
    }

    /// An estimate of its duration, from its `sleep` commands and installations.
    pub(super) fn seconds(&self) -> u32 {
        let shell = self.blocks.iter().filter(|block| block.kind == BlockKind::Shell);
        let seconds = shell.flat_map(|block| block.text.lines()).filter_map(|line| {
            if line.contains(" install ") {
                return Some(INSTALL_SECONDS);
            }
            let (_, rest) = line.split_once("sleep ")?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        });
        seconds.sum()
    }
}

fn kind(info: &str, comment: Option<&str>, follows_shell: bool) -> Result<BlockKind> {
    // More words are names for tests.
    let mut words = info.split([',', ' ']);
    let (language, word) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let file = comment.and_then(|comment| comment.strip_prefix("file: "));
    let is_code = CODE.contains(&language);
    Ok(match (word, file) {
        ("ignore", None) if is_code => {
            ensure!(comment.is_some(), "a comment above the block must say why it is not run");
            BlockKind::LeftOut
        }
        ("", Some(file)) => BlockKind::File(file.to_owned()),
        ("", None) if language == "sh" => BlockKind::Shell,
        ("", None) if language == "text" && follows_shell => BlockKind::Output,
        ("", None) if !is_code => BlockKind::Illustration,
        ("example", None) if language == "text" => BlockKind::Illustration,
        _ => bail!("`{info}`: a block of code runs, has a `file:` comment, or is `{language},ignore`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<BlockKind> {
        Page::parse("a.md", text).unwrap().blocks.into_iter().map(|block| block.kind).collect()
    }

    #[test]
    fn blocks_have_a_kind_by_language_comment_and_place() {
        let page = "\
<!-- file: a.py -->
```python
x
```
```sh
sleep 2
```
```text
out
```
```text
more
```
<!-- Needs a cluster. -->
```sh,ignore
kubectl
```
";
        use BlockKind::{File, Illustration, LeftOut, Output, Shell};
        assert_eq!(kinds(page), [File("a.py".to_owned()), Shell, Output, Illustration, LeftOut]);
        let page = Page::parse("a.md", page).unwrap();
        assert_eq!((page.run_blocks(), page.left_out(), page.seconds()), (2, 1, 2));
        assert_eq!((page.blocks[0].line, page.blocks[0].text.as_str()), (3, "x\n"));
    }

    #[test]
    fn code_that_does_not_run_needs_a_reason() {
        for wrong in ["```sh,ignore\na\n```", "```python\na\n```", "<!-- why -->\ntext\n```js,ignore\na\n```"]
        {
            assert!(Page::parse("a.md", wrong).is_err(), "{wrong}");
        }
        assert_eq!(kinds("<!-- why -->\n\n```python,ignore\na\n```"), [BlockKind::LeftOut]);
    }
}
