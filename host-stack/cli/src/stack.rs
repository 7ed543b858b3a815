//! Programs of the offload stack: `snaprig run` gives them a rig, `snaprig include` and `snaprig
//! build-sink` compile them.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Command, ExitCode, ExitStatus, Stdio},
};

use clap::Args;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open, setsid},
};
use snaprig_card_platform::Kind;
use snaprig_rig::{Rig, files::CardFiles, sdk::Sdk};

use crate::{
    AnyError,
    card_files::with_libraries,
    card_launchers,
    programs::{exports, not_started},
    size,
};

/// What a rig is to have
#[derive(Args)]
pub struct Setup {
    /// Cards
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    cards: u16,
    /// Memory of each card, as in 1G,512M; the last one holds for all further cards
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "512M", value_parser = size::parse)]
    memory: Vec<u64>,
    /// Cores of each card
    #[arg(long, value_name = "N", default_value_t = 8)]
    cores: usize,
    /// Hardware threads of each core (a Knights Corner has 4)
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads_per_core: usize,
    /// kvm or ptrace [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
    /// Put a directory, a tar image (*.tar) or a file onto every card: HOST[:PATH_ON_CARD]. Libraries that programs among them
    /// need come along by themselves. Can be given more than once
    #[arg(long, value_name = "HOST[:CARD]")]
    files: Vec<CardFiles>,
    /// Let programs on cards read and write files in a directory of the host, with Snapify-IO. Can be given more than once
    #[arg(long, value_name = "DIR")]
    share: Vec<PathBuf>,
    /// Host and cards have a network to each other: card N is 172.31.1.N, the host 172.31.1.254. Takes root, as in
    /// `unshare -rn`
    #[arg(long)]
    network: bool,
}

impl Setup {
    /// Boots its cards.
    pub fn start(&self) -> Result<Rig, AnyError> {
        let rig = Rig::builder()
            .exe(std::env::current_exe()?)
            .cards(self.cards.into())
            .memory_bytes_each(&self.memory)
            .cores(self.cores)
            .threads_per_core(self.threads_per_core)
            .platform(self.platform)
            .files(with_libraries(&self.files))
            .shares(self.share.clone())
            .network(self.network)
            .start()?;
        Ok(rig)
    }

    /// What a program has in its environment to use that rig.
    fn environment(&self, sdk: &Sdk, rig: &Rig) -> Result<Vec<(&'static str, OsString)>, AnyError> {
        let mut environment = sdk.environment(rig.dir())?;
        if self.network {
            environment.extend(card_launchers::environment(&std::env::current_exe()?));
        }
        Ok(environment)
    }
}

/// Run a program of the host on a rig: its libscif and libcoi_host are ours
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    setup: Setup,
    /// Start a rig in the background, and print what to set in the environment to use it. It ends
    /// with this session, or with the process SNAPRIG_RIG_PID
    #[arg(long, conflicts_with = "program")]
    env: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "env", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Boots the cards, runs the program, and takes over its exit status.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    // Before there is a thread, or a card.
    let sdk = Sdk::of(&std::env::current_exe()?)?;
    if options.env {
        return in_the_background(options, &sdk);
    }
    let (program, arguments) = options.program.split_first().ok_or("no program")?;
    let rig = options.setup.start()?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs(options.setup.environment(&sdk, &rig)?)
        .spawn()
        .map_err(|error| not_started(program, &error))?;
    // Keys are for the program: the rig lasts as long as it does.
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: SIG_IGN is no handler, so no code of this program runs at a signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(exit_code(child.wait()?))
}

/// As a shell reports it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code();
    let code = code.or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.unwrap_or(1) as u8)
}

