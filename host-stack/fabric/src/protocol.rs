//! What processes and the control daemon say to each other.
//!
//! ```text
//!   process                                daemon
//!     Hello, [pool, memory]   ------------->
//!                             <-------------  Welcome, [device memory, doorbell]
//!     Open(hca)               ------------->
//!                             <-------------  Made(context), [events out, events in]
//!     Control(context, ...)   ------------->
//!                             <-------------  Done(reply | errno)
//!     Raise(event, element)   ------------->  (no answer) to whom it belongs
//!     Reach(node, names, ...) ------------->  (no answer) another node; messages of connection managers follow
//! ```
//!
//! One socket a process, one request at a time. The end of the socket is the end of the process.
//! Every other message is answered with one [`Answer`], and with the descriptors it names.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use snaprig_hca::{
    control::{Errno, Reply, Request},
    model::ModelName,
};

/// Version of everything here and of the layout of device memory.
pub const VERSION: u32 = 4;

/// From a process to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// First of all. With it come the process's pool, and all of its memory, if they can be had.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Opens an HCA: a context, where its asynchronous events come out, and where they go in.
    Open {
        /// Which.
        hca: u32,
    },
    /// Closes a context.
    Close {
        /// Which.
        context: u32,
    },
    /// Something of a context.
    Control {
        /// The context.
        context: u32,
        /// What.
        request: Request,
    },
    /// A completion channel: its number, where its events come out, and where they go in.
    OpenChannel,
    /// Closes one.
    CloseChannel {
        /// Which.
        channel: u32,
    },
    /// The pool of another process. On the lookup socket, as the next three.
    PoolOf {
        /// Its slot.
        process: u32,
    },
    /// All memory of another process (`/proc/self/mem`).
    MemoryOf {
        /// Its slot.
        process: u32,
    },
    /// Where events of a queue's channel go in.
    ChannelOf {
        /// The completion queue.
        cq: u32,
    },
    /// Something happened to somebody's queue. Not answered.
    Raise {
        /// `enum ibv_event_type`.
        event: u32,
        /// The queue's place.
        element: u32,
    },
    /// What the fabric is: a [`Description`](crate::Description) in a file.
    Describe,
    /// Writes all packets to a file, or ceases to.
    Capture {
        /// Its name, from the root.
        file: Option<PathBuf>,
    },
    /// Carries out a fault plan.
    Plan {
        /// Its file's name, from the root.
        file: PathBuf,
    },
    /// Changes what the paths do to packets.
    Fault(crate::faults::FaultRequest),
    /// Reaches a connection manager on a node that has another daemon. The messages of both follow on this socket.
    Reach {
        /// The node.
        node: u32,
        /// Names of sockets in its fabric's directory: who listens under the first at which somebody does.
        names: Vec<String>,
        /// The first message.
        first: Vec<u8>,
        /// The last one to whoever asks, if nobody listens.
        refusal: Vec<u8>,
    },
    /// Ends the fabric, whoever uses it.
    End,
}

/// From the daemon to a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// You are in this slot; these are the HCAs.
    Welcome {
        /// Slot in the table of processes.
        process: u32,
        /// Model of each HCA.
        hcas: Vec<ModelName>,
        /// Those that this daemon has: the first one, and the one after the last.
        here: (u32, u32),
        /// That of the daemon, which knows processes by their numbers there.
        pid_namespace: u64,
    },
    /// A number.
    Made(u32),
    /// The control plane's answer.
    Done(Result<Reply, Errno>),
    /// The descriptor is with it.
    Here,
    /// It cannot be.
    Refused(Errno),
}

/// Something that happened out of turn, as a context's pipe carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// `enum ibv_event_type`.
    pub event: u32,
    /// The queue's place in its table, or the port's number.
    pub element: u32,
}

/// Bytes of a [`Raised`].
pub const RAISED_BYTES: usize = 8;

impl Raised {
    /// As the pipe carries it.
    pub fn bytes(self) -> [u8; RAISED_BYTES] {
        (u64::from(self.event) | u64::from(self.element) << 32).to_ne_bytes()
    }

    /// Out of the pipe.
    pub fn from_bytes(bytes: [u8; RAISED_BYTES]) -> Self {
        let word = u64::from_ne_bytes(bytes);
        Self {
            event: word as u32,
            element: (word >> 32) as u32,
        }
    }
}
