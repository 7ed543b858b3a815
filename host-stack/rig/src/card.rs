//! One card of a rig: its process, and its way through [`CardState`].
//!
//! ```text
//!  plug: process started -> served -> attached to the host's node -> its daemon listens
//!  kill, unplug: SIGKILL, then the host lets go       reset: both, in a row, in the same slot
//! ```
//!
//! What must stay true: a card has at most one process at a time, under the same node for as long as
//! the rig lasts; it can be killed at any moment of any change; and every change ends, one way or the
//! other, in bounded time.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use snaprig_coi::EngineInfo;
use snaprig_scif::host::{
    HostNode,
    cards::CardState::{
        self, Booting, Crashed, Offline, Online, ResetFailed, Resetting, ShuttingDown,
    },
};

use crate::{
    card_process::{self, CardOptions, KILL_DAEMON, SHUT_DOWN},
    network::CardNetwork,
    rig::{MEMORY_BYTES, RigBuilder, RigError},
};

/// How long a card may take from its start to a COI daemon that listens. Software emulation
/// (`ci/vm`) is 20 times slower than hardware.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the host may take to notice that a card's process has ended: its socket hangs up.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a card may take to shut down. Then it is killed.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the host looks whether a process has ended, or serves its socket.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// A card of a rig.
pub struct Card {
    node: u16,
    socket: PathBuf,
    network: Option<CardNetwork>,
    builder: RigBuilder,
    host: Arc<HostNode>,
    /// Held while it goes from one state to the next on purpose.
    power: Mutex<()>,
    /// Held for a moment at a time, so that it can be killed at any of them.
    process: Mutex<Option<Child>>,
}

impl Card {
    pub(crate) fn new(builder: &RigBuilder, dir: &Path, node: u16, host: &Arc<HostNode>) -> Self {
        Self {
            node,
            socket: dir.join(format!("card{node}.sock")),
            network: (builder.network).then(|| CardNetwork::of(dir, node, builder.cards as u16)),
            builder: builder.clone(),
            host: host.clone(),
            power: Mutex::new(()),
            process: Mutex::new(None),
        }
    }

    /// Its SCIF node.
    pub fn node(&self) -> u16 {
        self.node
    }

    /// Its process; `None` while it is unplugged.
    pub fn pid(&self) -> Option<u32> {
        lock(&self.process).as_ref().map(Child::id)
    }

