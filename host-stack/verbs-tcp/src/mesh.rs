//! The connections of one node's daemon with those of all others.
//!
//! Each direction has a connection of its own: a node's packets go over the one that the node has made. So nobody has to decide
//! which of two connections stays when both ends make one at once.
//!
//! ```text
//!   node A (dials)                                node B (is dialled)
//!     | TCP ------------------------------------------> |
//!     | <------------------------------- Challenge(nonce) |
//!     | Hello(A, nonce, proof) -----------------------> |
//!     | <------------------------------- Welcome(proof) |   B dials A, if it is not connected to it
//!     | packets, Relay ------------------------------->   |
//!     | Ping -----------------------------------------> |   every PING_NS
//!     | <------------------------------------------ Pong |
//!
//!   dialling:  Waiting --time--> Dialling --TCP--> Asked --Challenge--> Shown --Welcome--> Open
//!                 ^                 |                |                    |                 |
//!                 +------ closed, nonsense, no answer in ANSWER_NS, no Pong in LOST_NS -----+
//!   dialled:   Fresh --Hello--> Open --closed, nonsense, silent for LOST_NS--> gone
//! ```
//!
//! What must stay true: packets are taken only of who is Open, and only as from its own node; of a node there is one Open
//! connection in each direction, the newest; there are never more than [`FRESH_MAX`] of those who have not said who they are;
//! a node that comes back is connected to again, whoever of both was away.

use std::collections::BTreeMap;

use snaprig_peers::{Nonce, Proof, Token, token::is_same};

use crate::frame::Message;

/// How long the other side has to answer until a connection is Open.
pub const ANSWER_NS: u64 = 5_000_000_000;
/// How often it is asked whether it is there.
pub const PING_NS: u64 = 1_000_000_000;
/// How long it may be silent.
pub const LOST_NS: u64 = 10_000_000_000;
/// How long until a node is dialled again.
pub const AGAIN_NS: u64 = 100_000_000;
/// Connections of which it is not known yet whose they are.
pub const FRESH_MAX: usize = 64;

const BY_DIALLER: &str = "snaprig fabric: dialler";
const BY_DIALLED: &str = "snaprig fabric: dialled";

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    /// That which was made to a node.
    To(u32),
    /// One that somebody has made to here; the driver gives it a number, and never twice.
    From(u64),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The node that was dialled has taken the connection.
    Connected(u32),
    /// Somebody has made a connection, and is asked with this nonce who it is.
    Accepted(u64, Nonce),
    /// A message came, which is no [`Message::Relay`].
    Message(Connection, Message),
    /// A connection has ended, or could not be made.
    Closed(Connection),
    /// Time has passed.
    Time,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Make a connection to a node.
    Dial(u32),
    /// Send a message.
    Send(Connection, Message),
    /// End a connection, of which nothing is told any more. Why.
    Close(Connection, &'static str),
    /// A node can be sent to.
    Up(u32),
    /// It cannot be any more.
    Down(u32),
}

/// Who a daemon is, and in which fabric.
#[derive(Debug)]
pub struct Identity {
    /// Its node, from 1.
    pub own: u32,
    /// How many nodes there are.
    pub nodes: u32,
    /// What all of them must agree on.
    pub setup: Vec<u8>,
    /// What all of them, and nobody else, know.
    pub token: Token,
}

impl Identity {
    /// A proof that goes from a node to a node.
    fn proof(&self, context: &str, nonces: [&Nonce; 2], (dialler, dialled): (u32, u32)) -> Proof {
        let mut about = self.setup.clone();
        for number in [self.nodes, dialler, dialled] {
            about.extend_from_slice(&number.to_le_bytes());
        }
        self.token.proof(context, nonces, &about)
    }

    fn is_another(&self, node: u32) -> bool {
        (1..=self.nodes).contains(&node) && node != self.own
    }
}

/// A connection that this daemon makes.
#[derive(Clone, Debug)]
enum Dialled {
    Waiting { until_ns: u64 },
    Dialling { until_ns: u64 },
    Asked { until_ns: u64 },
    Shown { until_ns: u64, nonces: [Nonce; 2] },
    Open { ping_ns: u64, lost_ns: u64 },
}

impl Dialled {
    fn due_ns(&self) -> u64 {
        match self {
            Self::Waiting { until_ns }
            | Self::Dialling { until_ns }
            | Self::Asked { until_ns }
            | Self::Shown { until_ns, .. } => *until_ns,
            Self::Open { ping_ns, lost_ns } => *ping_ns.min(lost_ns),
        }
    }
}

/// A connection that another daemon has made.
#[derive(Clone, Debug)]
enum Taken {
    Fresh { until_ns: u64, nonce: Nonce },
    Open { node: u32, lost_ns: u64 },
}

impl Taken {
    fn due_ns(&self) -> u64 {
        match self {
            Self::Fresh { until_ns, .. } => *until_ns,
            Self::Open { lost_ns, .. } => *lost_ns,
        }
    }
}

