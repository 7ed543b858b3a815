//! What checkpoints need. A program is checkpointed and restarted: there are too many ways to be forbidden parts of it.

use std::{env, fs, path::Path};

use snaprig_supervisor::{Ckpt, CkptError};

use super::{Check, Found, failed};

const CONTAINER: &str = "kernel.yama.ptrace_scope of 0 or 1; a container: --cap-add SYS_PTRACE, and a seccomp filter that allows pidfd_getfd";
const NAMESPACES: &str = "root, or user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
    kernel.apparmor_restrict_unprivileged_userns=0); docker: --cap-add SYS_ADMIN --security-opt systempaths=unconfined; \
    podman: --security-opt unmask=ALL";

pub(super) fn all() -> Vec<Check> {
    vec![
        Check::new("checkpoint", checkpoint, None, CONTAINER),
        Check::new("restart", restart, None, NAMESPACES),
    ]
}

/// Takes one of a program that sleeps.
fn checkpoint() -> Found {
    let directory = tempfile::tempdir().map_err(failed("a directory for it"))?;
    dumped(directory.path())?;
    Ok("of sleep(1), taken".into())
}

/// Takes one, and has the program go on from it.
fn restart() -> Found {
    let directory = tempfile::tempdir().map_err(failed("a directory for it"))?;
    dumped(directory.path()).map_err(|_| "there is no checkpoint to restart from")?;
    let log = directory.path().join("log");
    let program = builder(directory.path())?
        .restart(None)
        .map_err(|error| why(error, &log))?;
    program.status().map_err(|error| why(error, &log))?;
    Ok("of sleep(1), which goes on".into())
}

fn builder(directory: &Path) -> Result<snaprig_supervisor::CkptBuilder, String> {
    let exe = env::current_exe().map_err(failed("/proc/self/exe"))?;
    Ok(Ckpt::builder(directory.join("checkpoints"))
        .exe(exe)
        .log(directory.join("log")))
}

fn dumped(directory: &Path) -> Result<(), String> {
    let log = directory.join("log");
    let program = builder(directory)?
        .launch(["sleep", "60"])
        .map_err(|error| why(error, &log))?;
    program.dump_and_kill().map_err(|error| why(error, &log))?;
    Ok(())
}

/// What the supervisor has said, if it has said anything.
fn why(error: CkptError, log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    match log.lines().last() {
        Some(line) => line.trim_start_matches("snaprig: ").into(),
        None => error.to_string(),
    }
}
