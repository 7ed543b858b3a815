//! The conformance suite: what our library answers is what it should, and wherever that differs from
//! what rdma_rxe answers, the suite's README says why.

mod fabric;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fabric::{Fabric, assert_success, compile};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("verbs/conformance")
        .join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(file(name)).expect("a file of the suite")
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn the_conformance_suite_answers_as_it_should() {
    let fabric = Fabric::new(&[]);
    let scratch = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join("conformance");
    compile(&file(""), &program);
    let program = program.to_str().expect("a name");
    // Most checks wait for what does not come: all themes do at the same time.
    let themes = themes(program);
    let running = themes
        .iter()
        .map(|theme| fabric.start(&[program, "--only", theme]));
    let running: Vec<_> = running.collect();
    let outputs: Vec<_> = running.into_iter().map(|one| one.output()).collect();
    assert_success("conformance", &outputs);
    let now: String = outputs
        .iter()
        .map(|output| String::from_utf8_lossy(&output.stdout))
        .collect();
    if std::env::var_os("SNAPRIG_BLESS").is_some() {
        fs::write(file("snaprig.txt"), &now).expect("it can be written");
    }
    let golden = read("snaprig.txt");
    let differs: Vec<_> = now
        .lines()
        .filter(|line| !golden.lines().any(|g| g == *line))
        .collect();
    assert!(
        differs.is_empty() && now.lines().count() == golden.lines().count(),
        "{differs:#?}"
    );
    fabric.ended();
}

/// What the names of a program's checks begin with, in their order.
fn themes(program: &str) -> Vec<String> {
    let listed = Command::new(program)
        .arg("--list")
        .output()
        .expect("it runs");
    let listed = String::from_utf8(listed.stdout).expect("names");
    let themes = listed
        .lines()
        .filter_map(|name| name.split_inclusive('/').next());
    let mut themes: Vec<_> = themes.map(str::to_owned).collect();
    themes.dedup();
    themes
}

/// Results by the names of lines.
fn results(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut results = BTreeMap::<_, Vec<_>>::new();
    for line in text.lines() {
        let (name, result) = line.split_once(": ").expect("a name and a result");
        results.entry(name).or_default().push(result);
    }
    results
}

/// What stands in backquotes in the first column of a table.
fn patterns(markdown: &str) -> Vec<&str> {
    let rows = markdown.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// `*` stands for anything, `?` for one character.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pattern_chars = pattern.chars();
    match pattern_chars.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = pattern_chars.as_str();
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| matches(rest, &name[at..]))
        }
        Some(one) => {
            let mut name_chars = name.chars();
            let fits = |c: char| one == '?' || one == c;
            name_chars.next().is_some_and(fits)
                && matches(pattern_chars.as_str(), name_chars.as_str())
        }
    }
}

#[test]
fn every_difference_from_rxe_is_explained() {
    let (ours, theirs, readme) = (read("snaprig.txt"), read("rxe.txt"), read("README.md"));
    let (ours, theirs, patterns) = (results(&ours), results(&theirs), patterns(&readme));
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let explains = |name: &&&&str| patterns.iter().any(|pattern| matches(pattern, name));
    let unexplained: Vec<_> = names
        .iter()
        .filter(|name| ours.get(**name) != theirs.get(**name))
        .filter(|name| !explains(name))
        .collect();
    assert!(unexplained.is_empty(), "no row for {unexplained:#?}");
    let stale: Vec<_> = patterns
        .iter()
        .filter(|pattern| !names.iter().any(|name| matches(pattern, name)))
        .collect();
    assert!(stale.is_empty(), "rows about nothing: {stale:#?}");
}

#[test]
fn patterns_match_whole_names() {
    assert!(matches("a/b.*", "a/b.c") && matches("a*c?", "abxc1") && matches("*", ""));
    assert!(!matches("a/b", "a/bc") && !matches("a/b?", "a/b") && !matches("b*", "ab"));
    assert_eq!(
        patterns("| `a` `b` (x) | `c` |\n|---|\ntext `d`"),
        ["a", "b"]
    );
}
