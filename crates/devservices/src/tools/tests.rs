use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::services::ScratchDir;

fn version(numbers: &[u32]) -> Option<Version> {
    Some(Version(numbers.to_vec()))
}

#[test]
fn versions_are_read_as_the_tools_print_them() {
    assert_eq!(Version::parse("nats-server: v2.15.1\n"), version(&[2, 15, 1]));
    assert_eq!(Version::parse("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), version(&[15, 18]));
    assert_eq!(Version::parse("postgres (PostgreSQL) 19beta2"), version(&[19]));
    assert_eq!(Version::parse("nginx version: nginx/1.22.1\n"), version(&[1, 22, 1]));
    assert_eq!(Version::parse("nothing here"), None);
}

#[test]
fn versions_compare_by_number() {
    assert!(Version::parse("v2.9.10") < Version::parse("v2.10.0"));
    assert!(Version::parse("v2.10.0") >= version(&[2, 10]));
    assert!(Version::parse("15.1") > version(&[15]));
}

#[test]
fn skip_lists_ignore_spaces_and_unknown_words() {
    assert_eq!(skipped("path, cache,frobnicate"), vec![Link::Path, Link::Cache]);
    assert_eq!(skipped(""), vec![]);
}

/// A program that answers `--version` with one line.
fn fake(dir: &ScratchDir, name: &str, says: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_first_usable_hit_wins_and_the_reasons_are_kept() {
    let dir = ScratchDir::new("chain").unwrap();
    let old = fake(&dir, "old", "nats-server: v2.9.10");
    let good = fake(&dir, "good", "nats-server: v2.15.1");
    let resolution = resolve_with(ToolKind::Nats, &[Link::Env], &mut |link| match link {
        Link::Path => Ok(vec![old.clone()]),
        Link::Cache => Ok(vec![good.clone()]),
        Link::Pip => panic!("a later link must not be asked"),
        _ => Err("nothing".to_owned()),
    });
    let said: Vec<(&str, &str)> = resolution.steps.iter().map(|(l, s)| (l.name(), s.as_str())).collect();
    assert_eq!(said[0], ("env", "skipped by ANTIPHON_TOOLS_SKIP"));
    assert!(said[1].1.contains("is 2.9.10, needed is 2.10 or newer"), "{said:?}");
    let tool = resolution.into_tool().unwrap();
    assert_eq!((tool.link, tool.path), (Link::Cache, good));
}

#[test]
fn nothing_found_tells_what_to_type() {
    let resolution = resolve_with(ToolKind::Postgres, &[], &mut |_| Err("nothing".to_owned()));
    let error = resolution.into_tool().unwrap_err().to_string();
    assert!(error.contains("no usable postgres found"), "{error}");
    assert!(error.contains("sudo apt-get install postgresql"), "{error}");
}

#[test]
fn symlink_lists_are_read() {
    let json =
        r#"[{"source":"native/lib/liba.so.6.1","target":"native/lib/liba.so"},{"source":"x","target":"y"}]"#;
    let expected = vec![
        ("native/lib/liba.so.6.1".to_owned(), "native/lib/liba.so".to_owned()),
        ("x".to_owned(), "y".to_owned()),
    ];
    assert_eq!(fetch::parse_symlinks(json).unwrap(), expected);
    assert!(fetch::parse_symlinks(r#"[{"a":"b"}]"#).is_err());
}

#[test]
fn files_are_hashed_as_sha256sum_does() {
    let dir = ScratchDir::new("hash").unwrap();
    let file = dir.path().join("abc");
    fs::write(&file, "abc").unwrap();
    assert_eq!(
        fetch::sha256(&file).unwrap(),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}
