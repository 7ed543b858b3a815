//! Machines of a job, joined without sockets by connections that keep order: what a test delivers happens, in whatever
//! order it wants.
#![allow(dead_code)] // Each test needs another part of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::{prelude::*, sample::Index};
use snaprig_coord::{
    Ns,
    coordinator::{self, Machine as Coordinator, Output},
    member::{self, Event, Machine as Member},
    message::{Answer, Call, CallError, Outcome, Role, Summary, ToCoordinator, ToMember},
    phase::{Kind, Moves, Order, Phase},
};
use snaprig_peers::Token;

pub const SECOND: Ns = 1_000_000_000;

/// A coordinator, members and one who orders, joined by connections that keep order.
pub struct Job {
    pub now: Ns,
    pub coordinator: Coordinator,
    pub peers: Vec<Peer>,
    /// By connection: whose.
    pub connections: BTreeMap<u64, usize>,
    pub next: u64,
    pub to_coordinator: BTreeMap<u64, VecDeque<Option<ToCoordinator>>>,
    pub to_peer: BTreeMap<u64, VecDeque<Option<ToMember>>>,
    pub commits: BTreeSet<u64>,
    /// What the disk says of rounds, for good: that they are decided, or that somebody has given them up.
    pub decided: BTreeMap<u64, bool>,
    /// The members, as the disk has them.
    pub members: Vec<String>,
    /// What the disk is to know of them.
    unkept: VecDeque<Vec<String>>,
    pub summaries: Vec<Result<Summary, CallError>>,
}

pub struct Peer {
    pub machine: Member,
    pub connection: Option<u64>,
    /// What it is told to do next.
    pub todo: VecDeque<Told>,
    pub is_stopped: bool,
    pub has_joined: bool,
    pub name: String,
    /// The move that it is in.
    pub moving: Option<(u64, Moves)>,
    /// Of whose tree is to go on elsewhere: where, and how often that was waited for.
    pub heir: Option<(usize, u32)>,
    pub tree: Tree,
}

/// What an agent is told to do.
#[derive(Clone, Debug)]
pub struct Told {
    pub round: u64,
    pub phase: Phase,
    pub moves: Option<Moves>,
    pub in_doubt: bool,
}

/// Where a tree is, as its supervisor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// It is here.
    Here,
    /// It may come here.
    Comes,
    /// It is not here, and will never be.
    Gone,
}

pub fn token() -> Token {
    Token::new([9; 32])
}

impl Job {
    pub fn new(members: usize) -> Self {
        let config = coordinator::Config {
            job: "job".into(),
            token: token(),
            members: Vec::new(),
            first_round: 1,
        };
        let peer = |number: usize| {
            let role = match number {
                0 => Role::Control,
                _ => Role::Member {
                    name: number.to_string(),
                    incarnation: number as u64,
                    is_heir: false,
                },
            };
            let config = member::Config {
                job: "job".into(),
                token: token(),
                role,
                is_persistent: true,
            };
            Peer {
                machine: Member::new(config, 0),
                connection: None,
                todo: VecDeque::new(),
                is_stopped: false,
                has_joined: false,
                name: number.to_string(),
                moving: None,
                heir: None,
                tree: Tree::Here,
            }
        };
        let mut job = Self {
            now: 0,
            coordinator: Coordinator::new(config, 0),
            peers: (0..=members).map(peer).collect(),
            connections: BTreeMap::new(),
            next: 1,
            to_coordinator: BTreeMap::new(),
            to_peer: BTreeMap::new(),
            commits: BTreeSet::new(),
            decided: BTreeMap::new(),
            members: Vec::new(),
            unkept: VecDeque::new(),
            summaries: Vec::new(),
        };
        for peer in 0..=members {
            job.member(peer, member::Input::Tick);
        }
        job
    }

