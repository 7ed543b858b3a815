//! Fault points: the places where something can go wrong. Each crate declares its own, once, with
//! [`fault_points!`](crate::fault_points), so that all of them can be listed and the coverage of a
//! campaign measured.

use core::fmt;

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
    /// A card dies there, and is started again.
    Restart,
    /// The disk is full.
    DiskFull,
    /// Half of it is written.
    TornWrite,
    /// The link to a card goes down, and both ends notice.
    LinkDown,
    /// The link to a card loses everything, and nobody notices.
    Partition,
    /// A link that was down comes up, and both ends notice.
    LinkUp,
    /// A port is known by another GID, and its users are told.
    GidChange,
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
            Self::Restart => "restart",
            Self::DiskFull => "disk_full",
            Self::TornWrite => "torn_write",
            Self::LinkDown => "link_down",
            Self::Partition => "partition",
            Self::LinkUp => "link_up",
            Self::GidChange => "gid_change",
        }
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

/// Declares a crate's fault points: a constant for each, and `ALL` of them.
///
/// ```
/// snaprig_wire::fault_points! {
///     /// A letter is about to be posted.
///     LETTER = "post.letter", "a letter is posted", [Drop, Delay];
/// }
/// assert_eq!(ALL[0], LETTER);
/// ```
#[macro_export]
macro_rules! fault_points {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $what:literal, [$($kind:ident),* $(,)?];)*) => {
        $(
            $(#[$doc])*
            pub const $id: $crate::fault::Point = $crate::fault::Point {
                name: $name,
                what: $what,
                kinds: &[$($crate::fault::KindName::$kind),*],
            };
        )*
        /// All fault points of this crate.
        pub const ALL: &[$crate::fault::Point] = &[$($id),*];
    };
}
