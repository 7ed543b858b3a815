//! Bugs that the machines can be told to have, to see that campaigns find them.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Completion queues are emptied once, and nobody waits for what is under way.
    DrainsOnce,
    /// A request whose completion nobody asked for is taken to be done when it is posted.
    ForgetsUnsignaled,
    /// A remote key is translated as if it were one job-wide name.
    KeyWithoutDomain,
    /// A name that is given after a restart may be one that is given already.
    NameGivenTwice,
    /// An image that builds on what was copied before has what the program has written since, and not what its HCA has.
    WritesUntracked,
    /// Who stays where it is posts no receives again, in queues that are made again as their peer has moved.
    ReceivesLeft,
    /// Who stays where it is takes for nobody's what its peer, which has moved, sends before it has heard that.
    EarlyLost,
    /// The program sees completions that were asked for to make room in a short send queue.
    RoomTold,
}