/// The machine.
#[derive(Debug)]
pub struct Mesh {
    identity: Identity,
    dialled: BTreeMap<u32, Dialled>,
    taken: BTreeMap<u64, Taken>,
    /// What nonces of this daemon are made of: one that is drawn, and how many there were.
    seed: Nonce,
    nonces: u64,
    outputs: Vec<Output>,
}

impl Mesh {
    /// Connected to nobody; the first [`Input::Time`] makes it dial. `seed` is drawn for this machine alone.
    pub fn new(identity: Identity, seed: Nonce) -> Self {
        let others = (1..=identity.nodes).filter(|node| *node != identity.own);
        let dialled = others.map(|node| (node, Dialled::Waiting { until_ns: 0 }));
        Self {
            dialled: dialled.collect(),
            taken: BTreeMap::new(),
            seed,
            nonces: 0,
            outputs: Vec::new(),
            identity,
        }
    }

    /// Whether a node can be sent to.
    pub fn is_up(&self, node: u32) -> bool {
        matches!(self.dialled.get(&node), Some(Dialled::Open { .. }))
    }

    /// The nodes that can be sent to.
    pub fn up(&self) -> impl Iterator<Item = u32> {
        let open = |(node, dialled): (&u32, &Dialled)| {
            matches!(dialled, Dialled::Open { .. }).then_some(*node)
        };
        self.dialled.iter().filter_map(open)
    }

    /// Whether what a node sends comes here.
    pub fn hears(&self, node: u32) -> bool {
        let from = |taken: &Taken| matches!(taken, Taken::Open { node: of, .. } if *of == node);
        self.taken.values().any(from)
    }

    /// Whose connection it is, once that is known: the node whose packets come over it.
    pub fn sender(&self, connection: Connection) -> Option<u32> {
        match connection {
            Connection::To(_) => None,
            Connection::From(number) => match self.taken.get(&number)? {
                Taken::Open { node, .. } => Some(*node),
                Taken::Fresh { .. } => None,
            },
        }
    }

    /// When [`Input::Time`] is due.
    pub fn next_ns(&self) -> Option<u64> {
        let dialled = self.dialled.values().map(Dialled::due_ns);
        let taken = self.taken.values().map(Taken::due_ns);
        dialled.chain(taken).min()
    }

    /// Something came over a connection: whoever is there is not lost.
    pub fn heard(&mut self, connection: Connection, now_ns: u64) {
        match connection {
            Connection::To(_) => {}
            Connection::From(number) => {
                if let Some(Taken::Open { lost_ns, .. }) = self.taken.get_mut(&number) {
                    *lost_ns = now_ns + LOST_NS;
                }
            }
        }
    }

    /// What is to be done, in order.
    pub fn handle(&mut self, input: Input, now_ns: u64) -> Vec<Output> {
        match input {
            Input::Connected(node) => self.connected(node, now_ns),
            Input::Accepted(number, nonce) => self.accepted(number, nonce, now_ns),
            Input::Message(Connection::To(node), message) => self.answered(node, &message, now_ns),
            Input::Message(Connection::From(number), message) => {
                self.asked(number, &message, now_ns);
            }
            Input::Closed(Connection::To(node)) => self.away(node, now_ns),
            Input::Closed(Connection::From(number)) => {
                self.taken.remove(&number);
            }
            Input::Time => self.expire(now_ns),
        }
        std::mem::take(&mut self.outputs)
    }

    fn say(&mut self, connection: Connection, message: Message) {
        self.outputs.push(Output::Send(connection, message));
    }

    fn connected(&mut self, node: u32, now_ns: u64) {
        let until_ns = now_ns + ANSWER_NS;
        if let Some(dialled @ Dialled::Dialling { .. }) = self.dialled.get_mut(&node) {
            *dialled = Dialled::Asked { until_ns };
        }
    }

    fn accepted(&mut self, number: u64, nonce: Nonce, now_ns: u64) {
        let fresh = |taken: &&Taken| matches!(taken, Taken::Fresh { .. });
        if self.taken.values().filter(fresh).count() >= FRESH_MAX {
            let why = "too many have not said who they are";
            let close = Output::Close(Connection::From(number), why);
            return self.outputs.push(close);
        }
        let until_ns = now_ns + ANSWER_NS;
        self.taken.insert(number, Taken::Fresh { until_ns, nonce });
        self.say(Connection::From(number), Message::Challenge { nonce });
    }

