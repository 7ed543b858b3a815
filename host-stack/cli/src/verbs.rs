//! `snaprig verbs`, `snaprig fabric`, and the process that is a fabric's control daemon.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::{Args, Subcommand};
use snaprig_verbs::{
    daemon::{Daemon, FaultRequest, PathFaults},
    place::{
        self, CAPTURE_ENV, FABRIC_ENV, FAULTS_ENV, HCAS_ENV, HCAS_MAX, MODEL_ENV, PKEYS_ENV,
        PKEYS_MAX, PROGRAM_ENV, Place,
    },
    protocol::Ask,
};

use crate::AnyError;

/// What a path does to packets
#[derive(Args)]
struct Faults {
    /// Packets that are lost
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// Packets that come twice
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    duplicate: f64,
    /// Packets that others overtake
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    reorder: f64,
    /// Packets that are damaged
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    corrupt: f64,
    /// How much later packets arrive, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    delay_us: u64,
}

impl Faults {
    fn of_paths(&self) -> Result<PathFaults, AnyError> {
        Ok(PathFaults {
            loss: per_mille(self.loss)?,
            duplicate: per_mille(self.duplicate)?,
            reorder: per_mille(self.reorder)?,
            corrupt: per_mille(self.corrupt)?,
            delay_ns: self.delay_us.saturating_mul(1000),
        })
    }
}

/// Run a program with HCAs: its libibverbs is ours
#[derive(Args)]
pub struct Options {
    /// How many HCAs the fabric has, if this starts it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=HCAS_MAX as i64))]
    hcas: u8,
    /// Their model: A, B, or a letter for each
    #[arg(long, value_name = "LETTERS", default_value = "A")]
    model: String,
    /// The P_Key table of every port, if this starts the fabric: 8xxx is a full member, 0xxx a limited one
    #[arg(long, value_name = "HEX,HEX,...", default_value = "0xffff")]
    pkeys: String,
    /// Which fabric
    #[arg(long, value_name = "NAME", default_value = place::DEFAULT_FABRIC)]
    fabric: String,
    #[command(
        flatten,
        next_help_heading = "Faults of every path, if this starts the fabric"
    )]
    faults: Faults,
    /// Write every packet to this file (pcapng), if this starts the fabric
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Print what to set in the environment instead of running anything
    #[arg(long, conflicts_with = "program")]
    env: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "env", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The library's file, as cargo leaves it beside or below the program.
const LIBRARY: &str = "libsnaprig_verbs.so";
/// The name that programs ask for.
const LIBRARY_NAME: &str = "libibverbs.so.1";

