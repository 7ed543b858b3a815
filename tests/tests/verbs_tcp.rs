//! Nodes that share nothing but TCP: programs that others built for InfiniBand run on them, and a job goes over to them and back.

mod fabric;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use fabric::{Fabric, SNAPRIG, assert_success, free_port, text, wait_until};
use snaprig_fixtures::mpi::{KERNELS, Kernel};

/// How long a rank has worked before it is checkpointed: its processor time, in clock ticks of 10 ms.
const WORKED_TICKS: u64 = 4;
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
    let mut command = Command::new(SNAPRIG);
    command.args(["nodes", "2", "--tcp"]).args(arguments);
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
    writes: "ib_write_bw", "ib_write_bw 10.77.0.1", "65536";
    #[cfg_attr(not(has_program = "ib_write_bw"), ignore = "ib_write_bw is not installed (ci/setup)")]
    reads: "ib_read_bw", "ib_read_bw 10.77.0.1", "65536";
    #[cfg_attr(not(has_program = "ib_write_bw"), ignore = "ib_write_bw is not installed (ci/setup)")]
    atomics: "ib_atomic_lat", "ib_atomic_lat 10.77.0.1", "1000";
    #[cfg_attr(not(has_program = "rping"), ignore = "rping is not installed (ci/setup)")]
    connections_of_the_manager: "rping -s -v -C 10", "rping -c -C 10 -a 10.77.0.1", "server ping data";
    #[cfg_attr(not(has_program = "udaddy"), ignore = "udaddy is not installed (ci/setup)")]
    services_of_the_manager: "udaddy", "udaddy -s 10.77.0.1", "data transfers complete";
}

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

/// Where the network between nodes is cut, nothing passes: a queue pair fails as its retries end.
#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn nothing_passes_but_by_tcp() {
    let script = "cd $SNAPRIG_NODES\n\
        ./rsh node1 'ibv_rc_pingpong -n 100000000' > /dev/null & server=$!\n\
        ./rsh node2 'until ibv_rc_pingpong -n 100000000 10.77.0.1; do [ -e cut ] && break; done' & client=$!\n\
        received() { cat /sys/class/net/snaprig2/statistics/rx_packets; }\n\
        until [ $(received) -gt 2000 ]; do sleep 0.01; done\n\
        touch cut; ip link set snaprig2 down\n\
        wait $client; wait $server; echo both have ended";
    let ran = nodes(&["--", "bash", "-c", script]);
    let text = text(&ran);
    assert!(text.contains("both have ended"), "{text}");
    assert!(text.contains("transport retry counter exceeded"), "{text}");
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

/// Processor time that a process has had (proc_pid_stat(5)).
fn ticks_of(pid: u64) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let times = fields.split(' ').skip(11).take(2);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

/// A life of a job: begun so, checkpointed when all of its ranks have worked, and killed. What it said.
fn life(job: &Path, arguments: &[&str], rank: &str) -> String {
    let mut command = Command::new(SNAPRIG);
    command.args(["nodes", "2", "--job"]).arg(job);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().expect("snaprig starts");
    let ckpt = |arguments: &[&str]| {
        let mut command = Command::new(SNAPRIG);
        command.arg("ckpt").args(arguments).arg("--job").arg(job);
        command.output().expect("snaprig starts")
    };
    let worked = || {
        let status = ckpt(&["status", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        let members = status["members"].as_array().into_iter().flatten();
        let processes = members.flat_map(|member| member["processes"].as_array());
        let ranks = processes
            .flatten()
            .filter(|process| process["name"] == rank);
        let ticks = ranks.filter_map(|rank| rank["pid"].as_u64().map(ticks_of));
        ticks.filter(|ticks| *ticks >= WORKED_TICKS).count() == 4
    };
    wait_until("all ranks are at work", || {
        assert!(
            running.try_wait().expect("it is ours").is_none(),
            "it has ended"
        );
        worked()
    });
    assert_success("ckpt dump", &[ckpt(&["dump", "--kill"])]);
    let ended = running.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&ended.stdout).into_owned()
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
    let directory = tempfile::tempdir().expect("a directory");
    let job = directory.path().join("job");
    let ring = kernel("ring");
    let program = ring
        .compile("mpicc", directory.path())
        .expect("it compiles");
    let program = program.to_str().expect("a name");
    let mpirun = ["--", "mpirun", "-n", "4"];
    let paced = [program, "--pace-us", "400000"];
    let first = life(&job, &[&mpirun[..], &UCX, &paced].concat(), "ring");
    let over_tcp = life(&job, &["--tcp", "--restart"], "ring");
    let mut last = Command::new(SNAPRIG);
    last.args(["nodes", "2", "--restart", "--job"]).arg(&job);
    let last = last.stdin(Stdio::null()).output().expect("snaprig starts");
    assert_success("ring", std::slice::from_ref(&last));
    let last = String::from_utf8_lossy(&last.stdout).into_owned();
    assert_eq!([first, over_tcp, last].concat(), ring.golden);
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
