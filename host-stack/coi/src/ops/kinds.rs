//! How buffers are made and used.

use std::ops::Range;

use super::Foreign;
use crate::{Process, graph::Mode};

/// How a run function uses a buffer (COI_ACCESS_FLAGS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It reads and writes.
    Write,
    /// It writes all of it.
    WriteEntire,
    /// It reads, and keeps a reference.
    ReadAddRef,
    /// It reads and writes, and keeps a reference.
    WriteAddRef,
    /// It writes all of it, and keeps a reference.
    WriteEntireAddRef,
}

impl Access {
    /// By its number in COIPipeline_source.h.
    pub fn from_coi(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Read,
            2 => Self::Write,
            3 => Self::WriteEntire,
            4 => Self::ReadAddRef,
            5 => Self::WriteAddRef,
            6 => Self::WriteEntireAddRef,
            _ => return None,
        })
    }

    pub(super) fn mode(self) -> Mode {
        match self {
            Self::Read | Self::ReadAddRef => Mode::Read,
            Self::Write | Self::WriteAddRef => Mode::Write,
            Self::WriteEntire | Self::WriteEntireAddRef => Mode::WriteEntire,
        }
    }

    pub(super) fn adds_reference(self) -> bool {
        matches!(
            self,
            Self::ReadAddRef | Self::WriteAddRef | Self::WriteEntireAddRef
        )
    }
}

/// What the host does with a buffer that it maps (COI_MAP_TYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// It reads and writes.
    ReadWrite,
    /// It reads.
    ReadOnly,
    /// It writes all of it.
    WriteEntire,
}

/// Where a buffer's state is set.
#[derive(Clone, Copy)]
pub enum StatePlace<'a> {
    /// On the host (COI_PROCESS_SOURCE).
    Source,
    /// In all processes where it is valid (COI_SINK_OWNERS).
    SinkOwners,
    /// In a process.
    Process(&'a Process),
}

/// Memory of the caller's, and where in a buffer it belongs.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where in the buffer.
    pub at: u64,
    /// The memory.
    pub memory: Foreign,
}

/// A buffer to make.
#[derive(Clone, Debug, Default)]
pub struct BufferOptions {
    /// Bytes.
    pub bytes: u64,
    /// It is of OpenCL's kind: no implicit order, and sub-buffers (COI_BUFFER_OPENCL).
    pub open_cl: bool,
    /// It has the same address on the host (COI_SAME_ADDRESS_SINKS_AND_SOURCE). In all processes it
    /// always has.
    pub same_address_as_source: bool,
    /// A hint (COI_OPTIMIZE_HUGE_PAGE_SIZE).
    pub huge: bool,
    /// What is in it at first.
    pub initial: Option<Foreign>,
    /// Memory of the caller's that is the host's copy of it.
    pub memory: Option<Foreign>,
    /// Memory of the process's (there is one then) at this address that it is made of, and where it
    /// is valid at first (COI_SINK_MEMORY).
    pub sink_memory: Option<u64>,
}

/// The parts of pieces that lie in a range: where, and what memory. Pieces are in order.
pub(super) fn pieces_within<'a>(
    pieces: &'a [Piece],
    range: &'a Range<u64>,
) -> impl Iterator<Item = (u64, Foreign)> + 'a {
    let first = pieces.partition_point(|piece| piece.at + piece.memory.len() <= range.start);
    let inside = pieces[first..]
        .iter()
        .take_while(|piece| piece.at < range.end);
    inside.map(|piece| {
        let start = piece.at.max(range.start);
        let end = (piece.at + piece.memory.len()).min(range.end);
        (start, piece.memory.part(start - piece.at, end - start))
    })
}
