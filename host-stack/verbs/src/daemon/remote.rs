//! The daemons of other nodes, where nodes share nothing but TCP: the sockets of [`Mesh`], and what goes over them.
//!
//! ```text
//!   Network --packet for another node's port--> Remote --TCP--> Remote of that node --> Hca::deliver
//! ```
//!
//! What must stay true: nothing here waits, but for [`Remote::finish`], which ends in time. A node that does not read has no
//! more memory taken for it than [`WAITING_MAX`] and one frame: packets beyond that are lost, as on a link that breaks. Whom a
//! packet is for, and whether one is taken, is [`Places`]'.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use rustix::{
    event::PollFlags,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt},
};
use snaprig_fabric::{Node, Tcp, description::OtherNode, place};
use snaprig_hca::{Packet, control::Fabric as Setup, memory::Header, port::PORTS_MAX};
use snaprig_peers::{Exchange, Token, listener::bind_tcp, token};
use snaprig_verbs_tcp::{
    Connection, Frame, Frames, Identity, Input, Mesh, Message, Output, Places, Relayed, Whom,
    frame::{self, FIRST_BYTES_MAX, FRAME_BYTES_MAX},
};

use super::relays::{Link, Relays};

/// Bytes that wait for a node with which the way there is full.
const FULL: usize = 4 << 20;
/// Most bytes that wait for a node.
const WAITING_MAX: usize = 16 << 20;
/// Bytes that are read at once.
const READ: usize = 256 << 10;
/// Bytes that are worth a system call before there is nothing else to do.
const WRITE: usize = 256 << 10;
/// How long the last that was sent may take.
const FINISH_MAX: Duration = Duration::from_secs(1);

/// A connection with another daemon.
#[derive(Debug)]
struct Stream {
    socket: TcpStream,
    /// It is being made.
    is_dialling: bool,
    input: Frames,
    output: Vec<u8>,
    /// How many of them have left.
    written: usize,
}

impl Stream {
    fn new(socket: TcpStream, is_dialling: bool) -> Self {
        Self {
            socket,
            is_dialling,
            input: Frames::default(),
            output: Vec::new(),
            written: 0,
        }
    }

    fn waiting(&self) -> usize {
        self.output.len() - self.written
    }

