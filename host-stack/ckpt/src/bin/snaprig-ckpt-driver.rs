//! The library from the command line, as its tests use it.
//!
//!     snaprig-ckpt-driver launch DIR PROGRAM ARGUMENTS... | dump DIR [kill] [full] | restart DIR [ROUND]
//!         | receive DIR SOCKET | receive DIR HOST:PORT TOKEN
//!
//! MODE (incremental, background), ZSTD (a level), KEEP (checkpoints) and OVERHEAD (percent) are taken from the
//! environment.

use std::{env, ffi::OsString, path::Path, process::exit};

use snaprig_ckpt::{Address, Error, Mode, Options, Policy, Reply, Request, Schedule};

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
        _ => Ok(2),
    }
}
