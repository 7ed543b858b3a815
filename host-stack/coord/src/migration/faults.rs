//! Where a migration can go wrong.

snaprig_wire::fault_points! {
    /// A side is about to do what its machine says.
    STEP = "migration.step", "a side is about to do a step of a migration",
        [Delay, Crash, Hang, Restart];
    /// It has done it, and nobody knows yet.
    STEPPED = "migration.stepped", "a side has done a step, and nobody knows yet",
        [Crash, Hang, Restart];
    /// A message is about to leave.
    MESSAGE = "migration.message", "a message between the sides leaves",
        [Delay, Drop, LinkDown, Partition, Crash, Hang, Restart];
    /// The source is about to connect.
    CONNECT = "migration.connect", "the source connects to the target",
        [Error, Delay, Crash, Hang, Restart];
    /// The tree's image is on its way, or is about to be restored.
    IMAGE = "migration.image", "the tree's image is sent, or restored",
        [Error, Delay, LinkDown, Crash, Hang, Restart];
    /// The tree runs, at either side.
    RUN = "migration.run", "the tree that migrates, or has, does a step",
        [LinkDown, Partition, Crash, Hang, Restart];
    /// A record is about to be written.
    RECORD = "migration.record", "a record of what was decided is written",
        [Error, DiskFull, TornWrite, Crash, Hang, Restart];
    /// A record has its name, and it is not sure that it keeps it.
    NAMED = "migration.named", "a record has its name, which may not be on the disk yet",
        [Error, Crash, Hang, Restart];
}
