//! Where whoever takes part in a move can be killed on purpose.

snaprig_wire::fault_points! {
    /// All: a move begins.
    BEGUN = "move.begun", "a move begins", [Crash];
    /// Source: the image is on its way, but for its end.
    SENDING = "move.sending", "source: the image is on its way", [Crash];
    /// Heir: some of the image has come through a pipeline, to whoever takes it there.
    COMING = "move.coming", "who takes the image: some of it has come", [Crash];
    /// Source: some of the memory that the tree does not wait for is on its way.
    FOLLOWING = "move.following", "source: some memory follows the tree", [Crash];
    /// Beside the heir: some of it is in place.
    FILLED = "move.filled", "who puts memory in place: some is", [Crash];
    /// Source: the tree stands still, and is in the image.
    SAVED = "move.saved", "source: the tree is in the image", [Crash];
    /// Source: its heir has been given everything.
    SENT = "move.sent", "source: the heir has everything", [Crash];
    /// Others: they are connected with the tree where it is to go on.
    CONNECTED = "move.connected", "another: it is connected with where the tree goes", [Crash];
    /// Heir: everything has come.
    ARRIVED = "move.arrived", "heir: the tree has come", [Crash];
    /// Heir: the tree is restored, and stands still.
    RESTORED = "move.restored", "heir: the tree is restored; nobody is told", [Crash];
    /// Heir: it has been told that the tree is its own.
    DECIDED = "move.decided", "heir: the tree is its own, and does not run", [Crash];
    /// Heir: the tree runs.
    RUNS = "move.runs", "heir: the tree runs; the source may be there", [Crash];
    /// Others: they have been told that it is decided.
    FOLLOWS = "move.follows", "another: it is told; its plugins are not", [Crash];
    /// Source: it has been told that the tree goes on elsewhere.
    LEAVES = "move.leaves", "source: it is told; the tree stands still", [Crash];
    /// Source: its processes are gone.
    LEFT = "move.left", "source: the tree is gone here", [Crash];
}
