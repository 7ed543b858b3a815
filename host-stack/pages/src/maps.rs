//! What is mapped where in this process: /proc/self/maps (proc_pid_maps(5)).

use std::{fs, io};

use crate::pages::Range;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where.
    pub range: Range,
    /// It can be read.
    pub reads: bool,
    /// It can be written.
    pub writes: bool,
    /// It can be executed.
    pub executes: bool,
    /// It is private.
    pub private: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// Its file's inode; 0: none.
    pub inode: u64,
    /// What it is called.
    pub name: String,
}

/// All mappings, in order.
pub fn all() -> io::Result<Vec<Mapping>> {
    let text = fs::read_to_string("/proc/self/maps")?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let bits = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Mapping {
        range: Range {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
        },
        reads: bits.first() == Some(&b'r'),
        writes: bits.get(1) == Some(&b'w'),
        executes: bits.get(2) == Some(&b'x'),
        private: bits.get(3) == Some(&b'p'),
        offset,
        inode,
        name: fields.collect::<Vec<_>>().join(" "),
    })
}

/// Whether `mappings`, in order, leave no gap in `range`.
pub fn covers(mappings: &[Mapping], range: Range) -> bool {
    let mut at = range.start;
    for mapping in mappings {
        if mapping.range.start > at {
            return false;
        }
        at = mapping.range.end;
    }
    at >= range.end
}
