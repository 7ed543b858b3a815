//! The library from the command line, as its tests use it.
//!
//!     snaprig-ckpt-driver launch DIR PROGRAM ARGUMENTS... | dump DIR [kill] [full] | restart DIR [ROUND]
//!         | migrate DIR SOCKET | receive DIR SOCKET | receive DIR HOST:PORT TOKEN
//!     snaprig-ckpt-driver launch-in JOB NAME PROGRAM ARGUMENTS... | dump-job JOB [kill] [full] [MODE]
//!         | restart-job JOB [NAME] | move JOB NAME [STRATEGY]
//!     snaprig-ckpt-driver coordinate JOB [ADDRESS]
//!     snaprig-ckpt-driver plugin SOCKET
//!
//! The last is a program with a plugin: it is connected to that socket. MODE (incremental, background), ZSTD (a level),
//! KEEP (checkpoints), PRELOAD (a library), OVERHEAD (percent) and INTERVAL (milliseconds), and ROUND of a job to be restarted, are taken from the
//! environment.

use std::{
    env,
    ffi::OsString,
    fs, io,
    io::{Read, Write},
    net::Ipv4Addr,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::exit,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use snaprig_ckpt_plugin::{Event, Options as PluginOptions, Plugin, register};
use snaprig_ppmr::{Buffers, driver::transport::Transport};
use snaprig_supervisor::{
    Copying, Error, Job, JobDump, Mode, Options, Pipelined, Policy, Program, Reply, Reporter,
    Request, Schedule, Settings, Strategy, Target, faults,
};

/// How the image of a member that moves comes here.
fn strategy(name: Option<&str>, job: &Path) -> Strategy {
    let host = Ipv4Addr::LOCALHOST.into();
    // Of an sshd, what is relative is in a home.
    let job = &std::path::absolute(job).unwrap_or_else(|_| job.into());
    let pipelined = Pipelined {
        host,
        buffers: Buffers {
            pool_bytes: 1 << 20,
            chunk_bytes: 64 << 10,
        },
        mode: snaprig_ppmr::Mode::Pull,
        transport: Transport::Tcp,
        copy: match name {
            Some("pre-copy") => Copying::Before,
            Some("post-copy") => Copying::After,
            _ => Copying::Stopped,
        },
        compress: true,
    };
    match name {
        Some("ppmr" | "pre-copy" | "post-copy") => Strategy::Pipeline(pipelined),
        Some("rdma-local") => Strategy::RdmaLocal(pipelined, job.into()),
        Some("local") => Strategy::Local(host, job.into()),
        Some("shared") => Strategy::Shared(job.into()),
        _ => Strategy::Descriptor,
    }
}

/// How long a phase may take here.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let [command, directory, rest @ ..] = &arguments[..] else {
        exit(2);
    };
    match faults::plan_of_environment() {
        Ok(plan) => plan.into_iter().for_each(faults::follow),
        Err(why) => {
            eprintln!("{why}");
            exit(2);
        }
    }
    match run(command.to_str(), Path::new(directory), rest) {
        Ok(status) => exit(status),
        Err(error) => {
            eprintln!("{error:?}");
            exit(1);
        }
    }
}

fn number(name: &str) -> Option<i32> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

fn mode(name: &str) -> Option<Mode> {
    match name {
        "full" => Some(Mode::Full),
        "incremental" => Some(Mode::Incremental),
        "background" => Some(Mode::Background),
        _ => None,
    }
}

/// What there is to say of a job.
fn settings() -> Settings {
    let interval = number("INTERVAL").map(|ms| Duration::from_millis(ms as u64));
    Settings {
        schedule: interval.map(Schedule::Every),
        mode: env::var("MODE").ok().and_then(|name| mode(&name)),
        zstd: number("ZSTD"),
        keep: number("KEEP").map(|keep| keep as usize),
    }
}

fn options() -> Options {
    let share = number("OVERHEAD").map(|percent| Policy {
        share: f64::from(percent) / 100.0,
        ..Policy::default()
    });
    Options {
        schedule: share.map_or(Schedule::Asked, Schedule::Share),
        mode: settings().mode.unwrap_or_default(),
        zstd: number("ZSTD"),
        keep: number("KEEP").map(|keep| keep as usize),
        reporter: reporter(),
    }
}

