//! Faults from a seed.

use snaprig_sim::{Fault, Kind, KindName, Point, Process, Random, When};

/// Most faults of a drawn plan.
const FAULTS_MAX: u64 = 3;
/// Where a run comes by often, and elsewhere, if a scenario does not say otherwise.
const NTH_BITS: [u64; 2] = [8, 3];
/// Longest delay drawn: longer than a checkpoint takes.
const DELAY_NS: u64 = 2_000_000;
/// Timed faults are drawn before this: about as long as a run takes.
const TIME_NS: u64 = 500_000;
/// Of faults in a system with a point that matters most, one in so many happens there: there are many ways
/// in which one message can go wrong.
const FAVOURITE_ONE_IN: u64 = 4;

/// Draws the process that a kind of fault is about.
type Victim = fn(KindName, &[Process], &mut Random) -> Option<String>;

/// Where faults can be drawn, and of whom.
#[derive(Debug)]
pub struct Faults<'a> {
    /// The points at which they happen.
    pub points: &'a [Point],
    /// The point at which more of them happen than at others.
    pub favourite: Option<Point>,
    /// Points by which a run comes a hundred times.
    pub often: &'a [Point],
    /// An occurrence is drawn below 2 to the power of a number below this: at those points, and at others.
    pub nth_bits: [u64; 2],
    /// Whom they can be about.
    pub processes: &'a [Process],
    /// Draws whom one is about.
    pub victim: Victim,
}

impl<'a> Faults<'a> {
    /// At any of these points alike, about any of these processes to which they can happen.
    pub fn of(points: &'a [Point], processes: &'a [Process]) -> Self {
        Self {
            points,
            favourite: None,
            often: points,
            nth_bits: NTH_BITS,
            processes,
            victim: any_victim,
        }
    }

    /// Draws some.
    pub fn draw(&self, random: &mut Random) -> Vec<Fault> {
        let mut faults = Vec::new();
        for _ in 0..random.below(FAULTS_MAX + 1) {
            let favourite = self.favourite.as_ref();
            let point = match favourite.filter(|_| random.one_in(FAVOURITE_ONE_IN)) {
                Some(point) => Some(point),
                None => random.pick(self.points),
            };
            let Some(point) = point else {
                continue;
            };
            let Some(name) = random.pick(point.kinds) else {
                continue;
            };
            if let Some(kind) = self.kind(*name, random) {
                faults.push(Fault {
                    point: point.name.into(),
                    when: self.when(point, random),
                    kind,
                });
            }
        }
        faults
    }

    fn when(&self, point: &Point, random: &mut Random) -> When {
        if random.one_in(8) {
            return When::AtNs(random.below(TIME_NS));
        }
        let bits = self.nth_bits[usize::from(!self.often.contains(point))];
        let most = 1 << random.below(bits);
        When::Nth(1 + random.below(most))
    }

    fn kind(&self, name: KindName, random: &mut Random) -> Option<Kind> {
        let errnos = [libc::EIO, libc::ENOMEM, libc::ENOSPC, libc::EACCES];
        let victim = |random: &mut Random| (self.victim)(name, self.processes, random);
        Some(match name {
            KindName::Drop => Kind::Drop,
            KindName::Duplicate => Kind::Duplicate,
            KindName::Reorder => Kind::Reorder,
            KindName::Delay => Kind::Delay(random.below(DELAY_NS)),
            KindName::Error => Kind::Error(*random.pick(&errnos)?),
            KindName::Corrupt => Kind::Corrupt(random.number() >> 32),
            KindName::TornWrite => Kind::TornWrite(random.below(6)),
            KindName::DiskFull => Kind::DiskFull,
            KindName::Crash => Kind::Crash(victim(random)?),
            KindName::Hang => Kind::Hang(victim(random)?),
            KindName::Restart => Kind::Restart(victim(random)?),
            KindName::LinkDown => Kind::LinkDown(victim(random)?),
            KindName::Partition => Kind::Partition(victim(random)?),
            KindName::LinkUp => Kind::LinkUp(victim(random)?),
            KindName::GidChange => Kind::GidChange(victim(random)?),
        })
    }
}

/// Any of the processes to which that can happen.
pub fn any_victim(kind: KindName, processes: &[Process], random: &mut Random) -> Option<String> {
    pick(processes, |process| process.can(kind), random)
}

/// Any of the processes of which that is true.
pub fn pick(
    processes: &[Process],
    is_one: impl Fn(&Process) -> bool,
    random: &mut Random,
) -> Option<String> {
    let names = processes.iter().filter(|process| is_one(process));
    let names: Vec<_> = names.map(|process| &process.name).collect();
    random.pick(&names).map(|name| (*name).clone())
}

/// The death of each of these, at the nth occurrence of a point: a device loses its link.
pub fn deaths(point: &Point, nth: u64, processes: &[Process]) -> Vec<Fault> {
    let death = |process: &Process| {
        let name = process.name.clone();
        let kind = match process.can(KindName::Crash) {
            true => Kind::Crash(name),
            false => Kind::Partition(name),
        };
        Fault {
            point: point.name.into(),
            when: When::Nth(nth),
            kind,
        }
    };
    processes.iter().map(death).collect()
}
