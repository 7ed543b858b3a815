//! Snapify-IO: requesters on the cards, the server and its disk on the host, and what Snapify does
//! with the snapshot's directory.

mod disk;
mod snapshot;

use coi_device::daemon::machine::{Conn, Pid};
use serde::{Deserialize, Serialize};
use snaprig_offload_wire::{
    snapify::{IMAGE, LOCAL_STORE, StoredFile, image},
    snapify_io::{
        BUFFER_BYTES, Failure, Input, Kind, Machine, Message, Mode, Output, SLOT_BYTES, Sink,
        Source,
    },
};
use snaprig_scif::node::EndpointId;
use snaprig_snapify::{SnapifyError, Step, faults as snapify_faults, machine::Outcome as Done};
use snaprig_snapify_io::faults;
use snaprig_wire::{
    frame,
    scif::{HOST, NodeId, PortId, port},
};
use xxhash_rust::xxh3::xxh3_64;

use snaprig_scenario::{
    links::Network as _,
    stage::{Effect, System as _},
};

use crate::{
    canary::Canary,
    sink::read_copy,
    state::{
        HostId, decode, event,
        io::{Owner, Role, Transfer},
        sockets::Heard,
    },
    world::World,
};

/// A host process's snapshot while it is being made.
pub fn partial(host: HostId) -> String {
    format!("snapshot{host}.partial/")
}

/// The same, once it is whole.
fn finished(host: HostId) -> String {
    format!("snapshot{host}/")
}

const MANIFEST: &str = "manifest";
const SUMS: &str = ".sums";
/// What a file is called until it is whole.
const UNFINISHED: &str = ".unfinished";
/// Bytes in a slot: small, so that small files need several.
const CHUNK_BYTES: usize = 16;

/// What says that a snapshot is complete.
#[derive(Serialize, Deserialize)]
struct Manifest {
    /// The how manieth of its application.
    round: u64,
    local_store: Vec<StoredFile>,
    /// Bytes of each image of its process.
    images: Vec<u64>,
}

impl World {
    pub(super) fn start_io(&mut self) {
        self.listen(HOST, port::SNAPIFY_IO, event::Role::Io(Role::Listener));
    }

    // Requesters.

    /// A process on a card stores a file on the host.
    pub(super) fn store(&mut self, node: NodeId, pid: Pid, name: &str, bytes: Vec<u8>, mode: Mode) {
        let owner = Owner::Process(pid, name.to_owned());
        self.request(node, owner, name, mode, bytes);
    }

    /// A card's daemon fetches a file from the host.
    pub(super) fn fetch(&mut self, node: NodeId, conn: Conn, name: &str) {
        self.request(node, Owner::Restore(conn), name, Mode::Read, Vec::new());
    }

    fn request(&mut self, node: NodeId, owner: Owner, path: &str, mode: Mode, bytes: Vec<u8>) {
        let server = PortId {
            node: HOST,
            port: port::SNAPIFY_IO,
        };
        let role = event::Role::Io(Role::Requester);
        let endpoint = self.connect(node, server, role);
        let address = self.buffer();
        let transfer = Transfer {
            machine: None,
            path: path.to_owned(),
            mode,
            address,
            own: 0,
            window: 0,
            chunks: bytes.chunks(CHUNK_BYTES).map(Vec::from).collect(),
            got: Vec::new(),
            copying: None,
            owner: Some(owner),
        };
        self.transfers.all.insert((node, endpoint), transfer);
    }

    pub(super) fn buffer(&mut self) -> u64 {
        let address = self.next_address;
        self.next_address += BUFFER_BYTES as u64;
        address
    }

    /// Requests of a process that has ended are dropped, and the server sees it.
    pub(super) fn end_requests_of(&mut self, node: NodeId, pid: Pid) {
        let mine =
            |owner: &Option<Owner>| matches!(owner, Some(Owner::Process(of, _)) if *of == pid);
        let all = self.transfers.all.iter();
        let ended: Vec<_> = all
            .filter(|((of, _), transfer)| *of == node && mine(&transfer.owner))
            .map(|((_, endpoint), _)| *endpoint)
            .collect();
        for endpoint in ended {
            self.transfers.all.remove(&(node, endpoint));
            self.close(node, endpoint);
        }
    }

