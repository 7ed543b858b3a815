//! Where a coordinated checkpoint can go wrong.

snaprig_wire::fault_points! {
    /// A message between coordinator and peer is about to leave.
    MESSAGE = "coord.message", "a message between the coordinator and a peer leaves",
        [Delay, Drop, Crash, Hang];
    /// A member has begun a phase.
    PHASE = "coord.phase", "an agent begins a phase",
        [Delay, Error, Crash, Hang];
    /// A member writes its image.
    IMAGE = "coord.image", "an agent writes its image",
        [Error, DiskFull, TornWrite, Crash, Hang];
    /// Who the members are is about to be written down.
    MEMBERS = "coord.members", "the coordinator writes down who its members are",
        [Crash, Hang];
    /// The manifest is about to be renamed.
    COMMIT = "coord.commit", "the coordinator is about to rename the manifest",
        [Error, Delay, Crash, Hang];
    /// The manifest has its name, and nobody knows yet.
    COMMITTED = "coord.committed", "the manifest has its name, and nobody knows yet",
        [Delay, Crash, Hang];
    /// A peer is about to connect.
    CONNECT = "coord.connect", "a peer connects to the coordinator",
        [Error, Delay, Crash, Hang];
}
