//! Checks that each command and flag of `antiphon` in the documents exists.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

use crate::options::Options;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Other folders have no pages, or pages of other projects.
const FOLDERS: [&str; 2] = ["deploy", "crates"];

fn pages(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "node_modules" && name != "target") {
            pages(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.push(path);
        }
    }
}

/// The texts in backquotes and the lines of code blocks of a page.
fn commands(page: &str) -> Vec<String> {
    let (mut found, mut is_block) = (Vec::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            found.push(line.to_owned());
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    // Variables may precede the command, and it may run in a pod or with cargo. After a flag,
    // `antiphon` is a name.
    let command = |line: &String| {
        let (before, words) = line.split_once("antiphon ")?;
        let last = before.split_whitespace().last().unwrap_or("--");
        let by_cargo = words.strip_prefix("-- ");
        let is_name = [" bench", "helm "].iter().any(|it| before.contains(it))
            || (last.starts_with('-') && last != "--" && by_cargo.is_none());
        if is_name || !(before.is_empty() || before.ends_with(' ')) {
            return None;
        }
        let words = by_cargo.unwrap_or(words);
        let end = [" | ", " > ", ";", "&&", " #", "  "].iter().filter_map(|it| words.find(it)).min();
        Some(words[..end.unwrap_or(words.len())].trim().to_owned())
    };
    found.iter().filter_map(command).collect()
}

/// The command line, including the parts that are otherwise built on use.
fn built() -> Command {
    let mut command = Options::whole_command();
    command.build();
    command
}

/// The first word that does not exist.
fn unknown(root: &Command, words: &str) -> Option<String> {
    let (mut command, mut may_descend) = (root, true);
    for word in words.split_whitespace() {
        let word = word.trim_matches(|it: char| "[]()\"',.…".contains(it));
        if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
            let flag = flag.split(['=', '\\', ']']).next().unwrap_or_default();
            let is_there =
                |command: &Command| command.get_arguments().any(|argument| argument.get_long() == Some(flag));
            if !(is_there(command) || is_there(root) || ["help", "version"].contains(&flag)) {
                return Some(format!("{} has no flag --{flag}", command.get_name()));
            }
        } else if may_descend && command.has_subcommands() && !word.starts_with('<') {
            // In tables `list\|show` means two commands.
            let mut next = command;
            for name in word.split('|').map(|name| name.trim_end_matches('\\')) {
                match command.find_subcommand(name) {
                    Some(found) => next = found,
                    None => return Some(format!("{} has no command {name}", command.get_name())),
                }
            }
            command = next;
        } else {
            may_descend = false;
        }
    }
    None
}

#[test]
fn documents_name_commands_and_flags_that_are_there() {
    let (root, mut files) = (built(), vec![Path::new(ROOT).join("README.md")]);
    for folder in FOLDERS {
        pages(&Path::new(ROOT).join(folder), &mut files);
    }
    let (mut checked, mut wrong) = (0, Vec::new());
    for file in files {
        for words in commands(&fs::read_to_string(&file).unwrap()) {
            checked += 1;
            if let Some(why) = unknown(&root, &words) {
                wrong.push(format!("{}: antiphon {words}: {why}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked > 100, "{checked}");
}

#[test]
fn a_command_that_is_not_there_is_found() {
    let root = built();
    for (words, is_known) in [
        ("incidents acknowledge all", true),
        ("incidents acknowlege all", false),
        ("dead-letters list --reason wrong_subject", true),
        ("dead-letters list --cause x", false),
        ("worker --partitions 8", true),
    ] {
        assert_eq!(unknown(&root, words).is_none(), is_known, "{words}");
    }
    let page = "run `DATABASE_URL=… antiphon keys list`\n```sh\nkubectl exec pod -- antiphon doctor | less\n```\n`antiphon`";
    assert_eq!(commands(page), ["keys list", "doctor"]);
}
