//! Plans for real rigs. They are plans as those of simulations are, with fewer points:
//! the steps of Snapify's calls, at which processes can be killed or stopped and cards be reset, and
//! the writing of files, which can fail.

use snaprig_campaign::{
    registry::CheckError,
    scenarios::{
        offload::{Parameters, Variant},
        oversubscribe,
    },
};
use snaprig_sim::{Fault, Kind, KindName, Plan, Point, Process, Random, When, plan::PlanError};
use snaprig_snapify::{
    Step, faults as snapify_faults, oversubscribe::faults as oversubscribe_faults,
};
use snaprig_snapify_io::faults as snapify_io_faults;

use crate::shared;

/// Cards of a drawn plan, and most cards of any.
pub const CARDS: u16 = 3;
/// Most faults of a drawn plan.
const FAULTS_MAX: u64 = 2;
/// Run functions after which a run may be interrupted, from 2.
const INTERRUPT_MAX: u64 = 28;
/// One of so many drawn plans is of programs that share cards.
const SHARED_ONE_IN: u64 = 6;
/// How many do in a drawn plan, and most in any.
const PROGRAMS: u16 = 3;
/// A drawn fault happens at one of the first so many swaps.
const SWAPS_MAX: u64 = 3;
/// A file gets no longer than a number below this: about as long as a process image.
const FILE_BYTES: u64 = 3 << 20;

/// The points that real rigs have.
pub fn points() -> Vec<Point> {
    [own_points(), shared_points()].concat()
}

/// Where programs that share cards can be harmed.
fn shared_points() -> Vec<Point> {
    let point = |point| Point {
        kinds: &[KindName::Crash, KindName::Hang, KindName::Restart],
        ..point
    };
    [
        oversubscribe_faults::SWAP_OUT,
        oversubscribe_faults::SWAP_IN,
    ]
    .map(point)
    .into()
}

/// Where one program with a card for itself can be.
fn own_points() -> Vec<Point> {
    let step = |step| Point {
        kinds: &[KindName::Crash, KindName::Hang, KindName::Restart],
        ..snapify_faults::of_step(step)
    };
    let write = Point {
        kinds: &[KindName::DiskFull, KindName::TornWrite],
        ..snapify_io_faults::WRITE
    };
    Step::ALL.into_iter().map(step).chain([write]).collect()
}

/// The processes of a rig whose cards programs share.
fn shared_processes(cards: u16, programs: u16) -> Vec<Process> {
    let program = |name| Process::new(name, Process::PROGRAM);
    let programs = (1..=programs.into()).map(|number| program(shared::program(number)));
    let others = processes(cards)
        .into_iter()
        .filter(|process| process.name != "host");
    others
        .chain([program("arbiter".to_owned())])
        .chain(programs)
        .collect()
}

/// The processes of a rig, as plans name them.
pub fn processes(cards: u16) -> Vec<Process> {
    let program = |name: String| Process::new(name, Process::PROGRAM);
    let cards = (1..=cards).flat_map(|node| {
        let card = Process::new(format!("card{node}"), Process::MACHINE);
        [card, program(format!("daemon{node}"))]
    });
    let others = ["rig", "host"].map(|name| program(name.into()));
    others.into_iter().chain(cards).collect()
}

/// What a plan is about.
pub struct Shape {
    /// Its cards.
    pub cards: u16,
    /// Programs share them, and take turns.
    pub shared: bool,
}

impl Shape {
    /// Of a plan of one of the scenarios that have a rig.
    pub fn of(plan: &Plan) -> Result<Self, PlanError> {
        let shared = plan.scenario == oversubscribe::SCENARIO;
        let cards = match shared {
            true => plan.parameters_as::<oversubscribe::Parameters>()?.cards,
            false => plan.parameters_as::<Parameters>()?.cards,
        };
        Ok(Self { cards, shared })
    }
}

