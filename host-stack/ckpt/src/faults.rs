//! Where a supervisor can be killed on purpose in a checkpoint and in a restart.

snaprig_wire::fault_points! {
    /// All threads have said what they know; they are in the stub.
    ASKED = "ckpt.asked", "all threads have answered; they are in the stub", [Crash];
    /// The image has its first section.
    STATE = "ckpt.state", "the image has its first section", [Crash];
    /// Files of a restarted tree are open.
    RESTART_FILES = "ckpt.restart_files", "files of a restarted tree are open", [Crash];
    /// Its processes wait to become what they were.
    RESTART_PLANTED = "ckpt.restart_planted", "its processes wait to become what they were", [Crash];
    /// A process has its areas, which are empty.
    RESTART_MAPPED = "ckpt.restart_mapped", "a process has its areas, which are empty", [Crash];
    /// Memory is filled.
    RESTART_FILLED = "ckpt.restart_filled", "memory is filled", [Crash];
    /// A process has its threads.
    RESTART_THREADS = "ckpt.restart_threads", "a process has its threads", [Crash];
    /// A thread has its registers.
    RESTART_REGISTERS = "ckpt.restart_registers", "a thread has its registers", [Crash];
    /// Everything is there, and held.
    RESTART_HELD = "ckpt.restart_held", "everything is there, and held", [Crash];
    /// From now on, the tree would run on.
    RESTART_COMPLETE = "ckpt.restart_complete", "from now on, the tree would run on", [Crash];
    /// A thread of a restarted tree runs; others do not.
    RESTART_LET_GO = "ckpt.restart_let_go", "a thread of a restarted tree runs; others do not", [Crash];
}
