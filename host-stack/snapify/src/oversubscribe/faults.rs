//! Where something can go wrong while offload processes take turns on cards.

snaprig_wire::fault_points! {
    /// A program asks for room on a card.
    ASK = "oversubscribe.ask", "a program asks for room on a card", [Error, Delay, Crash, Hang, Restart];
    /// A program is told that there is room, or that there will be none.
    ANSWER = "oversubscribe.answer", "a program is told whether there is room", [Delay, Crash, Hang, Restart];
    /// A process is about to be swapped out.
    SWAP_OUT = "oversubscribe.swap_out", "a process makes room for others", [Error, Delay, Crash, Hang, Restart];
    /// A process is about to be swapped in.
    SWAP_IN = "oversubscribe.swap_in", "a process has its turn", [Error, Delay, Crash, Hang, Restart];
    /// A run function returns.
    RETURN = "oversubscribe.return", "a run function of a process that shares its card returns",
        [Delay, Crash, Hang, Restart];
}
