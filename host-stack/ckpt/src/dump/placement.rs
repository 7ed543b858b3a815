//! Where parts of memory are to be (mbind(2)), as /proc/PID/numa_maps says (numa(7)).
//!
//! A part without a policy of its own is shown with that of the thread by which it is looked at: one of its own that is
//! the same is not told apart, and makes no difference before set_mempolicy(2) is called again.

use std::{collections::BTreeMap, fs};

use libc::pid_t;
use snaprig_resources::{
    error::{Error, Result},
    state::{Area, Placement},
};

/// Modes by their names (linux/mempolicy.h); MPOL_DEFAULT is none.
const MODES: [(&str, i32); 6] = [
    ("prefer (many)", 5),
    ("prefer", 1),
    ("bind", 2),
    ("weighted interleave", 6),
    ("interleave", 3),
    ("local", 4),
];
/// MPOL_F_STATIC_NODES, _RELATIVE_NODES, _NUMA_BALANCING.
const FLAGS: [(&str, i32); 3] = [
    ("static", 1 << 15),
    ("relative", 1 << 14),
    ("balancing", 1 << 13),
];
/// More nodes than kernels have.
const NODES_MAX: usize = 1024;

/// A mode with its flags, and nodes as bits.
type Policy = (i32, Vec<u64>);

/// Policies of areas that begin at an address.
#[derive(Debug, Default)]
pub struct Policies(BTreeMap<u64, Policy>);

impl Policies {
    /// Of a process; none, if the kernel knows no nodes.
    pub fn read(pid: pid_t) -> Result<Self> {
        let path = format!("/proc/{pid}/numa_maps");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self(text.lines().filter_map(line).collect())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::io(path, source)),
        }
    }

    /// Those of areas that are not a thread's own.
    pub fn of(&self, areas: &[Area], thread: &Policy) -> Vec<Placement> {
        let thread = (thread.0, trimmed(&thread.1));
        let placed = areas.iter().filter_map(|area| {
            let (mode, nodes) = self.0.get(&area.start)?;
            let is_own = (*mode, nodes.as_slice()) != thread;
            is_own.then(|| Placement {
                start: area.start,
                end: area.end,
                mode: *mode,
                nodes: nodes.clone(),
            })
        });
        placed.collect()
    }
}

/// An area's first address, and its policy, if it has one.
fn line(line: &str) -> Option<(u64, Policy)> {
    let (start, rest) = line.split_once(' ')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let found = |(name, mode): &(&str, i32)| Some((*mode, rest.strip_prefix(name)?));
    let (mut mode, rest) = MODES.iter().find_map(found)?;
    let rest = rest.split(' ').next()?;
    let (flags, nodes) = rest.split_once(':').unwrap_or((rest, ""));
    for flag in flags.trim_start_matches('=').split('|') {
        mode |= FLAGS
            .iter()
            .find(|(name, _)| *name == flag)
            .map_or(0, |it| it.1);
    }
    Some((start, (mode, bits(nodes)?)))
}

/// A list such as `0-3,7`.
fn bits(list: &str) -> Option<Vec<u64>> {
    let mut words = vec![0u64; NODES_MAX / 64];
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        for node in first..=last.min(NODES_MAX - 1) {
            words[node / 64] |= 1 << (node % 64);
        }
    }
    let length = trimmed(&words).len();
    words.truncate(length);
    Some(words)
}

fn trimmed(words: &[u64]) -> &[u64] {
    let end = words.iter().rposition(|word| *word != 0);
    &words[..end.map_or(0, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_understood() {
        let policy = |text: &str| line(text).map(|(_, policy)| policy);
        let has = |mode, nodes: &[u64]| Some((mode, nodes.to_vec()));
        assert_eq!(policy("7f00 default anon=1 N0=1"), None);
        assert_eq!(policy("7f00 bind:0 anon=1"), has(2, &[1]));
        assert_eq!(policy("7f00 prefer (many):0-1,65"), has(5, &[3, 2]));
        assert_eq!(policy("7f00 prefer:1 file=/a"), has(1, &[2]));
        assert_eq!(policy("7f00 local"), has(4, &[]));
        assert_eq!(policy("7f00 interleave=static:0"), has(3 | 1 << 15, &[1]));
        let both = policy("7f00 bind=relative|balancing:0");
        assert_eq!(both, has(2 | 1 << 14 | 1 << 13, &[1]));
        assert_eq!(policy("7f00 weighted interleave:0-63"), has(6, &[u64::MAX]));
    }
}
