//! `pods`: the pods of the chart on this machine, upgraded and disturbed under load.

use std::path::PathBuf;

use anyhow::Result;
use devservices::workspace;

use super::{Tools, antiphon, build_antiphon_and, image, program, run, say, upgrade};

/// Tags of the two images.
const TAGS: [&str; 2] = ["pods-1", "pods-2"];

/// The arguments for this command; the rest is for the program.
#[derive(Debug, PartialEq, Eq, Default)]
struct PodsOptions {
    is_release: bool,
    other: Option<String>,
    rest: Vec<String>,
}

impl PodsOptions {
    fn parse(args: &[String]) -> Self {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--release" => options.is_release = true,
                "--other" => options.other = args.next().cloned(),
                _ => options.rest.push(arg.clone()),
            }
        }
        options
    }
}

/// Makes both images and runs `pods`. Without another commit both are this build, under two names.
pub(crate) fn pods(args: &[String]) -> Result<i32> {
    image::check_programs()?;
    let options = PodsOptions::parse(args);
    if let Some(code) = build_antiphon_and("chaos")? {
        return Ok(code);
    }
    let Some([binary, other]) = binaries(&options)? else { return Ok(1) };
    let names = TAGS.map(|tag| format!("antiphon:{tag}"));
    if binary == other {
        image::write_image_of(&binary, &names, false)?;
    } else {
        image::write_image_of(&binary, &names[..1], false)?;
        image::write_image_of(&other, &names[1..], false)?;
    }
    let tools = Tools::resolve()?;
    let mut pods = program("pods", "debug", &options.rest)?;
    tools.export(&mut pods);
    // This binary creates the clients' API key, and their model.
    pods.env("ANTIPHON_BIN", &binary);
    run(pods.args(["--tag", TAGS[0], "--other-tag", TAGS[1]]))
}

/// The two builds; `None`: one of them failed, and cargo has printed why.
fn binaries(options: &PodsOptions) -> Result<Option<[PathBuf; 2]>> {
    let binary = match options.is_release {
        true => match image::build_shipped()? {
            Some(binary) => binary,
            None => return Ok(None),
        },
        false => antiphon("debug"),
    };
    let Some(commit) = &options.other else { return Ok(Some([binary.clone(), binary])) };
    let commit = upgrade::git(workspace::root(), &["rev-parse", "--short", commit])?;
    say(&format!("cargo xtask pods: upgrades between {commit} and this build"));
    Ok(upgrade::build_earlier(&commit, "debug", None)?.map(|other| [binary, other]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_goes_to_the_program() {
        let args = ["--rounds", "3", "--release", "--other", "HEAD^", "--rate", "9"].map(str::to_owned);
        let rest = ["--rounds", "3", "--rate", "9"].map(str::to_owned).to_vec();
        let expected = PodsOptions { is_release: true, other: Some("HEAD^".to_owned()), rest };
        assert_eq!(PodsOptions::parse(&args), expected);
    }
}
