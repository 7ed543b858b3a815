//! Coordinator and members over sockets, in one process.

mod common;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use common::{Disk, LONG, next, take_part};
use snaprig_coord::{
    driver::{ConnectError, Control, Coordinator, Keeper, Member},
    member::Event,
    message::{CallError, NOT_NOW, Outcome, Refusal},
    phase::{Kind, Order, Phase},
};
use snaprig_peers::{Address, Token};

fn disk() -> (tempfile::TempDir, Arc<Disk>) {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(Disk::create(dir.path()));
    (dir, disk)
}

fn tcp() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

#[test]
fn every_kind_of_round_goes_through_its_phases_and_checkpoints_are_committed() {
    for address in [None, Some(tcp())] {
        let (_dir, disk) = disk();
        let _coordinator = disk.coordinate(&address.unwrap_or_else(|| disk.socket()));
        let members = ["0", "1", "2"].map(|name| disk.join(name));
        let control = disk.control();
        for (kind, phases) in [
            (Kind::Checkpoint, "look stop drain write resume"),
            (Kind::Background, "look stop drain freeze resume write"),
            (Kind::Restart, "connect refill go"),
        ] {
            let summary = thread::scope(|scope| {
                for member in &members {
                    scope.spawn(move || {
                        let names: Vec<_> = take_part(member).iter().map(|p| p.name()).collect();
                        assert_eq!(names.join(" "), phases);
                    });
                }
                control.order(Order::new(kind)).expect("a round")
            });
            assert_eq!((summary.outcome, summary.members), (Outcome::Complete, 3));
            assert_eq!(summary.lost, []);
        }
        assert_eq!(disk.checkpoints.complete(), [1, 2]);
        let last = disk.checkpoints.last().expect("a manifest");
        assert!(last.members.keys().eq(["0", "1", "2"]));
        let status = control.status().expect("a status");
        assert_eq!((status.members.len(), status.rounds.len()), (3, 3));
        assert_eq!(status.round, None);
    }
}

#[test]
fn a_veto_undoes_the_round_and_says_whose_it_is() {
    let (_dir, disk) = disk();
    let _coordinator = disk.coordinate(&disk.socket());
    let (one, other) = (disk.join("one"), disk.join("other"));
    let control = disk.control();
    let summary = thread::scope(|scope| {
        scope.spawn(|| assert_eq!(take_part(&one), [Phase::Look, Phase::Undo]));
        scope.spawn(|| {
            let Event::Begin { round, phase, .. } = next(&other) else {
                panic!("it has not begun");
            };
            other.done(round, phase, Err("a socket to a stranger".into()));
            take_part(&other)
        });
        control
            .order(Order::new(Kind::Checkpoint))
            .expect("a round")
    });
    let reason = "other: a socket to a stranger".into();
    assert_eq!(summary.outcome, Outcome::Undone { reason });
    assert!(disk.checkpoints.complete().is_empty());
}

#[test]
fn a_round_that_a_member_leaves_is_worth_another_try_and_one_that_it_dies_in_is_not() {
    for leaves in [true, false] {
        let (_dir, disk) = disk();
        let _coordinator = disk.coordinate(&disk.socket());
        let (stays, goes) = (disk.join("stays"), disk.join("goes"));
        let control = disk.control();
        let summary = thread::scope(|scope| {
            scope.spawn(|| assert_eq!(take_part(&stays), [Phase::Look, Phase::Undo]));
            scope.spawn(move || {
                assert!(matches!(next(&goes), Event::Begin { .. }));
                match leaves {
                    true => goes.leave(),
                    false => drop(goes),
                }
            });
            control
                .order(Order::new(Kind::Checkpoint))
                .expect("a round")
        });
        let Outcome::Undone { reason } = summary.outcome else {
            panic!("it is complete");
        };
        assert_eq!(reason.contains(NOT_NOW), leaves, "{reason}");
    }
}

