//! Whose child a process is, while threads come and go.

use std::{
    process::{self, Command},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use snaprig_tracee::freeze::descendants;

/// A thread that ends while its process is looked at is no reason to fail, and to miss nobody.
#[test]
fn children_are_known_while_threads_end() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id() as i32;
    let is_over = AtomicBool::new(false);
    let missed = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::spawn(|| {}).join().unwrap();
                }
            });
        }
        let missed = (0..2000).find_map(|_| match descendants(process::id() as i32) {
            Ok(found) => (!found.contains(&pid)).then(|| format!("{found:?}")),
            Err(error) => Some(error.to_string()),
        });
        is_over.store(true, Ordering::Relaxed);
        missed
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(missed, None);
}
