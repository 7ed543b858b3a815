//! Nodes that share nothing but TCP: programs that others built for InfiniBand run on them, and a job goes over to them and back.

mod fabric;

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use fabric::{Fabric, SNAPRIG, assert_success, free_port, text, wait_until};
use snaprig_fixtures::mpi::{KERNELS, Kernel};

/// UCX over queue pairs alone.
const UCX: [&str; 8] = [
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "osc",
    "ucx",
    "-x",
    "UCX_TLS=rc,self",
];

/// `snaprig nodes 2 --tcp`, with these arguments.
fn nodes(arguments: &[&str]) -> Output {
    so_many_nodes("2", arguments)
}

/// `snaprig nodes COUNT --tcp`, with these arguments.
fn so_many_nodes(count: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(SNAPRIG);
    command.args(["nodes", count, "--tcp"]).args(arguments);
    command.stdin(Stdio::null());
    command.output().expect("snaprig starts")
}

/// A server on node 1 and its client on node 2, which begins again until the server listens. What they say.
fn pair(server: &str, client: &str) -> String {
    let script = format!(
        "cd $SNAPRIG_NODES\n\
         ./rsh node1 '{server}' & server=$!\n\
         until ./rsh node2 '{client}'; do kill -0 $server || exit 1; done\n\
         wait $server"
    );
    let ran = nodes(&["--", "sh", "-c", &script]);
    assert_success(server, std::slice::from_ref(&ran));
    text(&ran)
}

macro_rules! pairs {
    ($($(#[$needs:meta])* $test:ident: $server:literal, $client:literal, $said:literal;)*) => {
        $(
            #[test]
            $(#[$needs])*
            fn $test() {
                let said = pair($server, $client);
                assert!(said.contains($said), "{said}");
            }
        )*
    };
}

pairs! {
    #[cfg_attr(not(has_program = "ibv_rc_pingpong"), ignore = "ibv_rc_pingpong is not installed (ci/setup)")]
    messages: "ibv_rc_pingpong -c", "ibv_rc_pingpong -c 10.77.0.1", "1000 iters";
    #[cfg_attr(not(has_program = "ibv_rc_pingpong"), ignore = "ibv_rc_pingpong is not installed (ci/setup)")]
    events: "ibv_rc_pingpong -c -e", "ibv_rc_pingpong -c -e 10.77.0.1", "1000 iters";
    #[cfg_attr(not(has_program = "ibv_rc_pingpong"), ignore = "ibv_rc_pingpong is not installed (ci/setup)")]
    datagrams: "ibv_ud_pingpong -c", "ibv_ud_pingpong -c 10.77.0.1", "1000 iters";
    #[cfg_attr(not(has_program = "ibv_rc_pingpong"), ignore = "ibv_rc_pingpong is not installed (ci/setup)")]
    shared_receives: "ibv_srq_pingpong -c", "ibv_srq_pingpong -c 10.77.0.1", "1000 iters";
    #[cfg_attr(not(has_program = "ib_write_bw"), ignore = "ib_write_bw is not installed (ci/setup)")]
    writes: "ib_write_bw -F", "ib_write_bw -F 10.77.0.1", "65536";
    #[cfg_attr(not(has_program = "ib_write_bw"), ignore = "ib_write_bw is not installed (ci/setup)")]
    reads: "ib_read_bw -F", "ib_read_bw -F 10.77.0.1", "65536";
    #[cfg_attr(not(has_program = "ib_write_bw"), ignore = "ib_write_bw is not installed (ci/setup)")]
    atomics: "ib_atomic_lat -F", "ib_atomic_lat -F 10.77.0.1", "1000";
    #[cfg_attr(not(has_program = "rping"), ignore = "rping is not installed (ci/setup)")]
    connections_of_the_manager: "rping -s -v -C 10", "rping -c -C 10 -a 10.77.0.1", "server ping data";
    #[cfg_attr(not(has_program = "udaddy"), ignore = "udaddy is not installed (ci/setup)")]
    services_of_the_manager: "udaddy", "udaddy -s 10.77.0.1", "data transfers complete";
}

/// The program of `tests/verbs/group`.
fn group(directory: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs/group");
    let program = directory.join("group");
    fabric::compile(&sources, &program);
    program
}

/// The queue pairs of the first process of each node have the same numbers, the sender's among them.
#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn a_group_has_its_members_on_all_nodes() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = group(directory.path());
    let program = program.display();
    let script = format!(
        "cd $SNAPRIG_NODES\n\
         for node in 2 3 3; do timeout 100 ./rsh node$node '{program} follow' & members=\"$members $!\"; done\n\
         timeout 100 ./rsh node1 '{program} lead 4 500 0' || {{ kill $members; exit 1; }}\n\
         for member in $members; do wait $member || exit 1; done"
    );
    let ran = so_many_nodes("3", &["--", "bash", "-c", &script]);
    assert_success("group", std::slice::from_ref(&ran));
    let said = text(&ran);
    assert!(
        said.contains("7 members, 500 rounds, 0 said again"),
        "{said}"
    );
}

#[test]
#[cfg_attr(
    not(has_program = "mckey"),
    ignore = "mckey is not installed (ci/setup)"
)]
fn groups_of_the_manager_reach_all_nodes() {
    // A receiver tells nobody that it has joined; its node's fabric does.
    let script = format!(
        "cd $SNAPRIG_NODES\n\
         for node in 1 2 3; do\n\
             timeout 100 ./rsh node$node 'mckey -m 239.1.2.3 -b 10.77.0.'$node' -C 5' & members=\"$members $!\"\n\
             until ./rsh node$node '{SNAPRIG} fabric list' | grep '^group .* 1$'; do kill -0 $! || exit 1; done\n\
         done\n\
         timeout 100 ./rsh node1 'mckey -m 239.1.2.3 -b 10.77.0.1 -C 5 -s' || {{ kill $members; exit 1; }}\n\
         for member in $members; do wait $member || exit 1; done"
    );
    let ran = so_many_nodes("3", &["--", "bash", "-c", &script]);
    assert_success("mckey", std::slice::from_ref(&ran));
    let said = text(&ran);
    assert_eq!(
        said.matches("receiving data transfers").count(),
        3,
        "{said}"
    );
}

