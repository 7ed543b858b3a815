//! COI's messages: host process, COI daemon, offload process. All are framed ([`snaprig_wire::frame`]) on
//! SCIF connections.
//!
//! The paper (section 4.1) finds four uses of SCIF in COI, and so do we:
//!
//! ```text
//! case 1  create, destroy   host <-> daemon          [`ToDaemon`], [`FromDaemon`]
//! case 2  buffer RDMA       host <-> offload process  windows and RMA only
//! case 3  commands          host --> offload process  [`Command`], [`Answer`], in sequence
//!                           host <-- offload process  [`Notice`], in sequence, unanswered
//! case 4  run functions     host --> offload process  [`RunFunction`], [`RunResult`], one
//!                                                     connection a pipeline
//! ```
//!
//! A host process opens a connection to the daemon's port for case 1 (one a process), registers the
//! program's bytes there as a window and sends [`ToDaemon::Create`]; the daemon reads the window,
//! which stays until it has answered. The new process announces a SCIF port to the daemon, which passes it on.
//! The host connects to that port once for each of the others, and says which with [`Channel`].

use alloc::{string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// Most bytes of miscellaneous data in a run function (COI_PIPELINE_MAX_IN_MISC_DATA_LEN).
pub const MISC_DATA_MAX: usize = 32_768;
/// Most pipelines of a process (COI_PIPELINE_MAX_PIPELINES).
pub const PIPELINES_MAX: u32 = 512;
/// Most buffers of a run function.
pub const BUFFERS_MAX: usize = 16_384;
/// Most bytes of a run function's return value (an `uint16_t` in the C API).
pub const RETURN_VALUE_MAX: usize = 65_535;
/// Most bytes of a function's name (COI_MAX_FUNCTION_NAME_LENGTH, with its terminator).
pub const FUNCTION_NAME_MAX: usize = 256;
/// Most libraries that come along with a program.
pub const LIBRARIES_MAX: usize = 1024;
/// Processors in a pipeline's mask (COI_CPU_MASK).
pub const CPU_MASK_BITS: usize = 1024;
/// Where the host places buffers in the address spaces of offload processes: the same address in
/// each, from here up to [`BUFFER_SPACE_END`].
pub const BUFFER_SPACE: u64 = 0x1000_0000_0000;
/// End of that range.
pub const BUFFER_SPACE_END: u64 = 0x5000_0000_0000;
/// Where libraries are on a card that its loader would not find under the paths that they have on the host:
/// those from a host's memory, and those that a process loads while it runs. Every offload process looks
/// there first.
pub const LIBRARIES: &str = "/run/coi/libraries";
/// Where loaders look anyway (ld.so(8)).
pub const USUAL_DIRECTORIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// Most bytes of a program.
pub const BINARY_BYTES_MAX: u64 = 1 << 30;

/// From the host to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDaemon {
    /// Make an offload process of the program in a window of this connection.
    Create(Program),
    /// Run a program that knows nothing of COI, its stdio on this connection. Its name is its path
    /// on the card, where it is already unless it is among its libraries.
    Native(Program),
    /// This connection carries [`crate::snapify::Request`]s from now on.
    Snapify,
    /// Look after a process that was restored, as the connection that created it did.
    Adopt {
        /// The process.
        pid: i32,
    },
    /// End the process.
    Destroy,
    /// Bytes for a native program's standard input; none at its end.
    Stdin(Vec<u8>),
    /// To [`FromDaemon::Flush`]: all output that came before it is written.
    Flushed(u64),
    /// What the card is: answered with [`FromDaemon::Info`], whatever else this connection is for.
    Info,
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Name of the file on the card, or its path if it is there.
    pub name: String,
    /// Bytes of the program.
    pub bytes: u64,
    /// Where they are in the host's registered address space.
    pub window: i64,
    /// Arguments, the program's name first.
    pub argv: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// Libraries that it needs, in the window behind the program.
    pub libraries: Vec<Library>,
    /// What it writes to its standard output and error is told with [`FromDaemon::Output`].
    pub proxy: bool,
}

