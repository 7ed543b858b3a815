//! What a card's process does: put memory, platform, kernel, PCI function and SCIF driver
//! together, boot the COI daemon, and serve until the rig is gone.
//!
//! What must stay true: whatever a rig has started ends with it, even when the rig's own process is killed, and the last
//! of them to end removes the rig's directory.

use std::{
    error::Error,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_card_device::{self as device, Device, Listener};
use snaprig_card_fs::{Topology, console, relay::carrier::Carrier};
use snaprig_card_kernel::{Config, Kernel, Spawn, checkpoint::CheckpointDevice};
use snaprig_card_memory::CardMemory;
use snaprig_card_platform::{self as platform, Kind};
use snaprig_scif::card as scif;
use snaprig_wire::{bar4::spad, checkpoint};

use crate::{
    files::CardFiles,
    guest,
    network::CardNetwork,
    sandbox::{self, Role, Sandbox},
    state,
};

/// What a card has of its memory by the time that its first run function runs, about.
const BOOT_BYTES: u64 = 20 << 20;
/// How long the last card waits for the host processes that write to the rig's directory: they end
/// when they notice that the rig is gone.
const REMOVALS_MAX: usize = 500;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// On a card's standard input: its COI daemon is to be killed, as by SIGKILL. Without its first
/// program a card stops, as Linux does without init.
pub(crate) const KILL_DAEMON: u8 = b'k';
/// On a card's standard input: it is to shut down. It says so to the host, lets the DMA that is under
/// way end, and is gone.
pub(crate) const SHUT_DOWN: u8 = b's';

type AnyError = Box<dyn Error + Send + Sync>;

/// The command by which a `snaprig` program becomes a card. Its argument is [`CardOptions`], as JSON.
pub const PROCESS: &str = "card-process";

/// What one card is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CardOptions {
    /// Where its PCI function is served (vfio-user).
    pub socket: PathBuf,
    /// Its SCIF node, 1 and up.
    pub node: u16,
    /// Card memory in bytes, a multiple of 4 KiB.
    pub memory_bytes: u64,
    /// Cores.
    pub cores: usize,
    /// Hardware threads of each.
    pub threads_per_core: usize,
    /// The platform; `None` takes the best that works.
    pub platform: Option<Kind>,
    /// Files of the host that it has from its start.
    pub files: Vec<CardFiles>,
    /// Its network, if it has one.
    pub network: Option<CardNetwork>,
    /// Remove the socket's directory, the rig's, if the rig's process ends without doing so.
    pub remove_directory: bool,
}

/// Why a card did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[error("card {node}: {what}: {source}")]
pub struct CardError {
    node: u16,
    what: &'static str,
    source: AnyError,
}

/// What [`PROCESS`] does.
pub fn main(options: &str) -> Result<(), AnyError> {
    let options = serde_json::from_str(options).map_err(|error| format!("{PROCESS}: {error}"))?;
    Ok(run(&options)?)
}

