//! SCIF for the programs of one node: frames in, frames out, over the node's machine. What the
//! drivers' threads do with blocking calls, this does with requests that are always pending: each
//! connected endpoint receives, each listening one accepts.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use snaprig_scif::node::{BackingId, EndpointId, Input, Local, Node, Op, Output, RequestId, Value};
use snaprig_wire::{
    dma::Descriptor,
    frame,
    scif::{Extent, Message, NodeId, PortId, QUEUE_BYTES},
};

/// What a program hears on its endpoint.
#[derive(Clone, Debug)]
pub enum Heard {
    /// It listens on this port.
    Listening(u16),
    /// It is connected.
    Connected,
    /// A connection was made to it.
    Accepted(EndpointId),
    /// A whole frame.
    Frame(Vec<u8>),
    /// Its window has this offset.
    Registered(i64),
    /// This RMA has ended.
    Copied(RequestId, Result<(), i32>),
    /// It cannot be connected, or is not any more.
    Gone,
}

/// What the node wants done.
#[derive(Debug)]
pub enum Does {
    /// A message for a neighbour.
    Send(NodeId, Message),
    /// For the program behind an endpoint.
    Hear(EndpointId, Heard),
    /// Copies, with this node's memory; report with [`Sockets::copied`].
    Copy(u64, NodeId, Vec<Descriptor>),
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Bind,
    Connect,
    Accept,
    Receive,
    Register,
    Copy,
    Other,
}

/// The node and its programs' endpoints.
pub struct Sockets {
    node: Node,
    next: u64,
    asked: BTreeMap<RequestId, (EndpointId, Asked)>,
    inboxes: BTreeMap<EndpointId, Vec<u8>>,
    does: VecDeque<Does>,
}

impl Sockets {
    /// Node `id` without neighbours.
    pub fn new(id: NodeId) -> Self {
        Self {
            node: Node::with_window(id, QUEUE_BYTES),
            next: 1,
            asked: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            does: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Does> {
        self.does.pop_front()
    }

    /// Something happened to the node.
    pub fn handle(&mut self, input: Input) {
        self.node.handle(input);
        self.pump();
    }

    /// A copy has ended.
    pub fn copied(&mut self, job: u64, result: Result<(), i32>) {
        self.handle(Input::CopyDone(job, result));
    }

    fn open(&mut self) -> EndpointId {
        self.next += 1;
        self.node.handle(Input::Open(self.next));
        self.next
    }

    fn ask(&mut self, endpoint: EndpointId, op: Op, asked: Asked) -> RequestId {
        self.next += 1;
        let request = self.next;
        self.asked.insert(request, (endpoint, asked));
        self.handle(Input::Request(request, endpoint, op));
        request
    }

    /// A listening endpoint; port 0 takes a free one.
    pub fn listen(&mut self, port: u16) -> EndpointId {
        let endpoint = self.open();
        self.ask(endpoint, Op::Bind(port), Asked::Bind);
        self.ask(endpoint, Op::Listen(64), Asked::Other);
        self.ask(endpoint, Op::Accept, Asked::Accept);
        endpoint
    }

    /// An endpoint on its way to be connected.
    pub fn connect(&mut self, peer: PortId) -> EndpointId {
        let endpoint = self.open();
        self.ask(endpoint, Op::Connect(peer), Asked::Connect);
        endpoint
    }

    /// Sends a message in a frame.
    pub fn send<T: Serialize>(&mut self, endpoint: EndpointId, message: &T) {
        let bytes = frame::encode_framed(message);
        self.ask(endpoint, Op::Send(bytes), Asked::Other);
    }

    /// Registers memory at this DMA address.
    pub fn register(&mut self, endpoint: EndpointId, address: u64, len: u64, backing: BackingId) {
        let extents = vec![Extent { address, len }];
        let op = Op::Register {
            extents,
            offset: None,
            prot: 3,
            backing,
        };
        self.ask(endpoint, op, Asked::Register);
    }

    /// Takes a window away.
    pub fn unregister(&mut self, endpoint: EndpointId, offset: i64, len: u64) {
        self.ask(endpoint, Op::Unregister { offset, len }, Asked::Other);
    }

    /// Copies between a window of this side and one of the peer's.
    pub fn copy(&mut self, endpoint: EndpointId, local: i64, len: u64, remote: i64, write: bool) {
        let op = Op::Rma {
            local: Local::Window(local),
            len,
            remote,
            write,
            ordered: false,
            sync: true,
        };
        self.ask(endpoint, op, Asked::Copy);
    }

    /// Copies between memory of this side and a window of the peer's.
    pub fn copy_memory(
        &mut self,
        endpoint: EndpointId,
        address: u64,
        len: u64,
        remote: i64,
        write: bool,
    ) -> RequestId {
        let extents = vec![Extent { address, len }];
        let op = Op::Rma {
            local: Local::Memory { extents, skip: 0 },
            len,
            remote,
            write,
            ordered: false,
            sync: true,
        };
        self.ask(endpoint, op, Asked::Copy)
    }

    /// Closes an endpoint; its program hears nothing more.
    pub fn close(&mut self, endpoint: EndpointId) {
        self.inboxes.remove(&endpoint);
        self.asked.retain(|_, (other, _)| *other != endpoint);
        self.handle(Input::Close(endpoint));
    }

    fn hear(&mut self, endpoint: EndpointId, heard: Heard) {
        self.does.push_back(Does::Hear(endpoint, heard));
    }

    fn pump(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Send(to, message) => self.does.push_back(Does::Send(to, message)),
                Output::Copy {
                    job, peer, copies, ..
                } => {
                    self.does.push_back(Does::Copy(job, peer, copies));
                }
                Output::Release(_) | Output::Changed(_) | Output::Poke { .. } => {}
                // Nobody here takes lanes.
                Output::Lay(_) | Output::Ring(..) => {}
                Output::Done(request, result) => {
                    if let Some((endpoint, asked)) = self.asked.remove(&request) {
                        self.done(request, endpoint, asked, result);
                    }
                }
            }
        }
    }

