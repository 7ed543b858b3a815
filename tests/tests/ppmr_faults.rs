//! `snaprig ppmr migrate` when what it needs is taken away from it in the middle of a migration, or was never there: a link, memory.
//! It fails, soon, and says why; all goes on where it was, and migrates when that is there again.

mod checkpointed;
mod fabric;

use std::{
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use checkpointed::{JobOnNodes, migrate, migration};
use fabric::{assert_success, one_job, text, wait_until};
use rustix::process::{Resource, Rlimit, prlimit};

/// So slowly that a kernel is at work while it is migrated a few times.
const SLOWLY: [&str; 2] = ["--pace-us", "300000"];
const FROM: &str = "node3";
const TO: &str = "node5";
/// Their LIDs.
const LIDS: [&str; 2] = ["3", "5"];
/// A link that is down is noticed in a second; machines are busy.
const SOON: Duration = Duration::from_secs(20);
/// A pipeline of two chunks, which take so long that it is in use for seconds.
const NARROW: [&str; 6] = ["--transport", "rdma", "--pool", "128K", "--chunk", "64K"];
const DELAY_US: &str = "20000";

fn assert_stays(refused: &Output, why: &[&str]) {
    let text = text(refused);
    let says = why.iter().any(|why| text.contains(why));
    assert!(!refused.status.success() && says, "{text}");
    assert!(
        text.contains(&format!("{FROM} stays where it is")),
        "{text}"
    );
}

/// Afterwards it can migrate, and prints what it should.
fn goes_on(mut job: JobOnNodes, how: &[&str]) {
    let migrated = migrate(&job.job(), FROM, &[&["--to", TO], how].concat());
    assert_success(&format!("{how:?}"), &[migrated]);
    assert_eq!(job.ended(), job.kernel.golden);
}

/// How many packets have left the port of the node that is left, and of the one that has nothing else to do.
fn packets(job: &JobOnNodes) -> u64 {
    let description = job.fabric(&["list", "--json"]);
    let description: serde_json::Value = serde_json::from_str(&description).expect("JSON");
    let port = &description["hcas"][4]["ports"][0]["counters"];
    let count = |name: &str| port[name].as_u64().expect("a count");
    count("port_xmit_packets") + count("port_rcv_packets")
}

/// The link of one end goes down once chunks are on their way.
fn a_link_goes_down(mode: &[&str]) {
    let _alone = one_job();
    let job = JobOnNodes::launched_beside_a_spare("lu", &SLOWLY);
    for (from, to) in [(LIDS[0], LIDS[1]), (LIDS[1], LIDS[0])] {
        job.fabric(&["fault", "--from", from, "--to", to, "--delay-us", DELAY_US]);
    }
    for lid in LIDS {
        let before = packets(&job);
        let how = [&["--to", TO][..], &NARROW, mode].concat();
        let mut migration = migration(&job.job(), FROM, &how);
        migration.stdout(Stdio::piped()).stderr(Stdio::piped());
        let migrating = migration.spawn().expect("snaprig starts");
        wait_until("chunks move", || packets(&job) > before + 100);
        job.fabric(&["down", lid]);
        let begun = Instant::now();
        let refused = migrating.wait_with_output().expect("it is ours");
        assert_stays(
            &refused,
            &[
                "a chunk could not be transferred",
                "the connection between source and target was lost",
            ],
        );
        assert!(begun.elapsed() < SOON);
        job.fabric(&["up", lid]);
    }
    job.fabric(&["heal"]);
    goes_on(job, &["--transport", "rdma"]);
}

macro_rules! links {
    ($($test:ident: $mode:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(not(has_program = "mpicc"), ignore = "mpicc is not installed (ci/setup)")]
            #[cfg_attr(not(has_program = "mpirun"), ignore = "mpirun is not installed (ci/setup)")]
            fn $test() {
                a_link_goes_down($mode);
            }
        )*
    };
}

links! {
    a_link_goes_down_while_chunks_are_read: &[];
    a_link_goes_down_while_chunks_are_written: &["--push"];
}

/// What is started to go on with processes has the limits of who keeps the nodes.
#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn a_node_that_has_too_little_memory_is_not_come_to() {
    let _alone = one_job();
    let job = JobOnNodes::launched_beside_a_spare("lu", &SLOWLY);
    let limit = |bytes: Option<u64>| {
        let (current, maximum) = (bytes, None);
        let limits = Rlimit { current, maximum };
        prlimit(Some(job.keeper()), Resource::As, limits).expect("it is ours")
    };
    for strategy in ["ppmr", "rdma-local", "memory"] {
        let before = limit(Some(MEMORY));
        let refused = migrate(&job.job(), FROM, &["--strategy", strategy]);
        limit(before.current);
        // Who takes the image ends when there is no memory for it, as where the kernel ends him.
        assert_stays(&refused, &["Cannot allocate memory", "too little memory"]);
    }
    goes_on(job, &[]);
}

/// More than is needed to start, and less than the processes of a node have.
const MEMORY: u64 = 256 << 20;
