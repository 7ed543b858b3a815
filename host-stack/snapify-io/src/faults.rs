//! Where Snapify-IO can go wrong.

snaprig_wire::fault_points! {
    /// A file is about to be opened for a card.
    OPEN = "snapify_io.open", "the host's daemon opens a file for a card",
        [Error, DiskFull, Crash, Hang, Restart];
    /// A slot's bytes are about to be written.
    WRITE = "snapify_io.write", "the host's daemon writes a slot's bytes",
        [Error, DiskFull, TornWrite, Crash, Hang, Restart];
    /// A file is about to be synced and named.
    COMMIT = "snapify_io.commit", "the host's daemon syncs a file and gives it its name",
        [Error, DiskFull, Crash, Hang, Restart];
    /// A slot is about to be read from the disk.
    READ = "snapify_io.read", "the host's daemon reads a slot's bytes",
        [Error, Corrupt, Crash, Hang, Restart];
}
