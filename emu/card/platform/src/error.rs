//! Why a platform cannot run a guest thread.

/// The platform itself failed; the card cannot go on with this thread.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// A host call failed.
    #[error("{call}: {source}")]
    Host {
        /// What was called, and on what.
        call: String,
        /// What the host said.
        source: std::io::Error,
    },
    /// The guest reached a state that the platform cannot run.
    #[error("the guest cannot go on: {0}")]
    Guest(String),
    /// A limit of the host is reached (vCPUs, tasks, memory).
    #[error("{0}")]
    Exhausted(String),
}
