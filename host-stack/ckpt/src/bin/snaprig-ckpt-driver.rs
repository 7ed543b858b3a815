//! The library from the command line, as its tests use it.
//!
//!     snaprig-ckpt-driver launch DIR PROGRAM ARGUMENTS... | dump DIR [kill] | restart DIR
//!     snaprig-ckpt-driver launch-in JOB NAME PROGRAM ARGUMENTS... | dump-job JOB [kill] | restart-job JOB [NAME]
//!     snaprig-ckpt-driver coordinate JOB [ADDRESS]

use std::{ffi::OsString, path::Path, process::exit, time::Duration};

use snaprig_ckpt::{Error, Job, Reply, Request};

/// How long a phase may take here.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [command, directory, rest @ ..] = &arguments[..] else {
        exit(2);
    };
    match run(command.to_str(), Path::new(directory), rest) {
        Ok(status) => exit(status),
        Err(error) => {
            eprintln!("{error:?}");
            exit(1);
        }
    }
}

fn run(command: Option<&str>, directory: &Path, rest: &[OsString]) -> Result<i32, Error> {
    match command {
        Some("launch") => snaprig_ckpt::launch(directory, rest, None),
        Some("restart") => snaprig_ckpt::restart(directory, None),
        Some("dump") => {
            let kill = !rest.is_empty();
            let reply = snaprig_ckpt::ask(directory, Request::Dump { kill })?;
            println!("{reply:?}");
            Ok(i32::from(matches!(reply, Reply::Failed(_))))
        }
        Some("launch-in") => {
            let name = rest
                .first()
                .and_then(|name| name.to_str())
                .map(str::to_owned);
            snaprig_ckpt::launch_in(&Job::open_or_create(directory)?, name, &rest[1..])
        }
        Some("dump-job") => {
            let job = Job::open(directory)?;
            let dumped = snaprig_ckpt::dump_job(&job, !rest.is_empty(), PATIENCE)?;
            println!("{dumped:?}");
            Ok(0)
        }
        Some("restart-job") => {
            let only = rest.first().and_then(|name| name.to_str());
            snaprig_ckpt::restart_job(&Job::open(directory)?, only, PATIENCE)
        }
        Some("coordinate") => {
            let job = Job::open_or_create(directory)?;
            let listen = rest
                .first()
                .and_then(|address| address.to_str()?.parse().ok());
            snaprig_ckpt::coordinate(&job, listen, None)?;
            Ok(0)
        }
        _ => Ok(2),
    }
}
