//! Planted bugs of a job: of its coordinator, or of its agents.

crate::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// A coordinator takes an image for written whose member says that it is not.
        BelievedWrite = "believed-write",
        /// A manifest is written before all images are.
        HastyManifest = "hasty-manifest",
        /// A coordinator that takes over does not know who belongs to the job.
        ForgottenMembers = "forgotten-members",
        /// A member is welcome before the disk knows of it.
        EarlyWelcome = "early-welcome",
        /// Whether there is a manifest is told otherwise than the disk has it.
        TwiceDecided = "twice-decided",
        /// An agent does not wait for what is on its way in connections.
        UncountedBytes = "uncounted-bytes",
        /// An agent does not have its program run on when a checkpoint fails.
        DeafAgent = "deaf-agent",
        /// An agent removes its image when it cannot know whether there is a manifest.
        DoubtfulRemoval = "doubtful-removal",
        /// What was in a connection is put back twice.
        DoubledRefill = "doubled-refill",
    }
}
