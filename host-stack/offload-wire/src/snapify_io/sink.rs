//! The side of a transfer that wants the bytes.

use super::{
    Common, Input, Kind, Machine, Message, Mode, Output, SLOT_BYTES, SLOTS, State, VERSION, after,
};

/// The receiving machine: the requester in read mode, the server in write mode.
///
#[derive(Debug)]
pub struct Sink {
    common: Common,
    /// The slot that the peer must fill next.
    next: u8,
    /// Slots that are filled and not drained.
    in_flight: u8,
    /// The length that the server announced, if this is the requester.
    announced: Option<u64>,
}

impl Sink {
    /// The requester's sink: asks to read `path`.
    pub fn request(kind: Kind, path: &str, window: i64) -> Self {
        let open = Message::Open {
            version: VERSION,
            kind,
            mode: Mode::Read,
            path: path.into(),
            window,
        };
        Self::new(Common::new(State::Opening, path, open))
    }

    /// The server's sink: the file that a requester wants to write is open.
    pub fn serve(path: &str) -> Self {
        Self::new(Common::new(State::Moving, path, Message::Opened { len: 0 }))
    }

    fn new(common: Common) -> Self {
        Self {
            common,
            next: 0,
            in_flight: 0,
            announced: None,
        }
    }

    fn filled(&mut self, slot: u8, len: u32, hash: u64) {
        let in_turn = slot == self.next && self.in_flight < SLOTS;
        let sum = self.common.bytes.checked_add(u64::from(len));
        let fits = sum.is_some_and(|sum| self.announced.is_none_or(|len| sum <= len));
        if !in_turn || !fits || len == 0 || len as usize > SLOT_BYTES {
            return self.common.protocol_error();
        }
        self.common.bytes += u64::from(len);
        self.next = after(slot);
        self.in_flight += 1;
        self.common
            .outputs
            .push_back(Output::Take { slot, len, hash });
    }

    fn taken(&mut self) {
        let slot = (self.next + SLOTS - self.in_flight) % SLOTS;
        self.in_flight -= 1;
        self.common.send(Message::Drained { slot });
        self.commit();
    }

    fn finish(&mut self, bytes: u64) {
        if bytes != self.common.bytes || self.announced.is_some_and(|len| len != bytes) {
            return self.common.protocol_error();
        }
        self.common.state = State::Finishing;
        self.commit();
    }

    fn commit(&mut self) {
        if self.common.state == State::Finishing && self.in_flight == 0 {
            self.common.outputs.push_back(Output::Commit {
                bytes: self.common.bytes,
            });
        }
    }
}

impl Machine for Sink {
    fn handle(&mut self, input: Input) {
        match (self.common.state, input) {
            (State::Done, _) => {}
            // All bytes are here: they are made permanent even if nobody is left to be told.
            (State::Finishing, Input::Lost) if self.in_flight == 0 => {}
            (_, Input::Lost) => self.common.lost(),
            (_, Input::Failed(failure)) => self.common.fail(failure),
            (_, Input::Peer(Message::Failed(failure))) => self.common.end(failure),
            (State::Opening, Input::Peer(Message::Opened { len })) => {
                self.common.state = State::Moving;
                self.announced = Some(len);
                self.common.outputs.push_back(Output::Opened { len });
            }
            (State::Moving, Input::Peer(Message::Filled { slot, len, hash })) => {
                self.filled(slot, len, hash)
            }
            (State::Moving | State::Finishing, Input::Taken) if self.in_flight > 0 => self.taken(),
            (State::Moving, Input::Peer(Message::Finish { bytes })) => self.finish(bytes),
            (State::Finishing, Input::Committed) if self.in_flight == 0 => {
                let bytes = self.common.bytes;
                self.common.send(Message::Finished { bytes });
                self.common.done(Ok(bytes));
            }
            _ => self.common.protocol_error(),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.common.outputs.pop_front()
    }
}
