//! Daemons that reach each other over streams that a seed orders, cuts and breaks.

use std::collections::{BTreeMap, VecDeque};

use snaprig_peers::Token;
use snaprig_sim::Random;
use snaprig_verbs_tcp::{
    Connection, Identity, Input, Mesh, Message, Output,
    mesh::{AGAIN_NS, ANSWER_NS, FRESH_MAX, LOST_NS},
};

/// One end of a stream: whose, and what the owner calls it.
type End = (u32, Connection);

/// All daemons of a fabric, and what is between them.
struct World {
    meshes: BTreeMap<u32, Mesh>,
    /// Messages under way to an end, in order.
    under_way: BTreeMap<End, VecDeque<Message>>,
    /// The other end of each.
    other: BTreeMap<End, End>,
    next: u64,
    now_ns: u64,
    random: Random,
    /// Nodes that nothing reaches, and that reach nothing: packets are lost, and nobody is told.
    cut: Vec<u32>,
}

fn mesh(own: u32, nodes: u32, token: u8) -> Mesh {
    let identity = Identity {
        own,
        nodes,
        setup: b"AB".to_vec(),
        token: Token::new([token; 32]),
    };
    Mesh::new(identity, [own as u8; 32])
}

impl World {
    fn new(nodes: u32, seed: u64) -> Self {
        Self {
            meshes: (1..=nodes).map(|own| (own, mesh(own, nodes, 1))).collect(),
            under_way: BTreeMap::new(),
            other: BTreeMap::new(),
            next: 0,
            now_ns: 0,
            random: Random::new(seed, "mesh"),
            cut: Vec::new(),
        }
    }

    fn input(&mut self, node: u32, input: Input) {
        let Some(mesh) = self.meshes.get_mut(&node) else {
            return;
        };
        for output in mesh.handle(input, self.now_ns) {
            match output {
                Output::Dial(to) => self.dial(node, to),
                Output::Send(connection, message) => self.send((node, connection), message),
                Output::Close(connection, _) => self.close((node, connection)),
                Output::Up(_) | Output::Down(_) => {}
            }
        }
    }

    fn dial(&mut self, node: u32, to: u32) {
        let end = (node, Connection::To(to));
        if self.cut.contains(&node) || self.cut.contains(&to) {
            return;
        }
        if !self.meshes.contains_key(&to) {
            return self.input(node, Input::Closed(end.1));
        }
        self.next += 1;
        let other = (to, Connection::From(self.next));
        self.other.insert(end, other);
        self.other.insert(other, end);
        self.input(node, Input::Connected(to));
        let nonce = [self.next as u8; 32];
        self.input(to, Input::Accepted(self.next, nonce));
    }

    fn send(&mut self, from: End, message: Message) {
        if let Some(to) = self.other.get(&from)
            && !self.cut.contains(&from.0)
            && !self.cut.contains(&to.0)
        {
            self.under_way.entry(*to).or_default().push_back(message);
        }
    }

    /// An end is closed by its owner: the other one hears of it, if it can.
    fn close(&mut self, end: End) {
        self.under_way.remove(&end);
        let Some(other) = self.other.remove(&end) else {
            return;
        };
        if !self.cut.contains(&end.0) && !self.cut.contains(&other.0) {
            self.other.remove(&other);
            self.under_way.remove(&other);
            self.input(other.0, Input::Closed(other.1));
        }
    }

