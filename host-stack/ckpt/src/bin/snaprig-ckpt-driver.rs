//! The library from the command line, as its tests use it.
//!
//!     snaprig-ckpt-driver launch DIR PROGRAM ARGUMENTS... | dump DIR [kill] [full] | restart DIR [ROUND]
//!         | receive DIR SOCKET | receive DIR HOST:PORT TOKEN
//!
//!     snaprig-ckpt-driver launch-in JOB NAME PROGRAM ARGUMENTS... | dump-job JOB [kill] | restart-job JOB [NAME]
//!     snaprig-ckpt-driver coordinate JOB [ADDRESS]
//!
//! MODE (incremental, background), ZSTD (a level), KEEP (checkpoints) and OVERHEAD (percent) are taken from the
//! environment.

use std::{env, ffi::OsString, path::Path, process::exit, time::Duration};

use snaprig_ckpt::{Address, Error, Job, Mode, Options, Policy, Reply, Request, Schedule};

/// How long a phase may take here.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
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

fn options() -> Options {
    let number = |name| env::var(name).ok().and_then(|text| text.parse().ok());
    let share = number("OVERHEAD").map(|percent| Policy {
        share: f64::from(percent) / 100.0,
        ..Policy::default()
    });
    Options {
        schedule: share.map_or(Schedule::Asked, Schedule::Share),
        mode: match env::var("MODE").as_deref() {
            Ok("incremental") => Mode::Incremental,
            Ok("background") => Mode::Background,
            _ => Mode::Full,
        },
        zstd: number("ZSTD"),
        keep: number("KEEP").map(|keep| keep as usize),
    }
}

fn run(command: Option<&str>, directory: &Path, rest: &[OsString]) -> Result<i32, Error> {
    match command {
        Some("launch") => snaprig_ckpt::launch(directory, rest, &options()),
        Some("restart") => {
            let round = rest.first().and_then(|round| round.to_str()?.parse().ok());
            snaprig_ckpt::restart(directory, round, &options())
        }
        Some("receive") => {
            let at = match rest {
                [socket] => Address::Unix(socket.into()),
                [host, token, ..] => Address::Tcp(host.to_string_lossy().into(), token.into()),
                [] => return Ok(2),
            };
            snaprig_ckpt::receive(directory, &at, &options())
        }
        Some("dump") => {
            let has = |word: &str| rest.iter().any(|given| given == word);
            let (kill, full) = (has("kill"), has("full"));
            let reply = snaprig_ckpt::ask(directory, Request::Dump { kill, full })?;
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
