//! Says which tests this machine can run: the others are ignored, and named as such.

/// Programs that others built, which tests run.
const PROGRAMS: &[&str] = &[
    "cmake",
    "fi_pingpong",
    "fio",
    "ib_write_bw",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "iperf",
    "lstopo-no-graphics",
    "make",
    "mckey",
    "mpicc",
    "mpicc.mpich",
    "mpicc.openmpi",
    "mpiexec.hydra",
    "mpirun",
    "pkg-config",
    "qperf",
    "rdma_server",
    "riostream",
    "rping",
    "tshark",
    "ucmatose",
    "ucx_perftest",
    "udaddy",
];
/// What programs are compiled with, or preloaded.
const FILES: &[&str] = &[
    "/usr/include/infiniband/verbs.h",
    "/usr/include/rdma/rdma_cma.h",
    "/usr/include/x86_64-linux-gnu/mpich/mpi.h",
    "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so",
    "/usr/sbin/sshd",
];

fn main() {
    snaprig_test_needs::tell();
    snaprig_test_needs::tell_root();
    snaprig_test_needs::tell_mounts("has_user_namespaces", "tmpfs", &["--map-root-user"]);
    snaprig_test_needs::tell_networks("has_network_namespaces");
    snaprig_test_needs::tell_programs(PROGRAMS);
    snaprig_test_needs::tell_files(FILES);
    // Whether this user may use it is another question than whether it is there.
    let fuse = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    snaprig_test_needs::say("has_fuse", fuse.is_ok());
}