    pub fn coordinator(&mut self, input: coordinator::Input) {
        for output in self.coordinator.handle(input, self.now) {
            match output {
                Output::Send {
                    connection,
                    message,
                } => {
                    self.to_peer
                        .entry(connection)
                        .or_default()
                        .push_back(Some(message));
                }
                Output::Disconnect { connection, .. } => {
                    self.to_coordinator.remove(&connection);
                    self.to_peer.entry(connection).or_default().push_back(None);
                }
                Output::Commit { round, reports, .. } => {
                    assert!(self.commits.insert(round), "round {round} commits twice");
                    assert!(!reports.is_empty());
                }
                Output::Members(members) => self.unkept.push_back(members),
            }
        }
    }

    pub fn member(&mut self, peer: usize, input: member::Input) {
        for output in self.peers[peer].machine.handle(input, self.now) {
            let of = &mut self.peers[peer];
            match output {
                member::Output::Connect => {
                    let connection = self.next;
                    self.next += 1;
                    of.connection = Some(connection);
                    self.connections.insert(connection, peer);
                    let nonce = [connection as u8; 32];
                    self.to_coordinator.insert(connection, VecDeque::new());
                    self.coordinator(coordinator::Input::Connected { connection, nonce });
                    self.member(peer, member::Input::Connected { nonce: [1; 32] });
                }
                member::Output::Send(message) => {
                    let queue = of
                        .connection
                        .and_then(|at| self.to_coordinator.get_mut(&at));
                    queue
                        .into_iter()
                        .for_each(|queue| queue.push_back(Some(message.clone())));
                }
                member::Output::Close => {
                    let at = of.connection.take();
                    let queue = at.and_then(|at| self.to_coordinator.get_mut(&at));
                    queue.into_iter().for_each(|queue| queue.push_back(None));
                }
                member::Output::Answer { result, .. } => match result {
                    Ok(Answer::Round(summary)) => self.summaries.push(Ok(summary)),
                    Ok(_) => {}
                    Err(error) => self.summaries.push(Err(error)),
                },
                member::Output::Event(event) => match event {
                    Event::Begin {
                        round,
                        phase,
                        order,
                    } => of.todo.push_back(Told {
                        round,
                        phase,
                        moves: order.moves,
                        in_doubt: false,
                    }),
                    Event::Undo {
                        round, in_doubt, ..
                    } => of.todo.push_back(Told {
                        round,
                        phase: Phase::Undo,
                        moves: None,
                        in_doubt,
                    }),
                    Event::Finished { outcome, .. } => {
                        let undone = matches!(outcome, Outcome::Undone { .. });
                        assert!(!(undone && of.is_stopped), "it is stopped");
                    }
                    Event::Joined => of.has_joined = true,
                    Event::Apart { .. } => {}
                    Event::Refused(refusal) => panic!("{refusal}"),
                },
            }
        }
    }

    /// An agent does what it was told.
    pub fn act(&mut self, peer: usize, fails: bool) {
        let Some(told) = self.peers[peer].todo.pop_front() else {
            return;
        };
        let of = &mut self.peers[peer];
        match told.phase {
            Phase::Stop => of.is_stopped = true,
            Phase::Resume | Phase::Go | Phase::Undo => of.is_stopped = false,
            _ => {}
        }
        if let Some(moves) = &told.moves {
            of.moving = Some((told.round, moves.clone()));
        }
        if told.phase == Phase::Write && self.waits_for_heir(peer, &told) {
            return;
        }
        let result = match fails {
            true => Err("it cannot".into()),
            false => Ok("a report".into()),
        };
        let goes = self.moves(peer, &told);
        let done = member::Input::Done {
            round: told.round,
            phase: told.phase,
            result,
        };
        self.member(peer, done);
        if goes {
            self.member(peer, member::Input::Leave);
        }
    }

    /// An agent gets on with what it was told.
    pub fn gets_on(&mut self, peer: usize) {
        if let Some(Told { round, phase, .. }) = self.peers[peer].todo.front().cloned() {
            self.member(peer, member::Input::GetsOn { round, phase });
        }
    }