/// The rig in a process of its own, which this one leaves behind.
fn in_the_background(options: &Options, sdk: &Sdk) -> Result<ExitCode, AnyError> {
    let session = session_leader()?;
    let (from, to) = io::pipe()?;
    // SAFETY: this process has one thread, so its child is a whole copy of it, and may do what it likes.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error().into()),
        0 => {}
        _ => {
            drop(to);
            let mut lines = 0;
            for line in BufReader::new(from).lines() {
                println!("{}", line?);
                lines += 1;
            }
            // The other has said why.
            return Ok(if lines > 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
    }
    drop(from);
    setsid()?;
    // Who waits for the end of our output, or of its own input, does not wait for the rig.
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let rig = options.setup.start()?;
    let mut environment = options.setup.environment(sdk, &rig)?;
    environment.push(("SNAPRIG_RIG_PID", std::process::id().to_string().into()));
    io::Write::write_all(&mut &to, exports(&environment).as_bytes())?;
    drop(to);
    rustix::stdio::dup2_stderr(&null)?;
    poll(&mut [PollFd::new(&session, PollFlags::IN)], None)?;
    Ok(ExitCode::SUCCESS)
}

/// With whom our session ends. Its leader may have ended before, and one outside of our PID namespace has no
/// number here (pid_namespaces(7)): then only the namespace itself ends.
fn session_leader() -> Result<OwnedFd, AnyError> {
    // SAFETY: getsid(2) takes a number alone, and looks it up; rustix's takes the result to be positive, which that of
    // a session outside of a PID namespace is not.
    let leader = unsafe { libc::getsid(0) };
    let leader = Pid::from_raw(leader.max(0)).unwrap_or(Pid::INIT);
    match pidfd_open(leader, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => Ok(pidfd_open(Pid::INIT, PidfdFlags::empty())?),
        other => Ok(other?),
    }
}

/// Print what gcc needs to compile programs of the offload stack
///
/// Several options at once are for a program that needs all of that.
#[derive(Args)]
pub struct IncludeOptions {
    /// For a host program of COI
    #[arg(long, conflicts_with = "sink")]
    host: bool,
    /// For a host program of COI that takes snapshots of its offload processes
    #[arg(long, conflicts_with = "sink")]
    snapify: bool,
    /// For a program on a card that reads and writes files of the host
    #[arg(long, conflicts_with = "host")]
    snapify_io: bool,
    /// For a sink
    #[arg(long)]
    sink: bool,
    /// For a program of SCIF, on the host or on a card
    #[arg(long)]
    scif: bool,
    /// For a program that manages cards
    #[arg(long)]
    micmgmt: bool,
    /// For a program with plugins of checkpoints
    #[arg(long)]
    ckpt: bool,
}

/// Directories alone, or what to link with too.
pub fn include(options: &IncludeOptions) -> Result<ExitCode, AnyError> {
    let sdk = Sdk::of(&std::env::current_exe()?)?;
    let mut flags = flags(&sdk, &options.links_with());
    if options.ckpt {
        // What the others link with is a system's, or is given by `run`; a plugin's program runs by itself as well.
        flags.extend(["-Xlinker", "-rpath", "-Xlinker"].map(OsString::from));
        flags.push(sdk.lib().into());
    }
    let flags: Vec<_> = flags.iter().map(|flag| flag.to_string_lossy()).collect();
    println!("{}", flags.join(" "));
    Ok(ExitCode::SUCCESS)
}

impl IncludeOptions {
    /// A library before those that it needs, each once.
    fn links_with(&self) -> Vec<&'static str> {
        let wanted: [(bool, &[&str]); 7] = [
            (self.ckpt, &["-lsnaprig_ckpt_plugin"]),
            (self.snapify, &["-lsnapify", "-lcoi_host", "-lpthread"]),
            (self.host, &["-lcoi_host", "-lpthread"]),
            (self.snapify_io, &["-lsnapify"]),
            (self.sink, &SINK),
            (self.scif, &["-lscif"]),
            (self.micmgmt, &["-lmicmgmt"]),
        ];
        let mut flags = Vec::new();
        for flag in wanted
            .iter()
            .filter(|(is, _)| *is)
            .flat_map(|(_, flags)| *flags)
        {
            if !flags.contains(flag) {
                flags.push(flag);
            }
        }
        flags
    }
}

/// What sinks are linked with: run functions are found among their dynamic symbols.
const SINK: [&str; 3] = ["-rdynamic", "-lcoi_device", "-lpthread"];

/// Arguments of gcc, to come after the sources.
fn flags(sdk: &Sdk, more: &[&str]) -> Vec<OsString> {
    let mut flags: Vec<OsString> = Vec::new();
    for (option, directory) in [("-I", sdk.include()), ("-L", sdk.lib())] {
        let mut flag = OsString::from(option);
        flag.push(directory);
        flags.push(flag);
    }
    flags.extend(more.iter().map(OsString::from));
    flags
}

/// Compile a sink: gcc, or g++ for C++, with our headers and libcoi_device
#[derive(Args)]
pub struct BuildOptions {
    /// Sources, -o FILE, and whatever else gcc is to be told
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "SOURCES... -o FILE [GCC OPTIONS]"
    )]
    arguments: Vec<PathBuf>,
}

/// Becomes the compiler.
pub fn build_sink(options: &BuildOptions) -> Result<ExitCode, AnyError> {
    let sdk = Sdk::of(&std::env::current_exe()?)?;
    let compiler = compiler(&options.arguments);
    let error = Command::new(compiler)
        .args(&options.arguments)
        .args(flags(&sdk, &SINK))
        .stdin(Stdio::null())
        .exec();
    Err(not_started(compiler.as_ref(), &error).into())
}

fn compiler(arguments: &[PathBuf]) -> &'static str {
    let of_c_plus_plus = |path: &PathBuf| {
        let extension = path.extension();
        extension.is_some_and(|extension| ["cc", "cpp", "cxx", "C"].iter().any(|e| extension == *e))
    };
    if arguments.iter().any(of_c_plus_plus) {
        "g++"
    } else {
        "gcc"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_say_which_compiler() {
        let arguments = |text: &str| text.split(' ').map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(compiler(&arguments("sink.c -O2 -o sink")), "gcc");
        assert_eq!(compiler(&arguments("-O2 sink.cpp more.c -o sink")), "g++");
    }

    #[test]
    fn options_of_include_add_up_and_name_each_library_once() {
        let options = IncludeOptions {
            host: true,
            snapify: true,
            snapify_io: false,
            sink: false,
            scif: true,
            micmgmt: true,
            ckpt: true,
        };
        assert_eq!(
            options.links_with().join(" "),
            "-lsnaprig_ckpt_plugin -lsnapify -lcoi_host -lpthread -lscif -lmicmgmt"
        );
        let sink = IncludeOptions {
            sink: true,
            scif: true,
            host: false,
            snapify: false,
            snapify_io: false,
            micmgmt: false,
            ckpt: false,
        };
        assert_eq!(
            sink.links_with().join(" "),
            "-rdynamic -lcoi_device -lpthread -lscif"
        );
    }

    #[test]
    fn a_status_is_passed_on() {
        let status = |command: &str| Command::new("sh").args(["-c", command]).status().unwrap();
        assert_eq!(exit_code(status("exit 7")), ExitCode::from(7));
        assert_eq!(exit_code(status("kill -9 $$")), ExitCode::from(137));
    }
}