/// Runs a card, in a process of its own, until its first program ends (an error: it never should) or the rig is gone, which
/// shows as the end of standard input.
pub fn run(options: &CardOptions) -> Result<(), CardError> {
    let failed = |what: &'static str| {
        move |source: AnyError| CardError {
            node: options.node,
            what,
            source,
        }
    };
    keep_three_descriptors();
    device::raise_descriptor_limit().map_err(|e| failed("its limit of descriptors")(e.into()))?;
    let memory = CardMemory::new(options.memory_bytes)
        .map_err(|e| failed("no memory for the card")(e.into()))?;
    let memory = Arc::new(memory);
    let populating = {
        let memory = memory.clone();
        std::thread::spawn(move || memory.populate(BOOT_BYTES))
    };
    // Where there is none, the first full snapshot says so.
    let _ = memory.dirty().open();
    let platform = platform::choose(options.platform, &memory).map_err(|e| {
        failed("no platform that runs cards (`snaprig doctor --for cards` says why)")(e.into())
    })?;
    let kind = platform.kind();
    let device = Device::new(memory.clone(), options.node, options.cores)
        .map_err(|e| failed("no PCI function")(e.into()))?;
    let config = Config {
        memory,
        platform,
        topology: Topology {
            cores: options.cores,
            threads_per_core: options.threads_per_core,
        },
        node: options.node,
    };
    let kernel = Kernel::new(config).map_err(|e| failed("the card kernel")(e.into()))?;
    let driver = scif::Driver::new(device.clone(), options.node, kernel.waker());
    kernel.register_device(scif::PATH, Arc::new(scif::ScifDevice(driver)));
    kernel.register_device(checkpoint::PATH, Arc::new(CheckpointDevice));
    kernel.register_device(state::PATH, state::StateDevice::new(device.clone()));
    for files in &options.files {
        files
            .install(&kernel)
            .map_err(|e| failed("files for it")(e.into()))?;
    }
    for (path, program) in [
        (guest::COI_DAEMON_PATH, guest::COI_DAEMON),
        (guest::SNAPIFY_IOD_PATH, guest::SNAPIFY_IOD),
    ] {
        kernel
            .write_file(path, program, 0o755)
            .map_err(|e| failed("its memory is too small to boot")(e.into()))?;
    }
    let carrier = options.network.as_ref().map(|network| {
        let interface = network.interface(options.node);
        kernel.join_network(interface, Box::new(network.connect()?))
    });
    let carrier = carrier
        .transpose()
        .map_err(|e| failed("its network")(e.into()))?;
    let listener =
        Listener::bind(&options.socket).map_err(|e| failed("its PCI function")(e.into()))?;
    // A backtrace would be read from files.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    populating
        .join()
        .map_err(|_| failed("its first memory")("a panic".into()))?;
    // From here on guests, and the host's driver, have a say.
    let sandbox =
        sandbox::enter(kind, carrier.is_some()).map_err(|e| failed("its sandbox")(e.into()))?;
    if let Some(carrier) = carrier {
        carry(carrier, sandbox).map_err(|e| failed("its network")(e.into()))?;
    }
    let serving = serve(&device, listener, sandbox).map_err(failed("its PCI function"))?;
    let directory = options.socket.parent().filter(|_| options.remove_directory);
    let directory = directory.map(Path::to_owned);
    let (killing, ending) = (kernel.clone(), device.clone());
    let mut serving = Some(serving);
    let mut obey = move |order, daemon| match order {
        KILL_DAEMON => killing.kill(daemon),
        SHUT_DOWN => {
            ending.set_state(spad::STATE_SHUTTING_DOWN);
            ending.stop();
            // Not before the DMA that is under way has ended.
            serving.take().map(JoinHandle::join);
            std::process::exit(0);
        }
        _ => {}
    };
    let (tell, daemon) = mpsc::channel();
    let (ready, narrowed) = mpsc::channel();
    let rig = std::thread::Builder::new().name("rig".into());
    let rig = rig.spawn(move || {
        if let Err(error) = sandbox.narrow(Role::Rig) {
            tracing::error!("nobody would notice the rig's end: {error}");
            std::process::exit(1);
        }
        // Who does not wait for it is on the way out.
        let _ = ready.send(());
        // Nothing comes if the daemon does not start, which ends the process.
        if let Ok(daemon) = daemon.recv() {
            obey_the_rig(directory.as_deref(), |order| obey(order, daemon));
        }
    });
    rig.map_err(|e| failed("the thread that obeys the rig")(e.into()))?;
    narrowed
        .recv()
        .map_err(|e| failed("its sandbox")(e.into()))?;
    // Guest threads start as this one is.
    sandbox
        .narrow(Role::Guest)
        .map_err(|e| failed("its sandbox")(e.into()))?;
    let daemon = kernel
        .spawn(boot(options.node))
        .map_err(|e| failed("the COI daemon does not start")(e.into()))?;
    tell.send(daemon)
        .map_err(|e| failed("its sandbox")(e.into()))?;
    let status = kernel.wait_exit(daemon);
    device.set_state(spad::STATE_CRASHED);
    Err(failed("the COI daemon ended")(format!("{status:?}").into()))
}

/// Serves the host's driver on a thread that can do nothing else. It starts as its parent is.
fn serve(
    device: &Arc<Device>,
    listener: Listener,
    sandbox: Sandbox,
) -> Result<JoinHandle<()>, AnyError> {
    let device = device.clone();
    let parent = std::thread::spawn(move || -> Result<_, AnyError> {
        sandbox.narrow(Role::Host)?;
        Ok(device.serve_on(listener)?)
    });
    parent.join().unwrap_or_else(|_| Err("a panic".into()))
}

/// Carries what leaves the card on a thread that can do nothing else.
fn carry(carrier: Carrier, sandbox: Sandbox) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("network".into());
    let run = move || {
        let carried = sandbox.narrow(Role::Network).map_err(AnyError::from);
        if let Err(error) = carried.and_then(|()| Ok(carrier.run()?)) {
            tracing::error!("the card is without its network: {error}");
        }
    };
    thread.spawn(run).map(drop)
}

/// Closes whatever else the process was born with: nobody in it knows of that.
fn keep_three_descriptors() {
    // SAFETY: called first of all, when nothing in this process owns a descriptor from 3 up.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

fn boot(node: u16) -> Spawn {
    let log = move |bytes: &[u8]| {
        for line in String::from_utf8_lossy(bytes).lines() {
            tracing::info!(target: "card", node, "{line}");
        }
    };
    Spawn {
        path: guest::COI_DAEMON_PATH.into(),
        argv: vec!["coi_daemon".into()],
        env: vec!["PATH=/bin".into(), "HOME=/".into()],
        stdio: [
            console::Input::closed(),
            console::Output::new(log),
            console::Output::new(log),
        ],
    }
}

/// Standard input is a pipe from the rig's process: it ends when that process does, even by
/// SIGKILL. Whoever is left then tidies up. A byte on it is an order.
fn obey_the_rig(directory: Option<&Path>, mut obey: impl FnMut(u8)) {
    let mut byte = [0];
    while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {
        obey(byte[0]);
    }
    if let Some(directory) = directory {
        remove(directory);
    }
    std::process::exit(0);
}

/// Removes a directory that others may still be writing to, or removing: until it is gone.
fn remove(directory: &Path) {
    for _ in 0..REMOVALS_MAX {
        // What is in the way now is gone, or ended, a moment later.
        let _ = std::fs::remove_dir_all(directory);
        if !directory.exists() {
            return;
        }
        std::thread::sleep(REMOVAL_PAUSE);
    }
}