    /// A card is gone, and what it asked for.
    pub(super) fn forget_requesters(&mut self, node: NodeId) {
        self.transfers.all.retain(|(of, _), _| *of != node);
    }

    // Both ends.

    pub(super) fn io_hears(
        &mut self,
        node: NodeId,
        endpoint: EndpointId,
        role: Role,
        heard: Heard,
    ) {
        match (role, heard) {
            (Role::Listener, Heard::Accepted(new)) => {
                self.roles
                    .insert((HOST, new), event::Role::Io(Role::Served));
            }
            (Role::Requester, Heard::Connected) => self.register(node, endpoint),
            (Role::Served, Heard::Frame(bytes))
                if !self.transfers.all.contains_key(&(node, endpoint)) =>
            {
                self.open(endpoint, &bytes);
            }
            (_, Heard::Registered(offset)) => self.begin(node, endpoint, offset),
            (_, Heard::Frame(bytes)) => {
                if let Some(message) = decode(&bytes) {
                    self.io_step(node, endpoint, Input::Peer(message));
                }
            }
            (_, Heard::Copied(_, result)) => self.slot_copied(node, endpoint, result),
            (_, Heard::Gone) => {
                let begun = |transfer: &Transfer| transfer.machine.is_some();
                match self.transfers.all.get(&(node, endpoint)).map(begun) {
                    Some(true) => self.io_step(node, endpoint, Input::Lost),
                    Some(false) => {
                        let failure = failure("", libc::ECONNRESET);
                        self.finish(node, endpoint, Err(failure));
                    }
                    None => self.close(node, endpoint),
                }
            }
            _ => {}
        }
    }

    fn register(&mut self, node: NodeId, endpoint: EndpointId) {
        if let Some(transfer) = self.transfers.all.get(&(node, endpoint)) {
            let address = transfer.address;
            let sockets = &mut self.nodes[usize::from(node)];
            sockets.register(endpoint, address, BUFFER_BYTES as u64, address);
            self.pump(node);
        }
    }

    /// The buffer is registered: the machine begins.
    fn begin(&mut self, node: NodeId, endpoint: EndpointId, offset: i64) {
        let Some(transfer) = self.transfers.all.get_mut(&(node, endpoint)) else {
            return;
        };
        transfer.own = offset;
        let path = transfer.path.clone();
        let len = transfer.chunks.iter().map(Vec::len).sum::<usize>() as u64;
        let machine: Box<dyn Machine> = match (node, transfer.mode) {
            (HOST, Mode::Write) => Box::new(Sink::serve(&path)),
            (HOST, Mode::Read) => Box::new(Source::serve(&path, len)),
            (_, Mode::Write) => Box::new(Source::request(Kind::Snapshot, &path, offset)),
            (_, Mode::Read) => Box::new(Sink::request(Kind::Snapshot, &path, offset)),
        };
        transfer.machine = Some(machine);
        self.io_pump(node, endpoint);
    }

    fn io_step(&mut self, node: NodeId, endpoint: EndpointId, input: Input) {
        let transfer = self.transfers.all.get_mut(&(node, endpoint));
        if let Some(machine) = transfer.and_then(|transfer| transfer.machine.as_mut()) {
            machine.handle(input);
            self.io_pump(node, endpoint);
        }
    }

    fn io_pump(&mut self, node: NodeId, endpoint: EndpointId) {
        loop {
            let transfer = self.transfers.all.get_mut(&(node, endpoint));
            let Some(transfer) = transfer.filter(|transfer| transfer.copying.is_none()) else {
                return;
            };
            let Some(output) = transfer.machine.as_mut().and_then(|one| one.poll_output()) else {
                return;
            };
            let answer = match output {
                Output::Send(message) => {
                    self.tell(node, endpoint, &message);
                    None
                }
                Output::Opened { .. } => None,
                Output::Fill { slot } => self.fill(node, endpoint, slot),
                Output::Take { slot, len, hash } => self.take(node, endpoint, (slot, len, hash)),
                Output::Commit { .. } => self.commit_file(node, endpoint),
                Output::Done(result) => return self.finish(node, endpoint, result),
            };
            let transfer = self.transfers.all.get_mut(&(node, endpoint));
            if let (Some(answer), Some(machine)) =
                (answer, transfer.and_then(|one| one.machine.as_mut()))
            {
                machine.handle(answer);
            }
        }
    }

