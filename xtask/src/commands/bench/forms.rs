//! Every benchmark, with the arguments of its forms.

/// A benchmark, `crates/bench/src/bin/bench_<name>.rs`.
#[derive(Debug)]
pub(super) struct BenchForm {
    pub(super) name: &'static str,
    /// Arguments of a short form with figures that are still meaningful.
    short: &'static [&'static str],
    /// Arguments of the smallest form, which only shows that it works.
    quick: &'static [&'static str],
    /// Arguments that select the parts for the table of all goals.
    judged: &'static [&'static str],
    /// Arguments that select the parts which measure the program in `ANTIPHON_BIN`; `None`: the
    /// benchmark calls the crates and measures no program.
    compared: Option<&'static [&'static str]>,
}

impl BenchForm {
    /// Arguments of the run whose goals are collected.
    pub(super) fn judged(&self, is_quick: bool) -> Vec<String> {
        self.with(is_quick, self.judged)
    }

    /// Arguments of one round of a comparison of two binaries; `None`: it measures no binary.
    pub(super) fn compared(&self, is_quick: bool) -> Option<Vec<String>> {
        Some(self.with(is_quick, self.compared?))
    }

    fn with(&self, is_quick: bool, further: &[&str]) -> Vec<String> {
        let size = if is_quick { self.quick } else { self.short };
        size.iter().chain(further).map(|arg| (*arg).to_owned()).collect()
    }
}

/// In the order in which all of them run: together they take about 27 minutes on two cores.
pub(super) const FORMS: &[BenchForm] = &[
    BenchForm {
        name: "chunks",
        short: &["--chunks", "400000", "--seconds", "10"],
        quick: &["--chunks", "20000", "--seconds", "2", "--streams", "20"],
        judged: &["--rounds", "1"],
        compared: Some(&["--rounds", "1", "--rows", "b,c,d"]),
    },
    BenchForm {
        name: "tasks",
        short: &["--agents", "500", "--rounds", "1", "--seconds", "10"],
        quick: &["--quick"],
        // This leaves out the crate that does fourteen tasks per second, and the parts with the
        // longest queues.
        judged: &["--rows", "a,b,c,g", "--only", "antiphon,raw,graphile-worker,batched,river"],
        compared: Some(&["--rows", "b", "--only", "antiphon"]),
    },
    BenchForm {
        name: "sse",
        short: &["--rounds", "1", "--seconds", "6"],
        quick: &["--short"],
        judged: &["--rows", "1,4"],
        compared: Some(&["--rows", "1,4", "--only", "antiphon"]),
    },
    BenchForm {
        name: "growth",
        short: &["--rounds", "1", "--seconds", "45"],
        quick: &["--quick"],
        judged: &[],
        compared: Some(&[]),
    },
    BenchForm {
        name: "context",
        short: &["--rounds", "1", "--contexts", "300", "--pages", "200"],
        quick: &["--quick"],
        judged: &[],
        compared: Some(&["--rows", "d"]),
    },
    BenchForm {
        name: "memory",
        short: &["--users", "20", "--others", "200000", "--searches", "300"],
        quick: &["--quick"],
        judged: &[],
        compared: None,
    },
    BenchForm {
        name: "threads",
        short: &["--threads", "200000", "--pages", "200"],
        quick: &["--quick"],
        judged: &[],
        compared: None,
    },
    BenchForm { name: "reasoning", short: &[], quick: &["--quick"], judged: &[], compared: None },
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use devservices::workspace;

    use super::*;

    #[test]
    fn every_bench_has_a_form() {
        let programs = fs::read_dir(workspace::root().join("crates/bench/src/bin")).unwrap();
        let programs: BTreeSet<String> = programs
            .filter_map(|program| {
                let name = program.unwrap().file_name().into_string().unwrap();
                Some(name.strip_prefix("bench_")?.strip_suffix(".rs")?.to_owned())
            })
            .collect();
        assert_eq!(FORMS.iter().map(|form| form.name.to_owned()).collect::<BTreeSet<_>>(), programs);
    }

    #[test]
    fn no_form_gives_an_argument_twice() {
        for form in FORMS {
            for is_quick in [false, true] {
                for args in [Some(form.judged(is_quick)), form.compared(is_quick)].into_iter().flatten() {
                    let flags: Vec<&String> = args.iter().filter(|arg| arg.starts_with("--")).collect();
                    let unique: BTreeSet<&String> = flags.iter().copied().collect();
                    assert_eq!(flags.len(), unique.len(), "{}: {args:?}", form.name);
                }
            }
        }
    }
}
