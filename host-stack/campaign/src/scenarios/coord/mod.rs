//! The fourth system: a job whose processes are checkpointed together. Coordinator, members and who
//! orders are the machines of `host-stack/coord`.
//!
//! ```text
//!   operator ----- coordinator ----- manifest            orders, and starts the next coordinator
//!                  /    |    \
//!            agent1  agent2  agent3 ...                  images on a disk
//!               |       |       |
//!           program1--program2--program3 ...             numbered messages over connections
//! ```
//!
//! Of a plan (scenario "coord"), `processes` are agents, `pipelines` connections between their
//! programs, `runs` messages each way on each, and `writes` checkpoints; the seed decides who is
//! connected with whom, when programs send, and of which kind a checkpoint is. `cards`, `offloads`
//! and `buffers` mean nothing here.
//!
//! A run has three parts: programs work and are checkpointed while things go wrong; nothing goes wrong
//! any more, and there is a checkpoint of all that live; all is killed, and the last complete
//! checkpoint is restarted and runs to its end.
//!
//! | module | what it is |
//! |---|---|
//! | `program` | what is checkpointed: numbered messages over connections |
//! | `agent` | takes a program through the phases |
//! | `keeper` | the coordinator's process, and its manifests |
//! | `operator` | orders, and looks after what has died |
//! | `net` | connections between machines, and what goes wrong on them |
//! | `cut` | whether a checkpoint is whole, and one moment of the job |
//! | `run` | one run of a plan |
//! | `end` | what comes of it |

mod agent;
mod cut;
mod end;
mod keeper;
mod net;
mod operator;
mod program;
mod run;

use snaprig_sim::Plan;

pub use run::{run, run_counting, state_at};

/// Its scenario.
pub const SCENARIO: &str = "coord";
/// The coordinator's process.
pub const COORDINATOR: &str = "coordinator";
/// Most agents, connections, messages each way, and checkpoints of a plan.
const MOST: [u16; 4] = [8, 8, 100, 8];

/// Processes of a plan's system, as plans name them.
pub fn processes(plan: &Plan) -> Vec<String> {
    let agents = (1..=plan.workload.processes).map(|number| format!("agent{number}"));
    [COORDINATOR.to_owned()].into_iter().chain(agents).collect()
}

/// What is impossible about the plan's system, if anything is.
pub fn impossible(plan: &Plan) -> Option<String> {
    let work = plan.workload;
    let amounts = [work.processes, work.pipelines, work.runs, work.writes];
    let too_much = amounts
        .iter()
        .zip(MOST)
        .any(|(amount, most)| *amount > most);
    let [processes, pipelines, runs, writes] = MOST;
    (too_much || work.processes == 0).then(|| {
        format!(
            "workload {work:?}: with coord, 1 to {processes} processes, up to {pipelines} \
             pipelines, up to {runs} runs and up to {writes} writes"
        )
    })
}
