//! How a completion finds its request: what the libibverbs below is given for a wr_id. The program's own need not differ
//! from each other, and opcode and flags of a completion that failed say nothing (ibv_poll_cq(3)).

/// Which queue a request was posted to, by its place in the tables of [`crate::Process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Send queue of a queue pair.
    Sends(u32),
    /// Receive queue of a queue pair.
    Receives(u32),
    /// A shared receive queue.
    Shared(u32),
}

/// Places of a table.
pub const PLACES_MAX: u32 = 1 << 20;
const NUMBER_BITS: u32 = 41;
const PLACE_BITS: u32 = 20;

/// A request of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Its queue.
    pub queue: Queue,
    /// It is not the program's, but lent to a message, or a mark behind the program's.
    pub own: bool,
    /// Which one, of its queue; modulo 2^41.
    pub number: u64,
}

impl Cookie {
    /// As a wr_id.
    #[inline]
    pub fn bits(self) -> u64 {
        let (kind, place) = match self.queue {
            Queue::Sends(place) => (0, place),
            Queue::Receives(place) => (1, place),
            Queue::Shared(place) => (2, place),
        };
        let number = self.number & ((1 << NUMBER_BITS) - 1);
        let place = u64::from(place & (PLACES_MAX - 1));
        // Two bits of kind would not leave one for `own`: shared queues are receives.
        let kind = match (kind, self.own) {
            (kind, false) => kind,
            (kind, true) => 3 + kind,
        };
        number | place << NUMBER_BITS | kind << (NUMBER_BITS + PLACE_BITS)
    }

    /// What a wr_id stands for; none that [`Self::bits`] has not made.
    #[inline]
    pub fn of(bits: u64) -> Option<Self> {
        let number = bits & ((1 << NUMBER_BITS) - 1);
        let place = (bits >> NUMBER_BITS) as u32 & (PLACES_MAX - 1);
        let kind = bits >> (NUMBER_BITS + PLACE_BITS);
        let queue = match kind % 3 {
            0 => Queue::Sends(place),
            1 => Queue::Receives(place),
            _ => Queue::Shared(place),
        };
        (kind < 6).then_some(Self {
            queue,
            own: kind >= 3,
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cookie_survives(kind in 0..3, own: bool, place in 0..PLACES_MAX, number in 0..1u64 << NUMBER_BITS) {
            let queue = match kind {
                0 => Queue::Sends(place),
                1 => Queue::Receives(place),
                _ => Queue::Shared(place),
            };
            let cookie = Cookie { queue, own, number };
            prop_assert_eq!(Cookie::of(cookie.bits()), Some(cookie));
        }
    }
}
