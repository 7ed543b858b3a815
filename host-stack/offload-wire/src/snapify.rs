//! Snapify's control messages (paper section 4, figure 3), carried by a SCIF connection from the
//! host process to the COI daemon, and by a Unix socket between the daemon and the offload
//! process (the paper's pipe).
//!
//! ```text
//!  host process                      coi_daemon                    offload process
//!    Pause            ---- 1 ---->     (lists the request, sends SIGNAL, the process connects
//!                                       to SOCKET and says Hello)
//!                                      Pause           ---- 2 --->
//!                                                      <----------  Agreed
//!                     <--- 3 -----     Agreed
//!    takes its locks, cases 1 to 4; a Shutdown marker on each client-server channel (coi);
//!    Drain            ---- 4 ---->     Drain           --------->   takes its locks; all markers
//!                                                                   seen, all that was sent is
//!                                                                   received; saves its local store
//!                     <-----------     Drained         <----------  Drained
//!    waits until all results that were sent are received
//!    Capture          ----------->     Capture         --------->   the checkpoint service streams
//!                     <-----------     Captured        <----------  the process to Snapify-IO
//!    (swap, migration: it stands still until the snapshot has its name;
//!    End              ----------->     End             --------->   and ends then: if there will be
//!                     <-----------     Ended                        none, Resume has it go on)
//!    Resume           ----------->     Resume          --------->   releases its locks
//!                     <-----------     Resumed         <----------  Resumed
//!
//!  Live, while the process works: images of it, each with what has changed since the one before
//!    Copy 0           ----------->     (as for Pause)  --------->   streams itself, and goes on
//!                     <-----------     Copied          <----------  Copied
//!    Preload 0        -----------> (another card's)  reads that image, and starts nothing
//!                     <-----------     Preloaded
//!    Copy 1, Preload 1, ... until little has changed; then Pause as above, where Drain saves nothing, Capture makes the
//!    last image of the chain, and Restore on the other card reads only that
//!
//!  Migration: Drain leaves the local store where it is, and from Capture on the process stands still, but has no End to
//!    expect yet. Restore has the other card fetch the local store from its card; then the process ends with its
//!    connections. If nothing comes of it, Resume has it go on.
//!
//!    Restore          ----------->     copies the local store to the card, has the checkpoint
//!                                      service read the image; the process connects to SOCKET
//!                     <-----------     Restored        <----------  Hello {Restarted}
//!    reconnects every channel, registers its windows anew, then Resume as above
//! ```
//!
//! What must stay true: one request at a time for a process; every request gets exactly one
//! [`Reply`] (`Pause` gets `Agreed`, `Drain` gets `Drained`, `Copy` gets `Copied`); `Failed` leaves the process paused if
//! it was paused, so that `Resume` still works.

use alloc::{borrow::ToOwned, format, string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// The Unix socket on the card where the daemon waits for offload processes.
pub const SOCKET: &str = "/run/coi_daemon.sock";
/// The signal that makes an offload process connect to [`SOCKET`]: the last real-time signal.
pub const SIGNAL: i32 = 64;
/// Name of the process image in a snapshot directory.
pub const IMAGE: &str = "offload_process.img";
/// Name of the process image with this number in its chain. The first is whole.
pub fn image(number: u32) -> String {
    match number {
        0 => IMAGE.to_owned(),
        number => format!("{number}-{IMAGE}"),
    }
}

/// Sub-directory of a snapshot with the local store, one file a buffer file.
pub const LOCAL_STORE: &str = "local_store";
/// Sub-directory of a snapshot with the sink binary and its libraries.
pub const BINARIES: &str = "binaries";

/// Host process to daemon; and, but for `Restore`, daemon to offload process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Agree to pause.
    Pause {
        /// The offload process.
        pid: i32,
    },
    /// Drain the channels, then see to the local store.
    Drain {
        /// The offload process.
        pid: i32,
        /// What becomes of the local store.
        store: Store,
        /// Run functions that the host has ever sent, pipeline by pipeline: all must have been
        /// received, or they would be lost between the two snapshots. A pipeline whose number was
        /// another's before goes on counting where that one ended.
        sent: Vec<u64>,
    },
    /// Stream the process image to [`IMAGE`] in `snapshot`. If the process is to end, nothing of it
    /// runs from then on until the next request.
    Capture {
        /// The offload process.
        pid: i32,
        /// Directory on the host (node 0), absolute.
        snapshot: String,
        /// `End` is to come (swap out, migration).
        terminate: bool,
        /// The image is the last of a chain, and has the local store in it.
        last: Option<Link>,
    },
    /// Stream an image of the process, with its local store, to `snapshot` while it works.
    Copy {
        /// The offload process.
        pid: i32,
        /// Directory on the host (node 0), absolute.
        snapshot: String,
        /// Which image of the chain.
        link: Link,
    },
    /// Release the locks and go on.
    Resume {
        /// The offload process.
        pid: i32,
    },
    /// Read an image of a chain: the next one builds on it, on this connection.
    Preload {
        /// Directory on the host (node 0), absolute.
        snapshot: String,
        /// Which image of the chain.
        number: u32,
        /// What it maps, and may not be on the card yet: the sink binary and its libraries, as for `Restore`.
        binaries: Vec<StoredFile>,
    },
    /// Bring a process back. On any card.
    Restore {
        /// Directory on the host (node 0), absolute.
        snapshot: String,
        /// Which image of a chain whose others were preloaded, or 0.
        number: u32,
        /// Files of the local store: names below [`LOCAL_STORE`] and the path on the card.
        local_store: Vec<StoredFile>,
        /// Who has them: the host, in the snapshot, or the card where the process stands still, under the same path.
        from: u16,
        /// The sink binary and its libraries: names below [`BINARIES`] and the path on the card.
        binaries: Vec<StoredFile>,
        /// What it writes goes to the connection that adopts it ([`crate::coi::Program::proxy`]).
        proxy: bool,
    },
    /// End a process that stands still since `Capture`: its snapshot is complete.
    End {
        /// The offload process.
        pid: i32,
    },
}

