//! Snapify on the host: which steps a call of the paper's table 1 consists of, in which order, and
//! what is undone when one fails (paper sections 4.1 to 4.3, figure 3).
//!
//! ```text
//!              Pause: Prepare, Connect, Agree, Lock, Drain                  Resume
//!  Running ---------------------------------------------------> Paused --------------> Running
//!     ^                |  fails: undone, back to Running         |  ^
//!     '----------------'                                         |  |  Capture: Capture, Commit
//!                                                                |  '- fails: paused, resumable -.
//!                                                                '-----------------------------'
//!  Capture that ends the process: Capture, Commit, End. Until it has its name the process only waits
//!  Restore (Paused): Verify, Connect, Restore, Reconnect; fails: still Paused, another card may try
//!
//!              Copy: Prepare, Connect (twice), (Copy, Preload) ...              Pause
//!  Running ------------------------------------------------------> Copied --------------> Paused, as above
//!     ^                |  fails: forgotten                          |  Resume: forgotten
//!     '----------------'--------------------------------------------'
//! ```
//!
//! Copies are images of a process that works, each with what has changed since the one before, and another card may read
//! them meanwhile. What is left to do in a pause is the last one, and what it means to come back from that.
//!
//! ```text
//!            PauseToMove      Capture                   Restore: Connect, Restore, Reconnect           Resume
//!  Running --------------> Paused --------> Paused (held) ------------------------------> Paused there ------> Running
//!     ^                                        |  ^  | fails: still held                         |
//!     '-------------- Resume ------------------'  '--'                       Resume fails: given up for dead
//! ```
//!
//! Who moves has no snapshot that outlasts it: the image has no name and takes no earlier one's, the local store goes from
//! card to card, and until the other card has both the process stands still where it was, able to go on there. It ends with
//! its connections, when the host has others.
//!
//! A host that is saved itself, while its cards capture, hears nothing of how that ends where it is restarted: it is told so
//! ([`Input::CapturedMeanwhile`]), and restores.
//!
//! One [`Output::Do`] is under way at a time; its outcome comes back as [`Input::Done`]. A call
//! ends with exactly one [`Output::Returned`].
//!
//! What must stay true: the locks of the host are released when, and only when, a pause has failed or a resume has
//! succeeded, or has failed and nothing can bring the process back; a snapshot that is not committed is discarded; only
//! a snapshot of this very pause is restored; a call that comes at the wrong time changes nothing.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    time::Duration,
};

use snaprig_offload_wire::snapify::{Link, Reply, Request, Store, StoredFile};
use snaprig_wire::scif::{HOST, NodeId};

use crate::{SnapifyError, Step};

/// How long host, daemon and offload process may take to agree and to drain their channels before
/// a pause is given up. A run function that runs on does not matter; a dead lock does.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Copies that are made at most: who changes more than can be copied is paused all the same.
const COPIES_MAX: u32 = 8;
/// A copy with so few bytes is not worth another one.
const FEW_BYTES: u64 = 1 << 20;

/// A call of Snapify's interface. Directories are named by their users' choice of name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Copies the process while it works, for the pause that is to follow; to this card, if it is to come back there.
    Copy(Option<NodeId>),
    /// snapify_pause.
    Pause,
    /// The same, of a process that is to be on another card at once.
    PauseToMove,
    /// snapify_capture; true ends the process.
    Capture(bool),
    /// snapify_resume.
    Resume,
    /// snapify_restore on this card.
    Restore(NodeId),
}

/// One thing to do, which takes time and can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a snapshot: its directory, the grant, the sink program.
    Prepare,
    /// Connect to a card's daemon.
    Connect(NodeId),
    /// Connect to the daemon of the card where copies go.
    ConnectTarget(NodeId),
    /// Send the request to the daemon and receive its reply.
    Ask(Request),
    /// The same with that of the card where copies go.
    AskTarget(Request),
    /// Take the host's locks and send the marker.
    Quiesce,
    /// Wait until so many results, pipeline by pipeline, and so many notices have been received.
    Settle(Vec<u64>, u64),
    /// Give the snapshot its name.
    Commit {
        /// Files of the local store.
        local_store: Vec<StoredFile>,
        /// Bytes of the process image: of all of a chain.
        images: Vec<u64>,
    },
    /// Verify every byte of the snapshot, and make its image one.
    Verify,
    /// Open the snapshot: every byte of its image has been verified on its way to the card, or will be.
    Open,
    /// Connect to the restored process, register windows anew.
    Reconnect {
        /// Its card.
        node: NodeId,
        /// Its id there.
        pid: i32,
        /// Where it waits.
        port: u16,
    },
}

