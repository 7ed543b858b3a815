//! The side of a transfer that has the bytes.

use super::{
    Common, Input, Kind, Machine, Message, Mode, Output, SLOT_BYTES, SLOTS, State, VERSION, after,
};

/// The sending machine: the requester in write mode, the server in read mode.
///
#[derive(Debug)]
pub struct Source {
    common: Common,
    /// The slot to fill next.
    next: u8,
    /// Slots that the sink has not drained.
    in_flight: u8,
    /// A `Fill` was handed out and not answered.
    filling: bool,
    /// The length that was promised to the peer, if one was.
    promised: Option<u64>,
}

impl Source {
    /// The requester's source: asks to write `path`.
    pub fn request(kind: Kind, path: &str, window: i64) -> Self {
        let open = Message::Open {
            version: VERSION,
            kind,
            mode: Mode::Write,
            path: path.into(),
            window,
        };
        Self::new(Common::new(State::Opening, path, open), None)
    }

    /// The server's source: the file of `len` bytes that a requester wants to read is open.
    pub fn serve(path: &str, len: u64) -> Self {
        let common = Common::new(State::Moving, path, Message::Opened { len });
        let mut source = Self::new(common, Some(len));
        source.fill();
        source
    }

    fn new(common: Common, promised: Option<u64>) -> Self {
        Self {
            common,
            next: 0,
            in_flight: 0,
            filling: false,
            promised,
        }
    }

    fn opened(&mut self, len: u64) {
        self.common.state = State::Moving;
        self.common.outputs.push_back(Output::Opened { len });
        self.fill();
    }

    fn drained(&mut self, slot: u8) {
        // The oldest slot in flight is `in_flight` turns before `next`.
        let oldest = (self.next + SLOTS - self.in_flight) % SLOTS;
        if self.in_flight == 0 || slot != oldest {
            return self.common.protocol_error();
        }
        self.in_flight -= 1;
        self.fill();
    }

    fn filled(&mut self, len: u32, hash: u64) {
        let sum = self.common.bytes.checked_add(u64::from(len));
        let bytes = match (sum, self.promised) {
            (Some(bytes), promised) if promised.is_none_or(|promised| bytes <= promised) => bytes,
            _ => return self.common.protocol_error(),
        };
        if !self.filling || len == 0 || len as usize > SLOT_BYTES {
            return self.common.protocol_error();
        }
        self.common.bytes = bytes;
        self.common.send(Message::Filled {
            slot: self.next,
            len,
            hash,
        });
        self.next = after(self.next);
        self.in_flight += 1;
        self.filling = false;
        self.fill();
    }

    fn end(&mut self) {
        if !self.filling
            || self
                .promised
                .is_some_and(|promised| promised != self.common.bytes)
        {
            return self.common.protocol_error();
        }
        self.filling = false;
        self.common.state = State::Finishing;
        self.common.send(Message::Finish {
            bytes: self.common.bytes,
        });
    }

    /// Hands out the next slot, if it is free and none is being filled.
    fn fill(&mut self) {
        if self.common.state == State::Moving && !self.filling && self.in_flight < SLOTS {
            self.filling = true;
            self.common
                .outputs
                .push_back(Output::Fill { slot: self.next });
        }
    }
}

impl Machine for Source {
    fn handle(&mut self, input: Input) {
        match (self.common.state, input) {
            (State::Done, _) => {}
            (_, Input::Lost) => self.common.lost(),
            (_, Input::Failed(failure)) => self.common.fail(failure),
            (_, Input::Peer(Message::Failed(failure))) => self.common.end(failure),
            (State::Opening, Input::Peer(Message::Opened { len })) => self.opened(len),
            (State::Moving | State::Finishing, Input::Peer(Message::Drained { slot })) => {
                self.drained(slot)
            }
            (State::Moving, Input::Filled { len, hash }) => self.filled(len, hash),
            (State::Moving, Input::End) => self.end(),
            (State::Finishing, Input::Peer(Message::Finished { bytes }))
                if bytes == self.common.bytes && self.in_flight == 0 =>
            {
                self.common.done(Ok(bytes))
            }
            _ => self.common.protocol_error(),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.common.outputs.pop_front()
    }
}
