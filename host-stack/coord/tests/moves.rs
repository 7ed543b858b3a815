//! A tree moves from one member to another: whatever goes wrong, it is in one place, and all know in which.

mod joined;

use joined::{First, Job, SECOND, Tree};
use proptest::{prelude::*, sample::Index};
use snaprig_coord::{
    message::Outcome,
    phase::{Kind, Moves, Order},
};

fn to(heir: &str) -> Order {
    Order {
        moves: Some(Moves {
            member: "2".into(),
            heir: heir.into(),
        }),
        ..Order::new(Kind::Move)
    }
}

/// Where the tree of member 2 runs.
fn owners(job: &Job) -> Vec<usize> {
    let peers = job.peers.iter().enumerate();
    let may = peers.filter(|(at, _)| *at == 2 || *at > 3);
    let has = may.filter(|(_, peer)| peer.tree == Tree::Here && !peer.is_stopped);
    has.map(|(at, _)| at).collect()
}

fn names(job: &Job) -> Vec<String> {
    let members = job.coordinator.status().members;
    members.into_iter().map(|member| member.name).collect()
}

#[test]
fn a_tree_moves_again_and_again_and_keeps_its_name() {
    let mut job = Job::new(3);
    job.settle();
    for (id, at) in (1..=3).zip([4, 5, 6]) {
        job.order(id, to("2 elsewhere"));
        job.settle();
        let summary = job.summaries.pop().unwrap().unwrap();
        assert_eq!(summary.outcome, Outcome::Complete);
        assert_eq!((summary.members, summary.lost.len()), (4, 0));
        assert_eq!(
            (owners(&job), names(&job)),
            (vec![at], ["1", "2", "3"].map(String::from).to_vec())
        );
    }
    job.order(4, Order::new(Kind::Checkpoint));
    job.settle();
    assert_eq!(job.summaries.pop().unwrap().unwrap().members, 3);
}

#[test]
fn an_order_that_makes_no_sense_is_refused() {
    let mut job = Job::new(3);
    job.settle();
    let of_nobody = Order::new(Kind::Move);
    let elsewhere = Order {
        kind: Kind::Checkpoint,
        ..to("x")
    };
    for (id, order) in [of_nobody, elsewhere, to("3"), to("a/b")]
        .into_iter()
        .enumerate()
    {
        job.order(id as u64 + 1, order);
        job.settle();
        assert!(job.summaries.pop().unwrap().is_err());
    }
}

/// A move of which all but this is done: member 4, to which the tree has gone, has yet to go on with it.
fn to_its_last_step() -> Job {
    let mut job = Job::new(3);
    job.settle();
    job.order(1, to("2 elsewhere"));
    loop {
        while job.keeps() || job.deliver(Index::default_first()) {}
        let round = job.coordinator.status().round.expect("a round");
        let is_over = |peer: &usize| !(round.step == "go" && *peer == 4);
        let mut busy = (0..job.peers.len()).filter(|peer| !job.peers[*peer].todo.is_empty());
        match busy.find(is_over) {
            Some(peer) => job.act(peer, false),
            None if round.step == "commit" => job.commits(round.round, Ok(())),
            None => return job,
        }
    }
}

#[test]
fn who_gets_on_with_a_tree_is_not_taken_to_be_lost_however_long_it_takes() {
    let mut job = to_its_last_step();
    // Far longer than a phase may take, and than members wait for what comes next.
    for _ in 0..200 {
        job.pass(SECOND * 9 / 10);
        job.gets_on(4);
        while job.deliver(Index::default_first()) {}
    }
    job.settle();
    let summary = job.summaries.pop().unwrap().unwrap();
    assert_eq!((summary.outcome, summary.lost), (Outcome::Complete, vec![]));
    assert_eq!(owners(&job), [4]);
}

#[test]
fn who_does_not_get_on_with_a_tree_is_lost() {
    let mut job = to_its_last_step();
    job.pass(SECOND * 9 / 10);
    job.gets_on(4);
    while job.deliver(Index::default_first()) {}
    job.pass(SECOND * 9 / 10);
    assert!(job.coordinator.status().round.is_some());
    job.pass(SECOND);
    while job.deliver(Index::default_first()) {}
    let summary = job.summaries.pop().unwrap().unwrap();
    assert_eq!(summary.outcome, Outcome::Complete);
    let lost = [("2".to_owned(), "go took too long".to_owned())];
    assert_eq!(summary.lost, lost);
}

#[derive(Clone, Debug)]
enum Step {
    Deliver(Index),
    Act(Index, bool),
    GetsOn(Index),
    Break(Index),
    Pass(u64),
    Order,
    Commit(bool),
    Keep,
    /// The coordinator dies, when it has written something down or not.
    Die(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => any::<Index>().prop_map(Step::Deliver),
        20 => (any::<Index>(), prop::bool::weighted(0.01)).prop_map(|(at, fails)| Step::Act(at, fails)),
        1 => any::<Index>().prop_map(Step::GetsOn),
        1 => any::<Index>().prop_map(Step::Break),
        1 => (0..SECOND).prop_map(Step::Pass),
        3 => Just(Step::Order),
        6 => prop::bool::weighted(0.8).prop_map(Step::Commit),
        2 => Just(Step::Keep),
        1 => any::<bool>().prop_map(Step::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_tree_is_in_one_place_whatever_happens(
        steps in prop::collection::vec(step(), 0..800)
    ) {
        let mut job = Job::new(3);
        let (mut id, mut last) = (0, 0);
        job.settle();
        for step in steps {
            let round = job.coordinator.status().round;
            last = round.iter().map(|round| round.round).fold(last, u64::max);
            let commits = round.filter(|round| round.step == "commit");
            match step {
                Step::Deliver(index) => drop(job.deliver(index)),
                Step::Act(index, fails) => {
                    let busy: Vec<_> =
                        (1..job.peers.len()).filter(|at| !job.peers[*at].todo.is_empty()).collect();
                    if !busy.is_empty() {
                        job.act(*index.get(&busy), fails);
                    }
                }
                Step::GetsOn(index) => job.gets_on(index.index(job.peers.len())),
                Step::Break(index) => job.break_off(index.index(job.peers.len())),
                Step::Pass(ns) => job.pass(ns),
                Step::Order => {
                    id += 1;
                    job.order(id, to(&format!("2 to {id}")));
                }
                Step::Commit(good) => {
                    if let Some(round) = commits {
                        let result = if good { Ok(()) } else { Err("a full disk".into()) };
                        job.commits(round.round, result);
                    }
                }
                Step::Keep => drop(job.keeps()),
                Step::Die(is_written) => {
                    if let Some(round) = commits.filter(|_| is_written) {
                        job.decided.entry(round.round).or_insert(true);
                    }
                    job.coordinator_dies(last + 1);
                }
            }
            prop_assert!(owners(&job).len() <= 1, "{:?} have it", owners(&job));
        }
        job.comes_to_rest();
        prop_assert_eq!(owners(&job).len(), 1, "nobody has it");
        prop_assert_eq!(names(&job), ["1", "2", "3"]);
        job.has_a_checkpoint_of(id + 1, 3);
    }
}
