//! Where a supervisor can be killed on purpose while kinds of state are saved.

snaprig_wire::fault_points! {
    /// A receiver's buffer is larger than it was, for what is on its way to it.
    FLOW_GROWN = "resources.flow_grown", "a receiver's buffer has grown for what is on its way", [Crash];
    /// What was on its way has arrived there, and is read.
    FLOW_READ = "resources.flow_read", "what was on its way has arrived there, and is read", [Crash];
    /// What was in a terminal is out of it, and on its way back.
    TERMINAL_TAKEN = "resources.terminal", "what was in a terminal is out of it, and on its way back", [Crash];
    /// Pages are being written.
    PAGES = "resources.pages", "pages are being written", [Crash];
}
