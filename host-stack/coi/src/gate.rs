//! Room on a card: whoever has processes take turns on the cards of a rig is asked for it before any is taken, over a Unix
//! socket in the rig's directory, and says when there is some. Without one, a card has room or it has none.
//!
//! ```text
//!   program                                   arbiter
//!     | --- {"room": {node, bytes, ...}} ----->  |   others leave the card
//!     | <-- "granted" or "refused" ------------  |
//!     |     takes it, and hangs up               |   what is left of the room is free
//! ```
//!
//! What must stay true:
//! - Who waits here is in no region of its process, which may be swapped out meanwhile; and in no call that keeps a checkpoint
//!   from being taken.
//! - Nobody takes what was not granted while there is an arbiter: a card that is full kills a process that touches more of what
//!   it has already, whoever's it is.

use std::{os::unix::net::UnixStream, path::Path};

use serde::{Deserialize, Serialize};
use snaprig_peers::lines;
use snaprig_scif::checkpoint::{self, RigDescriptor};
use snaprig_wire::scif::NodeId;

use crate::{CoiError, Engine};

/// Name of the socket in a rig's directory.
pub const SOCKET: &str = "oversubscribe.sock";
/// Most bytes of a line of either side.
pub const LINE_BYTES_MAX: usize = 4096;
/// One part in so many of a card is left for what processes take without asking.
pub const RESERVE_PART: u64 = 16;

/// What an arbiter is asked, or told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Room, for as long as the connection is there.
    Room {
        /// The host process, as it knows itself.
        host: u32,
        /// The number of its offload process; none: it is to be made.
        process: Option<u64>,
        /// The card.
        node: NodeId,
        /// How much.
        bytes: u64,
    },
    /// This card is about to fail (true), or is not any more.
    Failing(NodeId, bool),
}

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// There is room; of a card: it has heard.
    Granted,
    /// There will be none.
    Refused,
}

/// Room that was granted, until it is dropped.
struct Granted {
    stream: Option<UnixStream>,
    leads: Option<RigDescriptor>,
}

impl Drop for Granted {
    fn drop(&mut self) {
        // No descriptor that leads to a rig goes while the program is away from it.
        let _inside = checkpoint::enter();
        drop(self.leads.take());
        drop(self.stream.take());
    }
}

/// Somebody who needs room, and what was granted until it is dropped.
pub(crate) struct Gate {
    process: Option<u64>,
    bytes: u64,
    granted: Option<Granted>,
}

impl Gate {
    /// For so many bytes, of a process or for one that is to be made.
    pub fn new(process: Option<u64>, bytes: u64) -> Self {
        Self {
            process,
            bytes,
            granted: None,
        }
    }

    /// Whether there is an arbiter, and he would have others leave the card.
    pub fn is_closed(&self, engine: &Engine) -> bool {
        let has_room = || {
            let info = engine.info().unwrap_or_default();
            let reserve = info.memory_bytes / RESERVE_PART;
            info.free_bytes >= self.bytes.saturating_add(reserve)
        };
        self.granted.is_none() && engine.rig().join(SOCKET).exists() && !has_room()
    }

    /// Waits for room on a card, if there is somebody to ask; an error if there will be none.
    pub fn open(&mut self, engine: &Engine, what: &'static str) -> Result<(), CoiError> {
        let rig = engine.rig();
        if !rig.join(SOCKET).exists() {
            self.granted = None;
            return Ok(());
        }
        let mut bytes = self.bytes;
        if self.granted.take().is_some() {
            // If nobody else has taken it, so much was too little.
            let free = engine.info().map_or(0, |info| info.free_bytes);
            if free >= bytes {
                bytes = free.saturating_add(bytes);
            }
        }
        let ask = Ask::Room {
            host: std::process::id(),
            process: self.process,
            node: engine.node(),
            bytes,
        };
        self.granted = wait(&rig, &ask).map_err(|Refused| CoiError::NoMemory(what))?;
        Ok(())
    }

    /// Whether room was granted.
    pub fn is_open(&self) -> bool {
        self.granted.is_some()
    }
}

/// There will be no room.
#[derive(Debug)]
struct Refused;

/// None: there is nobody who answers.
fn wait(rig: &Path, ask: &Ask) -> Result<Option<Granted>, Refused> {
    let Some(granted) = connect(rig) else {
        return Ok(None);
    };
    let Some(mut stream) = granted.stream.as_ref() else {
        return Ok(None);
    };
    let answer =
        lines::send(&mut stream, ask).and_then(|()| lines::receive(stream, LINE_BYTES_MAX));
    match answer {
        Ok(Answer::Granted) => Ok(Some(granted)),
        Ok(Answer::Refused) => Err(Refused),
        Err(_) => Ok(None),
    }
}

fn connect(rig: &Path) -> Option<Granted> {
    let _inside = checkpoint::enter();
    let stream = UnixStream::connect(rig.join(SOCKET)).ok()?;
    let leads = Some(RigDescriptor::new(&stream));
    let stream = Some(stream);
    Some(Granted { stream, leads })
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixListener, thread};

    use super::*;

    fn ask(rig: &Path) -> Result<Option<Granted>, Refused> {
        let ask = Ask::Room {
            host: 7,
            process: Some(1),
            node: 1,
            bytes: 4096,
        };
        wait(rig, &ask)
    }

    #[test]
    fn a_grant_lasts_until_it_is_dropped_and_no_answer_is_none() {
        let rig = tempfile::tempdir().unwrap();
        assert!(matches!(ask(rig.path()), Ok(None)));
        let listener = UnixListener::bind(rig.path().join(SOCKET)).unwrap();
        let arbiter = thread::spawn(move || {
            let asked = || {
                let (stream, _) = listener.accept().unwrap();
                let mut lines = lines::Receiver::new(stream.try_clone().unwrap(), LINE_BYTES_MAX);
                let line = lines.next_line().unwrap().unwrap();
                let said = r#"{"room":{"host":7,"process":1,"node":1,"bytes":4096}}"#;
                assert_eq!(std::str::from_utf8(&line).unwrap(), said);
                stream
            };
            let mut first = asked();
            lines::send(&mut first, &Answer::Granted).unwrap();
            // Until it hangs up.
            assert_eq!(first.read(&mut [0]).unwrap(), 0);
            lines::send(&mut asked(), &Answer::Refused).unwrap();
            // One that dies.
            drop(asked());
        });
        let granted = ask(rig.path());
        assert!(matches!(granted, Ok(Some(_))));
        drop(granted);
        assert!(ask(rig.path()).is_err());
        assert!(matches!(ask(rig.path()), Ok(None)));
        arbiter.join().unwrap();
    }
}
