//! `snaprig ckpt launch --verbs`: programs that others built for InfiniBand, checkpointed while their messages are under way, killed,
//! and restarted in another fabric.

mod checkpointed;
mod fabric;

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use checkpointed::{Checkpointed, JobOnNodes, long_enough, with_count};
use fabric::{assert_success, free_port, text, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use snaprig_fixtures::mpi::KERNELS;

static PAIRS: Mutex<()> = Mutex::new(());

/// One pair at a time. Its ends poll without rest: of two pairs on two processors, neither may have both its ends at work for
/// minutes.
fn alone() -> MutexGuard<'static, ()> {
    PAIRS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pair is checkpointed in the middle, twice in one life, and ends in another fabric as if nothing had been.
fn goes_on(server: &str, client: &str, count: u64, elsewhere: &[&str], said: &str) {
    let _alone = alone();
    let name = server.split(' ').next().unwrap_or_default();
    let (pair, said) = long_enough(count, |count| {
        let pair = Checkpointed::new();
        let running = pair.launch_pair(&with_count(server, count), &with_count(client, count));
        let said = with_count(said, count);
        // Where only one end posts, the other one sleeps.
        pair.killed_before(&said, running, (name, 1), 2)?;
        Some((pair, said))
    });
    let text = pair.goes_on(name, elsewhere);
    assert!(text.contains(&said), "{text}");
}

macro_rules! pairs {
    ($(#[$needs:meta] { $($test:ident: $program:literal, $server:literal, $client:literal, $count:literal, $elsewhere:expr, $said:literal;)* })*) => {
        $($(
            #[test]
            #[$needs]
            fn $test() {
                let server = concat!($program, " -p PORT ", $server);
                let client = concat!($program, " -p PORT ", $client);
                goes_on(server, client, $count, &$elsewhere, $said);
            }
        )*)*
    };
}

pairs! {
    #[cfg_attr(not(has_program = "ibv_rc_pingpong"), ignore = "ibv_rc_pingpong is not installed (ci/setup)")] {
        messages_and_their_receives:
            "ibv_rc_pingpong", "-c -n COUNT", "-c -n COUNT 127.0.0.1", 200_000, [], "COUNT iters";
        events: "ibv_rc_pingpong", "-c -e -n COUNT", "-c -e -n COUNT 127.0.0.1", 30_000, [], "COUNT iters";
        the_extended_way:
            "ibv_rc_pingpong", "-c -N -n COUNT", "-c -N -n COUNT 127.0.0.1", 200_000, ["--model", "B"], "COUNT iters";
        datagrams: "ibv_ud_pingpong", "-c -n COUNT", "-c -n COUNT 127.0.0.1", 200_000, [], "COUNT iters";
        // Its queues are as long as it has messages, which HCAs have limits for: where it ends too soon, they are longer.
        messages_for_xrc: "ibv_xsrq_pingpong", "-n 4000 -s COUNT", "-n 4000 -s COUNT 127.0.0.1", 1_200_000, [], "success";
        messages_for_xrc_on_another_model:
            "ibv_xsrq_pingpong", "-n 4000 -s COUNT", "-n 4000 -s COUNT 127.0.0.1", 1_200_000, ["--model", "B"], "success";
        // None of them asks for a completion before the last one.
        more_messages_than_another_model_has_room_for:
            "ibv_xsrq_pingpong", "-n 16000 -s COUNT", "-n 16000 -s COUNT 127.0.0.1", 300_000, ["--model", "B"], "success";
        shared_receives_on_another_model:
            "ibv_srq_pingpong", "-c -n COUNT", "-c -n COUNT 127.0.0.1", 300_000, ["--model", "B"], "COUNT iters";
    }
    #[cfg_attr(not(has_program = "ib_write_bw"), ignore = "ib_write_bw is not installed (ci/setup)")] {
        writes_that_nobody_tells_of:
            "ib_write_bw", "-F -q 8 -n COUNT -s 4096", "-F -q 8 -n COUNT -s 4096 127.0.0.1", 200_000, [], "8*COUNT";
        connected_by_the_manager:
            "ib_write_bw", "-F -R -n COUNT -s 4096", "-F -R -n COUNT -s 4096 127.0.0.1", 1_500_000, [], "COUNT";
        inline_writes:
            "ib_write_lat", "-F -n COUNT -I 64", "-F -n COUNT -I 64 127.0.0.1", 900_000, ["--model", "B"], "COUNT";
        atomics: "ib_atomic_lat", "-F -n COUNT", "-F -n COUNT 127.0.0.1", 1_500_000, [], "COUNT";
        messages_of_perftest_for_xrc:
            "ib_send_bw", "-F -c XRC -n COUNT -s 1024", "-F -c XRC -n COUNT -s 1024 127.0.0.1", 1_500_000, [], "COUNT";
        datagrams_at_full_speed:
            "ib_send_bw", "-F -c UD -n COUNT -s 1024", "-F -c UD -n COUNT -s 1024 127.0.0.1", 1_000_000, [], "COUNT";
        more_datagrams_than_another_model_has_room_for:
            "ib_send_bw", "-F -c UD -r 8000 -n COUNT -s 1024", "-F -c UD -r 8000 -n COUNT -s 1024 127.0.0.1", 1_000_000,
            ["--model", "B"], "COUNT";
        unreliable_messages_at_full_speed:
            "ib_send_bw", "-F -c UC -n COUNT -s 1024", "-F -c UC -n COUNT -s 1024 127.0.0.1", 1_000_000, ["--model", "B"], "COUNT";
        reads: "ib_read_bw", "-F -n COUNT -s 4096", "-F -n COUNT -s 4096 127.0.0.1", 2_000_000, [], "COUNT";
    }
    #[cfg_attr(not(has_program = "rping"), ignore = "rping is not installed (ci/setup)")] {
        the_end_of_a_connection_is_heard_of:
            "rping", "-s -V -C COUNT -a 127.0.0.1", "-c -V -C COUNT -a 127.0.0.1", 100_000, [], "server DISCONNECT EVENT";
        rsockets: "rstream", "-S 65536 -C 60000", "-S 65536 -C 60000 -s 127.0.0.1", 60_000, [], "60k";
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
fn an_mpi_job_has_its_golden_result() {
    let _alone = fabric::one_job();
    let job = Checkpointed::new();
    let lu = KERNELS.iter().find(|kernel| kernel.name == "lu");
    let lu = lu.expect("it is among them");
    let program = lu
        .compile("mpicc", job.directory.path())
        .expect("it compiles");
    let program = program.to_str().expect("a name");
    // Root may, for all of this goes with the test.
    let root = [
        "OMPI_ALLOW_RUN_AS_ROOT=1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ];
    let mpirun = [
        "mpirun",
        "--oversubscribe",
        "-n",
        "4",
        "--mca",
        "pml",
        "ucx",
        "-x",
        "UCX_TLS=rc,self",
    ];
    let kernel = [program, "--pace-us", "100000"];
    let running = job.launch(&[&["env"], &root[..], &mpirun, &kernel].concat());
    let killed = job.killed_at_work(running, ("lu", 4), 1);
    let before = text(&killed.expect("it is paced"));
    let ran = job.restart(&["--model", "B"]);
    assert_success("lu", std::slice::from_ref(&ran));
    assert_eq!(before + &text(&ran), lu.golden);
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
fn an_mpi_job_on_nodes_goes_on_on_others() {
    let _alone = fabric::one_job();
    let ring = JobOnNodes::checkpointed("ring", 4, &["--pace-us", "200000"]);
    assert_eq!(ring.restarted("2", &[]), ring.kernel.golden);
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn who_talks_to_a_stranger_is_not_checkpointed_and_goes_on() {
    let _alone = alone();
    let client = Checkpointed::new();
    let (refused, running, server) = long_enough(300_000, |count| {
        let (port, count) = (free_port(), count.to_string());
        let port_text = port.to_string();
        let program = ["ibv_rc_pingpong", "-n", &count, "-p", &port_text];
        let server = client.fabric.start(&program);
        fabric::wait_for_listener(port);
        let mut running = client.launch(&[&program[..], &["127.0.0.1"]].concat());
        let is_at_work = client.is_at_work(&mut running, "ibv_rc_pingpong", 1);
        let refused = client.ckpt(&["dump", "--kill"]);
        (is_at_work && running.runs()).then_some((refused, running, server))
    });
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{why}");
    assert!(
        why.contains("launch the other end with --verbs in the same job"),
        "{why}"
    );
    assert_success("both", &[running.output(), server.output()]);
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn whose_peer_was_killed_is_checkpointed_and_learns_of_it_after_a_restart() {
    let _alone = alone();
    let pair = Checkpointed::new();
    // Its server does nothing but receive: it waits for ever.
    let program = "ib_send_bw -p PORT -n 50000000 -N";
    let mut running = pair.launch_pair(program, &format!("{program} 127.0.0.1"));
    assert!(pair.is_at_work(&mut running, "ib_send_bw", 2));
    pair.dump("--leave-running");
    let client = pair.processes("ib_send_bw").into_iter().max();
    let client = Pid::from_raw(client.expect("a client") as i32);
    kill_process(client.expect("a pid"), Signal::KILL).expect("it runs");
    wait_until("the client is gone", || {
        pair.processes("ib_send_bw").len() == 1
    });
    pair.killed(running, 2);
    let restarted = pair.restart(&[]);
    assert!(!restarted.status.success());
    let said = text(&restarted) + &String::from_utf8_lossy(&restarted.stderr);
    assert!(said.contains("with error"), "{said}");
}

/// A program of tests/verbs outlives checkpoints, with images of this kind.
fn program_goes_on(name: &str, mode: &str, images: &str, count: u32) {
    let _alone = alone();
    let job = Checkpointed::new();
    let program = job.directory.path().join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("verbs")
        .join(name);
    fabric::compile(&sources, &program);
    let program = program.to_str().expect("a name");
    job.objects_go_on(name, &[program, mode], &["--mode", images], count);
}

macro_rules! objects {
    ($($test:ident: $mode:literal, $images:literal, $count:literal;)*) => {
        $(
            #[test]
            #[cfg_attr(
                not(has_file = "/usr/include/infiniband/verbs.h"),
                ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
            )]
            fn $test() {
                program_goes_on("objects", $mode, $images, $count);
            }
        )*
    };
}

objects! {
    processes_share_a_domain_of_xrc: "xrc", "full", 2;
    windows_are_bound_as_they_were: "windows", "full", 2;
    long_inline_data_in_a_parent_domain: "inline", "full", 2;
    an_event_is_of_what_the_program_finds: "events", "full", 2;
    increments_have_what_peers_have_written: "ledger", "incremental", 4;
    chains_that_another_model_has_no_room_for: "chains", "full", 2;
    what_peers_write_while_memory_is_copied_is_saved: "ledger", "background", 3;
}

macro_rules! halves {
    ($($test:ident: $mode:literal;)*) => {
        $(
            #[test]
            #[cfg_attr(
                not(has_file = "/usr/include/rdma/rdma_cma.h"),
                ignore = "/usr/include/rdma/rdma_cma.h is not there (ci/setup)"
            )]
            fn $test() {
                program_goes_on("halves", $mode, "full", 2);
            }
        )*
    };
}

halves! {
    who_waits_for_an_address_has_it: "address";
    who_waits_for_a_route_has_it: "route";
    a_request_that_nobody_has_heard_of_is_heard_of: "request";
    a_server_accepts_after_a_restart: "accept";
    an_answer_is_heard_after_a_restart: "answer";
    a_server_of_datagrams_accepts_after_a_restart: "datagrams";
}
