//! What makes launchers of MPI jobs start ranks on cards of a rig with a network: the variables by which Open MPI's mpirun
//! finds `snaprig card rsh`, and the network.

use std::{env, ffi::OsString, path::Path};

use snaprig_rig::network::NETWORK;

/// What launchers have in their environment, but for what the user has said; `program` is `snaprig`.
pub fn environment(program: &Path) -> Vec<(&'static str, OsString)> {
    let mut agent = program.as_os_str().to_owned();
    agent.push(" card rsh");
    let mut environment = vec![
        ("OMPI_MCA_plm", "rsh".into()),
        ("OMPI_MCA_plm_rsh_agent", agent),
        // Programs on cards start none on others.
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "1".into()),
        // The host may have other networks.
        ("OMPI_MCA_oob_tcp_if_include", NETWORK.into()),
        ("OMPI_MCA_btl_tcp_if_include", NETWORK.into()),
        // What else it may prefer is for hardware that cards have not.
        ("OMPI_MCA_pml", "ob1".into()),
        ("OMPI_MCA_btl", "tcp,self".into()),
        ("OMPI_MCA_osc", "^ucx".into()),
        // All cards share the processors of one machine.
        ("OMPI_MCA_rmaps_base_oversubscribe", "1".into()),
        ("OMPI_MCA_hwloc_base_binding_policy", "none".into()),
        ("OMPI_MCA_mpi_yield_when_idle", "1".into()),
    ];
    if rustix::process::geteuid().is_root() {
        // Cards have no other user.
        let names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        environment.extend(names.map(|name| (name, "1".into())));
    }
    environment.retain(|(name, _)| env::var_os(name).is_none());
    environment
}