    /// Its memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = each(&self.builder.memory_bytes, self.node);
        bytes.copied().unwrap_or(MEMORY_BYTES)
    }

    /// What it is made of.
    pub(crate) fn info(&self) -> EngineInfo {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (cores, each) = (self.builder.cores, self.builder.threads_per_core);
        EngineInfo {
            cores: count(cores),
            threads: count(cores.saturating_mul(each)),
            memory_bytes: self.memory_bytes(),
            ..EngineInfo::default()
        }
    }

    /// Its state, as the host sees it.
    pub fn state(&self) -> CardState {
        self.host.state(self.node).unwrap_or(Offline)
    }

    /// Waits until the host sees it in this state.
    pub fn wait_for(&self, state: CardState, timeout: Duration) -> Result<(), RigError> {
        let waited = self.host.wait_state(self.node, &[state], timeout);
        waited.map(drop).map_err(|e| RigError::Node(e.into()))
    }

    /// Kills its COI daemon (SIGKILL, on the card); the card stops without it, as Linux does without
    /// init, and is [`Crashed`].
    pub fn kill_daemon(&self) -> io::Result<()> {
        self.order(KILL_DAEMON)
    }

    /// Kills its process (SIGKILL), and waits until that is gone and the host has noticed: a card
    /// failure. It is [`Crashed`] then, or whatever follows from it for a reset that is under way.
    pub fn kill(&self) -> Result<(), RigError> {
        if !self.end()? {
            return Ok(());
        }
        let gone = [Crashed, Offline, ResetFailed];
        let noticed = self.host.wait_state(self.node, &gone, NOTICE_TIMEOUT);
        noticed.map(drop).map_err(|e| RigError::Node(e.into()))
    }

    /// Resets it, whatever state it is in, if it is plugged in at all: everything on it is lost, and
    /// it boots. Returns when it is [`Online`], or has failed to get there ([`ResetFailed`]).
    pub fn reset(&self) -> Result<(), RigError> {
        let _power = lock(&self.power);
        if self.state() == Offline {
            return Err(self.refuse("reset; plug it in"));
        }
        let done = self.remove(Resetting).and_then(|()| self.boot());
        if done.is_err() {
            // Nothing of it is left half-started.
            let _ = self.remove(ResetFailed);
        }
        done
    }

    /// Removes it by surprise, in the middle of whatever it does. It is [`Offline`] then.
    pub fn unplug(&self) -> Result<(), RigError> {
        self.end()?;
        // A reset that was under way has failed by now, or will in a moment.
        let _power = lock(&self.power);
        self.remove(Offline)
    }

    /// Shuts it down in order: DMA that is under way ends, then it goes. It is [`Offline`] then. One
    /// that does not go is killed.
    pub fn shut_down(&self) -> Result<(), RigError> {
        let _power = lock(&self.power);
        if !matches!(self.state(), Booting | Online) {
            return Err(self.refuse("shut down"));
        }
        self.host.set_state(self.node, ShuttingDown);
        let deadline = Instant::now() + SHUT_DOWN_TIMEOUT;
        if self.order(SHUT_DOWN).is_ok() {
            while self.ended().is_none() && Instant::now() < deadline {
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        self.remove(Offline)
    }

    /// Plugs it in again: a card of the same make in the same slot, so under the same node. Returns
    /// when it is [`Online`].
    pub fn plug(&self) -> Result<(), RigError> {
        let _power = lock(&self.power);
        if self.state() != Offline {
            return Err(self.refuse("plugged in"));
        }
        let booted = self.boot();
        if booted.is_err() {
            let _ = self.remove(Offline);
        }
        booted
    }

    fn boot(&self) -> Result<(), RigError> {
        self.power_on()?;
        self.attach()?;
        self.wait_online()
    }

    /// Starts its process.
    pub(crate) fn power_on(&self) -> Result<(), RigError> {
        self.host.set_state(self.node, Booting);
        // What the last one left behind.
        let _ = std::fs::remove_file(&self.socket);
        let child = self.command().and_then(|mut command| command.spawn());
        let child = child.map_err(|source| RigError::Spawn {
            node: self.node,
            exe: self.builder.exe.clone(),
            source,
        })?;
        *lock(&self.process) = Some(child);
        Ok(())
    }

    /// Waits until its PCI function is served, and has the host's node drive it.
    pub(crate) fn attach(&self) -> Result<(), RigError> {
        let deadline = Instant::now() + BOOT_TIMEOUT;
        loop {
            // Its socket is there a moment before anybody can connect to it.
            let why = match self.host.attach(self.node, &self.socket) {
                Ok(()) => return Ok(()),
                Err(e) => e.to_string(),
            };
            if self.ended().is_some() || Instant::now() >= deadline {
                return Err(self.died(why));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    pub(crate) fn wait_online(&self) -> Result<(), RigError> {
        let either = [Online, Crashed];
        let why = match self.host.wait_state(self.node, &either, BOOT_TIMEOUT) {
            Ok(Online) => return Ok(()),
            Ok(_) => self.host.death_of(self.node).unwrap_or_default(),
            Err(e) => e.to_string(),
        };
        Err(self.died(why))
    }

    /// Ends its process and has the host let go of it.
    fn remove(&self, into: CardState) -> Result<(), RigError> {
        self.host.set_state(self.node, into);
        let ended = self.end();
        self.host.detach(self.node, into);
        *lock(&self.process) = None;
        ended.map(drop)
    }

    /// Kills its process and waits until it is gone; false if there is none.
    fn end(&self) -> Result<bool, RigError> {
        let mut process = lock(&self.process);
        let Some(child) = &mut *process else {
            return Ok(false);
        };
        let ended = child.kill().and_then(|()| child.wait());
        let node = self.node;
        let failed = |source| RigError::End { node, source };
        ended.map(|_| true).map_err(failed)
    }

    /// Its process's status, if that has ended.
    fn ended(&self) -> Option<ExitStatus> {
        lock(&self.process).as_mut()?.try_wait().ok().flatten()
    }

    fn order(&self, order: u8) -> io::Result<()> {
        let mut process = lock(&self.process);
        let stdin = process.as_mut().and_then(|child| child.stdin.as_mut());
        stdin.ok_or(io::ErrorKind::BrokenPipe)?.write_all(&[order])
    }

    fn command(&self) -> io::Result<Command> {
        let options = CardOptions {
            socket: self.socket.clone(),
            node: self.node,
            memory_bytes: self.memory_bytes(),
            cores: self.builder.cores,
            threads_per_core: self.builder.threads_per_core,
            platform: each(&self.builder.platforms, self.node).copied(),
            files: self.builder.files.clone(),
            network: self.network.clone(),
            remove_directory: !self.builder.keep,
        };
        let mut command = Command::new(&self.builder.exe);
        command
            .arg0(snaprig_sdk::program::NAME)
            .arg(card_process::PROCESS)
            .arg(serde_json::to_string(&options)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // What a terminal sends to the rig's group is not for the card: it ends after the rig,
            // and tidies up.
            .process_group(0);
        let close_all_but_stdio = || {
            // SAFETY: it is a plain system call on descriptors 3 and up of the child alone.
            match unsafe {
                libc::syscall(
                    libc::SYS_close_range,
                    3,
                    u32::MAX,
                    libc::CLOSE_RANGE_CLOEXEC,
                )
            } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // What the host's program has open is not the card's, however it was opened.
        // SAFETY: between fork and exec it does nothing but that system call.
        unsafe { command.pre_exec(close_all_but_stdio) };
        Ok(command)
    }

    fn refuse(&self, what: &'static str) -> RigError {
        let (node, state) = (self.node, self.state());
        RigError::State { node, state, what }
    }

    fn failed(&self, why: String) -> RigError {
        let node = self.node;
        RigError::Boot { node, why }
    }

    fn died(&self, why: String) -> RigError {
        self.failed(match self.ended() {
            Some(status) => format!("its process ended: {status}; see its message above"),
            None => why,
        })
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.end();
    }
}

/// What holds for the card of this node; the last one holds for all further cards.
fn each<T>(list: &[T], node: u16) -> Option<&T> {
    list.get(usize::from(node) - 1).or(list.last())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
