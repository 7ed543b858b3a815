//! A tree that is stopped at any moment is stopped whole.

use std::{
    collections::BTreeSet,
    process::{self, Command},
};

use snaprig_tracee::freeze::{Calls, Frozen, descendants};

/// Who ends while others are stopped is one that has ended: its parent is yet to be told with what status.
#[test]
fn whoever_ends_meanwhile_is_known() {
    let script = "while :; do for n in 1 2 3 4 5 6 7 8; do (exit $n) & done; wait; done";
    let mut shell = Command::new("bash").args(["-c", script]).spawn().unwrap();
    let mut calls = Calls::default();
    let rounds = 2000;
    let missed = (0..rounds).find_map(|round| {
        let frozen = Frozen::freeze(&mut calls).unwrap();
        let held = frozen.processes.iter().map(|process| process.pid);
        let known: BTreeSet<_> = held.chain(frozen.zombies.iter().copied()).collect();
        let all: BTreeSet<_> = descendants(process::id() as i32)
            .unwrap()
            .into_iter()
            .collect();
        frozen.let_go().unwrap();
        (known != all).then(|| format!("round {round}: {known:?} of {all:?}"))
    });
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert_eq!(missed, None);
}
