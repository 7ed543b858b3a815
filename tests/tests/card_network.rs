//! Host and cards have a network to each other, each rig here in a network namespace of its own: unmodified ranks of MPI run
//! on both; a card reaches nothing else; and nothing is left of a network whose rig was killed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use snaprig_fixtures::mpi::KERNELS;

/// The `snaprig` program.
const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
/// Whatever hangs is ended; nothing takes longer, however busy the machine is.
const TIMEOUT_SECONDS: &str = "180";
/// What Debian's Open MPI has beside its libraries: what starts ranks on another machine, plugins, texts.
const OPEN_MPI: [&str; 5] = [
    "/usr/bin/orted",
    "/usr/lib/x86_64-linux-gnu/openmpi",
    "/usr/lib/x86_64-linux-gnu/pmix2",
    "/usr/share/openmpi",
    "/etc/openmpi",
];

/// `snaprig` in a network of its own.
fn apart(arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args([TIMEOUT_SECONDS, "unshare", "--map-root-user", "--net", "--"]);
    command.arg(SNAPRIG).args(arguments).stdin(Stdio::null());
    command
}

/// Whether it was a success, and both of what it printed.
fn ran(command: &mut Command) -> (bool, [String; 2]) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it starts");
    let texts = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (status.success(), texts)
}

/// A job of Open MPI with a rank on the host and one on each of two cards, over TCP.
fn job(kernels: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let kernels: Vec<_> = KERNELS
        .iter()
        .filter(|kernel| kernels.contains(&kernel.name))
        .collect();
    let compile = |kernel: &&snaprig_fixtures::mpi::Kernel| {
        let compiled = kernel.compile("mpicc", directory.path());
        compiled.expect("it compiles")
    };
    let programs: Vec<PathBuf> = kernels.iter().map(compile).collect();
    let mut files: Vec<&Path> = OPEN_MPI.iter().map(Path::new).collect();
    files.extend(programs.iter().map(PathBuf::as_path));
    let mut rig = apart(&["run", "--network", "--cards", "2", "--memory", "768M"]);
    for file in files {
        rig.arg("--files").arg(file);
    }
    // One after the other, as long as all goes well. A rank's working directory is there on cards, too.
    rig.args(["--", "sh", "-ec"])
        .arg("for program; do mpirun --host localhost,mic0,mic1 --wdir /tmp \"$program\"; done");
    let (is_good, [stdout, stderr]) = ran(rig.arg("sh").args(&programs));
    let golden: String = kernels.iter().map(|kernel| kernel.golden).collect();
    assert!(is_good, "{stdout}{stderr}");
    assert_eq!(stdout, golden, "{stderr}");
}

#[test]
#[cfg_attr(
    not(has_network_namespaces),
    ignore = "unshare --net makes no network with veth (root, or namespaces of users, and iproute2)"
)]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn ranks_of_open_mpi_run_on_the_host_and_on_cards() {
    job(&["ring", "alltoall", "onesided"]);
}

#[test]
#[cfg_attr(
    not(has_network_namespaces),
    ignore = "unshare --net makes no network with veth (root, or namespaces of users, and iproute2)"
)]
fn a_card_reaches_the_network_by_name_and_nothing_else() {
    let script = "getent hosts host mic0; (: < /dev/tcp/host/1); (: < /dev/tcp/8.8.8.8/53); (: < /dev/tcp/mic1/1)";
    let mut command = apart(&[
        "card",
        "run",
        "--network",
        "--files",
        "/usr/bin/getent",
        "--",
    ]);
    let (_, [stdout, stderr]) = ran(command.args(["bash", "-c", script]));
    assert!(
        stdout.contains("172.31.1.254    host\n172.31.1.1      mic0\n"),
        "{stdout}{stderr}"
    );
    for why in [
        "/dev/tcp/host/1: Connection refused",
        "/dev/tcp/8.8.8.8/53: Network is unreachable",
        "/dev/tcp/mic1/1: Invalid argument",
    ] {
        assert!(stderr.contains(why), "{why}: {stderr}");
    }
}

#[test]
#[cfg_attr(
    not(has_network_namespaces),
    ignore = "unshare --net makes no network with veth (root, or namespaces of users, and iproute2)"
)]
fn a_second_rig_is_told_that_the_network_is_taken() {
    let mut command = apart(&["run", "--network", "--", SNAPRIG, "run", "--network"]);
    let (is_good, [_, stderr]) = ran(command.args(["--", "true"]));
    assert!(!is_good);
    let said = "there is an interface micbr0 already, of another rig or of a real card; in a network of its own: unshare -rn";
    assert!(stderr.contains(said), "{stderr}");
}

#[test]
#[cfg_attr(
    not(has_network_namespaces),
    ignore = "unshare --net makes no network with veth (root, or namespaces of users, and iproute2)"
)]
fn nothing_is_left_of_a_network_whose_rig_was_killed() {
    // The rig's process is its program's parent. Whoever comes next finds the network free, by and by.
    let script = "\"$0\" run --network -- sh -c 'ip link show dev micbr0 && kill -9 $PPID'; \
                  while ip link show dev micbr0; do :; done; \"$0\" run --network -- true";
    let mut command = Command::new("timeout");
    command.args([TIMEOUT_SECONDS, "unshare", "--map-root-user", "--net", "--"]);
    command
        .args(["sh", "-c", script, SNAPRIG])
        .stdin(Stdio::null());
    let (is_good, texts) = ran(&mut command);
    assert!(is_good, "{texts:?}");
    assert!(texts[0].contains("micbr0"), "{texts:?}");
}
