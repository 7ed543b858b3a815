//! `snaprig ppmr migrate` of MPI jobs on eight nodes at moments that nobody chose: what they print is what they should, bit for bit.
//!
//! `SNAPRIG_MOMENTS` says at how many moments, `SNAPRIG_RANKS` how many processes a node has, and `SNAPRIG_SEED` which moments, nodes
//! and ways those are.

mod checkpointed;
mod fabric;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use checkpointed::{JobOnNodes, ends_soon, long_enough, migrate};
use fabric::{assert_success, one_job};
use snaprig_sim::random::Random;

/// At work on eight nodes, three more have nothing.
const NODES: usize = 8;
const SPARES: usize = 3;
const KERNELS: [&str; 3] = ["lu", "bt", "sp"];
/// After so many moments of one kernel's job, it is another one's turn.
const MOMENTS_A_JOB: u64 = 7;
/// The last processes of a job that leave their node do so this often, without a pause.
const IN_SUCCESSION: usize = 3;
/// Ways that memory takes, one after the other.
const WAYS: [&str; 4] = ["ppmr", "rdma-local", "local", "shared"];
/// A kernel sleeps so long in each iteration, for each moment, and each process of a node.
const PACE_US: u64 = 20_000;

fn number(variable: &str, usual: u64) -> u64 {
    let number = std::env::var(variable);
    number.map_or(usual, |number| number.parse().expect("a number"))
}

/// What is to come of one kernel's job.
struct Plan {
    kernel: &'static str,
    seed: u64,
    ranks: u64,
    /// Which moments, of those of all jobs.
    first: u64,
    end: u64,
}

impl Plan {
    /// What it prints, if its processes migrate as often as they are to. None: it has ended before that.
    fn carried_out(&self, pace_us: u64) -> Option<String> {
        let pace = pace_us.to_string();
        let size = (NODES, self.ranks as usize, SPARES);
        let mut job = JobOnNodes::launched_beside_spares(self.kernel, size, &["--pace-us", &pace]);
        let files = job.job().join("files");
        fs::create_dir(&files).expect("a directory");
        let mut places = Places::new(self.seed, self.kernel, job.job());
        for moment in self.first..self.end {
            // The moment is what is random: nothing is waited for.
            std::thread::sleep(Duration::from_micros(places.random.below(pace_us)));
            let way = WAYS[moment as usize % WAYS.len()];
            let is_last = moment + 1 == self.end;
            let mut from = places.at_work();
            for _ in 0..if is_last { IN_SUCCESSION } else { 1 } {
                from = places.leave(&from, (way, &files), || !ends_soon(|| job.runs()))?;
            }
        }
        assert_eq!(fs::read_dir(&files).expect("a directory").count(), 0);
        Some(job.ended())
    }
}

/// Which nodes have processes.
struct Places {
    random: Random,
    job: PathBuf,
    used: Vec<String>,
    spare: Vec<String>,
}

impl Places {
    fn new(seed: u64, kernel: &str, job: PathBuf) -> Self {
        let mut nodes: Vec<_> = (1..=NODES + SPARES).map(|n| format!("node{n}")).collect();
        Self {
            random: Random::new(seed, kernel),
            job,
            spare: nodes.split_off(NODES),
            used: nodes,
        }
    }

    fn at_work(&mut self) -> String {
        self.random.pick(&self.used).expect("some are").clone()
    }

    /// All that a node has goes on at a spare one, which this is. None: the job has ended meanwhile, and that is why it does not.
    fn leave(
        &mut self,
        from: &str,
        (way, files): (&str, &Path),
        runs: impl FnOnce() -> bool,
    ) -> Option<String> {
        let begun = Instant::now();
        let to = self.random.pick(&self.spare).expect("some are").clone();
        let files = files.to_str().expect("a name");
        let how = ["--to", &to, "--strategy", way, "--files", files];
        let migrated = migrate(&self.job, from, &how);
        if !migrated.status.success() && !runs() {
            return None;
        }
        assert_success(&format!("{from} to {to} by {way}"), &[migrated]);
        eprintln!("{from} to {to} by {way}: {:.1?}", begun.elapsed());
        self.used.retain(|node| node != from);
        self.spare.retain(|node| *node != to);
        self.used.push(to.clone());
        self.spare.push(from.to_owned());
        Some(to)
    }
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_file = "/usr/sbin/sshd"),
    ignore = "sshd is not installed (ci/setup)"
)]
fn nodes_of_a_job_are_left_at_any_moment() {
    let _alone = one_job();
    let (moments, ranks, seed) = (
        number("SNAPRIG_MOMENTS", 4),
        number("SNAPRIG_RANKS", 2),
        number("SNAPRIG_SEED", 1),
    );
    eprintln!("SNAPRIG_MOMENTS={moments} SNAPRIG_RANKS={ranks} SNAPRIG_SEED={seed}");
    let firsts = (0..moments).step_by(MOMENTS_A_JOB as usize);
    for (first, kernel) in firsts.zip(KERNELS.into_iter().cycle()) {
        let begun = Instant::now();
        let end = moments.min(first + MOMENTS_A_JOB);
        let plan = Plan {
            kernel,
            seed,
            ranks,
            first,
            end,
        };
        let pace = PACE_US * ranks * (end - first + 2);
        let printed = long_enough(pace, |pace| plan.carried_out(pace));
        let golden = snaprig_fixtures::mpi::KERNELS
            .iter()
            .find(|one| one.name == kernel)
            .expect("it is among them")
            .golden;
        assert_eq!(printed, golden, "{kernel}, SNAPRIG_SEED={seed}");
        eprintln!(
            "{kernel}: moments {first} to {end}, {:.1?}",
            begun.elapsed()
        );
    }
}