/// What becomes of the local store of a process that is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Store {
    /// It is saved below this directory on the host (node 0), absolute.
    Saved(String),
    /// The image that is to come will have it.
    InImage,
    /// It stays where it is, for another card to fetch it.
    Stays,
}

/// An image of a chain, each of which has what has changed since the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Which: that with 0 is whole.
    pub number: u32,
    /// What the host has written to since the one before. Nothing else notices that.
    pub wrote: Vec<Wrote>,
}

/// Bytes of memory of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrote {
    /// The memory ([`crate::coi::Window::id`]).
    pub memory: u64,
    /// The first byte, and the one behind the last.
    pub range: (u64, u64),
}

/// A file of a snapshot and where it belongs on the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Name in the sub-directory of the snapshot.
    pub name: String,
    /// Absolute path on the card.
    pub card_path: String,
    /// Bytes.
    pub len: u64,
    /// Permission bits.
    pub mode: u32,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `Pause`.
    Agreed,
    /// To `Drain`: the channels are empty and the local store is where it is to be.
    Drained {
        /// What was saved, or what there is to fetch.
        local_store: Vec<StoredFile>,
        /// Results that the offload process has ever sent, pipeline by pipeline: the host waits
        /// until it has received them all.
        returned: Vec<u64>,
        /// Notices ([`crate::coi::Notice`]) that the offload process has ever sent: the host waits
        /// until it has received them all.
        notices: u64,
    },
    /// To `Capture`.
    Captured {
        /// Bytes of the image.
        bytes: u64,
    },
    /// To `Copy`.
    Copied {
        /// Bytes of the image.
        bytes: u64,
    },
    /// To `Preload`.
    Preloaded,
    /// To `Resume`.
    Resumed,
    /// To a [`Hello`] that asks for a flush: all output is written.
    Flushed,
    /// To `Restore`.
    Restored {
        /// The process on its new card.
        pid: i32,
        /// The SCIF port where it waits for the host process's channels.
        port: u16,
    },
    /// To `End`: nothing of the process is left.
    Ended,
    /// The request failed; nothing of it remains.
    Failed {
        /// What was being done.
        step: String,
        /// A Linux error number, or 0.
        errno: i32,
        /// What went wrong, for people.
        why: String,
    },
}

/// The first message of an offload process on [`SOCKET`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The sender.
    pub pid: i32,
    /// Why it connects.
    pub why: Purpose,
}

/// Why an offload process connects to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// It has started, and waits for the host's channels on this SCIF port.
    Started {
        /// The port.
        port: u16,
    },
    /// It was signalled to pause.
    Signalled,
    /// It waits until what it wrote is written by the host (COIProcessProxyFlush): [`Reply::Flushed`].
    Flush,
    /// It has just been restored, and waits for the host's channels on this SCIF port.
    Restarted {
        /// The port.
        port: u16,
    },
}
