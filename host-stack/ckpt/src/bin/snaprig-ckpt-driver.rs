//! The library from the command line, as its tests use it.
//!
//!     snaprig-ckpt-driver launch DIR PROGRAM ARGUMENTS... | dump DIR [kill] | restart DIR

use std::{ffi::OsString, path::Path, process::exit};

use snaprig_ckpt::{Error, Reply, Request};

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
        _ => Ok(2),
    }
}
