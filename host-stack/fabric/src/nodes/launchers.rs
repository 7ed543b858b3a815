//! What makes rank launchers start their programs on nodes: a program in rsh(1)'s place, lists of hosts, and the variables
//! by which Open MPI's mpirun and MPICH's hydra find both.
//!
//! srun(1) starts ranks on machines that slurmd runs on; `snaprig verbs --node slurm` puts each where Slurm says it is.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::Path,
};

use crate::{node::Node, nodes::PROCESS};

/// The program in rsh's place.
const RSH: &str = "rsh";
/// Hosts, as Open MPI has them, and as hydra has them.
const OPEN_MPI_HOSTS: &str = "open-mpi-hosts";
const HYDRA_HOSTS: &str = "hydra-hosts";

/// Writes what launchers need: `program` is `snaprig`.
pub fn write(nodes: &[Node], directory: &Path, program: &Path) -> io::Result<()> {
    // By this name a program knows what it is to be.
    let link = directory.join(snaprig_sdk::program::NAME);
    symlink(program, &link)?;
    let link = link.to_string_lossy().replace('\'', r"'\''");
    let script = format!(
        "#!/bin/sh\n\
         # Launchers put options of rsh before the host: none of them means anything here.\n\
         while :; do case \"$1\" in -l | -p) shift 2 ;; -*) shift ;; *) break ;; esac; done\n\
         exec '{link}' {PROCESS} \"$@\"\n"
    );
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o755);
    options
        .open(directory.join(RSH))?
        .write_all(script.as_bytes())?;
    let hosts = |line: fn(&Node) -> String| nodes.iter().map(line).collect::<String>();
    let open_mpi = hosts(|node| format!("{} slots=1\n", node.name()));
    fs::write(directory.join(OPEN_MPI_HOSTS), open_mpi)?;
    let hydra = hosts(|node| format!("{}:1\n", node.name()));
    fs::write(directory.join(HYDRA_HOSTS), hydra)
}

/// What launchers have in their environment.
pub fn environment(directory: &Path) -> Vec<(&'static str, OsString)> {
    let file = |name| directory.join(name).into_os_string();
    let mut environment = vec![
        ("OMPI_MCA_plm", "rsh".into()),
        ("OMPI_MCA_plm_rsh_agent", file(RSH)),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "1".into()),
        ("OMPI_MCA_orte_default_hostfile", file(OPEN_MPI_HOSTS)),
        // All nodes share the processors of one machine.
        ("OMPI_MCA_rmaps_base_oversubscribe", "1".into()),
        ("OMPI_MCA_hwloc_base_binding_policy", "none".into()),
        ("OMPI_MCA_mpi_yield_when_idle", "1".into()),
        ("HYDRA_LAUNCHER", "rsh".into()),
        ("HYDRA_LAUNCHER_EXEC", file(RSH)),
        ("HYDRA_HOST_FILE", file(HYDRA_HOSTS)),
        ("HYDRA_BINDING", "none".into()),
    ];
    if rustix::process::geteuid().is_root() {
        // Root of nodes that go with their launcher.
        let names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        environment.extend(names.map(|name| (name, "1".into())));
    }
    environment
}
