//! Cards of a running rig, killed, reset, unplugged and so on from another process: a socket in the rig's directory.
//!
//! ```text
//!  client                              the rig's process
//!    | --- {"action", "node"} ----------> |   one thread a client, so that a card can be killed while it is reset
//!    | <-- {"state"} or {"error"} ------- |   when it is done
//! ```
//!
//! What must stay true: nothing is under way any more when the service is gone; a client that says nothing keeps a rig
//! from ending for no longer than two seconds.

use std::{
    fmt, fs, io,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use snaprig_peers::{Exchange, lines};
use snaprig_scif::host::cards::CardState;

use crate::{Card, RigError, rig::card_of_node};

/// Name of the socket in a rig's directory.
const SOCKET: &str = "rig.sock";
/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 4096;
/// How long a client may take for its command, and for taking its answer.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a card may take: the longest is a boot of one that is emulated.
const ACTION_TIME_MAX: Duration = Duration::from_secs(180);

/// What can be done to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// [`Card::kill`].
    Kill,
    /// [`Card::kill_daemon`].
    KillDaemon,
    /// [`Card::reset`].
    Reset,
    /// [`Card::unplug`].
    Unplug,
    /// [`Card::plug`].
    Plug,
    /// [`Card::shut_down`].
    ShutDown,
}

impl Action {
    /// All that there are.
    const ALL: [Self; 6] = [
        Self::Kill,
        Self::KillDaemon,
        Self::Reset,
        Self::Unplug,
        Self::Plug,
        Self::ShutDown,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillDaemon => "kill-daemon",
            Self::Reset => "reset",
            Self::Unplug => "unplug",
            Self::Plug => "plug",
            Self::ShutDown => "shut-down",
        }
    }

    /// Does it; in what state the card is then.
    pub fn on(self, card: &Card) -> Result<CardState, RigError> {
        match self {
            Self::Kill => card.kill()?,
            Self::KillDaemon => {
                let node = card.node();
                let failed = |source| RigError::Order { node, source };
                card.kill_daemon().map_err(failed)?;
                card.wait_for(CardState::Crashed, ACTION_TIME_MAX)?;
            }
            Self::Reset => card.reset()?,
            Self::Unplug => card.unplug()?,
            Self::Plug => card.plug()?,
            Self::ShutDown => card.shut_down()?,
        }
        Ok(card.state())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|action| action.name() == word);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{word:?} is none of {names}")
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Command {
    action: Action,
    node: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    State(CardState),
    Error(String),
}

/// An action was not done.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody answers.
    #[error("no rig runs in {rig}: {source}")]
    Connection {
        /// The rig's directory.
        rig: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// The rig refused, or failed.
    #[error("{0}")]
    Failed(String),
}

/// Has the rig in this directory do something to a card; in what state that is then.
pub fn ask(rig: &Path, action: Action, node: u16) -> Result<CardState, ControlError> {
    let failed = |source| {
        let rig = rig.to_owned();
        ControlError::Connection { rig, source }
    };
    let stream = UnixStream::connect(rig.join(SOCKET)).map_err(failed)?;
    let mut exchange = Exchange::new(&stream, ACTION_TIME_MAX);
    let answer = lines::send(&mut exchange, &Command { action, node })
        .and_then(|()| lines::receive(exchange, LINE_BYTES_MAX));
    match answer.map_err(failed)? {
        Answer::State(state) => Ok(state),
        Answer::Error(error) => Err(ControlError::Failed(error)),
    }
}

/// The service, until it is dropped.
pub(crate) struct Service {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Serves actions on these cards.
    pub(crate) fn start(rig: &Path, cards: Arc<[Card]>) -> io::Result<Self> {
        let path = rig.join(SOCKET);
        let listener = Arc::new(UnixListener::bind(&path)?);
        let listening = listener.clone();
        let thread = thread::spawn(move || serve(&listening, &cards));
        Ok(Self {
            listener,
            path,
            thread: Some(thread),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Nobody can connect any more, and whoever waits for that hears so.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            // If it panicked, it is gone as well.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, cards: &[Card]) {
    thread::scope(|scope| {
        loop {
            match listener.accept() {
                Ok((client, _)) => {
                    scope.spawn(move || {
                        // A client that breaks off has its own reasons.
                        let _ = converse(&client, cards);
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    });
}

fn converse(client: &UnixStream, cards: &[Card]) -> io::Result<()> {
    let asking = Exchange::new(client, COMMAND_TIME_MAX);
    let answer = match lines::receive::<Command>(asking, LINE_BYTES_MAX) {
        Ok(Command { action, node }) => {
            match card_of_node(cards, node).and_then(|card| action.on(card)) {
                Ok(state) => Answer::State(state),
                Err(error) => Answer::Error(error.to_string()),
            }
        }
        Err(error) => Answer::Error(error.to_string()),
    };
    lines::send(&mut Exchange::new(client, COMMAND_TIME_MAX), &answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_has_a_name_of_its_own() {
        for action in Action::ALL {
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        let error = "burn".parse::<Action>().expect_err("it is none");
        assert!(error.contains("\"burn\" is none of kill, "), "{error}");
    }
}
