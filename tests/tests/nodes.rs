//! Nodes of a fabric: each program sees the HCAs of its node alone, nodes reach each other, and the launchers of MPI start
//! ranks on them.

mod fabric;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use fabric::SNAPRIG;
use snaprig_fabric::{Fabric, Model};

/// What a program prints, of which it must be a success.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{status}: {stdout}{stderr}");
    stdout
}

/// The devices that ibv_devices(1) lists.
fn devices(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    lines.filter(|name| name.starts_with("snaprig_")).collect()
}

/// `snaprig nodes`, and a program.
fn nodes(arguments: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(SNAPRIG);
    command.arg("nodes").args(arguments).arg("--").args(program);
    command
}

/// The lines of a launcher's ranks, in order: where each was.
fn ranks(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_program_on_a_node_sees_its_hcas_alone() {
    let fabric = Fabric::builder()
        .exe(SNAPRIG)
        .hcas(5)
        .node_hcas(2)
        .model(Model::B)
        .start()
        .unwrap();
    let on = |number| {
        let mut command = fabric.node(number).unwrap().command("ibv_devices").unwrap();
        output(&mut command)
    };
    assert_eq!(devices(&on(1)), ["snaprig_0", "snaprig_1"]);
    assert_eq!(devices(&on(2)), ["snaprig_2", "snaprig_3"]);
    let all = output(&mut fabric.command("ibv_devices"));
    assert_eq!(devices(&all).len(), 5);
    // Half a node is none.
    let error = fabric.node(3).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no node 3: a fabric of 5 HCAs, 2 a node, has 2 of them"
    );
    assert!(fabric.node(0).is_err());
    assert!(fabric.node(1).unwrap().command("true").is_ok());
    assert!(fabric.node(1).unwrap().directory().is_dir());
}

#[test]
fn verbs_takes_a_node_and_slurm_says_which() {
    let place = tempfile::tempdir().unwrap();
    let verbs = |node: &str| {
        let mut command = Command::new(SNAPRIG);
        command.args(["verbs", "--hcas", "3", "--node", node, "--", "ibv_devices"]);
        command.env("SNAPRIG_FABRICS", place.path());
        command
    };
    assert_eq!(devices(&output(&mut verbs("3"))), ["snaprig_2"]);
    let slurm = output(verbs("slurm").env("SLURM_NODEID", "1"));
    assert_eq!(devices(&slurm), ["snaprig_1"]);
    let refused = verbs("slurm").env_remove("SLURM_NODEID").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("SLURM_NODEID"),
        "{said}"
    );
}

#[test]
fn two_nodes_listen_at_the_same_port_and_each_is_reached_by_its_address() {
    let script = "cd $SNAPRIG_NODES\n\
        for node in 1 2; do ./rsh node$node 'rping -s -C 2 -v; echo served by $SNAPRIG_NODE' & done\n\
        for node in 1 2; do\n\
            for try in 1 2 3 4 5 6 7 8 9; do\n\
                ./rsh node3 \"rping -c -a 10.77.0.$node -C 2\" && break; sleep 0.2\n\
            done\n\
        done\n\
        wait";
    let text = output(&mut nodes(&["3"], &["sh", "-c", script]));
    for node in ["served by 1", "served by 2"] {
        assert!(text.contains(node), "{text}");
    }
    assert_eq!(text.matches("server ping data").count(), 4, "{text}");
}

#[test]
fn nodes_have_names_and_networks_and_go_with_their_launcher() {
    let script = "cd $SNAPRIG_NODES\n\
        ./rsh node2 'hostname; ip -o -4 addr show eth0; getent hosts node1; ls -d $SNAPRIG_NODE_DIR'";
    let text = output(&mut nodes(&["2"], &["sh", "-c", script]));
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0] == "node2" && lines[1].contains("10.77.0.2/24"),
        "{text}"
    );
    assert!(lines[2].starts_with("10.77.0.1"), "{text}");
    assert!(!Path::new(lines[3]).exists(), "it is gone: {text}");
    let failed = nodes(&["2"], &["sh", "-c", "$SNAPRIG_NODES/rsh node2 'exit 7'"]).status();
    assert_eq!(failed.unwrap().code(), Some(7));
    let unknown = nodes(&["2"], &["sh", "-c", "$SNAPRIG_NODES/rsh node3 true"]).output();
    let said = String::from_utf8_lossy(&unknown.unwrap().stderr).into_owned();
    assert!(said.contains("there is no node \"node3\""), "{said}");
}

