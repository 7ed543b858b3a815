//! Snapify in the offload process: from the daemon's request to pause to its request to resume
//! (paper sections 4.1 to 4.3; the messages are in [`snaprig_offload_wire::snapify`]).
//!
//! ```text
//!           Pause          Drain            channels empty, local store safe
//!  Running -------> Agreed -------> Draining --------------------------------> Quiet
//!     ^                                                                         |  ^
//!     |                                                             Capture     v  |
//!     |                                                                      Capturing
//!     |                              all channels connected again               | restarted
//!     '-- Resume, daemon gone -- Quiet <--------------------------- Reconnecting <-'
//!
//!           Copy             image written
//!  Running ------> Copying ----------------> Running
//! ```
//!
//! The channels are empty when the Shutdown marker has been seen, no result and no notice is being
//! sent, and all run functions that the host has sent have been received. What the process has ever
//! sent is counted, and the host waits until it has received as much: results by the number of
//! their pipeline, whichever pipelines have had it, and notices.
//!
//! What must stay true: while it is quiet, nothing is sent on any channel; a request gets one
//! reply, but the capture of which a restored process is the result: that one was answered in
//! another life. What a run function does after a capture that ends the process it does in that other
//! life: here, none runs on.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
};

use snaprig_offload_wire::{
    coi::Channel,
    snapify::{Link, Reply, Request, Store, StoredFile},
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
    /// The process was to end, has answered that its image is safe, and does not end after all.
    GoesOn,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The host has made this channel.
    Connected(Channel),
    /// A pipeline is gone, on both sides: its channel has no successor.
    Disconnected(Channel),
    /// A run function of this pipeline was received.
    Received(u32),
    /// A thread wants to send a result or a notice; [`Machine::may_send`] says when.
    Sending,
    /// It has sent the result of this pipeline.
    Sent(u32),
    /// It has sent a notice.
    Noticed,
    /// The command server has answered the Shutdown marker (case 3).
    Marker,
    /// The daemon asks.
    Request(Request),
    /// The daemon, or whoever pauses through it, is gone.
    DaemonGone,
    /// [`Output::SaveLocalStore`] or [`Output::ListLocalStore`] is done.
    Saved(Result<Vec<StoredFile>, Failure>),
    /// [`Output::Capture`] is done.
    Captured(Result<Captured, Failure>),
    /// [`Output::Copy`] is done: bytes of the image.
    Copied(Result<u64, Failure>),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Answer the daemon.
    Reply(Reply),
    /// Save the local store below this directory. Then [`Input::Saved`].
    SaveLocalStore(String),
    /// Say what there is of it. Then [`Input::Saved`].
    ListLocalStore,
    /// Stream the process to this directory. Then [`Input::Captured`]. If the process is to end and
    /// the capture goes well, nothing of it runs from then on: whoever streams it answers with
    /// [`Reply::Captured`] and waits for what comes next. With [`Request::End`], or if the daemon is gone
    /// (the snapshot may be complete by then), this machine hears no more; with any other request it
    /// hears [`Captured::GoesOn`], and then that.
    Capture {
        /// The directory.
        snapshot: String,
        /// Whether the process ends.
        terminate: bool,
        /// Which image of a chain it is.
        last: Option<Link>,
    },
    /// Stream an image of a chain to this directory, while the process works. Then [`Input::Copied`].
    Copy {
        /// The directory.
        snapshot: String,
        /// Which.
        link: Link,
    },
    /// Listen on a new port, tell the daemon of this card, and take the host's channels; register
    /// all windows anew on the one for RDMA as soon as it is there.
    Reconnect,
    /// The process is as it was before pause: threads that wait look again.
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    Copying,
    Agreed,
    Draining {
        store: Store,
        sent: Vec<u64>,
    },
    Saving,
    Quiet,
    Capturing,
    /// These channels are missing; true: resume comes right after.
    Reconnecting(BTreeSet<Channel>, bool),
}

/// The machine: [`Machine::handle`] everything that happens, then [`Machine::poll_output`].
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    marker: bool,
    sending: usize,
    /// Run functions ever received and results ever sent, by pipeline.
    pipelines: BTreeMap<u32, (u64, u64)>,
    /// Notices ever sent.
    notices: u64,
    channels: BTreeSet<Channel>,
    outputs: VecDeque<Output>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            state: State::Running,
            marker: false,
            sending: 0,
            pipelines: BTreeMap::new(),
            notices: 0,
            channels: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }
}