/// What happens is printed, as the command line does.
fn reporter() -> Reporter {
    Reporter::to(|event: &snaprig_supervisor::Event| eprintln!("snaprig: {event}"))
}

fn run(command: Option<&str>, directory: &Path, rest: &[OsString]) -> Result<i32, Error> {
    match command {
        Some("launch") => {
            let preload: Vec<_> = env::var_os("PRELOAD").map(Into::into).into_iter().collect();
            let program = Program {
                words: rest,
                preload: &preload,
                environment: &[],
            };
            snaprig_supervisor::launch(directory, program, &options())
        }
        Some("plugin") => Ok(with_plugin(directory).map_or_else(
            |error| {
                eprintln!("wrong: {error}");
                1
            },
            |()| 0,
        )),
        Some("restart") => {
            let round = rest.first().and_then(|round| round.to_str()?.parse().ok());
            snaprig_supervisor::restart(directory, round, &options())
        }
        Some("migrate") => {
            let to = Target::unix(rest.first().cloned().unwrap_or_default());
            let reply = snaprig_supervisor::ask(directory, Request::Migrate { to })?;
            println!("{reply:?}");
            Ok(i32::from(matches!(reply, Reply::Failed(_))))
        }
        Some("receive") => {
            let at = match rest {
                [socket] => Target::unix(socket),
                [host, token, ..] => Target::tcp(host.to_string_lossy(), token),
                [] => return Ok(2),
            };
            snaprig_supervisor::receive(directory, &at, &options())
        }
        Some("dump") => {
            let has = |word: &str| rest.iter().any(|given| given == word);
            let (kill, full) = (has("kill"), has("full"));
            let reply = snaprig_supervisor::ask(directory, Request::Dump { kill, full })?;
            println!("{reply:?}");
            Ok(i32::from(matches!(reply, Reply::Failed(_))))
        }
        Some("launch-in") => {
            let name = rest
                .first()
                .and_then(|name| name.to_str())
                .map(str::to_owned);
            let job = Job::open_or_create(directory)?.told_to(&reporter());
            job.set(settings())?;
            snaprig_supervisor::launch_in(&job, name, &rest[1..])
        }
        Some("dump-job") => {
            let job = Job::open(directory)?.told_to(&reporter());
            let words: Vec<_> = rest.iter().filter_map(|word| word.to_str()).collect();
            let wanted = JobDump {
                kill: words.contains(&"kill"),
                full: words.contains(&"full"),
                mode: words
                    .iter()
                    .find_map(|word| mode(word).filter(|_| *word != "full")),
                patience: PATIENCE,
            };
            let dumped = snaprig_supervisor::dump_job(&job, &wanted)?;
            println!("{dumped:?}");
            Ok(0)
        }
        Some("move") => {
            let job = Job::open(directory)?.told_to(&reporter());
            let member = rest
                .first()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            snaprig_supervisor::inherit(
                &job,
                member,
                PATIENCE,
                &strategy(rest.get(1).and_then(|name| name.to_str()), directory),
                |moved| {
                    if let Ok(moved) = moved {
                        println!("{} has moved", moved.member);
                    }
                },
            )
        }
        Some("restart-job") => {
            let only = rest.first().and_then(|name| name.to_str());
            let round = number("ROUND").map(|round| round as u64);
            snaprig_supervisor::restart_job(
                &Job::open(directory)?.told_to(&reporter()),
                only,
                round,
                PATIENCE,
            )
        }
        Some("coordinate") => {
            let job = Job::open_or_create(directory)?.told_to(&reporter());
            let listen = rest
                .first()
                .and_then(|address| address.to_str()?.parse().ok());
            snaprig_supervisor::coordinate(&job, listen, None)?;
            Ok(0)
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
    fn save(&self, event: &mut Event) -> Result<(), String> {
        self.set_away(true);
        for stream in lock(&self.stream).iter() {
            event.own_descriptor(stream.as_raw_fd());
        }
        Ok(())
    }

    fn resume(&self, _: &mut Event) {
        self.set_away(false);
    }

    fn rebuild(&self, _: &mut Event) -> Result<(), String> {
        let stream = UnixStream::connect(&self.socket);
        *lock(&self.stream) = Some(stream.map_err(|error| error.to_string())?);
        self.set_away(false);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