/// A server on node 1 and its client on node 2, between which the network is cut when they are at work. Then comes `meanwhile`, and
/// the network is whole again. `is_so NODE WHAT` waits until the fabric's list at a node has a line like that; `ended` is how the
/// client has ended, once `wait_for_client` has been called. What they and the script say.
fn cut(server: &str, client: &str, meanwhile: &str) -> String {
    let script = format!(
        "cd $SNAPRIG_NODES\n\
         is_so() {{ until ./rsh node$1 '{SNAPRIG} fabric list --json' | grep -E \"$2\" > /dev/null; do kill -0 $server || exit 1; done; }}\n\
         wait_for_client() {{ wait $client; ended=$?; }}\n\
         timeout 100 ./rsh node1 '{server}' & server=$!\n\
         (until timeout 100 ./rsh node2 '{client}' > client; do\n\
             status=$?; grep -q 'remote address' client && exit $status; kill -0 $server || exit 1\n\
         done) & client=$!\n\
         is_so 2 '\"port_xmit_packets\": [0-9]{{4}}'\n\
         ip link set snaprig2 down\n\
         {meanwhile}\n\
         ip link set snaprig2 up\n\
         [ $ended ] || wait_for_client\n\
         wait $server; echo server $?, client $ended; cat client"
    );
    text(&nodes(&["--", "bash", "-c", &script]))
}

/// The sender has missed an acknowledgement.
const IS_MISSED: &str = "is_so 2 '\"local_ack_timeout_err\": [1-9]'";

