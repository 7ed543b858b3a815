//! Where a side of a migration can be killed on purpose: before and after each of its steps.
//!
//! What must stay true of each point: when the side that has died is restarted, and both reach each other, the tree runs
//! at one of them, and never at both.

snaprig_wire::fault_points! {
    /// Source: the tree stands still, and would end with its supervisor; the image is not complete.
    BOUND = "departure.bound", "source: the tree stands still and is bound to it", [Crash];
    /// Source: the whole image has left; nothing is written down.
    COPIED = "departure.copied", "source: the whole image has left; nothing is written down", [Crash];
    /// Source: it is written down that the target is to be asked; nobody has asked.
    GOING = "departure.going", "source: it is written down that it will ask", [Crash];
    /// Source: the target has been asked.
    ASKED = "departure.asked", "source: the target has been asked", [Crash];
    /// Source: the target has the tree; here it stands still.
    TOLD = "departure.told", "source: the target has the tree; here it stands still", [Crash];
    /// Source: the tree has ended here; that it is gone is not written down.
    ENDED = "departure.ended", "source: the tree has ended; nothing says so yet", [Crash];
    /// Source: it is written down that the tree is gone; the target does not know.
    GONE = "departure.gone", "source: it is written down that the tree is gone", [Crash];

    /// Target: a tree is announced.
    BEGUN = "arrival.begun", "target: a tree is announced", [Crash];
    /// Target: the image is complete and sound.
    RECEIVED = "arrival.received", "target: the image is complete and sound", [Crash];
    /// Target: the tree is restored and stands still; the source has not been told.
    RESTORED = "arrival.restored", "target: the tree is restored; nobody is told yet", [Crash];
    /// Target: the source has been told that the tree is ready.
    READY = "arrival.ready", "target: the source has been told that the tree is ready", [Crash];
    /// Target: it is asked; nothing is decided.
    DECIDING = "arrival.deciding", "target: it has been asked; nothing is decided", [Crash];
    /// Target: the decision is on the disk; the tree stands still.
    DECIDED = "arrival.decided", "target: the decision is on the disk", [Crash];
    /// Target: the tree runs; the source has not been told.
    RUNS = "arrival.runs", "target: the tree runs; the source has not been told", [Crash];
    /// Target: the source has been told that the tree runs.
    ANSWERED = "arrival.answered", "target: the source has been told that the tree runs", [Crash];
}