/// How an [`Action`] ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To `Prepare`.
    Prepared {
        /// The directory's name for cards.
        directory: String,
        /// The sink program.
        binaries: Vec<StoredFile>,
        /// What the process writes comes to the host.
        proxy: bool,
    },
    /// To `Connect`, `ConnectTarget`, `Settle`, `Commit`, `Reconnect`.
    Done,
    /// To `Quiesce`: run functions ever sent, pipeline by pipeline.
    Quiet(Vec<u64>),
    /// To `Ask` and `AskTarget`.
    Reply(Reply),
    /// To `Verify` and `Open`.
    Verified {
        /// The directory's name for the card.
        snapshot: String,
        /// Files of the local store.
        local_store: Vec<StoredFile>,
        /// The sink program.
        binaries: Vec<StoredFile>,
        /// Bytes of the process image.
        image_bytes: u64,
        /// What the process writes comes to the host.
        proxy: bool,
    },
}

/// What happens.
#[derive(Debug)]
pub enum Input {
    /// A call, for the process that is on this card with this id.
    Call(Call, NodeId, i32),
    /// The [`Action`] under way has ended.
    Done(Result<Outcome, SnapifyError>),
    /// The capture under way had ended well, as all did that are in one checkpoint with this host, which was saved before it
    /// heard of that.
    CapturedMeanwhile,
}

/// What to do.
#[derive(Debug)]
pub enum Output {
    /// A step begins.
    Began(Step),
    /// It has ended well, having moved this many bytes.
    Ended(Step, u64),
    /// Do this, within the time, and say how it ended.
    Do(Action, Option<Duration>),
    /// Whether the process's end is to be expected from now on.
    SwappedOut(bool),
    /// The connection made last is the one to the process's daemon from now on.
    Switch,
    /// The connection to the card where copies went is the one made last.
    Enter,
    /// Drop it: what was copied there is forgotten.
    ForgetCopies,
    /// Drop the connection to the process's daemon.
    HangUp,
    /// Drop the connection made last, if there is one that is not the process's: the process stays
    /// paused, for as long as its own connection does.
    Forget,
    /// Drop the snapshot that is not committed.
    Discard,
    /// Release the host's locks.
    Release,
    /// The call has ended; the bytes that it moved.
    Returned(Result<u64, SnapifyError>),
}

/// What is under way, or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Running,
    ConnectingTarget,
    Copying,
    Preloading,
    /// Copies are made; the process works.
    Copied,
    Preparing,
    Connecting,
    Agreeing,
    Locking,
    Draining,
    Settling,
    /// A pause has failed for another reason; its agreement is being undone.
    Undoing,
    Paused,
    Capturing {
        terminate: bool,
    },
    Committing {
        terminate: bool,
    },
    /// The snapshot is complete.
    Ending,
    Resuming,
    Verifying(NodeId),
    Opening(NodeId),
    ConnectingAnew(NodeId),
    Restoring(NodeId),
    Reconnecting,
}

/// A snapshot that has no name yet.
#[derive(Clone, Debug)]
struct Building {
    /// Its name for cards.
    directory: String,
    binaries: Vec<StoredFile>,
    proxy: bool,
}

/// Copies of a process, for the snapshot that is being made.
#[derive(Clone, Debug, Default)]
struct Copies {
    target: Option<NodeId>,
    /// Bytes of each.
    images: Vec<u64>,
    /// How many the target has read.
    preloaded: u32,
}

impl Copies {
    fn next(&self) -> Link {
        Link {
            number: self.images.len() as u32,
            wrote: Vec::new(),
        }
    }

    /// Whether another copy would be not much smaller, or is not worth it.
    fn are_enough(&self) -> bool {
        match self.images[..] {
            [.., last] if last <= FEW_BYTES => true,
            [.., before, last] if last > before / 4 * 3 => true,
            _ => self.images.len() as u32 >= COPIES_MAX,
        }
    }
}

