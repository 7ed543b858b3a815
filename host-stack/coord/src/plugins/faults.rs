//! Where a round of plugins can go wrong.

snaprig_wire::fault_points! {
    /// A plugin has been told to do a phase.
    PHASE = "plugin.phase", "a plugin begins a phase",
        [Delay, Error, Crash, Hang];
    /// A plugin says something to its supervisor.
    MESSAGE = "plugin.message", "a message leaves a plugin",
        [Delay, Crash, Hang];
    /// A supervisor's plugins have passed a phase, and nobody else knows.
    PASSED = "plugin.passed", "a supervisor says that its plugins have passed a phase",
        [Delay, Crash, Hang];
}
