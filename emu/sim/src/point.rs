//! Fault points: the places where something can go wrong. Each crate declares its own, once, so
//! that all of them can be listed and the coverage of a campaign measured.

use serde::{Deserialize, Serialize};

/// What kind of thing can go wrong, without its particulars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KindName {
    /// It does not happen.
    Drop,
    /// It happens late.
    Delay,
    /// It happens twice.
    Duplicate,
    /// It happens before what came before it.
    Reorder,
    /// A bit of it is wrong.
    Corrupt,
    /// It fails, with an errno.
    Error,
    /// A process dies there.
    Crash,
    /// A process stops there and never goes on.
    Hang,
    /// The disk is full.
    DiskFull,
    /// Half of it is written.
    TornWrite,
    /// The link goes down.
    LinkDown,
}

impl KindName {
    /// As plans spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Delay => "delay",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Corrupt => "corrupt",
            Self::Error => "error",
            Self::Crash => "crash",
            Self::Hang => "hang",
            Self::DiskFull => "disk_full",
            Self::TornWrite => "torn_write",
            Self::LinkDown => "link_down",
        }
    }
}

/// A place where something can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// `crate.place`, as plans spell it.
    pub name: &'static str,
    /// What it is, in a line.
    pub what: &'static str,
    /// What can go wrong there.
    pub kinds: &'static [KindName],
}
