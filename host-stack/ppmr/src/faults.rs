//! Where a pipelined migration can go wrong.

snaprig_wire::fault_points! {
    /// The source's buffer manager is about to connect.
    CONNECT = "ppmr.connect", "a source's buffer manager connects",
        [Error, Delay, Crash, Hang, LinkDown, Partition];
    /// A process's writer gives bytes to the source's pool.
    WRITE = "ppmr.write", "bytes of a process come into the source's pool",
        [Error, Delay, Crash, Hang];
    /// A control message is about to leave.
    MESSAGE = "ppmr.message", "a message between buffer managers leaves",
        [Delay, Drop, Corrupt, LinkDown, Partition, Crash, Hang];
    /// A chunk is pulled, or pushed.
    TRANSFER = "ppmr.transfer", "a chunk goes from pool to pool by RDMA",
        [Error, Delay, Corrupt, LinkDown, Partition, Crash, Hang];
    /// A process's reader takes bytes from the target's pool.
    READ = "ppmr.read", "bytes of a process are read from the target's pool",
        [Error, Delay, Crash, Hang];
}
