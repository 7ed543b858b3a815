//! Both machines joined without sockets, in any order of events: whatever happens, they say nothing
//! twice, nobody waits for ever, and garbage ends a connection, not the coordinator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::{prelude::*, sample::Index};
use snaprig_coord::{
    Ns,
    coordinator::{self, Machine as Coordinator, Output},
    member::{self, Event, Machine as Member},
    message::{Answer, Call, CallError, Outcome, Role, Summary, ToCoordinator, ToMember},
    phase::{Kind, Order, Phase},
};
use snaprig_peers::Token;

const SECOND: Ns = 1_000_000_000;

/// A coordinator, members and one who orders, joined by connections that keep order.
struct Job {
    now: Ns,
    coordinator: Coordinator,
    peers: Vec<Peer>,
    /// By connection: whose.
    connections: BTreeMap<u64, usize>,
    next: u64,
    to_coordinator: BTreeMap<u64, VecDeque<Option<ToCoordinator>>>,
    to_peer: BTreeMap<u64, VecDeque<Option<ToMember>>>,
    commits: BTreeSet<u64>,
    summaries: Vec<Result<Summary, CallError>>,
}

struct Peer {
    machine: Member,
    connection: Option<u64>,
    /// What it is told to do next.
    todo: VecDeque<(u64, Phase)>,
    is_stopped: bool,
}

fn token() -> Token {
    Token::new([9; 32])
}

impl Job {
    fn new(members: usize) -> Self {
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
            summaries: Vec::new(),
        };
        for peer in 0..=members {
            job.member(peer, member::Input::Tick);
        }
        job
    }

    fn coordinator(&mut self, input: coordinator::Input) {
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
                Output::Members(_) => {}
            }
        }
    }

    fn member(&mut self, peer: usize, input: member::Input) {
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
                    Event::Begin { round, phase, .. } => of.todo.push_back((round, phase)),
                    Event::Undo { round, .. } => of.todo.push_back((round, Phase::Undo)),
                    Event::Finished { outcome, .. } => {
                        let undone = matches!(outcome, Outcome::Undone { .. });
                        assert!(!(undone && of.is_stopped), "it is stopped");
                    }
                    Event::Joined | Event::Apart { .. } => {}
                    Event::Refused(refusal) => panic!("{refusal}"),
                },
            }
        }
    }

    /// An agent does what it was told.
    fn act(&mut self, peer: usize, fails: bool) {
        let Some((round, phase)) = self.peers[peer].todo.pop_front() else {
            return;
        };
        match phase {
            Phase::Stop => self.peers[peer].is_stopped = true,
            Phase::Resume | Phase::Undo => self.peers[peer].is_stopped = false,
            _ => {}
        }
        let result = match fails {
            true => Err("it cannot".into()),
            false => Ok("a report".into()),
        };
        let done = member::Input::Done {
            round,
            phase,
            result,
        };
        self.member(peer, done);
    }

    fn order(&mut self, id: u64, kind: Kind) {
        let order = Order {
            phase_ms: 1000,
            gather_ms: 5000,
            ..Order::new(kind)
        };
        let call = Call::Order(order);
        self.member(0, member::Input::Call { id, call });
    }

    /// The nth connection on which something is to come delivers it.
    fn deliver(&mut self, index: Index) -> bool {
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

    fn break_off(&mut self, peer: usize) {
        if let Some(connection) = self.peers[peer].connection {
            let up = self.to_coordinator.entry(connection).or_default();
            up.push_back(None);
            self.to_peer.entry(connection).or_default().push_back(None);
        }
    }

    fn pass(&mut self, ns: Ns) {
        self.now += ns;
        self.coordinator(coordinator::Input::Tick);
        for peer in 0..self.peers.len() {
            self.member(peer, member::Input::Tick);
        }
    }

    /// Everybody does what is to be done, until nothing is. The disk answers, too.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            while self.deliver(Index::default_first()) {}
            let busy = (0..self.peers.len()).find(|peer| !self.peers[*peer].todo.is_empty());
            let waiting = self.coordinator.status().round;
            let commit = waiting.filter(|round| round.step == "commit");
            match (busy, commit) {
                (Some(peer), _) => self.act(peer, false),
                (None, Some(round)) => self.coordinator(coordinator::Input::Committed {
                    round: round.round,
                    result: Ok(()),
                }),
                (None, None) => return,
            }
        }
        panic!("it never comes to rest");
    }
}

#[test]
fn what_is_said_of_a_round_that_was_given_up_is_not_taken_for_the_next_coordinators() {
    let mut job = Job::new(1);
    while job.deliver(Index::default_first()) {}
    job.order(1, Kind::Checkpoint);
    while job.deliver(Index::default_first()) {}
    let first = job.coordinator.status().round.expect("a round").round;
    // It dies. The next one does not know of that round.
    job.coordinator = Job::new(0).coordinator;
    (0..=1).for_each(|peer| job.break_off(peer));
    for _ in 0..20 {
        while job.deliver(Index::default_first()) {}
        job.pass(SECOND);
    }
    job.order(2, Kind::Checkpoint);
    while job.deliver(Index::default_first()) {}
    let waits = |job: &Job| {
        let round = job.coordinator.status().round.expect("a round");
        assert_eq!((round.round, &*round.step), (first, "look"));
        round.waiting_for.len()
    };
    assert_eq!(waits(&job), 1);
    // The agent says that it has looked, as it was told first, and that it has undone that.
    for _ in 0..2 {
        job.act(1, false);
        while job.deliver(Index::default_first()) {}
        assert_eq!(waits(&job), 1);
    }
    job.settle();
    assert!(job.commits.contains(&first));
}

