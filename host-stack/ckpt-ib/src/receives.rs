//! The log of a receive queue, one's own or a shared one: receives that no message has taken.
//!
//! ```text
//!   program's receives      below (libibverbs)           messages
//!   post ----------------->  r1 r2 r3             <----- m1 .. m3
//!                                 lent l4 l5      <----- m4 m5      in a drain: nobody is to wait for a receive
//!   post r4: is served with m4, post r5: with m5
//!   post r6 ------------->   r6                   <----- m6
//! ```
//!
//! What must stay true: messages and receives meet in the order in which each of them came. So as long as a lent receive is
//! below, or what came in one is not served, the program's receives wait here. So do those for which the queue below has no
//! room: the HCA of a restart may have shorter ones.

use std::collections::VecDeque;

use crate::{Completion, completions::FLUSHED, process::Whose, ring::Ring};

/// A message that came in a lent receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its completion; its wr_id means nothing.
    pub completion: Completion,
    /// The completion queue that it came to.
    pub cq: u32,
    /// Its data, as it would be in the receive.
    pub data: Vec<u8>,
}

/// What becomes of a receive that the program posts.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is to be posted below, with this number.
    Below(u64),
    /// It waits: others are to be taken first.
    Held,
}

/// A receive that is below, or was.
#[derive(Clone, Debug, Default)]
struct Posted<R> {
    wr_id: u64,
    request: R,
    /// A message has taken it, out of turn.
    is_taken: bool,
}

/// The log of a receive queue.
#[derive(Clone, Debug)]
pub struct Receives<R> {
    log: Ring<Posted<R>>,
    first: u64,
    below: usize,
    /// How many of the program's fit below, once that is known.
    room: usize,
    /// Lent ones that are below.
    lent: u64,
    lent_ever: u64,
    arrived: VecDeque<Arrived>,
    held: VecDeque<(u64, R)>,
}

impl<R> Default for Receives<R> {
    fn default() -> Self {
        Self {
            log: Ring::default(),
            first: 0,
            below: 0,
            room: usize::MAX,
            lent: 0,
            lent_ever: 0,
            arrived: VecDeque::new(),
            held: VecDeque::new(),
        }
    }
}

impl<R> Receives<R> {
    /// The program posts a receive: `put` puts what it takes to post it again into what may have been another one's.
    #[inline]
    pub fn post(&mut self, wr_id: u64, put: impl FnOnce(&mut R)) -> Fate
    where
        R: Default,
    {
        if !self.may_go_below() || !self.held.is_empty() {
            let mut request = R::default();
            put(&mut request);
            self.held.push_back((wr_id, request));
            return Fate::Held;
        }
        let posted = self.log.push().get_or_insert_default();
        (posted.wr_id, posted.is_taken) = (wr_id, false);
        put(&mut posted.request);
        Fate::Below(self.last_is_below())
    }

    /// The last one has been put into the log; its number.
    #[inline]
    fn last_is_below(&mut self) -> u64 {
        self.below += 1;
        self.first + self.log.len() as u64 - 1
    }

    /// The last one was not taken below after all.
    pub fn take_back(&mut self) {
        if self.log.pop().is_some_and(|last| !last.is_taken) {
            self.below -= 1;
        }
    }

    /// A message has taken this one; the program's name for it. Shared ones may be taken out of turn.
    #[inline]
    pub fn completed(&mut self, number: u64) -> Option<u64> {
        let index = number.checked_sub(self.first)?;
        let taken = self.log.get_mut(usize::try_from(index).ok()?)?;
        if std::mem::replace(&mut taken.is_taken, true) {
            return None;
        }
        let wr_id = taken.wr_id;
        self.below -= 1;
        while self.log.get(0).is_some_and(|first| first.is_taken) {
            self.log.skip(1);
            self.first += 1;
        }
        Some(wr_id)
    }

    /// One is lent, to be posted below; its number.
    pub fn lend(&mut self) -> u64 {
        self.lent += 1;
        self.lent_ever += 1;
        self.lent_ever - 1
    }

    /// A message has come in a lent one.
    pub fn arrive(&mut self, arrived: Arrived) {
        self.lent = self.lent.saturating_sub(1);
        self.arrived.push_back(arrived);
    }

