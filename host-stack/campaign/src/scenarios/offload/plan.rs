//! What plans may say about this system.

use super::*;

/// Most cards of a plan.
pub const CARDS_MAX: u16 = 32;
/// Most host processes, offload processes of each, pipelines, run functions, buffers, writes of a plan.
const WORK_MAX: [u16; 6] = [4, 4, 8, 100, 8, 100];

/// The processes of a plan's system, as plans name them.
pub fn processes(plan: &Plan) -> Vec<String> {
    let hosts = (1..=plan.workload.processes).map(|number| match number {
        1 => "host".into(),
        number => format!("host{number}"),
    });
    let cards = (1..=plan.cards).map(|node| format!("card{node}"));
    ["rig".to_owned()]
        .into_iter()
        .chain(hosts)
        .chain(cards)
        .collect()
}

/// What is impossible about the plan's system, if anything is.
pub fn impossible(plan: &Plan) -> Option<String> {
    let work = plan.workload;
    let amounts = [
        work.processes,
        work.offloads,
        work.pipelines,
        work.runs,
        work.buffers,
        work.writes,
    ];
    let too_much = amounts
        .iter()
        .zip(WORK_MAX)
        .any(|(amount, most)| *amount > most);
    if !(1..=CARDS_MAX).contains(&plan.cards) {
        return Some(format!("{} cards: there are 1 to {CARDS_MAX}", plan.cards));
    }
    if too_much || amounts[..4].contains(&0) {
        return Some(format!(
            "workload {work:?}: 1 to {} processes, 1 to {} offloads, 1 to {} pipelines, 1 to {} \
             runs, up to {} buffers and up to {} writes",
            WORK_MAX[0], WORK_MAX[1], WORK_MAX[2], WORK_MAX[3], WORK_MAX[4], WORK_MAX[5]
        ));
    }
    None
}