/// A shared library for the card. The daemon reads it out of the window only if the card does not
/// have the same already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// Absolute path that it has on the card. A file that is there already and was not brought
    /// there from a host is the card's own, and stays.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
    /// Where they are in the host's registered address space: page-aligned.
    pub window: i64,
    /// xxh3 (64 bit) of the bytes: what is there with the same hash is not read again.
    pub hash: u64,
}

/// From the daemon to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// The process runs and waits for the host's channels on this SCIF port.
    Created {
        /// The process.
        pid: i32,
        /// The port.
        port: u16,
        /// Where its program is on the card.
        path: String,
    },
    /// It could not be done.
    Failed {
        /// A Linux error number.
        errno: i32,
        /// What went wrong.
        why: String,
    },
    /// To [`ToDaemon::Adopt`]: the process lives as long as this connection.
    Adopted,
    /// The process ended.
    Exited(Exit),
    /// It ended as it was asked to, for its snapshot is complete: it is not dead, but elsewhere.
    SwappedOut,
    /// What a program with a proxy, or a native one, wrote: 1 standard output, 2 standard error. All
    /// of it comes before the process's end.
    Output(u8, Vec<u8>),
    /// The process waits until all output that came so far is written (COIProcessProxyFlush):
    /// [`ToDaemon::Flushed`] with this number says so.
    Flush(u64),
    /// What the card is.
    Info(CardInfo),
}

/// A card, as its own system has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardInfo {
    /// Cores.
    pub cores: u32,
    /// Hardware threads.
    pub threads: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// Memory that is free.
    pub free_bytes: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// exit(2).
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// The first message on a connection to an offload process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Channel {
    /// Case 2.
    Dma,
    /// Case 3, from the host.
    Command,
    /// Case 3, from the offload process: [`Notice`]s.
    Notice,
    /// Case 4, of this pipeline.
    Pipeline(u32),
}

/// Case 3, client to server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The address of a run function.
    Function(String),
    /// Make memory for buffers: a file of local store, zero at first, mapped and registered. The host
    /// says what buffers are in it when it uses them ([`BufferUse`]); small ones share one.
    CreateMemory {
        /// The host's number for it.
        id: u64,
        /// Bytes, whole pages.
        len: u64,
        /// Where the process maps it; it fails if something else is there. `None`: anywhere.
        address: Option<u64>,
    },
    /// Take memory away. No reference to a buffer in it is left.
    DestroyMemory {
        /// Its number.
        id: u64,
    },
    /// A pipeline comes: the host connects its [`Channel::Pipeline`] when this is done.
    CreatePipeline {
        /// Its number: the smallest that is free.
        number: u32,
        /// The processors of the card that its thread runs on, 64 to a word; none: any.
        mask: Vec<u64>,
        /// Bytes of its thread's stack; 0: what is usual.
        stack_bytes: u64,
    },
    /// A pipeline goes, once all that it was sent has returned. Its number is free when this is
    /// done, and not before: nothing of it is left then.
    DestroyPipeline {
        /// Its number.
        number: u32,
    },
    /// Load a library (COIProcessLoadLibrary): dlopen(3). One that is loaded already is answered with
    /// the number that it has. Errors: ELIBACC, one that it needs is missing; ENOSYS, a symbol is
    /// undefined; ELIBBAD, it is none; ENOEXEC, the program is static and cannot load any.
    LoadLibrary {
        /// Files to bring along on the [`Channel::Dma`] connection's windows; the last one is it.
        files: Vec<Library>,
        /// dlopen(3)'s flags.
        flags: i32,
    },
    /// dlclose(3).
    UnloadLibrary {
        /// The number that loading it gave.
        library: u64,
    },
    /// After a restore: the windows of all memory on the new connection.
    Windows,
    /// To [`Notice::LoadLibrary`]: what became of it.
    LibraryLoaded {
        /// The request's number.
        request: u64,
        /// A COIRESULT.
        result: u32,
        /// The number of the library, if that is COI_SUCCESS or COI_ALREADY_EXISTS.
        library: u64,
    },
    /// No more commands until resume (only pause sends it).
    Shutdown,
    /// The program may leave COIProcessWaitForShutdown.
    EndProcess,
    /// Have memory of the process's own be a buffer's (COI_SINK_MEMORY). It stays the process's, and
    /// is no file of local store.
    AdoptMemory {
        /// The host's number for it.
        id: u64,
        /// Where it begins, on any byte.
        address: u64,
        /// Bytes.
        len: u64,
    },
}

