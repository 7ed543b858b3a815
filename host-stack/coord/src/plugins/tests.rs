//! The machine against plugins that answer, refuse, are late and die, in any order.

use proptest::prelude::*;
use snaprig_ckpt_plugin::{
    message::{Descriptor, Registered},
    phase::Phases,
};

use super::*;

const DESCRIPTOR: Descriptor = Descriptor {
    fd: 500,
    device: 1,
    inode: 2,
};

/// What plugins would see.
struct World {
    machine: Machine,
    board: Board,
    now: Ns,
    next: Connection,
    /// What they were told and have not answered: connection, serial, phase.
    told: Vec<(Connection, u64, Phase)>,
    /// Whether they wait for resume or go.
    waiting: BTreeMap<Connection, bool>,
    log: Vec<String>,
    answers: Vec<(Connection, Result<Answer, String>)>,
    follow: bool,
    /// These finish later.
    later: Vec<Connection>,
}

impl World {
    fn new() -> Self {
        Self {
            machine: Machine::default(),
            board: Board::default(),
            now: 0,
            next: 1,
            told: Vec::new(),
            waiting: BTreeMap::new(),
            log: Vec::new(),
            answers: Vec::new(),
            follow: false,
            later: Vec::new(),
        }
    }

    fn connect(&mut self, order: i32) -> Connection {
        self.connect_with(order, Phases::ALL)
    }

    fn connect_with(&mut self, order: i32, phases: Phases) -> Connection {
        let connection = self.next;
        self.next += 1;
        self.machine
            .connected(connection, connection as i32, self.now);
        self.waiting.insert(connection, false);
        self.introduce(connection, order, phases);
        connection
    }

    fn introduce(&mut self, connection: Connection, order: i32, phases: Phases) {
        let plugin = Registered {
            name: "ring".into(),
            order,
            patience_ms: 1000,
            phases: phases.with(Phase::Resume).with(Phase::Go),
            follows_moves: self.follow,
            passed: None,
        };
        self.hear(
            connection,
            ToSupervisor::Hello {
                version: VERSION,
                descriptor: DESCRIPTOR,
                plugin,
            },
        );
    }

    fn hear(&mut self, connection: Connection, message: ToSupervisor) {
        self.machine.received(connection, message, self.now);
        self.tick();
    }

    fn tick(&mut self) {
        self.machine.tick(self.now);
        for (id, result) in self.board.expire(self.now) {
            self.machine.answer(id, result);
        }
        self.take();
    }

