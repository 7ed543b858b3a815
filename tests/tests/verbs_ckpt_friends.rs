//! `snaprig ckpt launch --verbs`: programs that reach verbs by libraries of others (UCX, fio, MPI's), or by loading libibverbs
//! themselves, checkpointed while their messages are under way, killed, and restarted in another fabric, on an HCA of another model.

mod checkpointed;
mod fabric;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use checkpointed::{Checkpointed, long_enough};
use fabric::{Running, assert_success};
use snaprig_fixtures::mpi::KERNELS;

/// What runs is checkpointed twice in one life, and goes on elsewhere; what it prints there.
fn goes_on(job: &Checkpointed, running: Running) -> String {
    job.killed(running, 2);
    job.goes_on("restarted", &["--model", "B"])
}

/// What `ucx_perftest` says at its end.
const UCX_END: &str = "Final:";

/// Two of `ucx_perftest` that were checkpointed twice, and killed.
fn ucx_killed(words: &str, count: u64) -> Checkpointed {
    long_enough(count, |count| {
        let pair = Checkpointed::new();
        let server = format!("{words} -n {count} -w 10 -p PORT");
        let running = pair.launch_pair(&server, &format!("{server} 127.0.0.1"));
        pair.killed_before(UCX_END, running, ("ucx_perftest", 2), 2)?;
        Some(pair)
    })
}

#[test]
#[cfg_attr(
    not(has_program = "ucx_perftest"),
    ignore = "ucx_perftest is not installed (ci/setup)"
)]
fn writes_of_ucx() {
    let _alone = fabric::one_job();
    let pair = ucx_killed(
        "env UCX_TLS=rc_v,self ucx_perftest -t ucp_put_bw -s 100000",
        50_000,
    );
    let text = pair.goes_on("restarted", &["--model", "B"]);
    assert!(text.contains(UCX_END), "{text}");
}

/// Datagrams of UCX are as long as the HCA takes where it was launched, which is more than model B does.
#[test]
#[cfg_attr(
    not(has_program = "ucx_perftest"),
    ignore = "ucx_perftest is not installed (ci/setup)"
)]
fn long_datagrams_of_ucx() {
    let _alone = fabric::one_job();
    let pair = ucx_killed(
        "env UCX_TLS=ud_v,self ucx_perftest -t tag_bw -s 4096",
        600_000,
    );
    let refused = pair.restart(&["--model", "B"]);
    assert!(!refused.status.success());
    let text = fabric::text(&refused);
    assert!(
        text.contains("bytes, and port 1 here takes 2048 (MTU)"),
        "{text}"
    );
    let text = pair.goes_on("restarted", &[]);
    assert!(text.contains(UCX_END), "{text}");
}

#[test]
#[cfg_attr(not(has_program = "fio"), ignore = "fio is not installed (ci/setup)")]
fn a_fork_of_fio_has_the_queue_pairs() {
    let _alone = fabric::one_job();
    /// Of the client's processor time: by then it has connected, and writes.
    const AT_WORK_TICKS: u64 = 60;
    let pair = Checkpointed::new();
    let end = "fio --name=end --ioengine=rdma --port=PORT --bs=64k --size=40g --iodepth=16";
    let server = format!("{end} --rw=read");
    let client = format!("{end} --rw=write --hostname=127.0.0.1 --verb=write");
    let mut running = pair.launch_pair(&server, &client);
    fabric::wait_until("the client writes", || {
        assert!(running.runs(), "fio has ended");
        let mut worked = pair
            .processes("fio")
            .into_iter()
            .map(checkpointed::ticks_of);
        worked.any(|ticks| ticks >= AT_WORK_TICKS)
    });
    let text = goes_on(&pair, running);
    assert_eq!(text.matches("err= 0").count(), 2, "{text}");
}

/// A kernel of MPI jobs, by a launcher's words, has its golden result.
fn kernel_goes_on(kernel: &str, mpicc: &str, launcher: &str) {
    let _alone = fabric::one_job();
    let job = Checkpointed::new();
    let kernel = KERNELS.iter().find(|one| one.name == kernel);
    let kernel = kernel.expect("it is among them");
    let program = kernel.compile(mpicc, job.directory.path());
    let program = program.expect("it compiles");
    let words: Vec<_> = launcher.split_ascii_whitespace().collect();
    let program = [program.to_str().expect("a name"), "--pace-us", "50000"];
    let running = job.launch(&[&words[..], &program].concat());
    let killed = job.killed_at_work(running, (kernel.name, 2), 2);
    let before = text_of(&killed.expect("it is paced").stdout);
    let ran = job.restart(&["--model", "B"]);
    assert_success(kernel.name, std::slice::from_ref(&ran));
    assert_eq!(before + &text_of(&ran.stdout), kernel.golden);
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc.openmpi"),
    ignore = "mpicc.openmpi is not installed (ci/setup)"
)]
fn open_mpi_by_its_own_verbs() {
    // A thread of it waits for events of connections; in the end that is told to stop.
    kernel_goes_on(
        "ring",
        "mpicc.openmpi",
        "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi --oversubscribe -n 2 --mca pml ob1 \
         --mca btl openib,self --mca btl_openib_allow_ib 1 --mca mpi_yield_when_idle 1",
    );
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc.mpich"),
    ignore = "mpicc.mpich is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpiexec.hydra"),
    ignore = "mpiexec.hydra is not installed (ci/setup)"
)]
fn mpich() {
    // Where it is restarted there is no other link.
    kernel_goes_on(
        "lu",
        "mpicc.mpich",
        "env UCX_TLS=rc_v,self mpiexec.hydra -iface lo -n 2",
    );
}

fn sources(name: &str) -> PathBuf {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs");
    kit.join(name).join(name).with_extension("c")
}

fn compile(arguments: &[&str], sources: &[PathBuf], to: &Path) {
    let mut gcc = Command::new("gcc");
    gcc.arg("-O1").args(sources).args(arguments);
    let status = gcc.arg("-o").arg(to).status().expect("gcc");
    assert!(status.success());
}

/// Objects of verbs outlive a checkpoint in a program that `make` compiles: its words.
fn objects_go_on(name: &str, make: impl FnOnce(&Path) -> Vec<PathBuf>) {
    let _alone = fabric::one_job();
    let job = Checkpointed::new();
    let directory = job.directory.path();
    let program = make(directory);
    let words = program.iter().map(|word| word.to_str().expect("a name"));
    let words: Vec<_> = words.chain(["windows"]).collect();
    job.objects_go_on(name, &words, &[], 2);
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn functions_are_found_by_dlsym() {
    objects_go_on("found", |directory| {
        let program = directory.join("found");
        compile(&[], &[sources("objects"), sources("found")], &program);
        vec![program]
    });
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn a_module_finds_its_libraries_before_what_is_preloaded() {
    objects_go_on("deep", |directory| {
        let (program, module) = (directory.join("deep"), directory.join("libobjects.so"));
        let shared = ["-shared", "-fPIC", "-libverbs"];
        compile(&shared, &[sources("objects")], &module);
        compile(&[], &[sources("deep")], &program);
        vec![program, module]
    });
}