/// The first of whatever there is.
trait First {
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

#[derive(Clone, Debug)]
enum Step {
    Deliver(Index),
    Act(usize, bool),
    Break(usize),
    Pass(Ns),
    Order(Kind),
    Commit(bool),
    Say(usize, ToCoordinator),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Checkpoint),
        Just(Kind::Background),
        Just(Kind::Restart)
    ]
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Look),
        Just(Phase::Stop),
        Just(Phase::Drain),
        Just(Phase::Write),
        Just(Phase::Resume),
        Just(Phase::Undo)
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    let barrier = (0..4u64, "[ab/]{0,2}", any::<u32>());
    prop_oneof![
        barrier.prop_map(|(round, name, patience_ms)| Call::Barrier {
            round,
            name,
            patience_ms
        }),
        (0..4u64, prop::collection::vec((bytes(), bytes()), 0..4))
            .prop_map(|(round, entries)| Call::Publish { round, entries }),
        (0..4u64, prop::collection::vec(bytes(), 0..4), any::<u32>()).prop_map(
            |(round, keys, patience_ms)| Call::Lookup {
                round,
                keys,
                patience_ms
            }
        ),
        Just(Call::Status),
        "[0-3]".prop_map(|name| Call::Forget { name }),
    ]
}

/// What a member with the token, and bad manners, may say.
fn rude() -> impl Strategy<Value = ToCoordinator> {
    prop_oneof![
        Just(ToCoordinator::Ping),
        Just(ToCoordinator::Leave),
        (any::<u16>(), any::<[u8; 32]>())
            .prop_map(|(version, nonce)| ToCoordinator::Hello { version, nonce }),
        (any::<u64>(), call()).prop_map(|(id, call)| ToCoordinator::Call { id, call }),
        (0..4u64, phase(), any::<bool>()).prop_map(|(round, phase, good)| {
            let result = if good {
                Ok(String::new())
            } else {
                Err("no".into())
            };
            ToCoordinator::Done {
                round,
                phase,
                result,
            }
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => any::<Index>().prop_map(Step::Deliver),
        10 => (1..4usize, prop::bool::weighted(0.05)).prop_map(|(peer, fails)| Step::Act(peer, fails)),
        1 => (0..4usize).prop_map(Step::Break),
        2 => (0..30 * SECOND).prop_map(Step::Pass),
        2 => kind().prop_map(Step::Order),
        2 => prop::bool::weighted(0.8).prop_map(Step::Commit),
        1 => (1..4usize, rude()).prop_map(|(peer, message)| match message {
            // In place of the member's own it would have it refused for good.
            ToCoordinator::Hello { .. } => Step::Break(peer),
            message => Step::Say(peer, message),
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn after_anything_a_checkpoint_of_all_can_be_had(
        steps in prop::collection::vec(step(), 0..400)
    ) {
        let mut job = Job::new(3);
        let mut id = 0;
        for step in steps {
            match step {
                Step::Deliver(index) => drop(job.deliver(index)),
                Step::Act(peer, fails) => job.act(peer, fails),
                Step::Break(peer) => job.break_off(peer),
                Step::Pass(ns) => job.pass(ns),
                Step::Order(kind) => {
                    id += 1;
                    job.order(id, kind);
                }
                Step::Commit(good) => {
                    let round = job.coordinator.status().round;
                    if let Some(round) = round.filter(|round| round.step == "commit") {
                        let result = if good { Ok(()) } else { Err("a full disk".into()) };
                        let round = round.round;
                        job.coordinator(coordinator::Input::Committed { round, result });
                    }
                }
                Step::Say(peer, message) => {
                    let at = job.peers[peer].connection;
                    if let Some(connection) = at.filter(|at| job.to_coordinator.contains_key(at)) {
                        job.coordinator(coordinator::Input::Message { connection, message });
                    }
                }
            }
        }
        // Everybody comes back, and what was begun ends.
        for _ in 0..200 {
            job.settle();
            job.pass(SECOND);
        }
        prop_assert_eq!(&job.coordinator.status().round, &None);
        prop_assert!(job.peers.iter().all(|peer| !peer.is_stopped));
        for member in job.coordinator.status().members {
            prop_assert_eq!(member.missing, None);
        }
        job.summaries.clear();
        job.order(id + 1, Kind::Checkpoint);
        job.settle();
        let last = job.summaries.pop().expect("an answer").expect("a round");
        prop_assert_eq!(last.outcome, Outcome::Complete);
        prop_assert_eq!(last.members, 3);
        prop_assert!(job.commits.contains(&last.round));
    }

    #[test]
    fn strangers_get_nowhere(messages in prop::collection::vec(rude(), 1..20)) {
        let mut job = Job::new(1);
        job.settle();
        let connection = 1000;
        job.coordinator(coordinator::Input::Connected { connection, nonce: [3; 32] });
        for message in messages {
            job.coordinator(coordinator::Input::Message { connection, message });
        }
        job.connections.insert(connection, 0);
        let queue = job.to_peer.remove(&connection).unwrap_or_default();
        for message in queue.into_iter().flatten() {
            let is_harmless =
                matches!(message, ToMember::Challenge { .. } | ToMember::Refused(_));
            prop_assert!(is_harmless);
        }
        let status = job.coordinator.status();
        prop_assert_eq!(status.members.len(), 1);
        prop_assert_eq!(status.members[0].missing.clone(), None);
    }

    #[test]
    fn messages_come_back_as_they_were(message in rude()) {
        let bytes = snaprig_wire::frame::encode(&message);
        prop_assert_eq!(snaprig_wire::frame::decode(&bytes), Ok(message));
    }
}
