//! Planted bugs of who has processes take turns.

crate::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// The arbiter does not hear that a grant was used.
        ForgottenGrant = "forgotten-grant",
        /// The arbiter does not hear what a process asks for that is swapped out.
        LostRequest = "lost-request",
        /// The arbiter takes for free what others have been granted and not used yet.
        DoublePromise = "double-promise",
        /// Stays on cards are not worth their swaps.
        ShortStay = "short-stay",
        /// The arbiter does not hear that a card is about to fail.
        DeafToWarnings = "deaf-to-warnings",
    }
}
