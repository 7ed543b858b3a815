//! The card's cores: how many guest threads are in ring 3 at once.
//!
//! ```text
//!   no core --take--> waits --handed out--> in ring 3 <--take, exit--> in a system call --leave, or taken--> no core
//! ```
//!
//! A thread takes a core before it runs, and has it until it sleeps, yields or is told to leave: at an exit it is out for a
//! moment, and would wait for all others. Cores have numbers, so that a thread can be told which one it is on (getcpu(2)) and
//! chosen (sched_setaffinity(2)); it gets its last one again if that is free.
//!
//! No more of them have one at once than keep the host's processors busy: otherwise those who spin would have the processors of
//! the host, which is not told who waits for whom here, before somebody who has slept, as the COI daemon has.
//!
//! While others wait, whoever has had its core longest has to leave it: after a time slice, or at once for somebody who has
//! slept since its own, or is urgent ([`crate::sched::Policy::is_urgent`]). What must stay true: who waits gets a core in the
//! end, however much the others sleep; only those who are urgent could have them for ever, as on Linux those of real-time
//! policies.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use snaprig_card_platform::Kick;

use crate::sched::Affinity;

const TIME_SLICE: Duration = Duration::from_millis(10);
/// What everybody who gets a core may run, and what somebody must have slept to be let in before others.
const TURN: Duration = Duration::from_micros(500);
/// Who has waited so long is let in as if it had slept.
const PATIENCE: Duration = Duration::from_millis(100);

/// The cores of one card.
pub struct Cores {
    count: usize,
    inner: Mutex<Inner>,
}

/// A thread, to its cores.
pub type SeatId = u64;

struct Inner {
    /// How many may be had at once, by those who are not urgent.
    at_once: usize,
    /// Numbers of the cores that nobody has.
    free: Vec<u32>,
    next_seat: SeatId,
    seats: BTreeMap<SeatId, Past>,
    next_ticket: u64,
    /// First come first served, among those of a rank.
    queue: VecDeque<Waiter>,
    holders: Vec<Holder>,
}

/// What a thread's next core depends on.
struct Past {
    /// The core to have again.
    number: u32,
    /// For how long it may have one before it has to leave it to somebody who has slept: what it has slept itself, without
    /// what it has run since, and at most a time slice.
    credit: Duration,
    /// When it left its core.
    left: Instant,
}

/// Who gets a core before whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It has run as long as it has slept.
    Spent,
    /// It has slept, or waited for long.
    Rested,
    Urgent,
}

struct Waiter {
    seat: SeatId,
    ticket: u64,
    wanted: Affinity,
    number: u32,
    urgent: bool,
    credit: Duration,
    since: Instant,
    kick: Arc<dyn Kick>,
    /// One each: a core that becomes free wakes the thread that gets it, not all of them.
    turn: Arc<Condvar>,
}

struct Holder {
    seat: SeatId,
    number: u32,
    urgent: bool,
    credit: Duration,
    since: Instant,
    kick: Arc<dyn Kick>,
    /// It is not in a system call, or another exit.
    runs: bool,
    /// When it was told to leave.
    told: Option<Instant>,
}

/// A thread's right to cores, until it ends.
pub struct Seat<'a> {
    cores: &'a Cores,
    /// Which one, for [`Cores::leave`].
    pub id: SeatId,
}

/// A core that a thread is on, in ring 3.
pub struct Core<'a> {
    seat: &'a Seat<'a>,
    /// Which one.
    pub number: u32,
}

