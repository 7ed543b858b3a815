//! Where a checkpoint with queue pairs can go wrong: a point for each principle of the paper's section 3.1, and for the names.

snaprig_wire::fault_points! {
    /// A process is about to keep its program out of verbs.
    QUIESCE = "ib.quiesce", "a process keeps its program out of verbs",
        [Delay, Crash, Hang];
    /// A process is about to look once more whether everything has come.
    DRAIN = "ib.drain", "a process puts completions by",
        [Delay, LinkDown, Crash, Hang];
    /// A process is about to say that it can be saved.
    SAVE = "ib.save", "a process has nothing under way",
        [Delay, Crash, Hang];
    /// A process is about to let its program go on.
    RESUME = "ib.resume", "a process lets its program go on",
        [Delay, Crash, Hang];
    /// A restarted process is about to make something again.
    REBUILD = "ib.rebuild", "a restarted process makes its queues again",
        [Delay, Crash, Hang];
    /// A restarted process is about to connect its queue pairs.
    EXCHANGE = "ib.exchange", "a restarted process connects its queue pairs",
        [Delay, Crash, Hang];
    /// A restarted process is about to post again.
    REFILL = "ib.refill", "a restarted process posts again",
        [Delay, Crash, Hang];
}