    fn take(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(connection, ToPlugin::Do { serial, phase, .. }) => {
                    self.log.push(format!("{} {connection}", phase.name()));
                    self.told.push((connection, serial, phase));
                }
                Output::Send(connection, ToPlugin::Answer(result)) => {
                    self.answers.push((connection, result));
                }
                Output::Send(..) => {}
                Output::Ask {
                    id,
                    question,
                    deadline_ns,
                } => {
                    for (id, result) in self.board.ask(id, question, deadline_ns) {
                        self.machine.answer(id, result);
                    }
                    self.machine.tick(self.now);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn ask(&mut self, connection: Connection, question: Question) {
        self.hear(connection, ToSupervisor::Ask(question));
    }

    /// Who was told something answers.
    fn answer(&mut self, which: usize, refusal: Option<&str>) {
        if which >= self.told.len() {
            return;
        }
        let (connection, serial, phase) = self.told.remove(which);
        let refuses = refusal.is_some() && phase.may_fail();
        let waits = match phase {
            Phase::Resume | Phase::Go => false,
            Phase::Quiesce if refuses => false,
            _ => true,
        };
        self.waiting.insert(connection, waits);
        let refusal = refusal.map(str::to_owned);
        // Others of the round have keys of their own. Who waits for an answer has not come to the end of its phase.
        let waits = self
            .machine
            .questions
            .values()
            .any(|asked| asked.whose == connection);
        let entry = (connection.to_le_bytes().to_vec(), b"41".to_vec());
        let published = if waits { Vec::new() } else { vec![entry] };
        let done = ToSupervisor::Done {
            serial,
            refusal,
            finishes_later: phase == Phase::Save && self.later.contains(&connection),
            published,
        };
        self.hear(connection, done);
    }

    /// The first who was told something has done it; what comes of that is still in the machine.
    fn is_done(&mut self, finishes_later: bool, published: Vec<Entry>) {
        let (connection, serial, _) = self.told.remove(0);
        let done = ToSupervisor::Done {
            serial,
            refusal: None,
            finishes_later,
            published,
        };
        self.machine.received(connection, done, self.now);
    }

    fn answer_all(&mut self) {
        while !self.told.is_empty() {
            self.answer(0, None);
        }
    }

    fn die(&mut self, connection: Connection) {
        self.told.retain(|(other, ..)| *other != connection);
        self.waiting.remove(&connection);
        self.machine.gone(connection);
        self.tick();
    }

    fn towards(&mut self, phase: Phase) {
        self.machine.towards(phase, b"/there", self.now);
        self.take();
    }

    fn release(&mut self, phase: Phase) {
        self.machine.release(phase, self.now);
        self.take();
    }

    fn wait(&mut self) {
        self.now += 2 * SECOND;
        self.tick();
    }

    /// The lines of the log since the last time.
    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

#[test]
fn equal_order_values_work_at_the_same_time_and_others_one_after_another() {
    let mut world = World::new();
    for order in [0, 0, -1] {
        world.connect(order);
    }
    world.towards(Phase::Quiesce);
    assert_eq!(world.log(), ["quiesce 3"]);
    world.answer(0, None);
    assert_eq!(world.log(), ["quiesce 1", "quiesce 2"]);
    world.answer(0, None);
    assert_eq!(world.machine.progress(), Progress::AtWork);
    world.answer_all();
    assert_eq!(world.machine.progress(), Progress::Done);
    world.towards(Phase::Save);
    world.answer_all();
    let log = [
        "drain 3", "drain 1", "drain 2", "save 3", "save 1", "save 2",
    ];
    assert_eq!(world.log(), log);
    world.release(Phase::Resume);
    assert_eq!(world.log(), ["resume 1", "resume 2"]);
    world.answer_all();
    assert_eq!(world.log(), ["resume 3"]);
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn of_a_tree_that_stays_while_others_move_who_follows_does_so_and_the_others_resume() {
    let mut world = World::new();
    world.connect(0);
    world.follow = true;
    world.connect(0);
    world.machine.take_part(Part::Stays);
    world.towards(Phase::Exchange);
    world.answer_all();
    let log = world.log();
    assert_eq!(log[log.len() - 3..], ["save 2", "rebuild 2", "exchange 2"]);
    // Who comes now has all of it before it, and who goes is not missed.
    world.connect(0);
    world.connect(0);
    world.answer_all();
    world.die(4);
    assert_eq!(world.machine.progress(), Progress::Done);
    world.towards(Phase::Refill);
    world.answer_all();
    world.log();
    world.release(Phase::Go);
    world.answer_all();
    assert_eq!(world.log(), ["resume 1", "go 2", "go 3"]);
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn what_was_made_for_others_that_do_not_move_after_all_is_undone() {
    let mut world = World::new();
    world.follow = true;
    world.connect(0);
    world.machine.take_part(Part::Stays);
    world.towards(Phase::Rebuild);
    world.answer_all();
    world.log();
    world.release(Phase::Resume);
    world.answer_all();
    assert_eq!(world.log(), ["resume 1"]);
    // The next round is one like any other.
    world.towards(Phase::Save);
    world.answer_all();
    world.release(Phase::Resume);
    world.answer_all();
    assert_eq!(world.log(), ["quiesce 1", "drain 1", "save 1", "resume 1"]);
}

#[test]
fn who_comes_late_is_taken_through_the_phases_that_others_have_passed() {
    let mut world = World::new();
    world.connect(1);
    world.towards(Phase::Drain);
    world.answer_all();
    assert!(world.machine.have_passed(Phase::Drain));
    world.log();
    world.connect(0);
    assert!(!world.machine.have_passed(Phase::Drain));
    world.answer_all();
    assert_eq!(world.log(), ["quiesce 2", "drain 2"]);
    world.machine.connected(9, 9, world.now);
    assert!(
        !world.machine.have_passed(Phase::Drain),
        "it has not said what it is"
    );
}

#[test]
fn phases_without_work_are_passed_over() {
    let mut world = World::new();
    world.connect_with(0, Phases::NONE.with(Phase::Save));
    world.towards(Phase::Drain);
    assert_eq!(world.machine.progress(), Progress::Done);
    assert_eq!(world.log(), [""; 0]);
    world.towards(Phase::Save);
    assert_eq!(world.log(), ["save 1"]);
    world.answer(0, Some("no"));
    world.release(Phase::Resume);
    assert_eq!(world.log(), [""; 0], "it has undone all that it did");
}

#[test]
fn who_refuses_to_drain_resumes_what_it_has_quiesced() {
    let mut world = World::new();
    world.connect(0);
    world.connect(1);
    world.towards(Phase::Quiesce);
    world.answer_all();
    world.towards(Phase::Drain);
    world.answer(0, Some("no"));
    assert!(matches!(world.machine.progress(), Progress::Failed(why) if why.pid == 1));
    world.log();
    world.release(Phase::Resume);
    world.answer_all();
    assert_eq!(world.log(), ["resume 2", "resume 1"]);
}

#[test]
fn a_round_begins_when_all_have_resumed_after_the_last_one() {
    let mut world = World::new();
    world.connect(0);
    world.connect(0);
    world.towards(Phase::Quiesce);
    world.answer(1, Some("no"));
    // The other one is still at it.
    world.release(Phase::Resume);
    world.towards(Phase::Quiesce);
    assert_eq!(world.machine.progress(), Progress::AtWork);
    world.log();
    world.answer(0, None);
    assert_eq!(world.log(), ["resume 1"]);
    world.answer_all();
    assert_eq!(world.log(), ["quiesce 1", "quiesce 2"]);
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn a_restart_goes_through_its_phases_and_then_the_program_runs() {
    let mut world = World::new();
    for pid in 1..=2 {
        world.next = pid;
        world.machine.connected(pid, pid as i32, 0);
    }
    world.machine.restarted(b"/socket", 0);
    world.take();
    for pid in 1..=2 {
        world.introduce(pid, pid as i32, Phases::ALL);
    }
    for phase in Phase::RESTART {
        world.towards(phase);
        world.answer_all();
        assert_eq!(world.machine.progress(), Progress::Done);
    }
    world.release(Phase::Go);
    world.answer_all();
    let log = [
        "rebuild 2",
        "rebuild 1",
        "exchange 2",
        "exchange 1",
        "refill 2",
        "refill 1",
        "go 2",
        "go 1",
    ];
    assert_eq!(world.log(), log);
}

#[test]
fn a_process_that_ends_in_a_restart_or_says_nothing_is_named() {
    for dies in [false, true] {
        let mut world = World::new();
        world.machine.connected(1, 77, world.now);
        world.machine.restarted(b"/socket", world.now);
        world.towards(Phase::Rebuild);
        match dies {
            true => world.machine.gone(1),
            false => {
                world.now += INTRODUCTION_NS;
                world.machine.tick(world.now);
            }
        }
        match world.machine.progress() {
            Progress::Failed(refusal) => assert_eq!(refusal.pid, 77),
            other => panic!("{other:?}"),
        }
    }
}

/// Three that have quiesced.
fn three_quiesced() -> World {
    let mut world = World::new();
    for order in [0, 0, 1] {
        world.connect(order);
    }
    world.towards(Phase::Quiesce);
    world.answer_all();
    world
}

/// Who has ended, if that is why the round has failed.
fn ended(world: &World) -> Option<i32> {
    match world.machine.progress() {
        Progress::Failed(refusal) if refusal.has_ended => Some(refusal.pid),
        Progress::Failed(refusal) => panic!("{refusal:?}"),
        _ => None,
    }
}

#[test]
fn a_checkpoint_fails_at_once_when_one_ends_that_others_may_wait_for() {
    for drains in [false, true] {
        let mut world = three_quiesced();
        world.towards(Phase::Drain);
        // One that has drained, and one that has not.
        if drains {
            world.answer(0, None);
        }
        world.ask(2, Question::Lookup(vec![b"one".to_vec()]));
        world.log();
        world.die(1);
        assert_eq!(ended(&world), Some(1));
        let (whose, result) = world.answers.pop().unwrap();
        assert!(whose == 2 && result.unwrap_err().contains("its process has ended"));
        // Nobody's patience is over: who is told that it is over refuses, and all resume.
        world.release(Phase::Resume);
        world.answer(0, Some("it is over"));
        world.answer_all();
        assert_eq!(world.log(), ["resume 3", "resume 2"]);
        // The next one is made without it.
        world.towards(Phase::Save);
        world.answer_all();
        assert_eq!(world.machine.progress(), Progress::Done);
    }
}

#[test]
fn who_ends_before_it_has_quiesced_or_when_all_have_saved_is_not_missed() {
    let mut world = World::new();
    for _ in 1..=3 {
        world.connect(0);
    }
    world.towards(Phase::Quiesce);
    world.die(2);
    world.answer_all();
    world.towards(Phase::Save);
    world.answer_all();
    world.die(3);
    assert_eq!(world.machine.progress(), Progress::Done);
    world.towards(Phase::Save);
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn who_ends_before_it_has_quiesced_is_missed_by_those_that_wait_at_the_board() {
    // It has published something; others of its name may wait for it; one of another name does not.
    let publishes = |world: &mut World| {
        world.ask(1, Question::Publish(vec![(b"one".to_vec(), Vec::new())]));
    };
    let awaited = |world: &mut World| {
        let (name, count) = (b"all".to_vec(), 2);
        world.ask(2, Question::Barrier { name, count });
    };
    let asks: [&dyn Fn(&mut World); 2] = [&publishes, &awaited];
    for ask in asks {
        let mut world = World::new();
        world.connect(0);
        world.connect(0);
        world.towards(Phase::Quiesce);
        ask(&mut world);
        world.die(1);
        assert_eq!(ended(&world), Some(1));
    }
}

#[test]
fn when_a_round_is_over_who_may_resume_does_not_wait_for_who_is_still_at_work() {
    let mut world = World::new();
    for order in [0, 0, 1, -1] {
        world.connect(order);
    }
    world.towards(Phase::Quiesce);
    world.answer_all();
    world.towards(Phase::Drain);
    world.answer(0, None);
    world.log();
    // One of those with order 0 refuses, and the other works on.
    world.answer(1, Some("no"));
    world.release(Phase::Resume);
    assert_eq!(world.log(), ["resume 3"]);
    world.answer(1, None);
    assert_eq!(world.log(), ["resume 2"]);
    world.answer(1, None);
    assert_eq!(
        world.log(),
        [""; 0],
        "the last one comes when all of order 0 have resumed"
    );
    world.answer_all();
    assert_eq!(world.log(), ["resume 1", "resume 4"]);
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn what_one_publishes_another_finds_and_all_meet() {
    let mut world = World::new();
    let (one, two) = (world.connect(0), world.connect(0));
    world.towards(Phase::Quiesce);
    world.ask(one, Question::Lookup(vec![b"two".to_vec()]));
    assert!(world.answers.is_empty());
    let entries = vec![(b"two".to_vec(), b"41".to_vec())];
    world.ask(two, Question::Publish(entries.clone()));
    let found = (one, Ok(Answer::Values(vec![b"41".to_vec()])));
    let mut answers = std::mem::take(&mut world.answers);
    answers.sort_by_key(|(connection, _)| *connection);
    assert_eq!(answers, [found, (two, Ok(Answer::Done))]);
    world.ask(one, Question::Publish(entries.clone()));
    assert!(matches!(world.answers.pop(), Some((_, Err(why))) if why.contains("process 2")));
    let collect = |after: &[u8]| Question::Collect {
        prefix: b"t".to_vec(),
        after: after.to_vec(),
    };
    let all = |entries| Answer::Entries {
        entries,
        is_all: true,
    };
    world.ask(one, collect(b""));
    assert_eq!(world.answers.pop(), Some((one, Ok(all(entries)))));
    world.ask(one, collect(b"two"));
    assert_eq!(world.answers.pop(), Some((one, Ok(all(Vec::new())))));
    let barrier = || Question::Barrier {
        name: b"all".to_vec(),
        count: 2,
    };
    world.ask(one, barrier());
    assert!(world.answers.is_empty());
    world.ask(two, barrier());
    assert_eq!(world.answers.len(), 2);
}

/// One that is about to leave a phase, and what it publishes with that on its way to the board.
fn leaving(world: &mut World, key: &[u8]) -> QuestionId {
    world.towards(Phase::Quiesce);
    world.is_done(false, vec![(key.to_vec(), b"41".to_vec())]);
    match world.machine.poll_output() {
        Some(Output::Ask { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

/// Two that have saved, of which the first is to finish later, and resume.
fn unfinished() -> World {
    let mut world = World::new();
    world.machine.save_in(Span::SaveToResume);
    world.later = vec![world.connect(0)];
    world.connect(0);
    world.towards(Phase::Save);
    world.answer_all();
    assert_eq!(world.machine.progress(), Progress::Done);
    world.release(Phase::Resume);
    assert_eq!(world.machine.finished(), Progress::AtWork);
    world
}

#[test]
fn a_checkpoint_waits_for_who_finishes_later() {
    let mut world = unfinished();
    world.answer(1, None);
    assert_eq!(world.machine.finished(), Progress::AtWork);
    world.answer(0, None);
    assert_eq!(world.machine.finished(), Progress::Done);
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn who_was_to_finish_and_cannot_is_heard() {
    let reason = |world: &World| match world.machine.finished() {
        Progress::Failed(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let mut world = unfinished();
    world.answer(0, Some("the disk is full"));
    world.answer_all();
    assert_eq!(reason(&world).what, "plugin ring: the disk is full");
    // It resumes all the same, and the next round is another one.
    assert_eq!(world.machine.progress(), Progress::Done);
    world.later.clear();
    world.towards(Phase::Save);
    world.answer_all();
    world.release(Phase::Resume);
    assert_eq!(world.machine.finished(), Progress::Done);
    let mut world = unfinished();
    world.die(1);
    assert!(reason(&world).has_ended);
    let mut world = unfinished();
    world.wait();
    assert!(reason(&world).what.contains("phase resume"));
}

#[test]
fn nothing_is_finished_later_where_the_tree_does_not_go_on() {
    let mut world = World::new();
    let one = world.connect(0);
    world.towards(Phase::Drain);
    world.answer_all();
    world.towards(Phase::Save);
    world.is_done(true, Vec::new());
    // It makes no sense, and is hung up.
    let outputs = std::iter::from_fn(|| world.machine.poll_output());
    assert!(
        outputs
            .into_iter()
            .any(|output| output == Output::Close(one))
    );
}

#[test]
fn what_is_published_at_the_end_of_a_phase_is_there_before_the_next() {
    let mut world = World::new();
    world.connect(0);
    let id = leaving(&mut world, b"one");
    world.machine.tick(world.now);
    assert_eq!(world.machine.progress(), Progress::AtWork);
    world.machine.answer(id, Ok(Answer::Done));
    assert_eq!(world.machine.poll_output(), None, "nobody waits for it");
    assert_eq!(world.machine.progress(), Progress::Done);
}

#[test]
fn a_round_fails_without_what_is_published_at_the_end_of_a_phase() {
    for is_late in [false, true] {
        let mut world = World::new();
        world.connect(0);
        let id = leaving(&mut world, b"one");
        match is_late {
            true => world.wait(),
            false => world.machine.answer(id, Err("it is full".into())),
        }
        let what = match world.machine.progress() {
            Progress::Failed(refusal) => refusal.what,
            other => panic!("{other:?}"),
        };
        let why = ["it is full", "does not reach the board"][usize::from(is_late)];
        assert!(what.contains(why), "{what}");
        world.release(Phase::Resume);
        assert_eq!(world.log().last().map(String::as_str), Some("resume 1"));
        world.machine.answer(id, Ok(Answer::Done));
        world.answer_all();
        assert_eq!(world.machine.progress(), Progress::Done);
    }
}

#[test]
fn who_waits_for_what_never_comes_is_told_before_it_is_late() {
    let mut world = World::new();
    let one = world.connect(0);
    world.towards(Phase::Quiesce);
    world.ask(one, Question::Lookup(vec![b"two".to_vec()]));
    world.now += SECOND - SECOND / 8;
    world.tick();
    assert_eq!(
        world.answers,
        [(one, Err("nobody has published two".to_owned()))]
    );
    assert_eq!(world.machine.progress(), Progress::AtWork);
}

#[test]
fn a_failure_ends_the_waiting_of_all() {
    let mut world = World::new();
    let (one, two) = (world.connect(0), world.connect(0));
    world.towards(Phase::Quiesce);
    world.ask(one, Question::Lookup(vec![b"two".to_vec()]));
    let at = world.told.iter().position(|(other, ..)| *other == two);
    world.answer(at.unwrap(), Some("the tape is not rewound"));
    let (whose, result) = world.answers.pop().unwrap();
    assert!(whose == one && result.unwrap_err().contains("the tape is not rewound"));
}

#[test]
fn what_a_plugin_says_it_owns_is_bounded() {
    let mut world = World::new();
    let connection = world.connect_with(0, Phases::NONE.with(Phase::Save));
    world.towards(Phase::Save);
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
    Connect(i32),
    Gather,
    Release,
    Answer(usize, bool),
    Ask(usize, u8),
    Wait,
    Die(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (-2..3).prop_map(Op::Connect),
        3 => Just(Op::Gather),
        1 => Just(Op::Release),
        6 => (0..3usize, prop::bool::weighted(0.1)).prop_map(|(which, refuses)| Op::Answer(which, refuses)),
        2 => (0..3usize, 0..4u8).prop_map(|(which, what)| Op::Ask(which, what)),
        1 => Just(Op::Wait),
        1 => (1..6u64).prop_map(Op::Die),
    ]
}

proptest! {
    #[test]
    fn whoever_waits_is_told_in_the_end(ops in prop::collection::vec(op(), 0..80)) {
        let mut world = World::new();
        let mut target = 0;
        for op in ops {
            match op {
                Op::Connect(order) => drop(world.connect(order)),
                // As the driver does: one phase after another, and a round is released before the next.
                Op::Gather if world.machine.round == Round::None => {
                    target = 0;
                    world.towards(Phase::CHECKPOINT[0]);
                }
                Op::Gather if world.machine.progress() == Progress::Done && target < 2 => {
                    target += 1;
                    world.towards(Phase::CHECKPOINT[target]);
                }
                Op::Gather => {}
                Op::Release => world.release(Phase::Resume),
                Op::Answer(which, refuses) => world.answer(which, refuses.then_some("no")),
                Op::Ask(which, what) => {
                    if let Some((connection, ..)) = world.told.get(which).copied()
                        && !world.machine.questions.values().any(|asked| asked.whose == connection)
                    {
                        let key = vec![b'a' + what];
                        let question = match what {
                            0 | 1 => Question::Publish(vec![(key, vec![what])]),
                            2 => Question::Lookup(vec![key]),
                            _ => Question::Barrier { name: key, count: 2 },
                        };
                        world.ask(connection, question);
                    }
                }
                Op::Wait => world.wait(),
                Op::Die(connection) => world.die(connection),
            }
            let is_towards = matches!(world.machine.round, Round::Towards { .. });
            if is_towards && world.machine.progress() == Progress::Done {
                prop_assert!(world.waiting.values().all(|waits| *waits));
            }
            if world.machine.failure.is_some() {
                prop_assert!(world.machine.questions.is_empty(), "nobody waits in a round that has failed");
            }
        }
        world.release(Phase::Resume);
        world.answer_all();
        prop_assert_eq!(world.machine.progress(), Progress::Done);
        prop_assert!(world.waiting.values().all(|waits| !*waits), "{:?}", world.waiting);
    }
}