    fn fill(&mut self, node: NodeId, endpoint: EndpointId, slot: u8) -> Option<Input> {
        if node == HOST {
            match self.fault(self.net.rig, &faults::READ) {
                Effect::Ended => return None,
                Effect::Error(errno) => return Some(Input::Failed(failure("read", errno))),
                _ => {}
            }
        }
        let transfer = self.transfers.all.get_mut(&(node, endpoint))?;
        let Some(chunk) = transfer.chunks.pop_front() else {
            return Some(Input::End);
        };
        let (len, hash) = (chunk.len() as u32, xxh3_64(&chunk));
        self.memory
            .insert(transfer.address + at(slot) as u64, chunk);
        if node != HOST {
            return Some(Input::Filled { len, hash });
        }
        transfer.copying = Some((slot, len, hash));
        let (own, window) = (transfer.own + at(slot), transfer.window + at(slot));
        self.nodes[usize::from(HOST)].copy(endpoint, own, len.into(), window, true);
        self.pump(HOST);
        None
    }

    fn take(
        &mut self,
        node: NodeId,
        endpoint: EndpointId,
        (slot, len, hash): (u8, u32, u64),
    ) -> Option<Input> {
        let transfer = self.transfers.all.get_mut(&(node, endpoint))?;
        if node == HOST {
            transfer.copying = Some((slot, len, hash));
            let (own, window) = (transfer.own + at(slot), transfer.window + at(slot));
            self.nodes[usize::from(HOST)].copy(endpoint, own, len.into(), window, false);
            self.pump(HOST);
            return None;
        }
        let bytes = self.memory.get(&(transfer.address + at(slot) as u64))?;
        if xxh3_64(bytes) != hash {
            return Some(Input::Failed(failure(&transfer.path, libc::EBADMSG)));
        }
        transfer.got.extend_from_slice(bytes);
        Some(Input::Taken)
    }

    /// On the server: RMA has ended.
    fn slot_copied(&mut self, node: NodeId, endpoint: EndpointId, result: Result<(), i32>) {
        let Some(transfer) = self.transfers.all.get_mut(&(node, endpoint)) else {
            return;
        };
        let Some((slot, len, hash)) = transfer.copying.take() else {
            return;
        };
        let mode = transfer.mode;
        let input = match (result, mode) {
            (Err(_), _) => Some(Input::Lost),
            (Ok(()), Mode::Read) => Some(Input::Filled { len, hash }),
            (Ok(()), Mode::Write) => self.write(endpoint, slot, hash),
        };
        if let Some(input) = input {
            self.io_step(node, endpoint, input);
        }
    }

    fn finish(&mut self, node: NodeId, endpoint: EndpointId, result: Result<u64, Failure>) {
        let Some(transfer) = self.transfers.all.remove(&(node, endpoint)) else {
            return;
        };
        if node == HOST && result.is_err() {
            self.disk.remove(&format!("{}{UNFINISHED}", transfer.path));
        }
        self.close(node, endpoint);
        match transfer.owner {
            None => {}
            Some(Owner::Process(pid, name)) => {
                self.stored(node, pid, &name, result.map_err(|failure| failure.errno));
            }
            Some(Owner::Restore(conn)) => {
                let bytes = result.map(|_| transfer.got);
                self.fetched(node, conn, bytes.map_err(|failure| failure.errno));
            }
        }
    }
}

/// Where a slot is in a buffer.
fn at(slot: u8) -> i64 {
    i64::from(slot) * SLOT_BYTES as i64
}

fn failure(path: &str, errno: i32) -> Failure {
    Failure {
        errno,
        path: path.into(),
        offset: 0,
        why: format!("errno {errno}"),
    }
}

fn disk_error(step: Step, errno: i32) -> SnapifyError {
    SnapifyError::Failed {
        node: HOST,
        step,
        why: format!("errno {errno}"),
    }
}