    /// A lent one has completed, so: a message is in it, or it was flushed.
    pub(crate) fn lent_completed(&mut self, status: u32) -> Whose {
        if status == FLUSHED {
            self.unlend();
        }
        Whose::Lent
    }

    /// A lent one was flushed, or is gone with the queue that it was in.
    pub fn unlend(&mut self) {
        self.lent = self.lent.saturating_sub(1);
    }

    /// Lent ones are gone: there is another queue below. How many there were.
    pub fn unlend_all(&mut self) -> u64 {
        std::mem::take(&mut self.lent)
    }

    /// The queue below is the one after all in which so many are.
    pub fn lend_again(&mut self, lent: u64) {
        self.lent = lent;
    }

    /// The next message that came in a lent receive, and the program's receive for it.
    pub fn serve(&mut self) -> Option<(Arrived, u64, R)> {
        if self.held.is_empty() {
            return None;
        }
        let arrived = self.arrived.pop_front()?;
        let (wr_id, request) = self.held.pop_front()?;
        Some((arrived, wr_id, request))
    }

    /// The next receive that has waited long enough, to be posted below with this number.
    pub fn release(&mut self) -> Option<(u64, &R)> {
        if !self.may_go_below() {
            return None;
        }
        let (wr_id, request) = self.held.pop_front()?;
        *self.log.push() = Some(Posted {
            wr_id,
            request,
            is_taken: false,
        });
        let number = self.last_is_below();
        let last = self.log.get(self.log.len() - 1)?;
        Some((number, &last.request))
    }

    /// Whether the next one may be posted below, as far as is known.
    #[inline]
    fn may_go_below(&self) -> bool {
        self.lent == 0 && self.arrived.is_empty() && self.below < self.room
    }

    /// There is another queue below, of which it is not known what it holds.
    pub fn forget_room(&mut self) {
        self.room = usize::MAX;
    }

    /// The queue below has no room for this one, nor for those behind it: they wait until others are taken. False if there are
    /// none of those, and nothing was done.
    pub fn no_room(&mut self, number: u64) -> bool
    where
        R: Default,
    {
        let before = self.outstanding().take_while(|(one, _)| *one < number);
        self.room = match before.count() {
            0 => return false,
            room => room,
        };
        while self.first + self.log.len() as u64 > number
            && let Some(last) = self.log.pop()
        {
            if !last.is_taken {
                self.below -= 1;
                let request = std::mem::take(&mut last.request);
                self.held.push_front((last.wr_id, request));
            }
        }
        true
    }

