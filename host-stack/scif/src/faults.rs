//! Where SCIF can go wrong.

snaprig_wire::fault_points! {
    /// A message between SCIF nodes is about to leave.
    MESSAGE = "scif.message", "a message between SCIF nodes leaves for the ring",
        [Drop, Delay, Duplicate, Reorder, Corrupt, LinkDown, Partition, Crash, Hang, Restart];
    /// RMA is about to be done.
    COPY = "scif.copy", "the DMA engine copies between windows",
        [Error, Corrupt, Crash, Hang, Restart];
}

/// Where programs that use SCIF themselves can go wrong. Programs that use it by way of COI have
/// points of their own.
pub mod program {
    snaprig_wire::fault_points! {
        /// A program is about to call its node.
        CALL = "scif.call", "a program calls its SCIF node",
            [Delay, Crash, Hang, Restart];
    }
}