#[test]
fn nobody_waits_in_a_round_that_is_being_undone() {
    let (_dir, disk) = disk();
    let _coordinator = disk.coordinate(&disk.socket());
    let (one, other) = (disk.join("one"), disk.join("other"));
    let control = disk.control();
    thread::scope(|scope| {
        scope.spawn(|| {
            let Event::Begin { round, phase, .. } = next(&one) else {
                panic!("it has not begun");
            };
            one.done(round, phase, Err("no".into()));
            take_part(&one)
        });
        scope.spawn(|| {
            assert!(matches!(next(&other), Event::Begin { .. }));
            let Event::Undo { round, .. } = next(&other) else {
                panic!("it is not undone");
            };
            // As if that had not been heard yet.
            let met = other.barrier(round, "all there", LONG);
            assert!(matches!(met, Err(CallError::Undone { .. })), "{met:?}");
            let found = other.lookup(round, &[vec![7]], LONG);
            assert!(matches!(found, Err(CallError::Undone { .. })), "{found:?}");
            other.done(round, Phase::Undo, Ok(String::new()));
        });
        control
            .order(Order::new(Kind::Checkpoint))
            .expect("a round")
    });
}

#[test]
fn members_meet_at_barriers_and_find_what_peers_publish() {
    let (_dir, disk) = disk();
    let _coordinator = disk.coordinate(&tcp());
    let members: Vec<_> = (0..4).map(|i: u8| disk.join(&i.to_string())).collect();
    let keys: Vec<_> = (0..4).map(|i: u8| vec![i]).collect();
    thread::scope(|scope| {
        for (i, member) in (0..).zip(&members) {
            let keys = &keys;
            scope.spawn(move || {
                member.publish(0, &[(vec![i], vec![i; 3])]).unwrap();
                let values = member.lookup(0, keys, LONG).unwrap();
                let expected: Vec<_> = (0..4).map(|i: u8| vec![i; 3]).collect();
                assert_eq!(values, expected);
                member.barrier(0, "all there", LONG).unwrap();
            });
        }
    });
    let brief = Duration::from_millis(20);
    let alone = members[0].barrier(0, "alone", brief).unwrap_err();
    let missing = ["1", "2", "3"].map(str::to_owned).into();
    let name = "alone".to_owned();
    assert_eq!(alone, CallError::Missing { name, missing });
    let key = b"nothing".to_vec();
    let nothing = members[0].lookup(0, &[vec![1], key.clone()], brief);
    assert_eq!(nothing, Err(CallError::NotFound { key }));
    let owned = members[0].publish(0, &[(vec![1], vec![])]).unwrap_err();
    assert!(matches!(owned, CallError::Owned { owner, .. } if owner == "1"));
    let round = members[0].barrier(7, "no such round", LONG);
    assert_eq!(round, Err(CallError::NotInRound { round: 7 }));
}

#[test]
fn who_does_not_belong_is_told_why() {
    let (_dir, disk) = disk();
    let _coordinator = disk.coordinate(&disk.socket());
    let stranger = Control::connect(disk.locator(), "job", Token::new([1; 32]));
    // Neither side knows what the other does: the coordinator cannot prove itself to it.
    assert!(matches!(stranger, Err(ConnectError::Unreachable { .. })));
    let other = Control::connect(disk.locator(), "other", disk.token());
    let ours = "job".to_owned();
    assert!(matches!(other, Err(ConnectError::Refused(Refusal::Job { ours: of })) if of == ours));
    let _member = disk.join("0");
    let brief = Duration::from_millis(200);
    let double = Member::connect(disk.locator(), "job", disk.token(), "0", brief);
    let why = double.unwrap_err().to_string();
    assert!(why.contains("there is a member \"0\" already"), "{why}");
}

#[test]
fn a_member_that_leaves_is_not_missed_and_one_that_dies_is_given_time() {
    let (_dir, disk) = disk();
    let _coordinator = disk.coordinate(&disk.socket());
    let control = disk.control();
    assert_eq!(
        control.order(Order::new(Kind::Checkpoint)),
        Err(CallError::Nobody)
    );
    let (stays, leaves, dies) = (disk.join("stays"), disk.join("leaves"), disk.join("dies"));
    leaves.leave();
    drop(dies);
    let is_missed = |control: &Control| {
        let members = control.status().expect("a status").members;
        members.iter().any(|member| member.missing.is_some())
    };
    while !is_missed(&control) {}
    let impatient = Order {
        gather_ms: 1,
        ..Order::new(Kind::Checkpoint)
    };
    let summary = control.order(impatient).expect("a round");
    let Outcome::Undone { reason } = summary.outcome else {
        panic!("it is complete");
    };
    assert_eq!(
        reason,
        "members are missing: dies: its connection has ended"
    );
    control.forget("dies").expect("it is missing");
    thread::scope(|scope| {
        scope.spawn(|| take_part(&stays));
        let summary = control
            .order(Order::new(Kind::Checkpoint))
            .expect("a round");
        assert_eq!((summary.outcome, summary.members), (Outcome::Complete, 1));
    });
}

