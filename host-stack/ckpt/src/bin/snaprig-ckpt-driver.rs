//! The library from the command line, as its tests use it.
//!
//!     snaprig-ckpt-driver launch DIR PROGRAM ARGUMENTS... | dump DIR [kill] [full] | restart DIR [ROUND]
//!         | receive DIR SOCKET | receive DIR HOST:PORT TOKEN
//!     snaprig-ckpt-driver plugin SOCKET
//!
//! The last is a program with a plugin: it is connected to that socket.
//! MODE (incremental, background), ZSTD (a level), KEEP (checkpoints) and OVERHEAD (percent) are taken from the
//! environment.

use std::{
    env,
    ffi::OsString,
    fs, io,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::exit,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use snaprig_ckpt::{Address, Error, Mode, Options, Policy, Reply, Request, Schedule};
use snaprig_ckpt_plugin::{Checkpoint, Options as PluginOptions, Plugin, Restart, register};

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
        Some("plugin") => Ok(with_plugin(directory).map_or_else(
            |error| {
                eprintln!("wrong: {error}");
                1
            },
            |()| 0,
        )),
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

/// Asks whoever listens at a socket until there is a file `go`.
fn with_plugin(socket: &Path) -> io::Result<()> {
    let device = Arc::new(Device {
        socket: socket.to_owned(),
        stream: Mutex::new(Some(UnixStream::connect(socket)?)),
        away: Mutex::new(false),
        back: Condvar::new(),
    });
    let registered = register(PluginOptions::new("device"), device.clone());
    let registered = registered.map_err(io::Error::other)?;
    println!("ready");
    while !fs::exists("go")? {
        device.ask()?;
    }
    drop(registered);
    println!("right");
    Ok(())
}

/// What only a plugin can save.
struct Device {
    socket: PathBuf,
    stream: Mutex<Option<UnixStream>>,
    away: Mutex<bool>,
    back: Condvar,
}

impl Device {
    fn ask(&self) -> io::Result<()> {
        let away = self.back.wait_while(lock(&self.away), |away| *away);
        let _here = away.unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &mut *lock(&self.stream) {
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
        }
        Ok(())
    }

    fn set_away(&self, is_away: bool) {
        *lock(&self.away) = is_away;
        self.back.notify_all();
    }
}

impl Plugin for Device {
    fn pre_checkpoint(&self, event: &mut Checkpoint) -> Result<(), String> {
        self.set_away(true);
        for stream in lock(&self.stream).iter() {
            event.own_descriptor(stream.as_raw_fd());
        }
        Ok(())
    }

    fn resume(&self) {
        self.set_away(false);
    }

    fn restart(&self, _: &Restart) -> Result<(), String> {
        let stream = UnixStream::connect(&self.socket);
        *lock(&self.stream) = Some(stream.map_err(|error| error.to_string())?);
        self.set_away(false);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