impl Machine {
    /// Takes into a hash what decides what it does next, but for numbers and times: to count the
    /// states that an exhaustive search has seen.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        std::mem::discriminant(&self.state).hash(hash);
        if let State::Reconnecting(missing, resume) = &self.state {
            (missing.len(), resume).hash(hash);
        }
        (self.marker, self.sending > 0).hash(hash);
    }

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
        !matches!(self.state, State::Running | State::Copying | State::Agreed)
    }

    /// Whether a thread that wants to send may go ahead.
    pub fn may_send(&self) -> bool {
        !self.is_quiet()
    }

    /// How many run functions this pipeline's number has ever received.
    pub fn received(&self, pipeline: u32) -> u64 {
        let pipeline = self.pipelines.get(&pipeline);
        pipeline.map_or(0, |(received, _)| *received)
    }

    /// The channels that the host has yet to make again after a restore.
    pub fn is_reconnecting(&self) -> bool {
        matches!(self.state, State::Reconnecting(..))
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Connected(channel) => {
                self.channels.insert(channel);
                self.reconnected(channel);
            }
            Input::Disconnected(channel) => {
                self.channels.remove(&channel);
            }
            Input::Sending => self.sending += 1,
            Input::Noticed => {
                self.sending = self.sending.saturating_sub(1);
                self.notices += 1;
            }
            Input::Sent(pipeline) => {
                self.sending = self.sending.saturating_sub(1);
                self.pipelines.entry(pipeline).or_default().1 += 1;
            }
            Input::Received(pipeline) => self.pipelines.entry(pipeline).or_default().0 += 1,
            Input::Marker => self.marker = true,
            Input::Request(request) => self.request(request),
            Input::DaemonGone => self.daemon_gone(),
            Input::Saved(result) if self.state == State::Saving => self.saved(result),
            Input::Captured(result) => self.captured(result),
            Input::Copied(result) if self.state == State::Copying => {
                self.state = State::Running;
                match result {
                    Ok(bytes) => self.reply(Reply::Copied { bytes }),
                    Err(failure) => self.refuse(failure),
                }
            }
            Input::Saved(_) | Input::Copied(_) => {}
        }
        if let State::Draining { store, sent } = &self.state
            && self.is_empty(sent)
        {
            let output = match store.clone() {
                Store::InImage => return self.saved(Ok(Vec::new())),
                Store::Saved(snapshot) => Output::SaveLocalStore(snapshot),
                Store::Stays => Output::ListLocalStore,
            };
            self.state = State::Saving;
            self.outputs.push_back(output);
        }
    }

    fn saved(&mut self, result: Result<Vec<StoredFile>, Failure>) {
        self.state = State::Quiet;
        match result {
            Ok(local_store) => {
                let returned = self.results_sent();
                self.reply(Reply::Drained {
                    local_store,
                    returned,
                    notices: self.notices,
                });
            }
            Err(failure) => self.refuse(failure),
        }
    }

    /// Whether nothing is in any channel, the host having sent so many run functions.
    fn is_empty(&self, sent: &[u64]) -> bool {
        let received = |(number, sent): (u32, &u64)| self.received(number) >= *sent;
        self.marker && self.sending == 0 && (0..).zip(sent).all(received)
    }

    fn results_sent(&self) -> Vec<u64> {
        let last = self.pipelines.keys().last().map_or(0, |last| last + 1);
        let sent = |number| self.pipelines.get(&number).map_or(0, |(_, sent)| *sent);
        (0..last).map(sent).collect()
    }

    fn reconnected(&mut self, channel: Channel) {
        let State::Reconnecting(missing, resume) = &mut self.state else {
            return;
        };
        missing.remove(&channel);
        if missing.is_empty() {
            let resume = *resume;
            self.state = State::Quiet;
            if resume {
                self.release();
                self.reply(Reply::Resumed);
            }
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
        match (&mut self.state, request) {
            (State::Running, Request::Pause { .. }) => {
                self.state = State::Agreed;
                self.reply(Reply::Agreed);
            }
            (State::Agreed, Request::Drain { store, sent, .. }) => {
                self.state = State::Draining { store, sent };
            }
            (
                State::Quiet,
                Request::Capture {
                    snapshot,
                    terminate,
                    last,
                    ..
                },
            ) => {
                self.state = State::Capturing;
                self.outputs.push_back(Output::Capture {
                    snapshot,
                    terminate,
                    last,
                });
            }
            (State::Running, Request::Copy { snapshot, link, .. }) => {
                self.state = State::Copying;
                self.outputs.push_back(Output::Copy { snapshot, link });
            }
            (State::Running, Request::Resume { .. }) => self.reply(Reply::Resumed),
            (State::Agreed | State::Draining { .. } | State::Quiet, Request::Resume { .. }) => {
                self.release();
                self.reply(Reply::Resumed);
            }
            (State::Reconnecting(_, resume), Request::Resume { .. }) => *resume = true,
            _ => self.refuse((libc::EINVAL, "the request makes no sense now".into())),
        }
    }

    fn captured(&mut self, result: Result<Captured, Failure>) {
        if self.state != State::Capturing {
            return;
        }
        self.state = State::Quiet;
        match result {
            Ok(Captured::Saved(bytes)) => self.reply(Reply::Captured { bytes }),
            Ok(Captured::GoesOn) => {}
            Ok(Captured::Restarted) => {
                if !self.channels.is_empty() {
                    self.state = State::Reconnecting(self.channels.clone(), false);
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

#[cfg(test)]
mod tests {
    use super::*;

    const PID: i32 = 7;

    fn outputs(machine: &mut Machine) -> Vec<Output> {
        std::iter::from_fn(|| machine.poll_output()).collect()
    }

    fn give(machine: &mut Machine, inputs: impl IntoIterator<Item = Input>) {
        inputs.into_iter().for_each(|input| machine.handle(input));
    }

    fn pause() -> Input {
        Input::Request(Request::Pause { pid: PID })
    }

    fn drain(sent: &[u64]) -> Input {
        Input::Request(Request::Drain {
            pid: PID,
            store: Store::Saved("/s".into()),
            sent: sent.to_vec(),
        })
    }

    fn drained(returned: &[u64], notices: u64) -> Output {
        Output::Reply(Reply::Drained {
            local_store: vec![],
            returned: returned.to_vec(),
            notices,
        })
    }

    #[test]
    fn a_notice_on_its_way_holds_the_pause_up_and_is_counted() {
        let mut machine = Machine::default();
        let notice = [Input::Sending, Input::Noticed, Input::Sending];
        give(&mut machine, notice);
        give(&mut machine, [pause(), drain(&[]), Input::Marker]);
        assert_eq!(outputs(&mut machine), [Output::Reply(Reply::Agreed)]);
        assert!(!machine.may_send());
        machine.handle(Input::Noticed);
        let save = Output::SaveLocalStore("/s".into());
        assert_eq!(outputs(&mut machine), [save]);
        machine.handle(Input::Saved(Ok(vec![])));
        assert_eq!(outputs(&mut machine), [drained(&[], 2)]);
    }

    #[test]
    fn a_number_that_is_used_again_goes_on_counting() {
        let mut machine = Machine::default();
        let (first, again) = (Channel::Pipeline(1), Channel::Pipeline(1));
        for channel in [first, again] {
            give(
                &mut machine,
                [Input::Connected(channel), Input::Received(1)],
            );
            give(&mut machine, [Input::Sending, Input::Sent(1)]);
            machine.handle(Input::Disconnected(channel));
        }
        give(&mut machine, [pause(), drain(&[0, 3]), Input::Marker]);
        assert_eq!(outputs(&mut machine), [Output::Reply(Reply::Agreed)]);
        machine.handle(Input::Received(1));
        outputs(&mut machine);
        machine.handle(Input::Saved(Ok(vec![])));
        assert_eq!(outputs(&mut machine), [drained(&[0, 2], 0)]);
    }

    #[test]
    fn a_restored_process_waits_for_every_channel_but_those_of_pipelines_that_are_gone() {
        let mut machine = Machine::default();
        let live = [Channel::Dma, Channel::Notice, Channel::Pipeline(2)];
        give(&mut machine, live.map(Input::Connected));
        let gone = Channel::Pipeline(0);
        let inputs = [Input::Connected(gone), Input::Disconnected(gone)];
        give(&mut machine, inputs);
        give(&mut machine, [pause(), drain(&[]), Input::Marker]);
        give(&mut machine, [Input::Saved(Ok(vec![]))]);
        let terminate = true;
        let snapshot = "/s".into();
        let capture = Request::Capture {
            pid: PID,
            snapshot,
            terminate,
            last: None,
        };
        give(
            &mut machine,
            [
                Input::Request(capture),
                Input::Captured(Ok(Captured::Restarted)),
            ],
        );
        assert_eq!(outputs(&mut machine).last(), Some(&Output::Reconnect));
        let resume = Input::Request(Request::Resume { pid: PID });
        give(&mut machine, [resume, Input::Connected(live[0])]);
        give(&mut machine, [Input::Connected(live[2])]);
        assert!(machine.is_reconnecting());
        machine.handle(Input::Connected(live[1]));
        let resumed = [Output::Released, Output::Reply(Reply::Resumed)];
        assert_eq!(outputs(&mut machine), resumed);
        assert!(machine.may_send());
    }

    #[test]
    fn what_is_copied_goes_on() {
        let mut machine = Machine::default();
        let link = Link {
            number: 0,
            wrote: vec![],
        };
        let copy = Request::Copy {
            pid: PID,
            snapshot: "/s".into(),
            link: link.clone(),
        };
        machine.handle(Input::Request(copy));
        let snapshot = "/s".into();
        assert_eq!(outputs(&mut machine), [Output::Copy { snapshot, link }]);
        assert!(machine.may_send());
        give(&mut machine, [Input::Sending, Input::Sent(0)]);
        machine.handle(Input::Copied(Ok(5)));
        let copied = Output::Reply(Reply::Copied { bytes: 5 });
        assert_eq!(outputs(&mut machine), [copied]);
        // Its local store is in the image that is to come.
        let drain = Input::Request(Request::Drain {
            pid: PID,
            store: Store::InImage,
            sent: vec![],
        });
        give(&mut machine, [pause(), drain, Input::Marker]);
        let expected = [Output::Reply(Reply::Agreed), drained(&[1], 0)];
        assert_eq!(outputs(&mut machine), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let mut machine = Machine::default();
        give(&mut machine, [drain(&[]), Input::Noticed, pause()]);
        let told = outputs(&mut machine);
        assert!(matches!(told[0], Output::Reply(Reply::Failed { .. })));
        assert_eq!(told[1], Output::Reply(Reply::Agreed));
    }
}