impl Cores {
    /// `count` free cores, at least one, of which so many may be had at once.
    pub fn new(count: usize, at_once: usize) -> Self {
        let inner = Inner {
            at_once: at_once.max(1),
            free: (0..count.max(1) as u32).rev().collect(),
            next_seat: 0,
            seats: BTreeMap::new(),
            next_ticket: 0,
            queue: VecDeque::new(),
            holders: Vec::new(),
        };
        Self {
            count: count.max(1),
            inner: Mutex::new(inner),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// For a thread that begins.
    pub fn seat(&self) -> Seat<'_> {
        let mut inner = self.lock();
        let id = inner.next_seat;
        inner.next_seat += 1;
        let past = Past {
            number: 0,
            credit: TURN,
            left: Instant::now(),
        };
        inner.seats.insert(id, past);
        Seat { cores: self, id }
    }

    /// A thread is about to sleep: others may have its core.
    pub fn leave(&self, seat: SeatId) {
        self.lock().leave(seat);
    }

    /// A thread lets others go first (sched_yield(2)), however long it has slept.
    pub fn give_way(&self, seat: SeatId) {
        let mut inner = self.lock();
        inner.leave(seat);
        if let Some(past) = inner.seats.get_mut(&seat) {
            past.credit = Duration::ZERO;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat<'_> {
    /// The core that its thread has still, or else waits for one of those that are wanted.
    pub fn take(&self, kick: &Arc<dyn Kick>, wanted: Affinity, urgent: bool) -> Core<'_> {
        let mut inner = self.cores.lock();
        if let Some(number) = inner.returns(self.id, &wanted) {
            return Core { seat: self, number };
        }
        inner.leave(self.id);
        let turn = inner.enqueue(self.id, kick.clone(), wanted, urgent);
        inner.hand_out();
        loop {
            if let Some(holder) = inner.holder(self.id) {
                let number = holder.number;
                return Core { seat: self, number };
            }
            inner = match inner.until_next_look(self.id, wanted) {
                Some(wait) => {
                    let waited = turn.wait_timeout(inner, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => turn.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Inner {
    fn holder(&mut self, seat: SeatId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.seat == seat)
    }

    /// The core of one who was out and may have it on.
    fn returns(&mut self, seat: SeatId, wanted: &Affinity) -> Option<u32> {
        let holder = self.holder(seat)?;
        let stays = holder.told.is_none() && wants(wanted, holder.number);
        holder.runs = stays;
        stays.then_some(holder.number)
    }

    fn enqueue(
        &mut self,
        seat: SeatId,
        kick: Arc<dyn Kick>,
        wanted: Affinity,
        urgent: bool,
    ) -> Arc<Condvar> {
        let turn = Arc::new(Condvar::new());
        let now = Instant::now();
        if let Some(past) = self.seats.get_mut(&seat) {
            past.credit = (past.credit + (now - past.left)).min(TIME_SLICE);
            self.queue.push_back(Waiter {
                seat,
                ticket: self.next_ticket,
                wanted,
                number: past.number,
                urgent,
                credit: past.credit,
                since: now,
                kick,
                turn: turn.clone(),
            });
            self.next_ticket += 1;
        }
        turn
    }

    /// Gives what is free to those who wait for it.
    fn hand_out(&mut self) {
        let now = Instant::now();
        while let Some((index, free)) = self.next(now) {
            let number = self.free.remove(free);
            let Some(waiter) = self.queue.remove(index) else {
                return;
            };
            waiter.turn.notify_one();
            // Who is first now among those who want the same looks after the others' turns.
            if let Some(heir) = self.first(&waiter.wanted, now) {
                heir.turn.notify_one();
            }
            self.holders.push(Holder {
                seat: waiter.seat,
                number,
                urgent: waiter.urgent,
                credit: waiter.credit,
                since: now,
                kick: waiter.kick,
                runs: true,
                told: None,
            });
        }
    }

    /// Takes a thread's core away, if it has one, for whoever is next.
    fn leave(&mut self, seat: SeatId) {
        let place = |holder: &Holder| holder.seat == seat;
        let Some(index) = self.holders.iter().position(place) else {
            return;
        };
        let holder = self.holders.swap_remove(index);
        let now = Instant::now();
        if let Some(past) = self.seats.get_mut(&seat) {
            let credit = past.credit.saturating_sub(now - holder.since);
            let number = holder.number;
            *past = Past {
                number,
                credit,
                left: now,
            };
        }
        self.free.push(holder.number);
        self.hand_out();
    }

    /// Who gets a core that is free, by places in `queue` and `free`.
    fn next(&self, now: Instant) -> Option<(usize, usize)> {
        let has_room = self.has_room();
        let choices = self.queue.iter().enumerate();
        let choices = choices.filter(|(_, waiter)| has_room || waiter.urgent);
        let choices = choices.filter_map(|(index, waiter)| {
            let free = self.choose(&waiter.wanted, waiter.number)?;
            Some((waiter.place(now), index, free))
        });
        choices.min().map(|(_, index, free)| (index, free))
    }

    /// Whether one more may have a core who is not urgent: those who are have theirs at once, and not for long.
    fn has_room(&self) -> bool {
        let others = self.holders.iter().filter(|holder| !holder.urgent);
        others.count() < self.at_once
    }

    /// The place in `free` of the core for somebody.
    fn choose(&self, wanted: &Affinity, last: u32) -> Option<usize> {
        let same = || self.free.iter().position(|number| *number == last);
        let same = wants(wanted, last).then(same).flatten();
        let any = || self.free.iter().rposition(|number| wants(wanted, *number));
        same.or_else(any)
    }

    /// Who is the next of those who want these cores.
    fn first(&self, wanted: &Affinity, now: Instant) -> Option<&Waiter> {
        let same = self.queue.iter().filter(|waiter| waiter.wanted == *wanted);
        same.min_by_key(|waiter| waiter.place(now))
    }

    /// One who waits sees whether somebody has to leave it a core; when it is to look again. Only the first of those who want
    /// the same does.
    fn until_next_look(&mut self, seat: SeatId, wanted: Affinity) -> Option<Duration> {
        let now = Instant::now();
        let first = self.first(&wanted, now)?;
        if first.seat != seat {
            // It may have become that by waiting, and not know it.
            first.turn.notify_one();
            return None;
        }
        let rank = first.rank(now);
        // Any core will do if there is one, and too many are had. Those of who is urgent are not counted.
        let any = self.free.iter().any(|number| wants(&wanted, *number));
        let others = self.holders.iter_mut();
        let others = others.filter(|holder| match any {
            true => !holder.urgent,
            false => wants(&wanted, holder.number),
        });
        let Some(next) = others.min_by_key(|holder| holder.leaves_for(rank)) else {
            return Some(TIME_SLICE);
        };
        let leaves = next.leaves_for(rank);
        if leaves > now {
            return Some(leaves - now);
        }
        if next.runs {
            next.kick.kick();
            next.told = Some(now);
            // The host may have no processor for it just now, and one for another.
            return Some(TURN);
        }
        let seat = next.seat;
        self.leave(seat);
        Some(Duration::ZERO)
    }
}

impl Waiter {
    fn rank(&self, now: Instant) -> Rank {
        if self.urgent {
            Rank::Urgent
        } else if self.credit >= TURN || now - self.since >= PATIENCE {
            Rank::Rested
        } else {
            Rank::Spent
        }
    }

    /// Less: it comes before.
    fn place(&self, now: Instant) -> (Reverse<Rank>, u64) {
        (Reverse(self.rank(now)), self.ticket)
    }
}

impl Holder {
    /// When it has to leave its core to one who waits.
    fn leaves_for(&self, waiter: Rank) -> Instant {
        let turn = match waiter {
            Rank::Urgent if !self.urgent => TURN,
            Rank::Rested if !self.urgent => self.credit.max(TURN),
            _ => TIME_SLICE,
        };
        // One that was told may be on its way out.
        let again = self.told.map(|told| told + TIME_SLICE);
        again.unwrap_or(self.since + turn)
    }
}

fn wants(affinity: &Affinity, core: u32) -> bool {
    let byte = (core / 8) as usize;
    affinity.is_none_or(|set| {
        set.get(byte)
            .is_some_and(|bits| bits >> (core % 8) & 1 == 1)
    })
}

impl Drop for Core<'_> {
    /// The thread is out, for a moment or for longer.
    fn drop(&mut self) {
        let mut inner = self.seat.cores.lock();
        let Some(holder) = inner.holder(self.seat.id) else {
            return;
        };
        holder.runs = false;
        if holder.told.is_some() {
            inner.leave(self.seat.id);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut inner = self.cores.lock();
        inner.leave(self.id);
        inner.seats.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts its kicks.
    #[derive(Default)]
    struct Kicks(AtomicUsize);

    impl Kick for Kicks {
        fn kick(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Cores {
        /// A seat that has slept for so long.
        fn rested(&self, slept: Duration) -> Seat<'_> {
            let seat = self.seat();
            let mut inner = self.lock();
            let past = inner.seats.get_mut(&seat.id).unwrap();
            past.credit = Duration::ZERO;
            past.left -= slept;
            drop(inner);
            seat
        }

        /// A waiter, without a thread; what it would do now.
        fn wait(&self, seat: &Seat, urgent: bool) -> Option<Duration> {
            let mut inner = self.lock();
            inner.enqueue(seat.id, Arc::new(Kicks::default()), None, urgent);
            inner.hand_out();
            inner.until_next_look(seat.id, None)
        }

        /// All turns began so long ago.
        fn pass(&self, time: Duration) {
            for holder in &mut self.lock().holders {
                holder.since -= time;
            }
        }

        fn has(&self, seat: &Seat) -> bool {
            self.lock().holder(seat.id).is_some()
        }
    }

    fn kicks() -> (Arc<Kicks>, Arc<dyn Kick>) {
        let kicks = Arc::new(Kicks::default());
        (kicks.clone(), kicks)
    }

    #[test]
    fn a_core_is_kept_over_an_exit_and_left_for_a_sleep() {
        let cores = Cores::new(4, 1);
        let (seat, other) = (cores.seat(), cores.rested(Duration::ZERO));
        let (_, kick) = kicks();
        let number = seat.take(&kick, None, false).number;
        assert!(cores.wait(&other, false) > Some(TURN));
        assert_eq!(seat.take(&kick, None, false).number, number);
        assert!(cores.has(&seat) && !cores.has(&other));
        cores.leave(seat.id);
        assert!(!cores.has(&seat) && cores.has(&other));
    }

    #[test]
    fn who_has_run_its_turn_leaves_for_one_who_has_slept_and_others_have_a_slice() {
        let (spent, rested) = (Duration::ZERO, TIME_SLICE);
        for (slept, urgent, turn) in [
            (spent, false, TIME_SLICE),
            (rested, false, TURN),
            (spent, true, TURN),
        ] {
            let cores = Cores::new(1, 1);
            let (seat, other) = (cores.rested(Duration::ZERO), cores.rested(slept));
            let (kicked, kick) = kicks();
            let core = seat.take(&kick, None, false);
            let wait = cores.wait(&other, urgent).unwrap();
            assert!(wait <= turn && wait > turn / 2, "{wait:?}, {turn:?}");
            cores.pass(turn);
            assert!(cores.lock().until_next_look(other.id, None).is_some());
            assert_eq!(kicked.0.load(Ordering::Relaxed), 1);
            assert!(!cores.has(&other), "the other is in ring 3");
            drop(core);
            assert!(cores.has(&other));
        }
    }

    #[test]
    fn who_is_urgent_has_a_core_that_is_free_at_once() {
        let cores = Cores::new(2, 1);
        let [seat, urgent, other] = [(); 3].map(|()| cores.rested(TIME_SLICE));
        let (_, kick) = kicks();
        let _core = seat.take(&kick, None, false);
        cores.wait(&other, false);
        assert!(!cores.has(&other), "one at once");
        cores.wait(&urgent, true);
        assert!(cores.has(&urgent));
        cores.leave(urgent.id);
        assert!(!cores.has(&other));
    }

    #[test]
    fn who_is_out_for_longer_than_its_turn_has_lost_its_core() {
        let cores = Cores::new(4, 1);
        let (seat, other) = (cores.rested(Duration::ZERO), cores.rested(TIME_SLICE));
        let (kicked, kick) = kicks();
        drop(seat.take(&kick, None, false));
        cores.pass(TURN);
        cores.wait(&other, false);
        assert!(cores.has(&other) && !cores.has(&seat));
        assert_eq!(kicked.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_has_slept_comes_first_but_not_before_one_who_has_waited_for_long() {
        let cores = Cores::new(4, 1);
        let [running, spent, rested, yields] =
            [Duration::ZERO, Duration::ZERO, TIME_SLICE, TIME_SLICE]
                .map(|slept| cores.rested(slept));
        let (_, kick) = kicks();
        drop(running.take(&kick, None, false));
        cores.give_way(yields.id);
        cores.lock().seats.get_mut(&yields.id).unwrap().left = Instant::now();
        for seat in [&spent, &yields, &rested] {
            cores.wait(seat, false);
        }
        cores.leave(running.id);
        assert!(cores.has(&rested), "it has slept");
        let again = cores.rested(TIME_SLICE);
        cores.wait(&again, false);
        for waiter in &mut cores.lock().queue {
            waiter.since -= PATIENCE;
        }
        cores.leave(rested.id);
        assert!(cores.has(&spent), "it has waited longest");
        cores.leave(spent.id);
        assert!(cores.has(&yields));
    }

    #[test]
    fn cores_that_are_wanted_are_waited_for_although_others_are_free() {
        let cores = Cores::new(2, 2);
        let one = |core: u8| {
            let mut set = [0; crate::sched::SET_BYTES];
            set[0] = 1 << core;
            Some(set)
        };
        let (seat, other) = (cores.seat(), cores.seat());
        let (_, kick) = kicks();
        let core = seat.take(&kick, one(1), false);
        assert_eq!(core.number, 1);
        let mut inner = cores.lock();
        inner.enqueue(other.id, kick.clone(), one(1), false);
        inner.hand_out();
        drop(inner);
        assert!(!cores.has(&other));
        drop(core);
        cores.leave(seat.id);
        assert!(cores.has(&other));
    }
}