    /// Whether the source of a move has nobody yet who goes on with its tree.
    fn waits_for_heir(&mut self, peer: usize, told: &Told) -> bool {
        const TRIES: u32 = 20;
        let of = &self.peers[peer];
        let Some(moves) = told.moves.as_ref().filter(|it| it.member == of.name) else {
            return false;
        };
        let (heir, tries) = match of.heir {
            Some((heir, tries)) => (heir, tries),
            None => (self.begin_heir(&moves.heir), 0),
        };
        self.peers[peer].heir = Some((heir, tries + 1));
        if self.peers[heir].has_joined {
            return false;
        }
        match tries < TRIES {
            true => self.peers[peer].todo.push_front(told.clone()),
            false => {
                let (round, phase) = (told.round, told.phase);
                let result = Err("the heir does not come".into());
                let done = member::Input::Done {
                    round,
                    phase,
                    result,
                };
                self.member(peer, done);
            }
        }
        true
    }

    fn begin_heir(&mut self, name: &str) -> usize {
        let number = self.peers.len();
        let config = member::Config {
            job: "job".into(),
            token: token(),
            role: Role::Member {
                name: name.into(),
                incarnation: number as u64,
                is_heir: true,
            },
            is_persistent: true,
        };
        self.peers.push(Peer {
            machine: Member::new(config, self.now),
            connection: None,
            todo: VecDeque::new(),
            is_stopped: false,
            has_joined: false,
            name: name.into(),
            moving: None,
            heir: None,
            tree: Tree::Comes,
        });
        self.member(number, member::Input::Tick);
        number
    }

    /// What comes of a move at one of its sides; whether that has no tree any more.
    fn moves(&mut self, peer: usize, told: &Told) -> bool {
        let of = &mut self.peers[peer];
        let is_decided = match (told.phase, &of.moving) {
            (Phase::Go, _) => true,
            (Phase::Undo, Some((round, _))) => {
                told.in_doubt && *self.decided.entry(*round).or_insert(false)
            }
            _ => return false,
        };
        let Some((_, Moves { member, heir })) = of.moving.take() else {
            return false;
        };
        let is_source = of.name == member;
        if !is_source && of.name != heir {
            return false;
        }
        of.tree = match is_source != is_decided {
            true => Tree::Here,
            false => Tree::Gone,
        };
        let gone = of.tree == Tree::Gone;
        if is_decided {
            of.name = if is_source { heir } else { member };
            let name = of.name.clone();
            self.member(peer, member::Input::Renamed { name });
        }
        // Who waits to be told of a round hears that there is none from whose tree it is.
        let given_up = self.peers[peer].heir.take().filter(|_| !is_decided);
        if let Some((heir, _)) = given_up
            && self.peers[heir].moving.is_none()
        {
            self.peers[heir].tree = Tree::Gone;
            self.member(heir, member::Input::Leave);
        }
        gone
    }

    pub fn order(&mut self, id: u64, order: Order) {
        let order = Order {
            phase_ms: 1000,
            gather_ms: 5000,
            ..order
        };
        let call = Call::Order(order);
        self.member(0, member::Input::Call { id, call });
    }

    /// The nth connection on which something is to come delivers it.
    pub fn deliver(&mut self, index: Index) -> bool {
        let up = self
            .to_coordinator
            .iter()
            .filter(|(_, queue)| !queue.is_empty());
        let down = self.to_peer.iter().filter(|(_, queue)| !queue.is_empty());
        let up = up.map(|(at, _)| (*at, true));
        let all: Vec<_> = up.chain(down.map(|(at, _)| (*at, false))).collect();
        if all.is_empty() {
            return false;
        }
        let (connection, is_up) = *index.get(&all);
        if is_up {
            let queue = self.to_coordinator.get_mut(&connection);
            match queue.and_then(VecDeque::pop_front).flatten() {
                Some(message) => self.coordinator(coordinator::Input::Message {
                    connection,
                    message,
                }),
                None => {
                    self.to_coordinator.remove(&connection);
                    self.coordinator(coordinator::Input::Gone { connection });
                }
            }
            return true;
        }
        let queue = self.to_peer.get_mut(&connection);
        let message = queue.and_then(VecDeque::pop_front).flatten();
        let peer = self.connections[&connection];
        if self.peers[peer].connection != Some(connection) {
            return true;
        }
        match message {
            Some(message) => self.member(peer, member::Input::Message(message)),
            None => {
                self.peers[peer].connection = None;
                let why = "closed".into();
                self.member(peer, member::Input::Closed { why });
            }
        }
        true
    }

