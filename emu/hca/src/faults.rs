//! Where the HCA and its users can go wrong.

snaprig_wire::fault_points! {
    /// A request or a datagram is about to leave a port, on a path that goes packet by packet.
    PACKET = "hca.packet", "a request or a datagram leaves a port",
        [Drop, Delay, Duplicate, Reorder, Corrupt, LinkDown, Partition, Crash, Hang];
    /// A response is about to leave a port, on a path that goes packet by packet.
    RESPONSE = "hca.response", "an acknowledgement, or what was fetched, leaves a port",
        [Drop, Delay, Duplicate, Reorder, Corrupt, LinkDown, Partition, Crash, Hang];
    /// A process is about to post a work request.
    POST = "hca.post", "a process posts a work request",
        [Delay, LinkDown, Partition, Crash, Hang];
    /// A process that posts has done a part of it.
    STEP = "hca.step", "a process is in the middle of posting a work request", [Crash];
    /// A process is about to poll its completion queue.
    POLL = "hca.poll", "a process polls its completion queue",
        [Delay, LinkDown, Partition, Crash, Hang];
}
