//! Where a fabric can go wrong beside its packets.

snaprig_wire::fault_points! {
    /// Time passes: what an operator does, or a machine that fails.
    TIME = "fabric.time", "so much time has passed in a real fabric (at_ns)",
        [LinkDown, LinkUp, Partition, GidChange, Crash, Hang];
}
