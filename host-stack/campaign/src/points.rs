//! Every fault point of the stack.

use snaprig_sim::{
    KindName::{self, Corrupt, Crash, Delay, DiskFull, Error, Hang, TornWrite},
    Point,
};

const STEP: &[KindName] = &[Crash, Hang];

/// A message between SCIF nodes is about to leave.
pub const SCIF_MESSAGE: Point = Point {
    name: "scif.message",
    what: "a message between SCIF nodes leaves for the ring",
    kinds: &[Delay, Crash, Hang],
};
/// RMA is about to be done.
pub const SCIF_COPY: Point = Point {
    name: "scif.copy",
    what: "the DMA engine copies between windows",
    kinds: &[Error, Corrupt, Crash, Hang],
};
/// A thread wakes up for what has arrived on its endpoint.
pub const COI_THREAD: Point = Point {
    name: "coi.thread",
    what: "another thread takes what has arrived on its endpoint",
    kinds: &[Delay, Crash, Hang],
};
/// Pipe_Thread1 wakes up for a result.
pub const COI_PIPE_THREAD1: Point = Point {
    name: "coi.pipe_thread1",
    what: "Pipe_Thread1 of the host takes a result",
    kinds: &[Delay, Crash, Hang],
};
/// Pipe_Thread2 wakes up for a run function.
pub const COI_PIPE_THREAD2: Point = Point {
    name: "coi.pipe_thread2",
    what: "Pipe_Thread2 of the sink takes a run function",
    kinds: &[Delay, Crash, Hang],
};
/// A run function is about to be run.
pub const COI_RUN_FUNCTION: Point = Point {
    name: "coi.run_function",
    what: "the sink runs a function",
    kinds: &[Delay, Crash, Hang],
};
/// The daemon starts a program.
pub const COI_SPAWN: Point = Point {
    name: "coi.spawn",
    what: "the COI daemon starts a program",
    kinds: &[Error, Crash, Hang],
};
/// The offload process is about to connect to its daemon.
pub const SNAPIFY_SIGNAL: Point = Point {
    name: "snapify.signal",
    what: "the offload process answers the daemon's signal",
    kinds: &[Delay, Crash, Hang],
};
/// The image is about to be written.
pub const SNAPIFY_IMAGE: Point = Point {
    name: "snapify.image",
    what: "the checkpoint service streams the process",
    kinds: &[Error, Crash, Hang],
};
/// The image is about to be read.
pub const SNAPIFY_REVIVE: Point = Point {
    name: "snapify.revive",
    what: "the checkpoint service reads an image",
    kinds: &[Error, Crash, Hang],
};
/// A snapshot's directory is about to be made.
pub const SNAPIFY_PREPARE: Point = Point {
    name: "snapify.prepare",
    what: "the host makes the snapshot's directory",
    kinds: &[Error, DiskFull, Crash, Hang],
};
/// A snapshot is about to get its name.
pub const SNAPIFY_COMMIT: Point = Point {
    name: "snapify.commit",
    what: "the snapshot takes its name",
    kinds: &[Error, DiskFull, Crash, Hang],
};
/// A snapshot is about to be verified.
pub const SNAPIFY_VERIFY: Point = Point {
    name: "snapify.verify",
    what: "every byte of the snapshot is verified",
    kinds: &[Error, Corrupt, Crash, Hang],
};
/// The steps of Snapify's calls, in their order.
pub const SNAPIFY_STEPS: [Point; 9] = [
    step("snapify.agree", "pause: all parties agree"),
    step("snapify.lock", "pause: the host's locks and the marker"),
    step("snapify.drain", "pause: the channels are drained"),
    step("snapify.capture", "capture: the process is saved"),
    step(
        "snapify.commit_step",
        "capture: the snapshot takes its name",
    ),
    step("snapify.verify_step", "restore: the snapshot is verified"),
    step("snapify.restore", "restore: the process comes back"),
    step("snapify.reconnect", "restore: channels and windows anew"),
    step("snapify.resume", "resume: the locks are released"),
];
/// A file is about to be opened for a card.
pub const SNAPIFY_IO_OPEN: Point = Point {
    name: "snapify_io.open",
    what: "the host's daemon opens a file for a card",
    kinds: &[Error, DiskFull, Crash, Hang],
};
/// A slot's bytes are about to be written.
pub const SNAPIFY_IO_WRITE: Point = Point {
    name: "snapify_io.write",
    what: "the host's daemon writes a slot's bytes",
    kinds: &[Error, DiskFull, TornWrite, Crash, Hang],
};
/// A file is about to be synced and named.
pub const SNAPIFY_IO_COMMIT: Point = Point {
    name: "snapify_io.commit",
    what: "the host's daemon syncs a file and gives it its name",
    kinds: &[Error, DiskFull, Crash, Hang],
};
/// A slot is about to be read from the disk.
pub const SNAPIFY_IO_READ: Point = Point {
    name: "snapify_io.read",
    what: "the host's daemon reads a slot's bytes",
    kinds: &[Error, Corrupt, Crash, Hang],
};

const fn step(name: &'static str, what: &'static str) -> Point {
    Point {
        name,
        what,
        kinds: STEP,
    }
}

/// All of them.
pub fn all() -> Vec<Point> {
    let mut points = vec![
        SCIF_MESSAGE,
        SCIF_COPY,
        COI_THREAD,
        COI_PIPE_THREAD1,
        COI_PIPE_THREAD2,
        COI_RUN_FUNCTION,
        COI_SPAWN,
        SNAPIFY_SIGNAL,
        SNAPIFY_IMAGE,
        SNAPIFY_REVIVE,
        SNAPIFY_PREPARE,
        SNAPIFY_COMMIT,
        SNAPIFY_VERIFY,
        SNAPIFY_IO_OPEN,
        SNAPIFY_IO_WRITE,
        SNAPIFY_IO_COMMIT,
        SNAPIFY_IO_READ,
    ];
    points.extend(SNAPIFY_STEPS);
    points
}
