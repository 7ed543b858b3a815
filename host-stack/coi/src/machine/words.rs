//! What the machine is told, and what it says.

use snaprig_offload_wire::coi::{
    Answer, Command, Exit, FromDaemon, Notice, RunFunction, RunResult,
};
use snaprig_wire::scif::NodeId;

use crate::CoiError;

/// A caller's number for its call, new for each call.
pub type Ticket = u64;
/// Which connections a link is one of: counts the moves of the process.
pub type Generation = u64;

/// A region that callers pass through and pause closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Case 1: creating and destroying processes, pipelines and buffers.
    Lifecycle,
    /// Case 2: RDMA.
    Rdma,
}

/// A connection that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// To the daemon, which tells of the process's end.
    Control,
    /// Case 3.
    Command,
    /// Case 3, from the process.
    Notice,
    /// Case 4, of this pipeline.
    Pipeline(u32),
}

/// What happens. Times are since any fixed point.
#[derive(Clone, Debug)]
pub enum Input {
    /// A caller wants to pass through a region.
    Enter(Ticket, Region),
    /// It has passed.
    Leave(Region),
    /// Case 3: a command for the process.
    Command(Ticket, Command),
    /// There is a pipeline of this number.
    AddPipeline(u32),
    /// There is no pipeline of this number any more.
    RemovePipeline(u32),
    /// Case 4: a run function for a pipeline.
    Run(Ticket, u32, RunFunction),
    /// [`Output::Run`] of this pipeline is done.
    Sent(Generation, u32),
    /// Tell when this many run functions have been sent, and send no more before resume; said while
    /// the process is paused, before the resume after that one.
    HoldAt(Ticket, u64),
    /// Tell how the process ends.
    End(Ticket),
    /// A call failed on a connection: tell what became of the process.
    Broken(Ticket),
    /// The caller gives up.
    GiveUp(Ticket),
    /// Close all regions; `Done` when the host sends nothing any more.
    Pause(Ticket),
    /// While it is paused: tell when this many results of each pipeline, and this many notices, have
    /// ever been received.
    Settle(Ticket, Vec<u64>, u64),
    /// The process's end is (or is not any more) on purpose: it is swapped out.
    SwappedOut(bool),
    /// The process is back, paused, with new links.
    Moved {
        /// Its card.
        node: NodeId,
        /// Its id there.
        pid: i32,
    },
    /// While it is paused: ask for the windows of all buffers.
    Windows(Ticket),
    /// Open all regions.
    Resume,
    /// The daemon said this.
    Daemon(Generation, FromDaemon),
    /// The process answered a command.
    Answer(Generation, Answer),
    /// A run function of this pipeline returned.
    Result(Generation, u32, RunResult),
    /// The process says this unasked.
    Notice(Generation, Notice),
    /// A link broke.
    Lost(Generation, Link),
    /// The host's SCIF node is gone, and with it every hope of a successor.
    RigGone,
    /// [`super::Machine::deadline`] has come.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this on the command link.
    Command(Generation, Command),
    /// Send this on the pipeline's link, then say [`Input::Sent`].
    Run(Generation, u32, RunFunction),
    /// The process says this unasked; it is not [`Notice::Started`].
    Notice(Notice),
    /// The call's run function has begun.
    Started(Ticket),
    /// The call has ended.
    Done(Ticket, Result<Value, CoiError>),
    /// The process is gone for good. Said once.
    Gone(CoiError),
}

/// How a call ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing to tell.
    Unit,
    /// The process's answer.
    Answer(Answer),
    /// A run function has returned.
    Returned {
        /// Its value.
        value: Vec<u8>,
        /// References that the process took meanwhile, by buffer.
        added: Vec<(u64, u64)>,
    },
    /// How the process ended.
    Exit(Exit),
}
