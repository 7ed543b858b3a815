//! Planted bugs of whoever takes plugins through the phases.

crate::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// A phase begins when the plugins of one tree have passed the one before.
        HastyPhase = "hasty-phase",
        /// A restarted tree runs when its own plugins have rebuilt, whatever others do.
        EarlyGo = "early-go",
        /// Who has quiesced is not told when a checkpoint is given up.
        ForgottenResume = "forgotten-resume",
        /// A supervisor does not hear that a process has ended before its plugins are late.
        UnheardEnd = "unheard-end",
        /// A checkpoint is complete when all have saved, whatever is to be finished.
        EarlyCommit = "early-commit",
        /// A checkpoint that somebody's end has spoilt is not tried again.
        NoSecondTry = "no-second-try",
    }
}
