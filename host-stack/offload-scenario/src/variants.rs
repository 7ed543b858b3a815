//! The variants of the offload stack: which snapshots are taken while the application works, and what
//! becomes of its offload processes.

/// A variant, by the name under which plans ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// Snapshots of each offload process.
    pub rounds: u32,
    /// A capture ends the process.
    pub ends: bool,
    /// It is copied while it works, before it is paused.
    pub live: bool,
    /// The process comes back from its snapshot: on another card, if one has room.
    pub comes_back: bool,
    /// It is moved: stands still on its card until another one has it, or goes on there.
    pub moves: bool,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self {
            name: "migrate",
            rounds: 1,
            ends: false,
            live: false,
            comes_back: true,
            moves: false,
        },
        Self {
            name: "swap",
            rounds: 1,
            ends: true,
            live: false,
            comes_back: true,
            moves: false,
        },
        Self {
            name: "checkpoint",
            rounds: 1,
            ends: false,
            live: false,
            comes_back: false,
            moves: false,
        },
        Self {
            name: "twice",
            rounds: 2,
            ends: false,
            live: false,
            comes_back: true,
            moves: false,
        },
        Self {
            name: "live",
            rounds: 2,
            ends: true,
            live: true,
            comes_back: true,
            moves: false,
        },
        Self {
            name: "move",
            rounds: 2,
            ends: true,
            live: false,
            comes_back: true,
            moves: true,
        },
        Self {
            name: "live-move",
            rounds: 2,
            ends: true,
            live: true,
            comes_back: true,
            moves: true,
        },
    ];

    /// Their names.
    pub const NAMES: [&str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].name;
            at += 1;
        }
        names
    };

    /// The variant with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name == name)
    }
}
