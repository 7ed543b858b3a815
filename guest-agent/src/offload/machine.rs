//! Snapify in the offload process: from the daemon's request to pause to its request to resume
//! (paper sections 4.1 to 4.3; the messages are in [`snaprig_wire::snapify`]).
//!
//! ```text
//!           Pause          Drain            marker seen, no result under way, local store saved
//!  Running -------> Agreed -------> Draining --------------------------------> Quiet
//!     ^                                                                         |  ^
//!     |                                                             Capture     v  |
//!     |                                                                      Capturing
//!     |                              all channels connected again               | restarted
//!     '-- Resume, daemon gone -- Quiet <--------------------------- Reconnecting <-'
//! ```
//!
//! What must stay true: while it is quiet, nothing is sent on any channel; a request gets one
//! reply, but the capture of which a restored process is the result: that one was answered in
//! another life.

use std::collections::{BTreeSet, VecDeque};

use snaprig_wire::{
    coi::Channel,
    snapify::{Reply, Request, StoredFile},
};

/// Why something could not be done, for the host: a Linux error number or 0, and what went wrong.
pub type Failure = (i32, String);

/// How a capture ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Captured {
    /// The image of so many bytes is safe.
    Saved(u64),
    /// This process is the one that was restored from it.
    Restarted,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The host has made this channel.
    Connected(Channel),
    /// A thread wants to send a result; [`Machine::may_send`] says when.
    Sending,
    /// It has sent it.
    Sent,
    /// The command server has answered the Shutdown marker (case 3).
    Marker,
    /// The daemon asks.
    Request(Request),
    /// The daemon, or whoever pauses through it, is gone.
    DaemonGone,
    /// [`Output::SaveLocalStore`] is done.
    Saved(Result<Vec<StoredFile>, Failure>),
    /// [`Output::Capture`] is done.
    Captured(Result<Captured, Failure>),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Answer the daemon.
    Reply(Reply),
    /// Save the local store below this directory. Then [`Input::Saved`].
    SaveLocalStore(String),
    /// Stream the process to this directory. Then [`Input::Captured`].
    Capture(String),
    /// Listen on a new port, tell the daemon of this card, and take the host's channels; register
    /// all windows anew on the one for RDMA as soon as it is there.
    Reconnect,
    /// The process is as it was before pause: threads that wait look again.
    Released,
    /// The process ends, as it was told.
    Exit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    Agreed,
    Draining(String),
    Saving,
    Quiet,
    Capturing { terminate: bool },
    Reconnecting(BTreeSet<Channel>),
}

/// The machine: [`Machine::handle`] everything that happens, then [`Machine::poll_output`].
#[derive(Debug)]
pub struct Machine {
    state: State,
    marker: bool,
    sending: usize,
    channels: BTreeSet<Channel>,
    outputs: VecDeque<Output>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            state: State::Running,
            marker: false,
            sending: 0,
            channels: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }
}

impl Machine {
    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Whether there is a next thing to do.
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Nothing may be sent, and a channel that breaks will have a successor.
    pub fn is_quiet(&self) -> bool {
        !matches!(self.state, State::Running | State::Agreed)
    }

    /// Whether a thread that wants to send may go ahead.
    pub fn may_send(&self) -> bool {
        !self.is_quiet()
    }

    /// The channels that the host has yet to make again after a restore.
    pub fn is_reconnecting(&self) -> bool {
        matches!(self.state, State::Reconnecting(_))
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Connected(channel) => {
                self.channels.insert(channel);
                if let State::Reconnecting(missing) = &mut self.state {
                    missing.remove(&channel);
                    if missing.is_empty() {
                        self.state = State::Quiet;
                    }
                }
            }
            Input::Sending => self.sending += 1,
            Input::Sent => self.sending = self.sending.saturating_sub(1),
            Input::Marker => self.marker = true,
            Input::Request(request) => self.request(request),
            Input::DaemonGone => self.daemon_gone(),
            Input::Saved(result) if self.state == State::Saving => {
                self.state = State::Quiet;
                match result {
                    Ok(local_store) => self.reply(Reply::Drained { local_store }),
                    Err(failure) => self.refuse(failure),
                }
            }
            Input::Captured(result) => self.captured(result),
            Input::Saved(_) => {}
        }
        let empty = self.marker && self.sending == 0;
        if let (State::Draining(snapshot), true) = (&self.state, empty) {
            let snapshot = snapshot.clone();
            self.state = State::Saving;
            self.outputs.push_back(Output::SaveLocalStore(snapshot));
        }
    }

    fn reply(&mut self, reply: Reply) {
        self.outputs.push_back(Output::Reply(reply));
    }

    fn refuse(&mut self, (errno, why): Failure) {
        let step = "in the offload process".into();
        self.reply(Reply::Failed { step, errno, why });
    }

    fn request(&mut self, request: Request) {
        match (&self.state, request) {
            (State::Running, Request::Pause { .. }) => {
                self.state = State::Agreed;
                self.reply(Reply::Agreed);
            }
            (State::Agreed, Request::Drain { snapshot, .. }) => {
                self.state = State::Draining(snapshot);
            }
            (
                State::Quiet,
                Request::Capture {
                    snapshot,
                    terminate,
                    ..
                },
            ) => {
                self.state = State::Capturing { terminate };
                self.outputs.push_back(Output::Capture(snapshot));
            }
            (State::Agreed | State::Draining(_) | State::Quiet, Request::Resume { .. }) => {
                self.release();
                self.reply(Reply::Resumed);
            }
            _ => self.refuse((libc::EINVAL, "the request makes no sense now".into())),
        }
    }

    fn captured(&mut self, result: Result<Captured, Failure>) {
        let State::Capturing { terminate } = self.state else {
            return;
        };
        self.state = State::Quiet;
        match result {
            Ok(Captured::Saved(bytes)) => {
                self.reply(Reply::Captured { bytes });
                if terminate {
                    self.outputs.push_back(Output::Exit);
                }
            }
            Ok(Captured::Restarted) => {
                if !self.channels.is_empty() {
                    self.state = State::Reconnecting(self.channels.clone());
                }
                self.outputs.push_back(Output::Reconnect);
            }
            Err(failure) => self.refuse(failure),
        }
    }

    fn daemon_gone(&mut self) {
        // A restored process that nobody wants is ended by the daemon; until then it is quiet.
        if !self.is_reconnecting() {
            self.release();
        }
    }

    fn release(&mut self) {
        (self.state, self.marker) = (State::Running, false);
        self.outputs.push_back(Output::Released);
    }
}