    /// A node that was dialled says something.
    fn answered(&mut self, node: u32, message: &Message, now_ns: u64) {
        let Some(state) = self.dialled.get(&node).cloned() else {
            return;
        };
        let ends = (self.identity.own, node);
        let next = match (state, message) {
            (Dialled::Asked { until_ns }, Message::Challenge { nonce }) => {
                let nonces = [*nonce, self.nonce()];
                let proof = self.identity.proof(BY_DIALLER, nonces.each_ref(), ends);
                let hello = Message::Hello {
                    node: self.identity.own,
                    nonce: nonces[1],
                    proof,
                };
                self.say(Connection::To(node), hello);
                Dialled::Shown { until_ns, nonces }
            }
            (Dialled::Shown { nonces, .. }, Message::Welcome { proof })
                if is_same(
                    proof,
                    &self.identity.proof(BY_DIALLED, nonces.each_ref(), ends),
                ) =>
            {
                self.outputs.push(Output::Up(node));
                Dialled::Open {
                    ping_ns: now_ns + PING_NS,
                    lost_ns: now_ns + LOST_NS,
                }
            }
            (Dialled::Open { ping_ns, .. }, Message::Pong) => Dialled::Open {
                ping_ns,
                lost_ns: now_ns + LOST_NS,
            },
            _ => return self.hang_up(node, "it says what makes no sense", now_ns),
        };
        self.dialled.insert(node, next);
    }

    /// Who has made a connection says something.
    fn asked(&mut self, number: u64, message: &Message, now_ns: u64) {
        let connection = Connection::From(number);
        match (self.taken.get(&number), message) {
            (
                Some(Taken::Fresh {
                    nonce: challenge, ..
                }),
                Message::Hello { node, nonce, proof },
            ) => {
                let (nonces, ends) = ([challenge, nonce], (*node, self.identity.own));
                let expected = self.identity.proof(BY_DIALLER, nonces, ends);
                if !self.identity.is_another(*node) || !is_same(proof, &expected) {
                    return self.refuse(number, "another token, or another fabric");
                }
                let proof = self.identity.proof(BY_DIALLED, nonces, ends);
                self.welcome(number, *node, proof, now_ns);
            }
            (Some(Taken::Open { .. }), Message::Ping) => {
                self.heard(connection, now_ns);
                self.say(connection, Message::Pong);
            }
            (None, _) => {}
            _ => self.refuse(number, "it says what makes no sense"),
        }
    }

    fn welcome(&mut self, number: u64, node: u32, proof: Proof, now_ns: u64) {
        let is_older = |taken: &Taken| matches!(taken, Taken::Open { node: of, .. } if *of == node);
        let older = self.taken.iter().find(|(_, taken)| is_older(taken));
        if let Some(older) = older.map(|(older, _)| *older) {
            self.refuse(older, "the node has connected again");
        }
        let lost_ns = now_ns + LOST_NS;
        self.taken.insert(number, Taken::Open { node, lost_ns });
        self.say(Connection::From(number), Message::Welcome { proof });
        if matches!(self.dialled.get(&node), Some(Dialled::Waiting { .. })) {
            self.dial(node, now_ns);
        }
    }

    fn refuse(&mut self, number: u64, why: &'static str) {
        self.taken.remove(&number);
        self.outputs
            .push(Output::Close(Connection::From(number), why));
    }

    fn dial(&mut self, node: u32, now_ns: u64) {
        let until_ns = now_ns + ANSWER_NS;
        self.dialled.insert(node, Dialled::Dialling { until_ns });
        self.outputs.push(Output::Dial(node));
    }

    fn hang_up(&mut self, node: u32, why: &'static str, now_ns: u64) {
        self.outputs.push(Output::Close(Connection::To(node), why));
        self.away(node, now_ns);
    }

    /// The connection to a node has ended.
    fn away(&mut self, node: u32, now_ns: u64) {
        let until_ns = now_ns + AGAIN_NS;
        match self.dialled.insert(node, Dialled::Waiting { until_ns }) {
            Some(Dialled::Open { .. }) => self.outputs.push(Output::Down(node)),
            Some(_) => {}
            // There is no such node.
            None => drop(self.dialled.remove(&node)),
        }
    }

    fn expire(&mut self, now_ns: u64) {
        let due = |due_ns: u64| due_ns <= now_ns;
        let taken = self.taken.iter().filter(|(_, taken)| due(taken.due_ns()));
        for number in taken.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.refuse(number, "it is silent");
        }
        let dialled = self.dialled.iter();
        let dialled = dialled.filter(|(_, dialled)| due(dialled.due_ns()));
        for (node, state) in dialled
            .map(|(node, state)| (*node, state.clone()))
            .collect::<Vec<_>>()
        {
            match state {
                Dialled::Waiting { .. } => self.dial(node, now_ns),
                Dialled::Open { lost_ns, .. } if !due(lost_ns) => {
                    self.say(Connection::To(node), Message::Ping);
                    let ping_ns = now_ns + PING_NS;
                    let open = Dialled::Open { ping_ns, lost_ns };
                    self.dialled.insert(node, open);
                }
                _ => self.hang_up(node, "it does not answer", now_ns),
            }
        }
    }

    /// A nonce: of as many as there are numbers, none is used twice.
    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        let seed = Token::new(self.seed);
        let number = self.nonces.to_le_bytes();
        seed.proof("snaprig fabric: nonce", [&[0; 32]; 2], &number)
    }
}
