//! What an image says of terminals.

use serde::{Deserialize, Serialize};

/// A pseudoterminal (pty(7)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Terminal {
    /// N of /dev/pts/N.
    pub number: u32,
    /// Settings and size.
    pub look: TerminalSettings,
    /// TIOCPKT.
    pub packets: bool,
    /// TIOCSPTLCK.
    pub locked: bool,
    /// TIOCEXCL.
    pub exclusive: bool,
    /// The slave has been open, and is not any more.
    pub hung_up: bool,
    /// The session that it controls, and its foreground group.
    pub session: Option<(i32, i32)>,
    /// What the slave has not read: lines, and what is not yet one.
    pub input: Vec<Line>,
    /// What the master has not read.
    pub output: Vec<u8>,
}

/// What can be read at once of a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// It can be read, though it does not end with a newline (VEOF).
    pub is_pushed: bool,
}

/// Settings of a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSettings {
    /// `struct termios2`.
    pub settings: Vec<u8>,
    /// Rows, columns, and both in pixels.
    pub size: [u16; 4],
}

/// The terminal that a tree was on with its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// Settings and size.
    pub look: TerminalSettings,
    /// The foreground group.
    pub group: i32,
}