/// Processes of one node's control daemon have nothing in common with another's but what every process of a user may have.
#[test]
fn daemons_share_no_memory_and_no_socket() {
    let script = "cd $SNAPRIG_NODES\n\
        for node in 1 2; do ./rsh node$node 'ibv_devices; ls -i $SNAPRIG_FABRICS/default/socket' ; done\n\
        for pid in $(grep -l fabric-process /proc/[0-9]*/cmdline | cut -d/ -f3); do\n\
            tr '\\0' '\\n' < /proc/$pid/environ | grep -q \"SNAPRIG_TCP_TOKEN=$SNAPRIG_NODES/token\" || continue\n\
            grep -q snaprig-device /proc/$pid/maps || continue\n\
            readlink /proc/$pid/ns/net\n\
            grep snaprig-device /proc/$pid/maps | awk '{print \"memory\", $5}'\n\
        done";
    let ran = nodes(&["--", "bash", "-c", script]);
    assert_success("the script", std::slice::from_ref(&ran));
    let text = text(&ran);
    assert!(
        text.contains("snaprig_0") && text.contains("snaprig_1"),
        "{text}"
    );
    let distinct = |what: &str| {
        let mut lines: Vec<_> = text.lines().filter(|line| line.contains(what)).collect();
        lines.sort_unstable();
        lines.dedup();
        lines.len()
    };
    for what in ["net:[", "memory ", "/default/socket"] {
        assert_eq!(distinct(what), 2, "{what}: {text}");
    }
}

fn kernel(name: &str) -> &'static Kernel {
    let found = KERNELS.iter().find(|kernel| kernel.name == name);
    found.expect("it is among them")
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
fn kernels_have_their_golden_results() {
    let _alone = fabric::one_job();
    let directory = tempfile::tempdir().expect("a directory");
    for kernel in &KERNELS {
        let program = kernel
            .compile("mpicc", directory.path())
            .expect("it compiles");
        let program = program.to_str().expect("a name");
        let mpirun = ["--", "mpirun", "-n", "4"];
        let ran = nodes(&[&mpirun[..], &UCX, &[program]].concat());
        assert_success(kernel.name, std::slice::from_ref(&ran));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(said, kernel.golden, "{}", kernel.name);
    }
}