    /// Delivers one message, or lets time pass to when the next machine wants it.
    fn step(&mut self) {
        let busy: Vec<End> = self
            .under_way
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(end, _)| *end)
            .collect();
        if busy.is_empty() {
            let next = self.meshes.values().filter_map(Mesh::next_ns).min();
            self.now_ns = self.now_ns.max(next.expect("somebody waits"));
            for node in self.meshes.keys().copied().collect::<Vec<_>>() {
                self.input(node, Input::Time);
            }
            return;
        }
        let end = busy[self.random.below(busy.len() as u64) as usize];
        let message = self.under_way.get_mut(&end).and_then(VecDeque::pop_front);
        self.input(
            end.0,
            Input::Message(end.1, message.expect("it is not empty")),
        );
    }

    fn all_up(&self) -> bool {
        let others = self.meshes.len() - 1;
        self.meshes.values().all(|mesh| mesh.up().count() == others)
    }

    fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        for _ in 0..10_000 {
            if is(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    /// A process ends: the kernel closes what it had.
    fn kill(&mut self, node: u32) {
        self.meshes.remove(&node);
        let ends: Vec<End> = self.other.keys().copied().collect();
        for end in ends.into_iter().filter(|end| end.0 == node) {
            self.close(end);
        }
    }
}

#[test]
fn all_reach_all_in_whatever_order_messages_come() {
    for seed in 0..50 {
        let mut world = World::new(4, seed);
        world.until("all are up", World::all_up);
        assert!(world.now_ns < ANSWER_NS, "seed {seed}");
    }
}

#[test]
fn who_comes_back_is_reached_at_once() {
    for seed in 0..50 {
        let mut world = World::new(3, seed);
        world.until("all are up", World::all_up);
        world.kill(2);
        world.until("1 has noticed", |world| !world.meshes[&1].is_up(2));
        let now_ns = world.now_ns;
        world.meshes.insert(2, mesh(2, 3, 1));
        world.until("all are up again", World::all_up);
        assert!(world.now_ns <= now_ns + AGAIN_NS, "seed {seed}");
    }
}

#[test]
fn a_node_that_is_cut_off_is_noticed_and_found_again() {
    for seed in 0..20 {
        let mut world = World::new(3, seed);
        world.until("all are up", World::all_up);
        let begun_ns = world.now_ns;
        world.cut.push(3);
        world.until("both sides have noticed", |world| {
            !world.meshes[&1].is_up(3) && world.meshes[&3].up().count() == 0
        });
        assert!(world.now_ns <= begun_ns + 2 * LOST_NS, "seed {seed}");
        assert!(world.meshes[&1].is_up(2));
        world.cut.clear();
        world.until("all are up again", World::all_up);
    }
}

#[test]
fn who_has_another_token_or_another_fabric_is_not_listened_to() {
    for stranger in [mesh(2, 2, 9), mesh(2, 3, 1)] {
        let mut world = World::new(2, 1);
        world.meshes.insert(2, stranger);
        for _ in 0..2000 {
            world.step();
            assert!(!world.meshes[&1].is_up(2) && !world.meshes[&2].is_up(1));
            let known = (0..=world.next).map(Connection::From);
            let sender = |connection| world.meshes[&1].sender(connection);
            assert!(known.into_iter().all(|one| sender(one).is_none()));
        }
    }
}

#[test]
fn a_proof_is_not_good_for_another_connection_or_another_node() {
    let mut world = World::new(3, 1);
    world.until("all are up", World::all_up);
    // 2 shows what 1 has shown to it, to 3, in 1's name.
    let mut one = mesh(1, 3, 1);
    assert!(one.handle(Input::Time, 0).contains(&Output::Dial(2)));
    one.handle(Input::Connected(2), 0);
    let three = world.meshes.get_mut(&3).expect("it is there");
    let accepted = three.handle(Input::Accepted(99, [7; 32]), 0);
    let [Output::Send(_, challenge)] = &accepted[..] else {
        panic!("{accepted:?}");
    };
    let hello = one.handle(Input::Message(Connection::To(2), challenge.clone()), 0);
    let [Output::Send(_, hello)] = &hello[..] else {
        panic!("{hello:?}");
    };
    let answer = three.handle(Input::Message(Connection::From(99), hello.clone()), 0);
    assert!(
        matches!(answer[..], [Output::Close(Connection::From(99), _)]),
        "{answer:?}"
    );
}

#[test]
fn who_says_nothing_takes_no_place_for_ever() {
    let mut mesh = mesh(1, 2, 1);
    for number in 0..FRESH_MAX as u64 {
        let challenged = mesh.handle(Input::Accepted(number, [3; 32]), 0);
        assert!(matches!(
            challenged[..],
            [Output::Send(_, Message::Challenge { .. })]
        ));
    }
    let refused = mesh.handle(Input::Accepted(1000, [3; 32]), 0);
    assert!(matches!(
        refused[..],
        [Output::Close(Connection::From(1000), _)]
    ));
    let late = mesh.handle(Input::Time, ANSWER_NS);
    let closed = late
        .iter()
        .filter(|output| matches!(output, Output::Close(Connection::From(_), _)));
    assert_eq!(closed.count(), FRESH_MAX);
}
