//! Migration: a tree of processes leaves one supervisor and goes on at another. Both sides are machines without I/O,
//! which the supervisors drive over sockets, and the simulator over its links.
//!
//! ```text
//! source                                             target
//!   | -- Hello { nonce } ------------------------->    |
//!   | <- Hello { nonce }, Proof -------------------    |   each knows the token, if there is one
//!   | -- Proof, Begin { id, command } ------------->   |
//!   | == image ==================================>    |   pages while the tree runs; the rest when it stands still
//!   | <- Ready { id, site } - or Failed { id, why }     |   all is read, checked and restored, and stands still
//!   |    record: Going (fsync, rename, fsync)           |
//!   | -- Go { id, site } --------------------------->   |
//!   |                                                   |   record: Committed (fsync, rename, fsync): the decision
//!   | <- Running { id } ---- or Failed { id, why } -    |   its tree runs
//!   |    its tree ends; record: Gone                    |
//!   | -- Gone { id } ------------------------------>    |   nobody will ask again
//! ```
//!
//! ```text
//! source:  Connecting --> Greeting --> Copying --> Waiting --Ready--> Deciding --recorded--> Asking --Running--> Gone
//!              |             |            |           |                 |                      |  ^
//!              '-------------'------------'-----------'-----------------'---> Stays <---Failed-'  '-- lost: asks again
//!
//! target:  Idle --Begin--> Receiving --restored--> Prepared --Go--> Committing --recorded--> Committed
//!            ^                 |                      |                 | not recorded
//!            '-----------------'----------------------'---- Withdrawing <'
//! ```
//!
//! The decision is one record on the target's disk. Until the record is there, the tree is the source's; from then on
//! it is the target's, whichever side dies. The source cannot always know which of both is true. So it writes down,
//! before it says Go, that it has to ask ([`Record::Going`]), and then asks until it is told. Go is also the question,
//! and may be said any number of times. The target decides alone and never waits for the source: it gives up a tree
//! that it has prepared when nobody says Go for [`PREPARED_NS`].
//!
//! An image may go another way than these messages, through a pipeline of buffers (`snaprig-ppmr`). Ready can come then while
//! the source does not know yet that all of it has left: it is kept until the source does, and its tree stands still.
//!
//! Only the target that has the tree may answer, and an address does not say who that is: another supervisor with
//! another directory may listen there by now. So a target's directory has a name of its own ([`SiteId`]), which the
//! target says with Ready and the source with Go. A target of another name says nothing, and the source asks on.
//!
//! What must stay true, whichever side dies, restarts, or loses the other one, at any step:
//!
//! - There are never two of a tree. The source's stands still from before Go until the source is told Failed; the
//!   target's stands still until its record is on the disk. A target that says Failed has no record, and never will
//!   have one.
//! - There is never none of it for ever. Once both sides are up and reach each other, the source is told.
//!
//! What that demands of a driver of these machines:
//!
//! - A tree dies with its supervisor, if the supervisor dies while the tree stands still for a migration. Otherwise the
//!   kernel would let the tree of a killed source run on, whatever the target has decided, and whatever it has done to
//!   files that both can see.
//! - A supervisor that starts looks for a record first, and syncs it and its directory before it does anything because
//!   of it: otherwise a crash could still lose what it has found. With [`Record::Going`] it asks ([`Source::resumed`])
//!   before anything is restarted from a checkpoint; with [`Record::Gone`] nothing is restarted. A target that has a
//!   record of its own restarts the tree, and goes on to answer ([`Target::with_tree`]).
//! - A record is written under another name, synced, renamed, and its directory synced. If one of these fails, the
//!   driver says whether the record may be there nevertheless ([`WriteError`]).
//! - A target whose tree has come to its end, or that has given one up after it said Ready, stays for [`LINGER_NS`] and
//!   answers, if somebody may ask ([`Target::is_awaited`]). After that, one is started on its directory when somebody
//!   asks ([`Target::new`]).
//!
//! | module | what it is |
//! |---|---|
//! | [`source`] | the side that the tree leaves |
//! | [`target`] | the side that it comes to |
//! | [`message`] | what they say |
//! | `greeting` | how they know each other |
//! | [`faults`] | where it can go wrong |

pub mod faults;
mod greeting;
pub mod message;
pub mod source;
pub mod target;

use serde::{Deserialize, Serialize};

use crate::{Ns, SECOND};

pub use self::{source::Source, target::Target};

/// How long connecting takes at most, and a peer that has not shown who it is.
pub const GREETING_NS: Ns = 5 * SECOND;
/// How long a peer may be silent while an image is on its way.
pub const SILENCE_NS: Ns = 30 * SECOND;
/// How long it takes at most to restore a tree.
pub const RESTORING_NS: Ns = 120 * SECOND;
/// How long a target keeps a tree that it has restored when nobody says Go.
pub const PREPARED_NS: Ns = 120 * SECOND;
/// How long a source waits for the answer to Go before it asks again over another connection.
pub const ANSWER_NS: Ns = 30 * SECOND;
/// How long a source waits before it asks again the first time; twice as long each time, but no longer than
/// [`RETRY_MAX_NS`].
pub const RETRY_NS: Ns = SECOND / 20;
/// The longest of these.
pub const RETRY_MAX_NS: Ns = 10 * SECOND;

/// How long a target answers after its tree has ended, or was given up. A source that lives, and reaches it, asks
/// several times meanwhile.
pub const LINGER_NS: Ns = 60 * SECOND;

/// Which migration it is: random bytes, other ones for each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id(pub [u8; 16]);

/// Which target it is: random bytes, which are in its directory for as long as that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteId(pub [u8; 16]);

/// What a source has written down for the time after it has died. A checkpoint's directory has one or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// The target may have been told to go, and may have decided. Nothing runs here until it has said how.
    Going(Id, SiteId),
    /// The tree is the target's.
    Gone(Id),
}

impl Record {
    /// Which migration it is about.
    pub fn id(self) -> Id {
        let (Self::Going(id, _) | Self::Gone(id)) = self;
        id
    }
}

/// Why a record is not on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteError {
    /// Why.
    pub why: String,
    /// The rename, or what came after it, has failed: the disk may show the record after a crash, or not.
    pub in_doubt: bool,
}

/// When to try again for the nth time.
fn retry_ns(attempts: u32) -> Ns {
    RETRY_NS
        .saturating_mul(1 << attempts.min(16))
        .min(RETRY_MAX_NS)
}
