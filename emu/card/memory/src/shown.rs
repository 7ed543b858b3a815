//! A range of a peer's memory that the card's programs can have mapped.
//!
//! What must stay true: the range is where [`Shown::address`] says for as long as the [`Shown`] lives, and nobody
//! reaches it once that is dropped.

use std::{io, sync::Arc};

use snaprig_dma::Shared;

use crate::{layout::PAGE, memory::CardMemory};

/// A range: it is there for as long as this lives.
pub struct Shown {
    card: Arc<CardMemory>,
    start: u64,
    bytes: u64,
}

impl Shown {
    /// Finds a place for memory.
    pub fn new(card: &Arc<CardMemory>, memory: &Shared) -> io::Result<Self> {
        let bytes = memory.bytes() & !(PAGE - 1);
        let start = card.outside().insert(memory.clone(), bytes)?;
        Ok(Self {
            card: card.clone(),
            start,
            bytes,
        })
    }

    /// Where `len` bytes at `at` are, if they are inside.
    pub fn address(&self, at: u64, len: u64) -> Option<u64> {
        let end = at.checked_add(len)?;
        (end <= self.bytes).then_some(self.start + at)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.card.outside().remove(self.start);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use snaprig_dma::{Backend, Engine};

    use super::*;
    use crate::outside::{ALIGNMENT, START};

    fn shared(bytes: u64) -> (Shared, CardMemory) {
        let peer = CardMemory::new(bytes).unwrap();
        let engine = Engine::with_backend(1, Backend::Threads).unwrap();
        let fd: OwnedFd = peer.memfd().as_fd().try_clone_to_owned().unwrap();
        let region = engine.add_region(fd, 0, bytes).unwrap();
        (engine.memory(region).unwrap(), peer)
    }

    #[test]
    fn ranges_are_apart_and_what_is_gone_is_nothing() {
        let card = Arc::new(CardMemory::new(16 * PAGE).unwrap());
        let (memory, peer) = shared(8 * PAGE);
        let shown: Vec<_> = (0..3)
            .map(|_| Shown::new(&card, &memory).unwrap())
            .collect();
        let places: Vec<_> = shown.iter().map(|s| s.address(0, PAGE).unwrap()).collect();
        assert!(places.iter().all(|at| *at > START && at % ALIGNMENT == 0));
        assert!(places.windows(2).all(|two| two[0] + 8 * PAGE < two[1]));
        assert_eq!(shown[0].address(7 * PAGE, 2 * PAGE), None);
        card.write(places[1] + 5, b"outside");
        let mut bytes = [1; 7];
        peer.read(5, &mut bytes);
        assert_eq!(&bytes, b"outside");
        card.read(places[2] + 5, &mut bytes);
        assert_eq!(&bytes, b"outside");
        drop(shown);
        assert!(!card.outside().contains(places[1], 1));
        card.write(places[1] + 5, b"nowhere");
        card.read(places[1] + 5, &mut bytes);
        assert_eq!(bytes, [0; 7]);
        peer.read(5, &mut bytes);
        assert_eq!(&bytes, b"outside");
        // None of these is a frame.
        card.get_run(places[0], 2);
        card.put(places[0]);
        card.dirty().mark(places[0]);
        assert_eq!(card.uses(places[0]), 2);
        assert!((card.shared())(places[0]));
        assert!(card.is_zero(places[0]));
    }
}