/// The machine: [`Machine::handle`] everything that happens, then [`Machine::poll_output`].
#[derive(Debug)]
pub struct Machine {
    state: State,
    node: NodeId,
    pid: i32,
    /// The capture of this pause is complete. An older snapshot would not fit the host process.
    captured: bool,
    /// The snapshot that pause has begun and capture commits.
    building: Option<Building>,
    local_store: Vec<StoredFile>,
    /// Bytes of each image in it.
    images: Vec<u64>,
    /// The process is paused to be on another card.
    moves: bool,
    copies: Option<Copies>,
    /// What restore brings back.
    request: Option<Request>,
    bytes: u64,
    failure: Option<SnapifyError>,
    outputs: VecDeque<Output>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            state: State::Running,
            node: 0,
            pid: 0,
            captured: false,
            building: None,
            local_store: Vec::new(),
            images: Vec::new(),
            moves: false,
            copies: None,
            request: None,
            bytes: 0,
            failure: None,
            outputs: VecDeque::new(),
        }
    }
}

impl Machine {
    /// Takes into a hash what decides what it does next, but for numbers and times: to count the
    /// states that an exhaustive search has seen.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        (
            &self.state,
            self.captured,
            self.moves,
            self.building.is_some(),
            self.failure.is_some(),
        )
            .hash(hash);
        let copies = self.copies.as_ref();
        copies
            .map(|one| (one.images.len(), one.preloaded, one.target.is_some()))
            .hash(hash);
    }

    /// Whether no call is at work and the process is paused.
    pub fn is_paused(&self) -> bool {
        self.state == State::Paused
    }

    /// Whether no call is at work, and the process runs and has been copied.
    pub fn is_copied(&self) -> bool {
        self.state == State::Copied
    }

    /// Whether the capture of this pause is complete.
    pub fn is_captured(&self) -> bool {
        self.captured
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Call(call, node, pid) => self.call(call, node, pid),
            Input::Done(Ok(Outcome::Reply(Reply::Failed { why, .. }))) => self.refused(why),
            Input::Done(Ok(outcome)) => self.succeeded(outcome),
            Input::Done(Err(error)) => self.failed(error),
            Input::CapturedMeanwhile => self.captured_meanwhile(),
        }
    }

    fn captured_meanwhile(&mut self) {
        if let State::Capturing { terminate: false } = self.state {
            self.drop_snapshot();
            self.local_store.clear();
            (self.state, self.captured) = (State::Paused, true);
        }
    }

    /// The step that the action under way is.
    fn step(&self) -> Option<Step> {
        Some(match self.state {
            State::Copying => Step::Copy,
            State::Preloading => Step::Preload,
            State::Agreeing => Step::Agree,
            State::Locking => Step::Lock,
            State::Draining | State::Settling => Step::Drain,
            State::Capturing { .. } => Step::Capture,
            State::Committing { .. } => Step::Commit,
            State::Verifying(_) | State::Opening(_) => Step::Verify,
            State::Restoring(_) => Step::Restore,
            State::Reconnecting => Step::Reconnect,
            State::Resuming => Step::Resume,
            _ => return None,
        })
    }

    fn call(&mut self, call: Call, node: NodeId, pid: i32) {
        let refuse = |why| Output::Returned(Err(SnapifyError::Order(why)));
        let (state, action) = match (&self.state, &call) {
            (State::Running, Call::Copy(target)) => {
                let copies = Copies {
                    target: *target,
                    ..Copies::default()
                };
                self.copies = Some(copies);
                (State::Preparing, Action::Prepare)
            }
            (_, Call::Copy(_)) => {
                let why = "only a process that runs is copied";
                return self.outputs.push_back(refuse(why));
            }
            (State::Running | State::Copied, Call::Pause | Call::PauseToMove) => {
                self.moves = call == Call::PauseToMove;
                match self.state {
                    State::Copied => (State::Agreeing, Action::Ask(Request::Pause { pid })),
                    _ => (State::Preparing, Action::Prepare),
                }
            }
            (_, Call::Pause | Call::PauseToMove) => {
                let why = "the process is paused already; resume it first";
                return self.outputs.push_back(refuse(why));
            }
            (State::Paused, Call::Capture(terminate))
                if self.building.is_some() && !self.captured =>
            {
                let terminate = *terminate && !self.moves;
                let request = Request::Capture {
                    pid,
                    snapshot: self.directory(),
                    // Who moves stands still like who ends.
                    terminate: terminate || self.moves,
                    last: self.copies.as_ref().map(Copies::next),
                };
                self.outputs.push_back(Output::SwappedOut(terminate));
                (State::Capturing { terminate }, Action::Ask(request))
            }
            (_, Call::Capture(_)) => {
                let why = "capture comes after pause, once";
                return self.outputs.push_back(refuse(why));
            }
            (State::Paused | State::Copied, Call::Resume) => {
                (State::Resuming, Action::Ask(Request::Resume { pid }))
            }
            (_, Call::Resume) => {
                let why = "there is nothing to resume";
                return self.outputs.push_back(refuse(why));
            }
            (State::Paused, Call::Restore(card)) if self.captured && self.moves => {
                let card = *card;
                if card == node {
                    let why = "the process is on that card still; resume it";
                    return self.outputs.push_back(refuse(why));
                }
                if self.images.len() > 1 && !self.is_preloaded(card) {
                    let why = "its copies went to another card; resume it, and move it anew";
                    return self.outputs.push_back(refuse(why));
                }
                (self.node, self.pid) = (node, pid);
                return self.fetch(card);
            }
            (State::Paused, Call::Restore(card)) if self.captured => {
                match self.is_preloaded(*card) {
                    true => (State::Opening(*card), Action::Open),
                    false => {
                        self.forget_copies();
                        (State::Verifying(*card), Action::Verify)
                    }
                }
            }
            (_, Call::Restore(_)) => {
                let why = "restore comes after pause and capture";
                return self.outputs.push_back(refuse(why));
            }
        };
        (self.node, self.pid, self.bytes) = (node, pid, 0);
        if state == State::Preparing {
            self.captured = false;
        }
        self.go(state, action);
    }

    /// Where the snapshot is that is being made, for cards.
    fn directory(&self) -> String {
        let building = self.building.as_ref();
        building.map_or_else(String::new, |building| building.directory.clone())
    }

    /// What it brings along.
    fn binaries(&self) -> Vec<StoredFile> {
        let building = self.building.as_ref();
        building.map_or_else(Vec::new, |building| building.binaries.clone())
    }

    /// How many images of the chain the other card has read.
    fn preloaded(&self) -> u32 {
        self.copies.as_ref().map_or(0, |copies| copies.preloaded)
    }

    /// A card is to have the process, which stands still on its own.
    fn fetch(&mut self, card: NodeId) {
        self.bytes = total(&self.local_store) + self.images.iter().sum::<u64>();
        let request = Request::Restore {
            snapshot: self.directory(),
            number: self.preloaded(),
            local_store: self.local_store.clone(),
            from: self.node,
            binaries: self.binaries(),
            proxy: self.building.as_ref().is_some_and(|one| one.proxy),
        };
        self.restore(card, request);
    }

    fn restore(&mut self, card: NodeId, request: Request) {
        match self.copies.take() {
            // That card may have failed by then, and another one reads all of it.
            Some(_) => {
                self.outputs.push_back(Output::Enter);
                self.go(State::Restoring(card), Action::Ask(request));
            }
            None => {
                self.request = Some(request);
                self.go(State::ConnectingAnew(card), Action::Connect(card));
            }
        }
    }

    /// Whether a card has all images of the chain but the last.
    fn is_preloaded(&self, card: NodeId) -> bool {
        let copies = self.copies.as_ref();
        copies.is_some_and(|copies| copies.target == Some(card) && copies.preloaded > 0)
    }

    /// What was copied to a card is of no use any more.
    fn forget_copies(&mut self) {
        if self
            .copies
            .take()
            .is_some_and(|copies| copies.target.is_some())
        {
            self.outputs.push_back(Output::ForgetCopies);
        }
    }

    /// The next image of a process that works.
    fn copy(&mut self) {
        let (snapshot, pid) = (self.directory(), self.pid);
        let link = self.copies.as_ref().map(Copies::next);
        if let Some(link) = link {
            let copy = Request::Copy {
                pid,
                snapshot,
                link,
            };
            self.go(State::Copying, Action::Ask(copy));
        }
    }

    /// It is there, and where it is to be.
    fn copied(&mut self) {
        match self.copies.as_ref().is_some_and(Copies::are_enough) {
            true => self.returned(State::Copied, Ok(self.bytes)),
            false => self.copy(),
        }
    }

    /// Begins the next action, and the step that it is.
    fn go(&mut self, state: State, action: Action) {
        let timeout = match state {
            State::Agreeing
            | State::Locking
            | State::Draining
            | State::Settling
            | State::Ending => Some(PAUSE_TIMEOUT),
            _ => None,
        };
        self.state = state;
        if self.state != State::Settling
            && let Some(step) = self.step()
        {
            self.outputs.push_back(Output::Began(step));
        }
        self.outputs.push_back(Output::Do(action, timeout));
    }

    fn ended(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(step) = self.step() {
            self.outputs.push_back(Output::Ended(step, bytes));
        }
    }

    fn returned(&mut self, state: State, result: Result<u64, SnapifyError>) {
        self.state = state;
        self.outputs.push_back(Output::Returned(result));
    }

    fn succeeded(&mut self, outcome: Outcome) {
        let (node, pid) = (self.node, self.pid);
        match (self.state.clone(), outcome) {
            (
                State::Preparing,
                Outcome::Prepared {
                    directory,
                    binaries,
                    proxy,
                },
            ) => {
                self.building = Some(Building {
                    directory,
                    binaries,
                    proxy,
                });
                self.go(State::Connecting, Action::Connect(node));
            }
            (State::Connecting, Outcome::Done) => {
                self.outputs.push_back(Output::Switch);
                match self.copies.as_ref().map(|copies| copies.target) {
                    None => self.go(State::Agreeing, Action::Ask(Request::Pause { pid })),
                    Some(None) => self.copy(),
                    Some(Some(card)) => {
                        self.go(State::ConnectingTarget, Action::ConnectTarget(card));
                    }
                }
            }
            (State::ConnectingTarget, Outcome::Done) => self.copy(),
            (State::Copying, Outcome::Reply(Reply::Copied { bytes })) => {
                self.ended(bytes);
                let copies = self.copies.get_or_insert_default();
                let number = copies.images.len() as u32;
                copies.images.push(bytes);
                match copies.target {
                    None => self.copied(),
                    Some(_) => {
                        let preload = Request::Preload {
                            snapshot: self.directory(),
                            number,
                            binaries: self.binaries(),
                        };
                        self.go(State::Preloading, Action::AskTarget(preload));
                    }
                }
            }
            (State::Preloading, Outcome::Reply(Reply::Preloaded)) => {
                self.ended(0);
                self.copies.get_or_insert_default().preloaded += 1;
                self.copied();
            }
            (State::Agreeing, Outcome::Reply(Reply::Agreed)) => {
                self.ended(0);
                self.go(State::Locking, Action::Quiesce);
            }
            (State::Locking, Outcome::Quiet(sent)) => {
                self.ended(0);
                let store = match self.copies {
                    // The last of them will have it.
                    Some(_) => Store::InImage,
                    None if self.moves => Store::Stays,
                    None => Store::Saved(self.directory()),
                };
                let drain = Request::Drain { pid, store, sent };
                self.go(State::Draining, Action::Ask(drain));
            }
            (
                State::Draining,
                Outcome::Reply(Reply::Drained {
                    local_store,
                    returned,
                    notices,
                }),
            ) => {
                self.local_store = local_store;
                self.go(State::Settling, Action::Settle(returned, notices));
            }
            (State::Settling, Outcome::Done) => {
                // What stays is moved later.
                self.ended(match self.moves {
                    true => 0,
                    false => total(&self.local_store),
                });
                self.returned(State::Paused, Ok(self.bytes));
            }
            (State::Capturing { terminate }, Outcome::Reply(Reply::Captured { bytes })) => {
                self.ended(bytes);
                let copies = self.copies.iter().flat_map(|copies| &copies.images);
                self.images = copies.copied().chain([bytes]).collect();
                if self.moves {
                    self.captured = true;
                    return self.returned(State::Paused, Ok(self.bytes));
                }
                let commit = Action::Commit {
                    local_store: std::mem::take(&mut self.local_store),
                    images: self.images.clone(),
                };
                self.go(State::Committing { terminate }, commit);
            }
            (State::Committing { terminate }, Outcome::Done) => {
                self.ended(0);
                (self.building, self.captured) = (None, true);
                match terminate {
                    true => self.go(State::Ending, Action::Ask(Request::End { pid })),
                    false => self.returned(State::Paused, Ok(self.bytes)),
                }
            }
            (State::Ending, Outcome::Reply(Reply::Ended)) => {
                self.returned(State::Paused, Ok(self.bytes));
            }
            (State::Resuming, Outcome::Reply(Reply::Resumed)) => {
                self.ended(0);
                self.over();
                self.returned(State::Running, Ok(0));
            }
            (State::Undoing, _) => self.undone(),
            (
                State::Verifying(card) | State::Opening(card),
                Outcome::Verified {
                    snapshot,
                    local_store,
                    binaries,
                    image_bytes,
                    proxy,
                },
            ) => {
                self.ended(0);
                self.bytes = total(&local_store) + image_bytes;
                let request = Request::Restore {
                    snapshot,
                    number: self.preloaded(),
                    local_store,
                    from: HOST,
                    binaries,
                    proxy,
                };
                self.restore(card, request);
            }
            (State::ConnectingAnew(card), Outcome::Done) => {
                if let Some(request) = self.request.take() {
                    self.go(State::Restoring(card), Action::Ask(request));
                }
            }
            (State::Restoring(card), Outcome::Reply(Reply::Restored { pid, port })) => {
                let bytes = std::mem::take(&mut self.bytes);
                self.ended(bytes);
                let reconnect = Action::Reconnect {
                    node: card,
                    pid,
                    port,
                };
                self.go(State::Reconnecting, reconnect);
            }
            (State::Reconnecting, Outcome::Done) => {
                self.ended(0);
                self.outputs.push_back(Output::Switch);
                if std::mem::take(&mut self.moves) {
                    self.captured = false;
                    self.drop_snapshot();
                }
                self.returned(State::Paused, Ok(self.bytes));
            }
            (_, _) => self.refused("it answered something else".into()),
        }
    }

    fn refused(&mut self, why: String) {
        let node = match self.state {
            State::ConnectingAnew(card) | State::Restoring(card) => card,
            State::ConnectingTarget | State::Preloading => {
                let copies = self.copies.as_ref();
                copies.and_then(|copies| copies.target).unwrap_or(self.node)
            }
            _ => self.node,
        };
        let step = self.step().unwrap_or(Step::Agree);
        self.failed(SnapifyError::Failed { node, step, why });
    }

    fn failed(&mut self, error: SnapifyError) {
        match self.state {
            State::Locking | State::Draining | State::Settling => {
                // Undo the agreement, if the card is still there to hear of it.
                self.failure = Some(error);
                self.state = State::Undoing;
                let resume = Action::Ask(Request::Resume { pid: self.pid });
                self.outputs
                    .push_back(Output::Do(resume, Some(PAUSE_TIMEOUT)));
            }
            State::Preparing
            | State::Connecting
            | State::ConnectingTarget
            | State::Copying
            | State::Preloading
            | State::Agreeing => {
                self.failure = Some(error);
                self.undone();
            }
            State::Undoing => self.undone(),
            State::Capturing { terminate } | State::Committing { terminate } => {
                if terminate {
                    self.outputs.push_back(Output::SwappedOut(false));
                }
                self.drop_snapshot();
                self.moves = false;
                self.returned(State::Paused, Err(error));
            }
            // The process, or its card, is gone already.
            State::Ending => self.returned(State::Paused, Ok(self.bytes)),
            State::ConnectingAnew(_) | State::Restoring(_) | State::Reconnecting => {
                self.outputs.push_back(Output::Forget);
                self.returned(State::Paused, Err(error));
            }
            // Nothing can bring it back: whoever waits for it is to hear of that.
            State::Resuming if self.moves || !self.captured => {
                self.failure = Some(error);
                self.undone();
            }
            State::Verifying(_) | State::Opening(_) | State::Resuming => {
                self.returned(State::Paused, Err(error));
            }
            State::Running | State::Copied | State::Paused => {}
        }
    }

    /// A pause that has failed leaves nothing.
    fn undone(&mut self) {
        self.over();
        let error = self.failure.take().unwrap_or(SnapifyError::TimedOut);
        self.returned(State::Running, Err(error));
    }

    /// Nothing is left of a pause, and the process runs.
    fn over(&mut self) {
        (self.moves, self.captured) = (false, false);
        self.drop_snapshot();
        self.outputs.push_back(Output::HangUp);
        self.outputs.push_back(Output::Release);
    }

    fn drop_snapshot(&mut self) {
        self.forget_copies();
        if self.building.take().is_some() {
            self.outputs.push_back(Output::Discard);
        }
    }
}

fn total(files: &[StoredFile]) -> u64 {
    files.iter().map(|file| file.len).sum()
}