#[test]
fn members_find_the_next_coordinator_and_it_knows_who_is_missing() {
    let (_dir, disk) = disk();
    let coordinator = disk.coordinate(&tcp());
    let (one, other) = (disk.join("one"), disk.join("other"));
    coordinator.stop().expect("it stops");
    // The next one is elsewhere.
    let _coordinator = disk.coordinate(&disk.socket());
    let control = disk.control();
    thread::scope(|scope| {
        scope.spawn(|| take_part(&one));
        scope.spawn(|| take_part(&other));
        let summary = control
            .order(Order::new(Kind::Checkpoint))
            .expect("a round");
        assert_eq!((summary.outcome, summary.members), (Outcome::Complete, 2));
    });
}

#[test]
fn who_loses_the_coordinator_after_writing_is_in_doubt_and_keeps_what_it_wrote() {
    let (_dir, disk) = disk();
    for (until, doubt) in [
        (Phase::Look, false),
        (Phase::Stop, false),
        (Phase::Drain, false),
        (Phase::Write, true),
    ] {
        let coordinator = disk.coordinate(&disk.socket());
        let (one, other) = (disk.join("one"), disk.join("other"));
        let control = disk.control();
        thread::scope(|scope| {
            let order = scope.spawn(move || control.order(Order::new(Kind::Checkpoint)));
            loop {
                let Event::Begin { round, phase, .. } = next(&one) else {
                    panic!("no phase has begun");
                };
                one.done(round, phase, Ok("an image".into()));
                assert!(matches!(next(&other), Event::Begin { .. }));
                if phase == until {
                    break;
                }
                other.done(round, phase, Ok("an image".into()));
            }
            coordinator.stop().expect("it stops");
            assert!(matches!(next(&one), Event::Undo { in_doubt, .. } if in_doubt == doubt));
            // It has not written everything, so there is nothing to doubt.
            assert!(matches!(
                next(&other),
                Event::Undo {
                    in_doubt: false,
                    ..
                }
            ));
            let ended = order.join().expect("a thread");
            assert!(matches!(ended, Err(CallError::Apart { .. })));
        });
        assert!(disk.checkpoints.complete().is_empty());
    }
}

/// A disk that takes its time.
struct Slow {
    disk: Arc<Disk>,
    until: Mutex<()>,
}

impl Keeper for Slow {
    fn members(&self, members: &[String]) -> io::Result<()> {
        let _until = self.until.lock().expect("nobody panics");
        self.disk.members(members)
    }

    fn commit(
        &self,
        round: u64,
        order: &Order,
        reports: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        self.disk.commit(round, order, reports)
    }
}

#[test]
fn a_slow_disk_keeps_nobody_from_being_heard_and_who_is_welcome_is_on_it() {
    let (_dir, disk) = disk();
    let slow = Arc::new(Slow {
        disk: disk.clone(),
        until: Mutex::new(()),
    });
    let listener = disk.listen(&disk.socket());
    let _coordinator =
        Coordinator::start(listener, disk.config(), slow.clone()).expect("a coordinator");
    let control = disk.control();
    thread::scope(|scope| {
        let until = slow.until.lock().expect("nobody panics");
        let member = scope.spawn(|| disk.join("one"));
        while control.status().expect("a status").members.is_empty() {
            thread::yield_now();
        }
        assert!(!member.is_finished());
        assert_eq!(disk.job.members().expect("members"), [""; 0]);
        drop(until);
        let _member = member.join().expect("it joins");
        assert_eq!(disk.job.members().expect("members"), ["one"]);
    });
}
