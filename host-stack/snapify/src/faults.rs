//! Where Snapify can go wrong on the host.

use crate::Step;

snaprig_wire::fault_points! {
    /// A snapshot's directory is about to be made.
    PREPARE = "snapify.prepare", "the host makes the snapshot's directory",
        [Error, DiskFull, Crash, Hang, Restart];
    /// A snapshot is about to get its name.
    COMMIT = "snapify.commit", "the snapshot takes its name",
        [Error, DiskFull, Crash, Hang, Restart];
    /// A snapshot is about to be verified.
    VERIFY = "snapify.verify", "every byte of the snapshot is verified",
        [Error, Corrupt, Crash, Hang, Restart];
    /// [`Step::Copy`] begins.
    STEP_COPY = "snapify.copy", "live: a process that works is copied", [Crash, Hang, Restart];
    /// [`Step::Preload`] begins.
    STEP_PRELOAD = "snapify.preload", "live: a card reads a copy", [Crash, Hang, Restart];
    /// [`Step::Agree`] begins.
    STEP_AGREE = "snapify.agree", "pause: all parties agree", [Crash, Hang, Restart];
    /// [`Step::Lock`] begins.
    STEP_LOCK = "snapify.lock", "pause: the host's locks and the marker", [Crash, Hang, Restart];
    /// [`Step::Drain`] begins.
    STEP_DRAIN = "snapify.drain", "pause: the channels are drained", [Crash, Hang, Restart];
    /// [`Step::Capture`] begins.
    STEP_CAPTURE = "snapify.capture", "capture: the process is saved", [Crash, Hang, Restart];
    /// [`Step::Commit`] begins.
    STEP_COMMIT = "snapify.commit_step", "capture: the snapshot takes its name",
        [Crash, Hang, Restart];
    /// [`Step::Verify`] begins.
    STEP_VERIFY = "snapify.verify_step", "restore: the snapshot is verified",
        [Crash, Hang, Restart];
    /// [`Step::Restore`] begins.
    STEP_RESTORE = "snapify.restore", "restore: the process comes back", [Crash, Hang, Restart];
    /// [`Step::Reconnect`] begins.
    STEP_RECONNECT = "snapify.reconnect", "restore: channels and windows anew",
        [Crash, Hang, Restart];
    /// [`Step::Resume`] begins.
    STEP_RESUME = "snapify.resume", "resume: the locks are released", [Crash, Hang, Restart];
}

/// The point at which a step begins.
pub fn of_step(step: Step) -> snaprig_wire::fault::Point {
    match step {
        Step::Copy => STEP_COPY,
        Step::Preload => STEP_PRELOAD,
        Step::Agree => STEP_AGREE,
        Step::Lock => STEP_LOCK,
        Step::Drain => STEP_DRAIN,
        Step::Capture => STEP_CAPTURE,
        Step::Commit => STEP_COMMIT,
        Step::Verify => STEP_VERIFY,
        Step::Restore => STEP_RESTORE,
        Step::Reconnect => STEP_RECONNECT,
        Step::Resume => STEP_RESUME,
    }
}