/// A life of a job: begun so, checkpointed when it has said how far it is, and killed. What it said.
fn life(job: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(SNAPRIG);
    command.args(["nodes", "2", "--job"]).arg(job);
    command.args(arguments).stdin(Stdio::null());
    let mut running = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("snaprig starts");
    let mut out = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("iteration ") {
        let count = out.read_line(&mut said).expect("it is text");
        assert!(count > 0, "it has ended: {said}");
    }
    let mut dump = Command::new(SNAPRIG);
    dump.args(["ckpt", "dump", "--kill", "--job"]).arg(job);
    assert_success("ckpt dump", &[dump.output().expect("snaprig starts")]);
    out.read_to_string(&mut said).expect("it is text");
    running.wait().expect("it is ours");
    said
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
fn a_job_goes_over_to_tcp_and_back() {
    let _alone = fabric::one_job();
    let directory = tempfile::tempdir().expect("a directory");
    let job = directory.path().join("job");
    let ring = kernel("ring");
    let program = ring
        .compile("mpicc", directory.path())
        .expect("it compiles");
    let program = program.to_str().expect("a name");
    let mpirun = ["--", "mpirun", "-n", "4"];
    let paced = [program, "--pace-us", "200000"];
    let first = life(&job, &[&mpirun[..], &UCX, &paced].concat());
    let over_tcp = life(&job, &["--tcp", "--restart"]);
    let mut last = Command::new(SNAPRIG);
    last.args(["nodes", "2", "--restart", "--job"]).arg(&job);
    let last = last.stdin(Stdio::null()).output().expect("snaprig starts");
    assert_success("ring", std::slice::from_ref(&last));
    let last = String::from_utf8_lossy(&last.stdout).into_owned();
    assert_eq!([first, over_tcp, last].concat(), ring.golden);
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn a_group_goes_over_to_tcp_and_back() {
    const ROUNDS: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let job = directory.path().join("job");
    let program = group(directory.path());
    let program = program.display();
    let script = format!(
        "$SNAPRIG_NODES/rsh node2 '{program} follow' & member=$!\n\
         $SNAPRIG_NODES/rsh node1 '{program} lead 2 {ROUNDS} 50000' && wait $member"
    );
    let first = life(&job, &["--", "sh", "-c", &script]);
    let over_tcp = life(&job, &["--tcp", "--restart"]);
    let mut last = Command::new(SNAPRIG);
    last.args(["nodes", "2", "--restart", "--job"]).arg(&job);
    let last = last.stdin(Stdio::null()).output().expect("snaprig starts");
    assert_success("group", std::slice::from_ref(&last));
    let said = [
        first,
        over_tcp,
        String::from_utf8_lossy(&last.stdout).into(),
    ]
    .concat();
    let (rounds, end): (Vec<_>, Vec<_>) = said
        .lines()
        .partition(|line| line.starts_with("iteration "));
    let expected: Vec<_> = (0..ROUNDS)
        .map(|round| format!("iteration {round}"))
        .collect();
    assert_eq!(rounds, expected);
    let end = end.concat();
    assert!(
        end.starts_with(&format!("3 members, {ROUNDS} rounds")),
        "{end}"
    );
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn a_short_cut_is_survived() {
    let write = "ib_write_bw -F -n 20000 -s 16384 -u 18";
    let said = cut(write, &format!("{write} 10.77.0.1"), IS_MISSED);
    assert!(said.contains("server 0, client 0"), "{said}");
}

/// Longer than their connections last: the nodes find each other again, and the programs' retries do not end before that.
#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn programs_go_on_when_their_nodes_have_found_each_other_again() {
    let write = "ib_write_bw -F -n 20000 -s 16384 -u 21";
    let both_are_down = "for node in 1 2; do is_so $node '\"is_up\": false'; done";
    let said = cut(write, &format!("{write} 10.77.0.1"), both_are_down);
    assert!(said.contains("server 0, client 0"), "{said}");
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn a_long_cut_ends_a_request_as_an_hca_does() {
    let write = "ib_write_bw -F -n 500000 -s 4096";
    let said = cut(write, &format!("{write} 10.77.0.1"), "wait_for_client");
    // IBV_WC_RETRY_EXC_ERR; the server hears from its client that it has ended.
    assert!(
        said.contains("server 1, client 1") && said.contains("Failed status 12"),
        "{said}"
    );
}

/// A job that looks at every byte.
#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn a_job_has_its_golden_results_after_a_cut() {
    let _alone = fabric::one_job();
    let directory = tempfile::tempdir().expect("a directory");
    let ring = kernel("ring");
    let program = ring
        .compile("mpicc", directory.path())
        .expect("it compiles");
    let said = directory.path().join("said");
    let script = format!(
        "timeout 100 mpirun -n 4 {ucx} {program} --pace-us 100000 > {said} & job=$!\n\
         until grep -q '^ring: iteration ' {said}; do kill -0 $job || exit 1; done\n\
         ip link set snaprig2 down\n\
         until for node in 1 2; do $SNAPRIG_NODES/rsh node$node '{SNAPRIG} fabric list --json'; done |\n\
             grep '\"local_ack_timeout_err\": [1-9]' > /dev/null; do kill -0 $job || exit 1; done\n\
         ip link set snaprig2 up\n\
         wait $job",
        ucx = UCX.join(" "),
        program = program.display(),
        said = said.display(),
    );
    let ran = nodes(&["--", "bash", "-c", &script]);
    assert_success("ring", std::slice::from_ref(&ran));
    let said = std::fs::read_to_string(said).expect("what it said");
    assert_eq!(said, ring.golden);
}

/// As on two machines, each of which has been told the addresses of both.
#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn verbs_takes_the_addresses_of_machines() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    snaprig_peers::Token::create(&token).expect("a token");
    let addresses = format!("127.0.0.1:{},127.0.0.1:{}", free_port(), free_port());
    let machine = |node| {
        let token = token.to_str().expect("a name");
        Fabric::new(&["--tcp", &addresses, "--tcp-token", token, "--node", node])
    };
    let machines = [machine("1"), machine("2")];
    let port = free_port();
    let port_text = port.to_string();
    let program = ["ibv_rc_pingpong", "-c", "-p", &port_text];
    let server = machines[0].start(&program);
    fabric::wait_for_listener(port);
    let client = machines[1].start(&[&program[..], &["127.0.0.1"]].concat());
    let outputs = [server.output(), client.output()];
    assert_success("both", &outputs);
    assert!(
        text(&outputs[0]).contains("remote address: LID 0x0002"),
        "{}",
        text(&outputs[0])
    );
    for machine in &machines {
        wait_until("its daemon ends", || machine.daemons().is_empty());
    }
}
