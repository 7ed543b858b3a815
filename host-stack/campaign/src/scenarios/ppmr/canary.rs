//! Planted bugs of pipelines.

crate::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// A chunk is recycled before it was pulled, or put.
        RecycledEarly = "recycled-early",
        /// A reader takes what has come of a stream for all of it when the source is lost: the last chunk may be missing.
        LastChunkLost = "last-chunk-lost",
        /// A tree runs at the target as soon as its streams are read, whatever is decided.
        BothRun = "both-run",
        /// The target serves one reader after the other: a slow one stops all.
        HeadOfLine = "head-of-line",
    }
}
