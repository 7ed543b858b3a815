//! Send and receive: bytes within the credit that the receiver gives.
//!
//! Who waits may fill the window; who does not, and poll(2), has room while less than [`QUEUE_BYTES`] are unread, as
//! scif_send(3) has it.

use snaprig_wire::scif::{Body, QUEUE_BYTES};

use super::{Endpoint, EndpointId, Node, Output, RequestId, State, Value};

/// A send that has not ended.
pub(super) struct Sending {
    pub(super) request: RequestId,
    data: Vec<u8>,
    pub(super) sent: usize,
    /// Its program wants to know how much went.
    counts: bool,
}

impl Sending {
    /// How it ends when the endpoint does.
    pub(super) fn failed(&self, errno: i32) -> Result<Value, i32> {
        match self.sent {
            sent if self.counts && sent > 0 => Ok(Value::Count(sent)),
            _ => Err(errno),
        }
    }
}

impl Endpoint {
    /// Bytes that a send takes that does not wait.
    pub(super) fn room(&self, window: usize) -> usize {
        self.credit
            .saturating_sub(window.saturating_sub(QUEUE_BYTES))
    }
}

impl Node {
    /// A connected endpoint whose bytes go by the nodes.
    fn by_nodes(&mut self, id: EndpointId) -> Result<&mut Endpoint, i32> {
        let endpoint = self.connected(id)?;
        match endpoint.lanes {
            None => Ok(endpoint),
            Some(_) => Err(libc::EOPNOTSUPP),
        }
    }

    pub(super) fn send(
        &mut self,
        request: RequestId,
        id: EndpointId,
        data: Vec<u8>,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.by_nodes(id)?;
        if data.is_empty() {
            return Ok(Some(Value::Unit));
        }
        endpoint.sends.push_back(Sending {
            request,
            data,
            sent: 0,
            counts: false,
        });
        self.push_sends(id);
        Ok(None)
    }

    pub(super) fn write(
        &mut self,
        request: RequestId,
        id: EndpointId,
        mut data: Vec<u8>,
        block: bool,
    ) -> Result<Option<Value>, i32> {
        let window = self.window;
        let endpoint = self.by_nodes(id)?;
        if !block {
            let room = match endpoint.sends.is_empty() {
                true => endpoint.room(window),
                // Whoever waits is first.
                false => 0,
            };
            data.truncate(room);
        }
        if data.is_empty() {
            return Ok(Some(Value::Count(0)));
        }
        endpoint.sends.push_back(Sending {
            request,
            data,
            sent: 0,
            counts: true,
        });
        self.push_sends(id);
        Ok(None)
    }

    pub(super) fn push_sends(&mut self, id: EndpointId) {
        let window = self.window;
        loop {
            let Some(endpoint) = self.endpoints.get_mut(&id) else {
                return;
            };
            let credit = endpoint.credit;
            let Some(sending) = endpoint.sends.front_mut() else {
                return;
            };
            if credit == 0 {
                return;
            }
            let part = credit.min(sending.data.len() - sending.sent);
            let bytes = sending.data[sending.sent..sending.sent + part].to_vec();
            sending.sent += part;
            let is_over = sending.sent == sending.data.len();
            let ended = is_over.then_some((sending.request, sending.counts, sending.sent));
            endpoint.credit -= part;
            if is_over {
                endpoint.sends.pop_front();
            }
            if endpoint.room(window) == 0 {
                self.out(Output::Changed(id));
            }
            self.tell(id, Body::Data(bytes));
            if let Some((request, counts, sent)) = ended {
                let value = match counts {
                    true => Value::Count(sent),
                    false => Value::Unit,
                };
                self.done(request, Ok(value));
            }
        }
    }

    pub(super) fn read(
        &mut self,
        request: RequestId,
        id: EndpointId,
        max: usize,
        block: bool,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        match endpoint.state {
            _ if endpoint.lanes.is_some() => return Err(libc::EOPNOTSUPP),
            State::Connected => {}
            // What came before the end may still be read.
            State::Reset if !endpoint.received.is_empty() => {}
            State::Reset => return Err(libc::ECONNRESET),
            _ => return Err(libc::ENOTCONN),
        }
        let is_next = endpoint.receives.is_empty() && !endpoint.received.is_empty();
        if max == 0 || !block && !is_next {
            return Ok(Some(Value::Bytes(Vec::new())));
        }
        endpoint.receives.push_back((request, max));
        self.serve_receives(id);
        Ok(None)
    }

    pub(super) fn serve_receives(&mut self, id: EndpointId) {
        loop {
            let Some(endpoint) = self.endpoints.get_mut(&id) else {
                return;
            };
            if endpoint.received.is_empty() {
                return;
            }
            let Some((request, max)) = endpoint.receives.pop_front() else {
                return;
            };
            let count = max.min(endpoint.received.len());
            let (first, rest) = endpoint.received.as_slices();
            let first = &first[..count.min(first.len())];
            let bytes = [first, &rest[..count - first.len()]].concat();
            endpoint.received.drain(..count);
            if endpoint.received.is_empty() {
                self.outputs.push_back(Output::Changed(id));
            }
            if endpoint.state == State::Connected {
                self.tell(id, Body::Credit(count as u32));
            }
            self.done(request, Ok(Value::Bytes(bytes)));
        }
    }
}
