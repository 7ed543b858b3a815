//! The machine against processes that answer, refuse, are late and die, in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;
use snaprig_ckpt_plugin::message::Registered;

use super::*;

/// What processes would see.
struct World {
    machine: Machine,
    now: Instant,
    next: Connection,
    /// What was asked and not answered: connection, serial, plugin, event.
    asked: Vec<(Connection, u64, u32, Event)>,
    /// Plugins, and whether they wait for what follows a pre-checkpoint.
    plugins: BTreeMap<(Connection, u32), bool>,
    log: Vec<String>,
}

impl World {
    fn new() -> Self {
        Self {
            machine: Machine::default(),
            now: Instant::now(),
            next: 1,
            asked: Vec::new(),
            plugins: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn connect(&mut self, orders: &[i32]) -> Connection {
        let connection = self.next;
        self.next += 1;
        self.machine.connected(connection, connection as pid_t);
        for (id, order) in (0..).zip(orders) {
            self.plugins.insert((connection, id), false);
            let registered = Registered {
                id,
                name: format!("{order}"),
                order: *order,
                patience_ms: 1000,
                waits: false,
            };
            let message = ToSupervisor::Registered(registered);
            self.machine.received(connection, message, self.now);
        }
        self.hear(connection, ToSupervisor::Listed);
        connection
    }

    fn hear(&mut self, connection: Connection, message: ToSupervisor) {
        self.machine.received(connection, message, self.now);
        self.tick();
    }

    fn tick(&mut self) {
        self.machine.tick(self.now);
        self.take();
    }

    fn take(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(connection, ToProcess::Do { serial, id, event }) => {
                    let name = match event {
                        Event::PreCheckpoint { .. } => "before",
                        Event::Resume => "resume",
                        Event::Restart { .. } => "restart",
                    };
                    self.log.push(format!("{name} {connection}.{id}"));
                    self.asked.push((connection, serial, id, event));
                }
                Output::Send(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The process that was asked first answers.
    fn answer(&mut self, which: usize, refusal: Option<&str>) {
        if which >= self.asked.len() {
            return;
        }
        let (connection, serial, id, event) = self.asked.remove(which);
        let is_before = matches!(event, Event::PreCheckpoint { .. });
        let waits = is_before && refusal.is_none();
        self.plugins.insert((connection, id), waits);
        let refusal = refusal.map(str::to_owned);
        self.hear(connection, ToSupervisor::Done { serial, refusal });
    }

    fn answer_all(&mut self) {
        while !self.asked.is_empty() {
            self.answer(0, None);
        }
    }

    fn die(&mut self, connection: Connection) {
        self.asked.retain(|(other, ..)| *other != connection);
        self.plugins.retain(|(other, _), _| *other != connection);
        self.machine.gone(connection);
        self.tick();
    }

    fn gather(&mut self) {
        self.machine.gather(b"/there", self.now);
        self.take();
    }

    fn release(&mut self) {
        self.machine.release(self.now);
        self.take();
    }

    fn wait(&mut self) {
        self.now += Duration::from_secs(2);
        self.tick();
    }
}

#[test]
fn the_order_is_that_of_all_processes() {
    let mut world = World::new();
    world.connect(&[5, 0]);
    world.connect(&[0, -1]);
    world.gather();
    world.answer_all();
    assert_eq!(world.machine.progress(), Progress::Done);
    world.release();
    world.answer_all();
    let log = [
        "before 2.1",
        "before 1.1",
        "before 2.0",
        "before 1.0", // ascending
        "resume 1.0",
        "resume 2.0",
        "resume 1.1",
        "resume 2.1",
    ];
    assert_eq!(world.log, log);
}

#[test]
fn who_comes_while_others_are_asked_is_asked_too() {
    let mut world = World::new();
    world.connect(&[1]);
    world.gather();
    world.connect(&[0]);
    world.answer_all();
    assert!(world.machine.is_gathered());
    world.machine.connected(9, 9);
    assert!(!world.machine.is_gathered(), "it has not said what it has");
    world.die(9);
    world.connect(&[0]);
    world.answer_all();
    assert_eq!(world.log, ["before 1.0", "before 2.0", "before 3.0"]);
}

#[test]
fn a_restarted_process_that_says_nothing_is_named() {
    let mut world = World::new();
    world.machine.connected(1, 77);
    world.machine.restart(b"/there", b"/socket", world.now);
    world.now += LISTING;
    world.machine.tick(world.now);
    match world.machine.progress() {
        Progress::Failed(refusal) => assert_eq!(refusal.pid, 77),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_plugin_says_it_owns_is_bounded() {
    let mut world = World::new();
    let connection = world.connect(&[0]);
    world.gather();
    let owns = || ToSupervisor::Owns {
        descriptors: Vec::new(),
        regions: vec![(0, 1); OWNS_MAX],
    };
    for _ in 0..OWNED_MAX / OWNS_MAX {
        world.hear(connection, owns());
    }
    world.machine.received(connection, owns(), world.now);
    assert_eq!(world.machine.poll_output(), Some(Output::Close(connection)));
}

#[derive(Clone, Debug)]
enum Op {
    Connect(Vec<i32>),
    Gather,
    Release,
    Answer(usize, bool),
    Wait,
    Die(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        prop::collection::vec(-2..3, 0..4).prop_map(Op::Connect),
        Just(Op::Gather),
        Just(Op::Release),
        (0..3usize, prop::bool::weighted(0.2))
            .prop_map(|(which, refuses)| Op::Answer(which, refuses)),
        Just(Op::Wait),
        (1..6u64).prop_map(Op::Die),
    ]
}

proptest! {
    #[test]
    fn whoever_waits_is_told_in_the_end(ops in prop::collection::vec(op(), 0..60)) {
        let mut world = World::new();
        for op in ops {
            match op {
                Op::Connect(orders) => drop(world.connect(&orders)),
                // As the driver does: a round is released before the next.
                Op::Gather if matches!(world.machine.round, Round::None | Round::Gathering(_)) => world.gather(),
                Op::Gather => {}
                Op::Release => world.release(),
                Op::Answer(which, refuses) => world.answer(which, refuses.then_some("no")),
                Op::Wait => world.wait(),
                Op::Die(connection) => world.die(connection),
            }
            if world.machine.progress() == Progress::Done
                && matches!(world.machine.round, Round::Gathering(_))
            {
                prop_assert!(world.plugins.values().all(|waits| *waits));
            }
        }
        world.release();
        world.answer_all();
        prop_assert_eq!(world.machine.progress(), Progress::Done);
        prop_assert!(world.plugins.values().all(|waits| !*waits), "{:?}", world.plugins);
    }
}
