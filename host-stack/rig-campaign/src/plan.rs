//! Plans for real rigs. They are plans as those of simulations are, with fewer points:
//! the steps of Snapify's calls, at which processes can be killed or stopped and cards be reset, and
//! the writing of files, which can fail.

use snaprig_campaign::{
    registry::CheckError,
    scenarios::offload::{Parameters, Variant},
};
use snaprig_sim::{Fault, Kind, KindName, Plan, Point, Process, Random, When};
use snaprig_snapify::{Step, faults as snapify_faults};
use snaprig_snapify_io::faults as snapify_io_faults;

/// Cards of a drawn plan, and most cards of any.
pub const CARDS: u16 = 3;
/// Most faults of a drawn plan.
const FAULTS_MAX: u64 = 2;
/// Run functions after which a run may be interrupted, from 2.
const INTERRUPT_MAX: u64 = 28;
/// A file gets no longer than a number below this: about as long as a process image.
const FILE_BYTES: u64 = 3 << 20;

/// The points that real rigs have.
pub fn points() -> Vec<Point> {
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

/// Whether real rigs can run a plan.
pub fn check(plan: &Plan) -> Result<(), CheckError> {
    snaprig_campaign::standard().check_system(plan)?;
    if Variant::named(&plan.scenario).is_none() {
        let why = format!(
            "scenario {:?} has no rig; it runs in simulation",
            plan.scenario
        );
        return Err(CheckError::Impossible(why));
    }
    let cards = plan.parameters_as::<Parameters>()?.cards;
    if cards > CARDS {
        let why = format!("a real rig has at most {CARDS} cards here");
        return Err(CheckError::Impossible(why));
    }
    Ok(plan.check(&points(), &processes(cards))?)
}

/// After how many run functions a plan's application is interrupted.
pub fn interrupt_at(plan: &Plan) -> u64 {
    2 + Random::new(plan.seed, "interrupt").below(INTERRUPT_MAX)
}

/// The plan of a seed.
pub fn draw(seed: u64) -> Plan {
    let mut random = Random::new(seed, "rig");
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