#[test]
#[cfg_attr(not(is_root), ignore = "root makes networks")]
fn links_have_the_rate_that_is_asked_for() {
    let script = "cd $SNAPRIG_NODES\n\
        ./rsh node1 'exec timeout 60 iperf -s' > /dev/null & server=$!\n\
        for try in 1 2 3 4 5 6 7 8 9; do\n\
            ./rsh node2 'iperf -c 10.77.0.1 -n 4M -y C' 2> /dev/null | grep . && break; sleep 0.2\n\
        done\n\
        kill $server";
    let said = output(&mut nodes(
        &["2", "--link", "64mbit"],
        &["sh", "-c", script],
    ));
    let rate = said
        .trim()
        .rsplit(',')
        .next()
        .and_then(|rate| rate.parse::<f64>().ok());
    // Its own clock begins with the first byte: what fits into buffers is there at once.
    assert!(
        rate.is_some_and(|rate| (1e6..90e6).contains(&rate)),
        "{said}"
    );
}

#[test]
fn links_without_a_rate_or_without_tc_are_refused() {
    let refused = |mut nodes: Command| {
        let refused = nodes.output().expect("it starts");
        assert!(!refused.status.success());
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    let said = refused(nodes(&["1", "--link", "1g"], &["true"]));
    assert!(said.contains("1g: not a rate; write 1gbit"), "{said}");
    let programs = tempfile::tempdir().expect("a directory");
    let ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"];
    if let Some(ip) = ip.iter().find(|ip| Path::new(ip).exists()) {
        std::os::unix::fs::symlink(ip, programs.path().join("ip")).expect("a link");
    }
    let mut without = nodes(&["1", "--link", "1gbit"], &["/bin/true"]);
    without.env("PATH", programs.path());
    let said = refused(without);
    assert!(
        said.contains("tc(8)") || said.contains("root and ip(8)"),
        "{said}"
    );
}

#[test]
fn open_mpi_starts_its_ranks_on_nodes_and_they_compute_over_their_hcas() {
    let scratch = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join("mpi");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs/mpi/mpi.c");
    let mut mpicc = Command::new("mpicc");
    let compiled = mpicc
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status();
    assert!(compiled.expect("ci/setup installs it").success());
    let mpirun = |words: &[&str]| {
        let ucx = [
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "osc",
            "ucx",
            "-x",
            "UCX_TLS=rc,self",
        ];
        let all = [&["mpirun", "-np", "8"][..], &ucx, words].concat();
        output(&mut nodes(&["4"], &all))
    };
    let places = mpirun(&["sh", "-c", "echo $SNAPRIG_NODE $(hostname)"]);
    let expected =
        (1..=4).flat_map(|node| [format!("{node} node{node}"), format!("{node} node{node}")]);
    assert_eq!(ranks(&places), expected.collect::<Vec<_>>());
    mpirun(&[program.to_str().unwrap()]);
}

#[test]
fn hydra_starts_its_ranks_on_nodes() {
    let program = [
        "mpiexec.hydra",
        "-n",
        "6",
        "sh",
        "-c",
        "echo $SNAPRIG_NODE $(hostname)",
    ];
    let places = output(&mut nodes(&["3"], &program));
    let expected =
        (1..=3).flat_map(|node| [format!("{node} node{node}"), format!("{node} node{node}")]);
    assert_eq!(ranks(&places), expected.collect::<Vec<_>>());
}
