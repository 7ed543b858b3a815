//! What happened in a run: a hash of all of it, which is the same wherever the run is repeated,
//! and, if wanted, a record for people.

use xxhash_rust::xxh3::Xxh3;

use crate::engine::ProcessId;

/// One event of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Virtual time.
    pub now_ns: u64,
    /// Where it came from, and when it was sent, if it is a message.
    pub from: Option<(ProcessId, u64)>,
    /// Where it happened.
    pub at: ProcessId,
    /// What it was.
    pub what: String,
    /// Whether it is an event of the system, or something else.
    pub mark: Mark,
}

/// What an item of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// An event of the system.
    Event,
    /// A fault.
    Fault,
    /// An invariant was seen to break.
    Broken,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Trace {{ {} events, {:016x} }}",
            self.events,
            self.hash()
        )
    }
}

/// The trace of one run.
#[derive(Default)]
pub struct Trace {
    hash: Xxh3,
    events: u64,
    record: Option<Vec<Item>>,
}

impl Trace {
    /// A trace with a record of at most what memory holds.
    pub fn recording() -> Self {
        Self {
            record: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Whether labels are of any use.
    pub fn is_recording(&self) -> bool {
        self.record.is_some()
    }

    /// Something happened; `what` is asked only if there is a record.
    pub fn event(
        &mut self,
        now_ns: u64,
        from: Option<(ProcessId, u64)>,
        at: ProcessId,
        what: impl FnOnce() -> String,
    ) {
        self.events += 1;
        // One piece: a hash takes a few bytes faster at once than one after another.
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&now_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&at.0.to_le_bytes());
        self.hash.update(&bytes);
        if let Some(record) = &mut self.record {
            record.push(Item {
                now_ns,
                from,
                at,
                what: what(),
                mark: Mark::Event,
            });
        }
    }

    /// Something went wrong.
    pub fn fault(&mut self, now_ns: u64, at: ProcessId, what: impl FnOnce() -> String) {
        self.hash.update(b"fault");
        self.hash.update(&now_ns.to_le_bytes());
        if let Some(record) = &mut self.record {
            record.push(Item {
                now_ns,
                from: None,
                at,
                what: what(),
                mark: Mark::Fault,
            });
        }
    }

    /// An invariant is seen to break.
    pub fn broken(&mut self, now_ns: u64, at: ProcessId, what: &str) {
        self.hash.update(b"broken");
        if let Some(record) = &mut self.record {
            record.push(Item {
                now_ns,
                from: None,
                at,
                what: what.into(),
                mark: Mark::Broken,
            });
        }
    }

    /// Takes content into the hash, too.
    pub fn content(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash.digest()
    }

    /// The record, if there is one.
    pub fn record(&self) -> &[Item] {
        self.record.as_deref().unwrap_or_default()
    }
}