/// Runs the program in place of this one.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let place = Place::named(&options.fabric)?;
    if place::setup(usize::from(options.hcas), &options.model).is_none() {
        return Err(format!(
            "--model {}: A or B, or a letter for each HCA",
            options.model
        )
        .into());
    }
    if place::pkeys(&options.pkeys).is_none() {
        return Err(format!(
            "--pkeys {}: hexadecimal numbers, at most {PKEYS_MAX}, with commas",
            options.pkeys
        )
        .into());
    }
    let libraries = libraries()?;
    // For files of ours to be there, our library comes before libc; in a program that has it from
    // another library, or by dlopen(3), only so. After the user's own: sanitizers must be first.
    let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if !preload.is_empty() {
        preload.push(":");
    }
    preload.push(libraries.join(LIBRARY_NAME));
    let path = std::env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
    let path = std::env::join_paths(
        std::iter::once(libraries).chain(path.iter().flat_map(std::env::split_paths)),
    )?;
    let capture = options
        .capture
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let environment: [(&str, OsString); 9] = [
        ("LD_LIBRARY_PATH", path),
        ("LD_PRELOAD", preload),
        (PROGRAM_ENV, std::env::current_exe()?.into()),
        (FABRIC_ENV, place.name.into()),
        (HCAS_ENV, options.hcas.to_string().into()),
        (MODEL_ENV, options.model.clone().into()),
        (PKEYS_ENV, options.pkeys.clone().into()),
        (CAPTURE_ENV, capture.unwrap_or_default().into()),
        (FAULTS_ENV, options.faults.of_paths()?.to_string().into()),
    ];
    if options.env {
        for (name, value) in environment {
            println!(
                "export {name}='{}'",
                value.to_string_lossy().replace('\'', r"'\''")
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (program, arguments) = options.program.split_first().ok_or("no program")?;
    let error = Command::new(program)
        .args(arguments)
        .envs(environment)
        .exec();
    Err(format!("{}: {error}", Path::new(program).display()).into())
}

/// A directory with the library under the name that programs ask for.
fn libraries() -> Result<PathBuf, AnyError> {
    let program = std::env::current_exe()?;
    let near = program.parent().unwrap_or(Path::new("."));
    // What cargo leaves beside the program may be older than what it leaves among the dependencies.
    let library = [
        near.join("deps").join(LIBRARY),
        near.join(LIBRARY),
        near.join("../lib").join(LIBRARY),
    ]
    .into_iter()
    .find(|path| path.is_file())
    .ok_or_else(|| {
        format!(
            "no {LIBRARY} in {}; `cargo build -p snaprig-verbs` makes it",
            near.display()
        )
    })?;
    let library = library.canonicalize()?;
    let directory = library.with_file_name("snaprig-lib");
    fs::create_dir_all(&directory)?;
    let link = directory.join(LIBRARY_NAME);
    if fs::read_link(&link).is_ok_and(|there| there == library) {
        return Ok(directory);
    }
    // Made beside and renamed: another of us may be doing the same.
    let new = directory.join(format!(".new-{}", std::process::id()));
    symlink(&library, &new)?;
    fs::rename(&new, &link)?;
    Ok(directory)
}

/// Becomes the control daemon of the fabric that the environment names.
pub fn fabric_process() -> Result<ExitCode, AnyError> {
    let daemon = Daemon::start(Place::from_env()?, place::setup_from_env()?)?;
    // So that it is nobody's child: who started it waits for this process alone.
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error().into()),
        0 => {}
        _ => return Ok(ExitCode::SUCCESS),
    }
    rustix::process::setsid()?;
    println!("ready");
    // The end of what it prints is what its starter waits for.
    let null = fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    daemon.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Look at a fabric, break it, heal it
#[derive(Args)]
pub struct FabricOptions {
    /// Which fabric
    #[arg(long, value_name = "NAME", default_value = place::DEFAULT_FABRIC, global = true)]
    fabric: String,
    #[command(subcommand)]
    command: FabricCommand,
}

#[derive(Subcommand)]
enum FabricCommand {
    /// Ports, links, and what is wrong with the paths
    List,
    /// Lose, double, overtake, damage or delay packets; shares are in percent
    Fault {
        /// From the port with this LID [default: all]
        #[arg(long, value_name = "LID")]
        from: Option<u16>,
        /// To the port with this LID [default: all]
        #[arg(long, value_name = "LID")]
        to: Option<u16>,
        #[command(flatten)]
        faults: Faults,
    },
    /// Take a port's link down
    Down {
        /// The port's LID
        lid: u16,
    },
    /// Bring a port's link up
    Up {
        /// The port's LID
        lid: u16,
    },
    /// Write every packet to a file that Wireshark reads (pcapng), from now on
    Capture {
        /// The file
        #[arg(required_unless_present = "stop")]
        file: Option<PathBuf>,
        /// Write no more
        #[arg(long, conflicts_with = "file")]
        stop: bool,
    },
    /// Make everything as new
    Heal,
}

/// Tells the fabric's daemon.
pub fn fabric(options: &FabricOptions) -> Result<ExitCode, AnyError> {
    let place = Place::named(&options.fabric)?;
    let change = match options.command {
        FabricCommand::List => None,
        FabricCommand::Fault {
            from,
            to,
            ref faults,
        } => {
            let faults = faults.of_paths()?;
            Some(Ask::Fault(FaultRequest::Set { from, to, faults }))
        }
        FabricCommand::Down { lid } => Some(Ask::Fault(FaultRequest::Link { lid, up: false })),
        FabricCommand::Up { lid } => Some(Ask::Fault(FaultRequest::Link { lid, up: true })),
        FabricCommand::Capture { ref file, .. } => {
            let file = file.as_deref().map(std::path::absolute).transpose()?;
            Some(Ask::Capture { file })
        }
        FabricCommand::Heal => Some(Ask::Fault(FaultRequest::Heal)),
    };
    let text = snaprig_verbs::client::tell(&place, change)?;
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn per_mille(percent: f64) -> Result<u16, AnyError> {
    if (0.0..=100.0).contains(&percent) {
        Ok((percent * 10.0).round() as u16)
    } else {
        Err(format!("{percent}: a share is 0 to 100 percent").into())
    }
}
