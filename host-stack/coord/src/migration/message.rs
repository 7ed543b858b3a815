//! What the two sides of a migration say to each other.

use serde::{Deserialize, Serialize};
use snaprig_peers::{Nonce, Proof};

use super::{Id, SiteId};

/// Of what is said here; another one is refused.
pub const VERSION: u32 = 3;
/// The most bytes of a command line that are told.
pub const COMMAND_MAX: usize = 1 << 20;

/// What a source says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTarget {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Random bytes, for proofs.
        nonce: Nonce,
    },
    /// It knows the token.
    Proof(Proof),
    /// A tree is to come. Its image follows.
    Begin {
        /// Which migration.
        id: Id,
        /// The program's command line.
        command: Vec<String>,
    },
    /// The tree is to go on at the target, unless that has given it up; and what has become of it is to be
    /// said. It may be said again, as often as the answer was lost.
    Go {
        /// Which migration.
        id: Id,
        /// Who is to answer.
        site: SiteId,
    },
    /// The source knows that the tree is the target's, and will not ask again.
    Gone {
        /// Which migration.
        id: Id,
    },
    /// The tree goes on at the source: the target is to forget it.
    Abandon {
        /// Which migration.
        id: Id,
    },
}

/// What a target says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSource {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Random bytes, for proofs.
        nonce: Nonce,
    },
    /// It knows the token.
    Proof(Proof),
    /// The tree is restored, and stands still.
    Ready {
        /// Which migration.
        id: Id,
        /// Who says so, and can be asked what has become of the tree.
        site: SiteId,
    },
    /// The tree will never run at the target.
    Failed {
        /// Which migration.
        id: Id,
        /// Why.
        why: String,
    },
    /// The tree is the target's, for good.
    Running {
        /// Which migration.
        id: Id,
    },
}
