//! Where COI can go wrong on the host.

snaprig_wire::fault_points! {
    /// A thread wakes up for what has arrived on its endpoint.
    THREAD = "coi.thread", "another thread takes what has arrived on its endpoint",
        [Delay, Crash, Hang, Restart];
    /// Pipe_Thread1 wakes up for a result.
    PIPE_THREAD1 = "coi.pipe_thread1", "Pipe_Thread1 of the host takes a result",
        [Delay, Crash, Hang, Restart];
    /// The host has been told that its process is there.
    CREATE_PROCESS = "coi.create_process", "the host hears that its process was made",
        [Crash, Hang, Restart];
    /// Bytes of a buffer are about to be moved for an operation.
    TRANSFER = "coi.transfer", "bytes of buffers begin to move for an operation",
        [Delay, Crash, Hang, Restart];
    /// They have been moved, and the graph of operations is about to be told.
    TRANSFERRED = "coi.transferred", "the bytes of an operation have been moved",
        [Delay, Crash, Hang, Restart];
    /// A run function is about to be sent.
    RUN_SENT = "coi.run_sent", "the host sends a run function", [Crash, Hang, Restart];
    /// The host is about to take note of references that are given back, or of a user event.
    NOTICE = "coi.notice", "the host takes a notice of its process", [Crash, Hang, Restart];
    /// The host, in the region of case 1, is about to ask for a pipeline.
    CREATE_PIPELINE = "coi.create_pipeline", "the host creates a pipeline",
        [Crash, Hang, Restart];
    /// A pipeline's channel is about to be connected.
    CONNECT_PIPELINE = "coi.connect_pipeline", "the host connects a new pipeline",
        [Crash, Hang, Restart];
    /// The host is about to take a pipeline away.
    DESTROY_PIPELINE = "coi.destroy_pipeline", "the host destroys a pipeline",
        [Crash, Hang, Restart];
    /// The host is about to ask for a buffer, in one process.
    CREATE_BUFFER = "coi.create_buffer", "the host creates a buffer", [Crash, Hang, Restart];
    /// The host is about to take a buffer away, in one process.
    DESTROY_BUFFER = "coi.destroy_buffer", "the host destroys a buffer", [Crash, Hang, Restart];
    /// The host is about to have a library loaded.
    LOAD_LIBRARY = "coi.load_library", "the host has a library loaded", [Crash, Hang, Restart];
}