    pub fn break_off(&mut self, peer: usize) {
        if let Some(connection) = self.peers[peer].connection {
            let up = self.to_coordinator.entry(connection).or_default();
            up.push_back(None);
            self.to_peer.entry(connection).or_default().push_back(None);
        }
    }

    pub fn pass(&mut self, ns: Ns) {
        self.now += ns;
        self.coordinator(coordinator::Input::Tick);
        for peer in 0..self.peers.len() {
            self.member(peer, member::Input::Tick);
        }
    }

    /// The disk knows who the members are; whether there was something new.
    pub fn keeps(&mut self) -> bool {
        let Some(members) = self.unkept.pop_front() else {
            return false;
        };
        self.members = members;
        self.coordinator(coordinator::Input::Kept);
        true
    }

    /// The disk answers.
    pub fn commits(&mut self, round: u64, result: Result<(), String>) {
        let result = result.and_then(|()| match *self.decided.entry(round).or_insert(true) {
            true => Ok(()),
            false => Err("somebody has given it up".into()),
        });
        self.coordinator(coordinator::Input::Committed { round, result });
    }

    /// The coordinator dies, and there is another one.
    pub fn coordinator_dies(&mut self, first_round: u64) {
        let config = coordinator::Config {
            job: "job".into(),
            token: token(),
            members: self.members.clone(),
            first_round,
        };
        self.coordinator = Coordinator::new(config, self.now);
        self.unkept.clear();
        self.to_coordinator.clear();
        for peer in 0..self.peers.len() {
            self.break_off(peer);
        }
        self.to_coordinator.clear();
    }

    /// Everybody comes back, and what was begun ends.
    pub fn comes_to_rest(&mut self) {
        for _ in 0..200 {
            self.settle();
            self.pass(SECOND);
        }
        assert_eq!(self.coordinator.status().round, None);
        assert!(self.peers.iter().all(|peer| !peer.is_stopped));
        for member in self.coordinator.status().members {
            assert_eq!(member.missing, None);
        }
    }

    /// A checkpoint of so many members can be had.
    pub fn has_a_checkpoint_of(&mut self, id: u64, members: u32) {
        self.summaries.clear();
        self.order(id, Order::new(Kind::Checkpoint));
        self.settle();
        let last = self.summaries.pop().expect("an answer").expect("a round");
        assert_eq!(last.outcome, Outcome::Complete);
        assert_eq!(last.members, members);
        assert!(self.commits.contains(&last.round));
    }

    /// Everybody does what is to be done, until nothing is. The disk answers, too.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            while self.keeps() || self.deliver(Index::default_first()) {}
            let busy = (0..self.peers.len()).find(|peer| !self.peers[*peer].todo.is_empty());
            let waiting = self.coordinator.status().round;
            let commit = waiting.filter(|round| round.step == "commit");
            match (busy, commit) {
                (Some(peer), _) => self.act(peer, false),
                (None, Some(round)) => self.commits(round.round, Ok(())),
                (None, None) => return,
            }
        }
        panic!("it never comes to rest");
    }
}

/// The first of whatever there is.
pub trait First {
    fn default_first() -> Self;
}

impl First for Index {
    fn default_first() -> Self {
        use proptest::{strategy::ValueTree, test_runner::TestRunner};
        let mut runner = TestRunner::deterministic();
        any::<Index>()
            .new_tree(&mut runner)
            .expect("an index")
            .current()
    }
}
