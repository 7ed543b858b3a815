//! What a traced process of a card's has to find: nothing in its address space that is not the card's. Alone in its
//! binary, because it looks at all children of this process, and one of another test's may be on its way.

use std::{fs, path::PathBuf, sync::Arc};

use snaprig_card_platform::{Kind, testing::Machine};

/// The processes that this one has, by their directories in /proc.
fn children() -> Vec<PathBuf> {
    let me = std::process::id().to_string();
    let processes = fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let parent = |path: &PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        stat.rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(1)
            .map(str::to_owned)
    };
    processes
        .filter(|path| parent(path).is_some_and(|ppid| ppid == me))
        .collect()
}

#[test]
fn a_traced_process_has_card_memory_a_stub_and_a_filter() {
    // 1: jmp 1b
    let machine = Arc::new(Machine::new(Kind::Ptrace, &[0xeb, 0xfe]));
    let _cpus = [machine.cpu(), machine.cpu()];
    let root = children();
    assert!(!root.is_empty());
    for process in root {
        let Ok(maps) = fs::read_to_string(process.join("maps")) else {
            continue;
        };
        for line in maps.lines() {
            let known = ["snaprig-stub", "snaprig-card", "[vsyscall]"];
            assert!(known.iter().any(|name| line.contains(name)), "{line}");
        }
        let descriptors = fs::read_dir(process.join("fd")).unwrap();
        let names: Vec<_> = descriptors
            .map(|entry| fs::read_link(entry.unwrap().path()).unwrap())
            .collect();
        assert_eq!(names.len(), 1);
        assert!(names[0].to_str().unwrap().contains("snaprig-card"));
        for task in fs::read_dir(process.join("task")).unwrap() {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"));
            assert!(!status.contains("TracerPid:\t0\n"));
        }
    }
}
