//! `sys/class/mic` in a rig's directory: what the driver of real cards has in sysfs, as files.
//!
//! ```text
//!   RIG/sys/class/mic/mic0/{family,state,mode,model,memsize,...}
//! ```
//!
//! What must stay true: the files are there before a program can be started on the rig; each is whole at any moment; and
//! nobody writes any more when the rig's directory is removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use snaprig_coi::EngineInfo;
use snaprig_mpss as mpss;
use snaprig_scif::host::{
    HostNode,
    cards::CardState::{
        self, Booting, Crashed, Offline, Online, ResetFailed, Resetting, ShuttingDown,
    },
};

use crate::Card;

/// Below the rig's directory.
const DIRECTORY: &str = "sys/class/mic";
const STATES: [CardState; 7] = [
    Offline,
    Booting,
    Online,
    ShuttingDown,
    Crashed,
    Resetting,
    ResetFailed,
];
/// The longest wait for a change; then it is waited for again.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Keeps the files as the cards are, until it is dropped.
pub(crate) struct Sysfs {
    watched: Vec<(Arc<Watched>, JoinHandle<()>)>,
    host: Arc<HostNode>,
}

/// A card's files.
struct Watched {
    directory: PathBuf,
    node: u16,
    /// What it is made of.
    info: EngineInfo,
    /// What was written last.
    state: Mutex<CardState>,
    ends: AtomicBool,
}

impl Sysfs {
    /// Writes the files of these cards, and goes on to.
    pub(crate) fn start(rig: &Path, cards: &[Card], host: &Arc<HostNode>) -> io::Result<Self> {
        let start = |card: &Card| {
            let node = card.node();
            let state = card.state();
            let watched = Arc::new(Watched {
                directory: rig.join(DIRECTORY).join(mpss::Name(node - 1).to_string()),
                node,
                info: card.info(),
                state: Mutex::new(state),
                ends: AtomicBool::new(false),
            });
            fs::create_dir_all(&watched.directory)?;
            watched.write(state)?;
            let (own, host) = (watched.clone(), host.clone());
            let watch = move || own.watch(&host);
            let thread = std::thread::Builder::new()
                .name("sysfs".into())
                .spawn(watch)?;
            Ok((watched, thread))
        };
        Ok(Self {
            watched: cards.iter().map(start).collect::<io::Result<_>>()?,
            host: host.clone(),
        })
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        for (watched, thread) in self.watched.drain(..) {
            watched.ends.store(true, Ordering::SeqCst);
            // It wakes for a state that it has not seen, and the card has no other one to come to any more.
            let last = *watched.state.lock().unwrap_or_else(PoisonError::into_inner);
            let other = if last == Offline { Crashed } else { Offline };
            self.host.set_state(watched.node, other);
            // If it panicked, it is gone as well.
            let _ = thread.join();
        }
    }
}

impl Watched {
    fn watch(&self, host: &HostNode) {
        loop {
            let last = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Looked at after the state, which who ends it looks at after saying so.
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            let others: Vec<_> = STATES.into_iter().filter(|state| *state != last).collect();
            let Ok(state) = host.wait_state(self.node, &others, WAIT_MAX) else {
                continue;
            };
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            if let Err(error) = self.write(state) {
                tracing::warn!(directory = %self.directory.display(), %error, "not written");
            }
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        }
    }

    /// What is not known in this state is not there.
    fn write(&self, state: CardState) -> io::Result<()> {
        let info = (state == Online).then(|| self.info.clone());
        let attributes = mpss::Card::new(self.node - 1, state, info).attributes();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            if !attributes.iter().any(|(known, _)| name == *known) {
                fs::remove_file(self.directory.join(name))?;
            }
        }
        for (name, value) in attributes {
            let path = self.directory.join(name);
            let text = value + "\n";
            if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
                continue;
            }
            // Nobody sees a part of it.
            let new = path.with_extension("new");
            fs::write(&new, text)?;
            fs::rename(new, path)?;
        }
        Ok(())
    }
}