    fn done(
        &mut self,
        request: RequestId,
        endpoint: EndpointId,
        asked: Asked,
        result: Result<Value, i32>,
    ) {
        match (asked, result) {
            (Asked::Bind, Ok(Value::Port(port))) => self.hear(endpoint, Heard::Listening(port)),
            (Asked::Connect, Ok(_)) => {
                self.hear(endpoint, Heard::Connected);
                self.receive(endpoint);
            }
            (Asked::Accept, Ok(Value::Accepted { endpoint: new, .. })) => {
                self.hear(endpoint, Heard::Accepted(new));
                self.receive(new);
                self.ask(endpoint, Op::Accept, Asked::Accept);
            }
            (Asked::Receive, Ok(Value::Bytes(bytes))) => {
                self.inboxes.entry(endpoint).or_default().extend(bytes);
                self.frames(endpoint);
                self.receive(endpoint);
            }
            (Asked::Register, Ok(Value::Offset(offset))) => {
                self.hear(endpoint, Heard::Registered(offset));
            }
            (Asked::Copy, result) => {
                self.hear(endpoint, Heard::Copied(request, result.map(|_| ())));
            }
            (Asked::Connect | Asked::Receive | Asked::Register, _) => {
                self.hear(endpoint, Heard::Gone);
            }
            (Asked::Bind | Asked::Accept | Asked::Other, _) => {}
        }
    }

    fn receive(&mut self, endpoint: EndpointId) {
        self.ask(endpoint, Op::Recv(QUEUE_BYTES), Asked::Receive);
    }

    fn frames(&mut self, endpoint: EndpointId) {
        loop {
            let inbox = self.inboxes.entry(endpoint).or_default();
            let Some(prefix) = inbox.first_chunk::<4>() else {
                return;
            };
            let Ok(len) = frame::frame_len(*prefix) else {
                return self.hear(endpoint, Heard::Gone);
            };
            if inbox.len() < 4 + len {
                return;
            }
            let rest = inbox.split_off(4 + len);
            let mut frame = std::mem::replace(inbox, rest);
            frame.drain(..4);
            self.hear(endpoint, Heard::Frame(frame));
        }
    }
}