    /// Whether some wait that the queue below has no room for yet.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.room != usize::MAX
    }

    /// How many of the program's there are.
    pub fn len(&self) -> usize {
        self.below + self.held.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All is forgotten, with the queue pair's state.
    pub fn clear(&mut self) {
        self.first += self.log.len() as u64;
        self.log.skip(self.log.len());
        self.below = 0;
        self.lent = 0;
        self.arrived.clear();
        self.held.clear();
    }

    /// How many are below, lent ones too.
    pub fn below(&self) -> u64 {
        self.below as u64 + self.lent
    }

    /// Those of the program that are below, with numbers, in order.
    pub fn outstanding(&self) -> impl Iterator<Item = (u64, &R)> {
        let numbered = (self.first..).zip(self.log.iter());
        numbered.filter_map(|(number, one)| (!one.is_taken).then_some((number, &one.request)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// What is below: the program's receives and lent ones, in the order in which messages take them.
    #[derive(Default)]
    struct Below(VecDeque<Option<u64>>);

    /// Serves and posts what need not wait; receives that were served, with the message that each got.
    fn settle(receives: &mut Receives<u64>, below: &mut Below, met: &mut Vec<(u64, u8)>) {
        while let Some((arrived, wr_id, request)) = receives.serve() {
            assert_eq!(wr_id, request);
            met.push((wr_id, arrived.data[0]));
        }
        while let Some((number, _)) = receives.release() {
            below.0.push_back(Some(number));
        }
    }

    proptest! {
        /// However receives, messages and loans follow each other, the first message meets the first receive.
        #[test]
        fn the_first_meets_the_first(steps in proptest::collection::vec(0..3u8, 0..60)) {
            let (mut receives, mut below) = (Receives::default(), Below::default());
            let (mut met, mut posted, mut came) = (Vec::new(), 0, 0);
            for step in steps {
                match step {
                    0 => {
                        if let Fate::Below(number) = receives.post(posted, |request| *request = posted) {
                            below.0.push_back(Some(number));
                        }
                        posted += 1;
                    }
                    // As a drain does.
                    1 if receives.below() == 0 => {
                        receives.lend();
                        below.0.push_back(None);
                    }
                    _ => match below.0.pop_front() {
                        None => continue,
                        Some(Some(number)) => {
                            let wr_id = receives.completed(number).expect("it is below");
                            met.push((wr_id, came));
                            came += 1;
                        }
                        Some(None) => {
                            receives.arrive(arrived(came));
                            came += 1;
                        }
                    },
                }
                settle(&mut receives, &mut below, &mut met);
                prop_assert_eq!(receives.below(), below.0.len() as u64);
            }
            let expected: Vec<_> = (0..met.len()).map(|count| (count as u64, count as u8)).collect();
            prop_assert_eq!(met, expected);
        }
    }

    fn arrived(mark: u8) -> Arrived {
        Arrived {
            completion: Completion::default(),
            cq: 0,
            data: vec![mark],
        }
    }

    #[test]
    fn messages_and_receives_meet_in_order() {
        let mut receives = Receives::default();
        assert_eq!(receives.post(1, |it| *it = 'a'), Fate::Below(0));
        receives.lend();
        receives.lend();
        assert_eq!(receives.below(), 3);
        assert_eq!(receives.completed(0), Some(1));
        assert_eq!(receives.completed(0), None, "once");
        receives.arrive(arrived(1));
        assert!(receives.serve().is_none(), "nothing is posted for it");
        assert_eq!(receives.post(2, |it| *it = 'b'), Fate::Held);
        assert_eq!(receives.post(3, |it| *it = 'c'), Fate::Held);
        assert_eq!(receives.serve(), Some((arrived(1), 2, 'b')));
        assert!(receives.release().is_none(), "a lent one is below");
        receives.arrive(arrived(2));
        assert_eq!(receives.serve(), Some((arrived(2), 3, 'c')));
        assert_eq!(receives.post(4, |it| *it = 'd'), Fate::Below(1));
    }

    #[test]
    fn what_does_not_fit_waits_in_order() {
        let mut receives = Receives::default();
        for number in 0..4 {
            assert_eq!(
                receives.post(number, |it| *it = number),
                Fate::Below(number)
            );
        }
        assert_eq!(receives.completed(1), Some(1), "out of turn");
        assert!(receives.no_room(2));
        assert_eq!((receives.below(), receives.len()), (1, 3));
        assert_eq!(receives.post(4, |it| *it = 4), Fate::Held);
        assert_eq!(receives.release(), None, "there is no room");
        assert_eq!(receives.completed(0), Some(0));
        assert_eq!(receives.release(), Some((2, &2)));
        assert_eq!(receives.release(), None, "there is room for one");
        receives.forget_room();
        assert_eq!(receives.release(), Some((3, &3)));
        assert_eq!(receives.release(), Some((4, &4)));
        assert!(!Receives::<u64>::default().no_room(0), "nobody makes room");
    }

    #[test]
    fn a_lent_receive_that_is_gone_lets_others_pass() {
        let mut receives = Receives::default();
        receives.lend();
        assert_eq!(receives.post(1, |it| *it = 'a'), Fate::Held);
        receives.unlend();
        assert_eq!(
            receives.post(2, |it| *it = 'b'),
            Fate::Held,
            "the first goes first"
        );
        assert_eq!(receives.release(), Some((0, &'a')));
        assert_eq!(receives.release(), Some((1, &'b')));
        assert_eq!(receives.post(3, |it| *it = 'c'), Fate::Below(2));
        assert_eq!(receives.completed(1), Some(2), "out of turn");
        let left: Vec<_> = receives.outstanding().collect();
        assert_eq!(left, [(0, &'a'), (2, &'c')]);
    }
}