    /// Writes what goes now.
    fn flush(&mut self) -> io::Result<()> {
        while self.waiting() > 0 && !self.is_dialling {
            match self.socket.write(&self.output[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // What has left is taken out when it is as much as what has not, so that a byte is moved once or twice.
        if self.written * 2 >= self.output.len() {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }
}

/// What a descriptor is of.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// New connections.
    Listener,
    /// A connection with another daemon.
    Stream(Connection),
    /// A connection with a connection manager here.
    Relay(Link),
}

/// The daemons of other nodes.
#[derive(Debug)]
pub struct Remote {
    tcp: Tcp,
    node: Node,
    mesh: Mesh,
    listener: TcpListener,
    streams: BTreeMap<Connection, Stream>,
    next_number: u64,
    relays: Relays,
    /// With the node that each has come from.
    arrived: VecDeque<(u32, Packet<'static>)>,
    buffer: Vec<u8>,
}

impl Remote {
    /// Listens at the address of a node, of a fabric that is set up so. Listeners of its connection managers are in
    /// `directory`.
    pub fn start(tcp: Tcp, node: Node, setup: &Setup, directory: PathBuf) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let count = tcp.addresses.count();
        let hcas = count as usize * node.hcas_each as usize;
        if hcas != setup.hcas.len() {
            let why = format!(
                "{count} nodes with {} HCAs each are not {} HCAs",
                node.hcas_each,
                setup.hcas.len()
            );
            return Err(invalid(why));
        }
        let address = tcp.addresses.of(node.number);
        let number = node.number;
        let address = address.ok_or_else(|| invalid(format!("node {number} has no address")))?;
        let listener = bind_tcp(address)
            .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
        listener.set_nonblocking(true)?;
        let pkeys = place::pkeys_text(&setup.pkeys);
        let identity = Identity {
            own: number,
            nodes: count,
            setup: format!("{} {} {pkeys}", place::model_letters(setup), node.hcas_each).into(),
            token: Token::read(&tcp.token).map_err(io::Error::other)?,
        };
        Ok(Self {
            tcp,
            node,
            mesh: Mesh::new(identity, token::random()?),
            listener,
            streams: BTreeMap::new(),
            next_number: 0,
            relays: Relays::new(directory),
            arrived: VecDeque::new(),
            buffer: vec![0; READ],
        })
    }

    /// The HCAs that are this daemon's, of so many.
    pub fn here(&self, hcas: u32) -> (u32, u32) {
        let here = self.node.hcas(hcas);
        (here.start, here.end)
    }

    /// The other nodes.
    pub fn describe(&self) -> Vec<OtherNode> {
        let others = (1..=self.tcp.addresses.count()).filter(|number| *number != self.node.number);
        let described = others.filter_map(|number| {
            Some(OtherNode {
                number,
                address: self.tcp.addresses.of(number)?.to_string(),
                is_up: self.is_up(number),
            })
        });
        described.collect()
    }

    /// Whether a node can be sent to, and what it sends comes here.
    fn is_up(&self, node: u32) -> bool {
        self.mesh.is_up(node) && self.mesh.hears(node)
    }

    /// Where ports are.
    fn places<'h>(&'h self, header: &'h Header) -> Places<impl Fn(u32) -> Option<u32> + 'h> {
        Places {
            own: self.node.number,
            node_of: |port| self.node_of(header, port),
        }
    }

    /// The node that has a port.
    fn node_of(&self, header: &Header, port: u32) -> Option<u32> {
        let port = header.ports.get(port as usize)?;
        Some(port.hca.get() / self.node.hcas_each + 1)
    }

    /// The ports of other nodes.
    pub fn elsewhere(&self, header: &Header) -> BTreeSet<u32> {
        let all = 0..header.port_count.get().min(PORTS_MAX);
        all.filter(|port| self.node_of(header, *port) != Some(self.node.number))
            .collect()
    }

    /// Whether whoever has no window is to wait until less is under way to the node of a port.
    pub fn is_full(&self, header: &Header, port: u32) -> bool {
        let node = self.node_of(header, port);
        let stream = node.and_then(|node| self.streams.get(&Connection::To(node)));
        stream.is_some_and(|stream| stream.waiting() >= FULL)
    }

    /// Sends a packet where it is for, if that is elsewhere; whether it is for somebody here.
    pub fn send(&mut self, header: &Header, packet: &Packet<'_>) -> bool {
        let whom = self.places(header).whom(packet);
        match whom {
            Whom::Here => true,
            Whom::There(node) => {
                self.send_to(node, packet);
                false
            }
            Whom::All => {
                for node in self.mesh.up().collect::<Vec<_>>() {
                    self.send_to(node, packet);
                }
                true
            }
        }
    }

    /// Sends a packet to a node. It is lost if the node is away, or does not read.
    fn send_to(&mut self, node: u32, packet: &Packet<'_>) {
        if !self.mesh.is_up(node) {
            return;
        }
        let connection = Connection::To(node);
        let Some(stream) = self.streams.get_mut(&connection) else {
            return;
        };
        if stream.waiting() >= WAITING_MAX {
            return;
        }
        if let Err(error) = frame::put_packet(packet, &mut stream.output) {
            tracing::error!(%error, "a packet cannot be sent");
        }
        if stream.waiting() >= WRITE {
            self.flush_stream(connection);
        }
    }

    /// The next packet that has come, and may.
    pub fn take(&mut self, header: &Header) -> Option<Packet<'static>> {
        while let Some((sender, packet)) = self.arrived.pop_front() {
            if self.places(header).takes(sender, &packet) {
                return Some(packet);
            }
        }
        None
    }

    /// Nanoseconds, of the clock that all go by, when something is due.
    pub fn next_ns(&self) -> Option<u64> {
        self.mesh.next_ns()
    }

    /// What is to be waited for.
    pub fn descriptors(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut all = vec![(Source::Listener, self.listener.as_fd(), PollFlags::IN)];
        for (connection, stream) in &self.streams {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, stream.is_dialling || stream.waiting() > 0);
            all.push((Source::Stream(*connection), stream.socket.as_fd(), flags));
        }
        // Who has something to say to a node that does not read is not heard.
        let relays = self.relays.descriptors().filter(|(link, _)| {
            let stream = self.streams.get(&Connection::To(link.node));
            stream.is_some_and(|stream| stream.waiting() < FULL)
        });
        all.extend(relays.map(|(link, fd)| (Source::Relay(link), fd, PollFlags::IN)));
        all
    }

    /// Something can be read or written there.
    pub fn ready(&mut self, source: Source, now_ns: u64) {
        match source {
            Source::Listener => self.accept(now_ns),
            Source::Relay(link) => {
                if let Some(what) = self.relays.read(link) {
                    self.relay(link, what);
                }
            }
            Source::Stream(connection) => {
                if self
                    .streams
                    .get(&connection)
                    .is_some_and(|stream| stream.is_dialling)
                {
                    return self.dialled(connection, now_ns);
                }
                if let Err(why) = self.read(connection, now_ns) {
                    self.ended(connection, &why, now_ns);
                }
            }
        }
    }

    /// Does what is due, and writes what goes.
    pub fn work(&mut self, now_ns: u64) {
        if self.mesh.next_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.input(Input::Time, now_ns);
        }
        let waiting = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.waiting() > 0);
        for connection in waiting.map(|(one, _)| *one).collect::<Vec<_>>() {
            self.flush_stream(connection);
        }
    }

    /// Writes what goes. A connection that has failed is found so when it is read.
    fn flush_stream(&mut self, connection: Connection) {
        if let Some(stream) = self.streams.get_mut(&connection)
            && let Err(error) = stream.flush()
        {
            tracing::debug!(%error, ?connection, "nothing can be written");
            stream.output.clear();
            stream.written = 0;
            let _ = stream.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    fn accept(&mut self, now_ns: u64) {
        while let Ok((socket, _)) = self.listener.accept() {
            let set = socket
                .set_nonblocking(true)
                .and_then(|()| socket.set_nodelay(true));
            let (Ok(()), Ok(nonce)) = (set, token::random()) else {
                continue;
            };
            self.next_number += 1;
            let number = self.next_number;
            let stream = Stream::new(socket, false);
            self.streams.insert(Connection::From(number), stream);
            self.input(Input::Accepted(number, nonce), now_ns);
        }
    }

    /// A connection is made, or cannot be.
    fn dialled(&mut self, connection: Connection, now_ns: u64) {
        let (Connection::To(node), Some(stream)) = (connection, self.streams.get_mut(&connection))
        else {
            return;
        };
        match stream.socket.take_error() {
            Ok(None) => {
                stream.is_dialling = false;
                self.input(Input::Connected(node), now_ns);
            }
            Ok(Some(error)) | Err(error) => self.ended(connection, &error.to_string(), now_ns),
        }
    }

    /// Takes what has come.
    fn read(&mut self, connection: Connection, now_ns: u64) -> Result<(), String> {
        let Some(stream) = self.streams.get_mut(&connection) else {
            return Ok(());
        };
        let count = match stream.socket.read(&mut self.buffer) {
            Ok(0) => return Err("it has ended".into()),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        stream.input.push(&self.buffer[..count]);
        self.mesh.heard(connection, now_ns);
        loop {
            let sender = self.mesh.sender(connection);
            let bytes_max = match sender {
                Some(_) => FRAME_BYTES_MAX,
                None => FIRST_BYTES_MAX,
            };
            let Some(stream) = self.streams.get_mut(&connection) else {
                return Ok(());
            };
            let frame = stream.input.next_frame(bytes_max);
            match (frame.map_err(|error| error.to_string())?, sender) {
                (None, _) => return Ok(()),
                (Some(Frame::Packet(packet)), Some(node)) => {
                    self.arrived.push_back((node, packet));
                }
                (
                    Some(Frame::Message(Message::Relay {
                        link,
                        by_opener,
                        what,
                    })),
                    Some(node),
                ) => self.relayed(node, link, by_opener, what),
                (Some(Frame::Packet(_) | Frame::Message(Message::Relay { .. })), None) => {
                    return Err("it has not said who it is".into());
                }
                (Some(Frame::Message(message)), _) => {
                    self.input(Input::Message(connection, message), now_ns);
                }
            }
        }
    }

    /// Tells the machine, and does what it says.
    fn input(&mut self, input: Input, now_ns: u64) {
        for output in self.mesh.handle(input, now_ns) {
            match output {
                Output::Dial(node) => {
                    let address = self.tcp.addresses.of(node);
                    match address.map(dial) {
                        Some(Ok(socket)) => {
                            let stream = Stream::new(socket, true);
                            self.streams.insert(Connection::To(node), stream);
                        }
                        Some(Err(_)) | None => {
                            self.input(Input::Closed(Connection::To(node)), now_ns);
                        }
                    }
                }
                Output::Send(connection, message) => self.say(connection, &message),
                Output::Close(connection, why) => {
                    eprintln!("{}: {why}", self.name_of(connection));
                    self.streams.remove(&connection);
                }
                Output::Up(node) => eprintln!("node {node} is up"),
                Output::Down(node) => {
                    eprintln!("node {node} is down");
                    self.relays.forget(node);
                }
            }
        }
    }

    fn name_of(&self, connection: Connection) -> String {
        match (connection, self.mesh.sender(connection)) {
            (Connection::To(node), _) | (_, Some(node)) => format!("node {node}"),
            (Connection::From(number), None) => {
                let stream = self.streams.get(&Connection::From(number));
                let address = stream.and_then(|stream| stream.socket.peer_addr().ok());
                address.map_or("a stranger".into(), |address| address.to_string())
            }
        }
    }

    fn say(&mut self, connection: Connection, message: &Message) {
        if let Some(stream) = self.streams.get_mut(&connection) {
            frame::put_message(message, &mut stream.output);
            self.flush_stream(connection);
        }
    }

    /// A connection has ended.
    fn ended(&mut self, connection: Connection, why: &str, now_ns: u64) {
        tracing::debug!(why, ?connection, "a connection has ended");
        if let Some(node) = self.mesh.sender(connection) {
            self.relays.forget(node);
        }
        self.streams.remove(&connection);
        self.input(Input::Closed(connection), now_ns);
    }

    /// A program reaches for a connection manager on another node.
    pub fn reach(
        &mut self,
        program: OwnedFd,
        node: u32,
        (names, first): (Vec<String>, Vec<u8>),
        refusal: Vec<u8>,
    ) {
        let is_up = self.is_up(node);
        if let Some(link) = self.relays.open(program, node, refusal, is_up) {
            self.relay(link, Relayed::Open { names, first });
        }
    }

    /// Says to another node what has happened to a link. That goes once a connection has said whose it is: the other side
    /// takes it then.
    fn relay(&mut self, link: Link, what: Relayed) {
        let message = Message::Relay {
            link: link.number,
            by_opener: link.is_opened_here,
            what,
        };
        self.say(Connection::To(link.node), &message);
    }

    /// Another node says what has happened to a link.
    fn relayed(&mut self, node: u32, number: u64, by_opener: bool, what: Relayed) {
        let link = Link {
            node,
            number,
            is_opened_here: !by_opener,
        };
        if let Some(answer) = self.relays.take(link, what) {
            self.relay(link, answer);
        }
    }

    /// The last user is gone: what was sent is on its way before the daemon is gone, too.
    pub fn finish(&mut self) {
        // What comes is for nobody; and a daemon that finishes, too, is not to wait for this one.
        self.streams
            .retain(|connection, _| matches!(connection, Connection::To(_)));
        for (connection, stream) in &mut self.streams {
            let (Connection::To(node), true) = (connection, !stream.is_dialling) else {
                continue;
            };
            if !self.mesh.is_up(*node) {
                continue;
            }
            let mut exchange = Exchange::new(&stream.socket, FINISH_MAX);
            let last = exchange
                .write_all(&stream.output[stream.written..])
                .and_then(|()| stream.socket.shutdown(std::net::Shutdown::Write))
                // The other daemon closes when it has read all.
                .and_then(|()| io::copy(&mut exchange, &mut io::sink()));
            if let Err(error) = last {
                eprintln!("node {node}: the last packets may be lost: {error}");
            }
        }
    }
}

/// Begins to connect.
fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}