/// Whether real rigs can run a plan.
pub fn check(plan: &Plan) -> Result<(), CheckError> {
    snaprig_campaign::standard().check_system(plan)?;
    let shape = Shape::of(plan);
    if Variant::named(&plan.scenario).is_none() && plan.scenario != oversubscribe::SCENARIO {
        let why = format!(
            "scenario {:?} has no rig; it runs in simulation",
            plan.scenario
        );
        return Err(CheckError::Impossible(why));
    }
    let Shape { cards, shared } = shape?;
    if cards > CARDS {
        let why = format!("a real rig has at most {CARDS} cards here");
        return Err(CheckError::Impossible(why));
    }
    if shared {
        let oversubscribe::Parameters { programs, .. } = plan.parameters_as()?;
        if programs > PROGRAMS {
            let why = format!("at most {PROGRAMS} programs share the cards of a real rig here");
            return Err(CheckError::Impossible(why));
        }
        return Ok(plan.check(&shared_points(), &shared_processes(cards, programs))?);
    }
    Ok(plan.check(&own_points(), &processes(cards))?)
}

/// After how many run functions a plan's application is interrupted.
pub fn interrupt_at(plan: &Plan) -> u64 {
    2 + Random::new(plan.seed, "interrupt").below(INTERRUPT_MAX)
}

/// The plan of a seed.
pub fn draw(seed: u64) -> Plan {
    let mut random = Random::new(seed, "rig");
    if random.one_in(SHARED_ONE_IN) {
        return draw_shared(seed, &mut random);
    }
    let variant = random.pick(&Variant::ALL).copied();
    let variant = variant.unwrap_or(Variant::ALL[0]);
    let mut plan = Plan::new(seed, variant.name).with(&Parameters::of(CARDS));
    for _ in 0..random.below(FAULTS_MAX + 1) {
        let (point, kind) = match random.one_in(6) {
            true => (snapify_io_faults::WRITE, write_fault(&mut random)),
            false => {
                let step = random.pick(&Step::ALL).copied().unwrap_or(Step::Agree);
                (snapify_faults::of_step(step), process_fault(&mut random))
            }
        };
        plan.faults.push(Fault {
            point: point.name.into(),
            when: When::Nth(1 + random.below(variant.rounds.into())),
            kind,
        });
    }
    plan
}

/// One of programs that share cards.
fn draw_shared(seed: u64, random: &mut Random) -> Plan {
    let parameters = oversubscribe::Parameters {
        cards: 2,
        programs: PROGRAMS,
        ..oversubscribe::Parameters::default()
    };
    let mut plan = Plan::new(seed, oversubscribe::SCENARIO).with(&parameters);
    for _ in 0..random.below(FAULTS_MAX + 1) {
        let point = match random.one_in(2) {
            true => oversubscribe_faults::SWAP_OUT,
            false => oversubscribe_faults::SWAP_IN,
        };
        let card = 1 + random.below(parameters.cards.into());
        let program = shared::program(1 + random.below(PROGRAMS.into()) as usize);
        // Not of the arbiter: until there is another one programs take what a card has, and it may run out of memory.
        let kind = match random.below(9) {
            0..=3 => Kind::Crash(program),
            4 => Kind::Crash(format!("daemon{card}")),
            5 => Kind::Crash(format!("card{card}")),
            6 => Kind::Restart(format!("card{card}")),
            7 => Kind::Hang(format!("card{card}")),
            _ => Kind::Hang("arbiter".into()),
        };
        plan.faults.push(Fault {
            point: point.name.into(),
            when: When::Nth(1 + random.below(SWAPS_MAX)),
            kind,
        });
    }
    plan
}

fn write_fault(random: &mut Random) -> Kind {
    match random.one_in(3) {
        true => Kind::DiskFull,
        false => Kind::TornWrite(random.below(FILE_BYTES)),
    }
}

fn process_fault(random: &mut Random) -> Kind {
    // The card on which it begins matters most.
    let card = [1, 1, 1, 2, 2, 3][random.below(6) as usize];
    match random.below(8) {
        0 => Kind::Crash("rig".into()),
        1 => Kind::Crash("host".into()),
        2 | 3 => Kind::Crash(format!("daemon{card}")),
        4 => Kind::Hang(if random.one_in(3) {
            "rig".into()
        } else {
            format!("card{card}")
        }),
        5 => Kind::Restart(format!("card{card}")),
        _ => Kind::Crash(format!("card{card}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drawn_plan_can_be_run_and_others_are_refused() {
        for seed in 0..500 {
            let plan = draw(seed);
            assert!(check(&plan).is_ok(), "{plan:?}");
        }
        let many = draw(0).with(&Parameters::of(CARDS + 1));
        assert!(check(&many).unwrap_err().to_string().contains("3 cards"));
        let simulated = Plan::new(0, "verbs");
        assert!(check(&simulated).is_err());
    }
}
