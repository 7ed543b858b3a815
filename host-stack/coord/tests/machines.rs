//! Both machines joined without sockets, in any order of events: whatever happens, they say nothing
//! twice, nobody waits for ever, and garbage ends a connection, not the coordinator.

mod joined;

use joined::{First, Job, SECOND};
use proptest::{prelude::*, sample::Index};
use snaprig_coord::{
    Ns, coordinator,
    message::{Call, ToCoordinator, ToMember},
    phase::{Kind, Order, Phase},
};

#[test]
fn what_is_said_of_a_round_that_was_given_up_is_not_taken_for_the_next_coordinators() {
    let mut job = Job::new(1);
    while job.deliver(Index::default_first()) {}
    job.order(1, Order::new(Kind::Checkpoint));
    while job.deliver(Index::default_first()) {}
    let first = job.coordinator.status().round.expect("a round").round;
    // It dies. The next one does not know of that round.
    job.coordinator = Job::new(0).coordinator;
    (0..=1).for_each(|peer| job.break_off(peer));
    for _ in 0..20 {
        while job.deliver(Index::default_first()) {}
        job.pass(SECOND);
    }
    job.order(2, Order::new(Kind::Checkpoint));
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

#[derive(Clone, Debug)]
enum Step {
    Deliver(Index),
    Act(usize, bool),
    Break(usize),
    Pass(Ns),
    Order(Kind),
    Commit(bool),
    Keep,
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
        (0..4u64, phase()).prop_map(|(round, phase)| ToCoordinator::GetsOn { round, phase }),
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
        2 => Just(Step::Keep),
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
                    job.order(id, Order::new(kind));
                }
                Step::Keep => drop(job.keeps()),
                Step::Commit(good) => {
                    let round = job.coordinator.status().round;
                    if let Some(round) = round.filter(|round| round.step == "commit") {
                        let result = if good { Ok(()) } else { Err("a full disk".into()) };
                        job.commits(round.round, result);
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
        job.comes_to_rest();
        job.has_a_checkpoint_of(id + 1, 3);
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
