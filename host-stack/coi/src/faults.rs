//! Where COI can go wrong on the host.

snaprig_wire::fault_points! {
    /// A thread wakes up for what has arrived on its endpoint.
    THREAD = "coi.thread", "another thread takes what has arrived on its endpoint",
        [Delay, Crash, Hang, Restart];
    /// Pipe_Thread1 wakes up for a result.
    PIPE_THREAD1 = "coi.pipe_thread1", "Pipe_Thread1 of the host takes a result",
        [Delay, Crash, Hang, Restart];
}
