//! Planted bugs of the offload stack.

snaprig_scenario::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// Pause does not wait until the offload process has received what was sent to it (case 4).
        UncountedDrain = "uncounted-drain",
        /// Pause does not wait until the host has received the results that were sent to it (case 4).
        UnsettledResults = "unsettled-results",
        /// RMA goes on while the process is paused (case 2).
        OpenRdma = "open-rdma",
        /// A link takes records that are doubled, early or damaged.
        BelievingLink = "believing-link",
        /// A restored process does not register one of its windows anew.
        ForgottenWindow = "forgotten-window",
        /// What run functions write to buffers during a pause is not in the snapshot.
        StaleStore = "stale-store",
        /// What another card fetches of the local store of a process that moves is as it was before the process stood still.
        EarlyStore = "early-store",
        /// What the host writes to a buffer while its process is copied is not told.
        UntoldWrite = "untold-write",
        /// A copy has nothing of what was written after it was begun, and the next one has not either.
        CleanCopy = "clean-copy",
        /// Run functions go on after a capture that ends their process.
        RunsOn = "runs-on",
        /// The earlier snapshot is removed when a new one is begun.
        LostPredecessor = "lost-predecessor",
        /// A file takes its name before it is synced.
        EarlyRename = "early-rename",
        /// The daemon is not told when the host process is gone.
        DeafDaemon = "deaf-daemon",
        /// Nobody is told when nothing can bring the process back.
        SilentLoss = "silent-loss",
        /// The daemon panics when a host process goes away in the middle of a pause.
        RashDaemon = "rash-daemon",
        /// COI's graph is not told what operations depend on.
        HastyStart = "hasty-start",
        /// A run function is sent twice.
        DoubledRun = "doubled-run",
        /// Who depends on a run function that failed is not told.
        SwallowedError = "swallowed-error",
        /// Not all of a buffer's bytes are moved.
        SkippedMove = "skipped-move",
        /// Nobody hears that a run function has failed.
        LostReturn = "lost-return",
        /// References that run functions take are not counted.
        LostReferences = "lost-references",
        /// COI's graph is not told of a process that is gone.
        UnknownDeath = "unknown-death",
        /// The last page of each buffer does not come back.
        LostPage = "lost-page",
    }
}
