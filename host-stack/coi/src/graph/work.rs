//! What is asked of the graph, and what it asks to be done.

use std::ops::Range;

use super::{BufferId, OpId, PipelineId, ProcessId};

/// Where a copy of a buffer's bytes may be. The host comes first, then processes by their ids: that
/// is the order in which COI prefers them (COIBuffer_source.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The host process.
    Host,
    /// An offload process.
    Process(ProcessId),
}

/// How a run function uses a buffer (COI_ACCESS_FLAGS, without its ADDREF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It only reads.
    Read,
    /// It reads and writes.
    Write,
    /// It writes all of it: what was there before does not matter.
    WriteEntire,
}

/// A buffer of a run function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The buffer.
    pub buffer: BufferId,
    /// Which bytes of it.
    pub range: Range<u64>,
    /// How.
    pub mode: Mode,
    /// The process gets a reference that it gives back later.
    pub add_ref: bool,
}

/// A state that a buffer is set to (COI_BUFFER_STATE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is valid there.
    Valid,
    /// It is not.
    Invalid,
    /// It is valid there as a second copy, if there is a first one elsewhere.
    ValidMayDrop,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A run function.
    Run {
        /// Of this process.
        process: ProcessId,
        /// In this pipeline.
        pipeline: PipelineId,
        /// With these buffers.
        uses: Vec<Use>,
    },
    /// Nothing, when all that was queued in a pipeline is done.
    Barrier {
        /// The pipeline.
        pipeline: PipelineId,
    },
    /// Bytes of the caller's into a buffer.
    Write {
        /// The buffer.
        buffer: BufferId,
        /// All of it that the caller means: a sub-buffer's range, or everything.
        all: Range<u64>,
        /// What is written.
        ranges: Vec<Range<u64>>,
        /// Where to; `None`: where it is valid.
        to: Option<ProcessId>,
        /// All of it goes there, written or not.
        whole: bool,
    },
    /// Bytes of a buffer to the caller.
    Read {
        /// The buffer.
        buffer: BufferId,
        /// What is read.
        ranges: Vec<Range<u64>>,
    },
    /// Bytes of a buffer into another one, or elsewhere into the same.
    Copy {
        /// From this buffer.
        from: BufferId,
        /// From here on.
        from_at: u64,
        /// Into this one.
        into: BufferId,
        /// All of it that the caller means.
        all: Range<u64>,
        /// From here on.
        into_at: u64,
        /// So many bytes.
        bytes: u64,
        /// Where to; `None`: where it is valid.
        to: Option<ProcessId>,
        /// All of it goes there, written or not.
        whole: bool,
    },
    /// The host process looks at a buffer.
    Map {
        /// The buffer.
        buffer: BufferId,
        /// Which bytes.
        range: Range<u64>,
        /// What it does with them.
        mode: Mode,
    },
    /// It looks at it no more.
    Unmap {
        /// The [`Work::Map`].
        map: OpId,
    },
    /// A buffer is valid somewhere, or not any more.
    SetState {
        /// The buffer.
        buffer: BufferId,
        /// Which bytes.
        range: Range<u64>,
        /// Where; `None`: in all processes where it is valid.
        place: Option<Place>,
        /// What.
        state: State,
        /// Its bytes are moved if that takes it.
        move_bytes: bool,
    },
    /// A process's memory of a buffer that nobody uses is wanted for others: what is valid only there is
    /// moved to the host (paging; COIProcessSetCacheSize). It comes back when an operation needs it.
    Evict {
        /// The buffer, which is idle ([`super::Graph::idle_since`]).
        buffer: BufferId,
        /// All of it.
        range: Range<u64>,
        /// The process.
        process: ProcessId,
    },
    /// Nothing, once nobody uses a buffer any more.
    Destroy {
        /// The buffer.
        buffer: BufferId,
    },
    /// Nothing, once the user says so.
    UserEvent,
}

/// A part of an operation's movement of bytes. `staged` bytes pass through the host on their way:
/// they are in memory of COI's own, not in what the host process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A process has memory for a buffer again, zero at first; then say [`super::Graph::entered`].
    Enter {
        /// The process.
        process: ProcessId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A process has no memory for a buffer any more.
    Leave {
        /// The process.
        process: ProcessId,
        /// The buffer.
        buffer: BufferId,
    },
    /// From the host to a process.
    ToProcess {
        /// The process.
        process: ProcessId,
        /// The buffer.
        buffer: BufferId,
        /// Which bytes.
        range: Range<u64>,
        /// From staged bytes.
        staged: bool,
    },
    /// From a process to the host.
    FromProcess {
        /// The process.
        process: ProcessId,
        /// The buffer.
        buffer: BufferId,
        /// Which bytes.
        range: Range<u64>,
        /// They are staged.
        staged: bool,
    },
    /// From the caller's memory to the host's copy.
    Put {
        /// The buffer.
        buffer: BufferId,
        /// Which bytes.
        range: Range<u64>,
        /// They are staged.
        staged: bool,
    },
    /// From the host's copy to the caller's memory.
    Take {
        /// The buffer.
        buffer: BufferId,
        /// Which bytes.
        range: Range<u64>,
        /// From staged bytes.
        staged: bool,
    },
    /// From the host's copy of one buffer to that of another.
    Copy {
        /// From this buffer.
        from: BufferId,
        /// From here on.
        from_at: u64,
        /// From staged bytes.
        from_staged: bool,
        /// Into this one.
        into: BufferId,
        /// From here on.
        into_at: u64,
        /// They are staged there.
        into_staged: bool,
        /// So many bytes.
        bytes: u64,
    },
}

impl Step {
    /// The process whose memory it reads or writes.
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Self::ToProcess { process, .. } | Self::FromProcess { process, .. } => Some(*process),
            _ => None,
        }
    }
}

/// What happens to an operation that was told to start.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Do these steps, one after the other, then say [`super::Input::Moved`].
    Move(OpId, Vec<Step>),
    /// Have the run function run, then say [`super::Input::Returned`].
    Run(OpId),
    /// The operation is done, or has failed.
    Completed(OpId, Result<(), crate::CoiError>),
}