/// Case 3, server to client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Where the function is.
    Function(u64),
    /// The window of what was made.
    Window(Window),
    /// The windows of all memory.
    Windows(Vec<Window>),
    /// A library is loaded, under this number.
    Library(u64),
    /// It could not be done.
    Failed {
        /// A Linux error number.
        errno: i32,
        /// What went wrong.
        why: String,
    },
}

/// Case 3, what an offload process tells its host unasked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A run function of this pipeline begins (COI_NOTIFY_RUN_FUNCTION_START), if the host asked for
    /// that with [`RunFunction::tell_start`]: the nth of this number, from 1.
    Started {
        /// The pipeline.
        pipeline: u32,
        /// How many it has begun.
        count: u64,
    },
    /// References to a buffer that the process has given back (COIBufferReleaseRef) since it was
    /// last told; the host took them with [`BufferUse::add_ref`] or was told of them with
    /// [`RunResult::Returned`].
    Released {
        /// The buffer.
        id: u64,
        /// How many.
        count: u64,
        /// The last [`RunResult::Returned::told`] before.
        told: u64,
    },
    /// The process signals a user event of the host's (COIEventSignalUserEvent).
    UserEvent(u64),
    /// The process asks for a library of the host's (COIProcessLoadSinkLibraryFromFile): the host
    /// loads it as if its own program had asked, then says [`Command::LibraryLoaded`].
    LoadLibrary {
        /// The request's number.
        request: u64,
        /// The file on the host: a path, or a name to search for.
        file: String,
        /// The name that it is to have; none: its DT_SONAME.
        name: Option<String>,
        /// Directories on the host, `:` between them, in place of SINK_LD_LIBRARY_PATH.
        search_path: Option<String>,
        /// dlopen(3)'s flags.
        flags: i32,
    },
}

/// Where memory of buffers is in the offload process's registered address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The memory.
    pub id: u64,
    /// Offset of its window.
    pub offset: i64,
    /// Bytes.
    pub len: u64,
    /// Where it is in the process's memory.
    pub address: u64,
}

/// A buffer as a run function is given it. A process knows a buffer from when it was given it first,
/// until another one is where it was, or its memory is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferUse {
    /// The buffer.
    pub id: u64,
    /// Where it begins in the process's memory: all of it is in memory that was made for buffers.
    pub address: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Where the part that the function is given begins (a sub-buffer), in bytes.
    pub offset: u64,
    /// Bytes of that part.
    pub len: u64,
    /// The function is given a reference of its own (COI_SINK_READ_ADDREF and so on), which the
    /// process gives back with COIBufferReleaseRef.
    pub add_ref: bool,
}

/// Case 4, Pipe_Thread1 to Pipe_Thread2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFunction {
    /// Address of the function, from [`Answer::Function`].
    pub function: u64,
    /// Buffers that it is given.
    pub buffers: Vec<BufferUse>,
    /// Miscellaneous data.
    pub misc: Vec<u8>,
    /// Bytes of its return value.
    pub return_len: u16,
    /// [`Notice::Started`] is wanted when it begins.
    pub tell_start: bool,
}

/// Case 4, Pipe_Thread2 to Pipe_Thread1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunResult {
    /// The function returned.
    Returned {
        /// Its value.
        value: Vec<u8>,
        /// References that the process took itself (COIBufferAddRef) while it ran, and has not
        /// been told of before, buffer by buffer: those buffers stay where they are until they
        /// are given back.
        added: Vec<(u64, u64)>,
        /// How often the process has told of references that it has taken, this time included: what
        /// it says on other connections may be heard earlier.
        told: u64,
    },
    /// It was not run: no such buffer or function.
    Refused(String),
}
