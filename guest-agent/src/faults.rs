//! Where COI and Snapify can go wrong on a card.

snaprig_wire::fault_points! {
    /// Pipe_Thread2 wakes up for a run function.
    PIPE_THREAD2 = "coi.pipe_thread2", "Pipe_Thread2 of the sink takes a run function",
        [Delay, Crash, Hang, Restart];
    /// A run function is about to be run.
    RUN_FUNCTION = "coi.run_function", "the sink runs a function",
        [Delay, Crash, Hang, Restart];
    /// A run function's result is about to be sent.
    RESULT = "coi.result", "the sink sends a result", [Delay, Crash, Hang, Restart];
    /// The command server is about to create a pipeline or a buffer, or to load a library.
    COMMAND = "coi.command", "the sink makes a pipeline or memory, or loads a library", [Error, Crash, Hang, Restart];
    /// The command server is about to answer the Shutdown marker, to say where windows are, or to
    /// take something away.
    ANSWER = "coi.answer", "the sink answers the marker or takes something away",
        [Crash, Hang, Restart];
    /// References are about to be given back.
    GIVE_BACK = "coi.give_back", "the sink gives references back", [Delay, Crash, Hang, Restart];
    /// The daemon is about to read a program's bytes from the host's window.
    FETCH = "coi.fetch", "the COI daemon reads a program from the host",
        [Delay, Crash, Hang, Restart];
    /// The daemon starts a program.
    SPAWN = "coi.spawn", "the COI daemon starts a program",
        [Error, Crash, Hang, Restart];
    /// The offload process is about to connect to its daemon.
    SIGNAL = "snapify.signal", "the offload process answers the daemon's signal",
        [Delay, Crash, Hang, Restart];
    /// The image is about to be written.
    IMAGE = "snapify.image", "the checkpoint service streams the process",
        [Error, Crash, Hang, Restart];
    /// The image is about to be read.
    REVIVE = "snapify.revive", "the checkpoint service reads an image",
        [Error, Crash, Hang, Restart];
}
