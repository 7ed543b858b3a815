//! Planted bugs of a migration.

crate::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// A source that loses the target when it has said Go lets its tree run on.
        TwoOfIt = "two-of-it",
        /// A source ends its tree when it says Go, without waiting for what comes of it.
        NoneOfIt = "none-of-it",
        /// A source that is started again does not look whether it has to ask.
        ForgottenQuestion = "forgotten-question",
        /// A target's decision is not synced before it is told.
        UnsyncedDecision = "unsynced-decision",
    }
}
