//! The policy in a world of its own: cards, processes with demands, swaps that take time and fail; what it says about itself
//! is measured by the world.

mod world;

use std::time::Duration;

use proptest::prelude::*;

use self::world::{Ask, Demand, Program, World, ms};
use super::{
    Card, FAILURES_MAX, Input, LEAD_STAYS_MAX, Output, Policy, Seen, Settings, Sight, Who, jain,
};

/// Long enough for dozens of turns.
const TIME: Duration = Duration::from_secs(600);

fn settings() -> impl Strategy<Value = Settings> {
    (50_u64..500, 1_u32..20).prop_map(|(quantum, worth)| Settings {
        quantum: ms(quantum),
        worth,
        patience: ms(quantum),
    })
}

fn demand() -> impl Strategy<Value = Demand> {
    prop_oneof![
        Just(Demand::Always),
        (1_u64..2000, 1_u64..2000).prop_map(|(busy, idle)| Demand::Sometimes {
            busy: ms(busy),
            idle: ms(idle)
        }),
        Just(Demand::Never),
    ]
}

fn asks() -> impl Strategy<Value = Option<Ask>> {
    let ask = (100_u64..20_000, 1_u64..60).prop_map(|(every, bytes)| Ask {
        every: ms(every),
        bytes,
    });
    proptest::option::weighted(0.3, ask)
}

fn program(bytes: std::ops::Range<u64>) -> impl Strategy<Value = Program> {
    (bytes, demand(), asks()).prop_map(|(bytes, demand, asks)| Program {
        bytes,
        demand,
        asks,
    })
}

prop_compose! {
    fn worlds()(
        settings in settings(),
        cards in proptest::collection::vec(100_u64..300, 1..4),
        programs in proptest::collection::vec(program(10..100), 1..13),
        ns_per_byte in 10_000_u64..2_000_000,
        one_in in prop_oneof![Just(0_u64), 4_u64..30],
        seed in any::<u64>(),
    ) -> World {
        World::new(settings, &cards, &programs, ns_per_byte, one_in, seed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The world panics when a card holds more than it can, and when a process leaves before its stay was worth it.
    #[test]
    fn no_card_is_overfull_and_no_stay_is_too_short(mut world in worlds()) {
        world.run(TIME);
        for (who, account) in world.policy.accounts() {
            let paid = account.swapping.saturating_sub(world.unpaid(who));
            let worth = world.policy.settings.worth;
            prop_assert!(paid * worth <= account.resident, "{who:?}: {account:?}");
        }
    }

    #[test]
    fn nobody_starves_and_every_request_is_answered(mut world in worlds()) {
        world.run(TIME);
        prop_assert!(world.longest_wait() <= world.patience(), "{:?} of {:?}", world.longest_wait(), world.patience());
    }

    #[test]
    fn equal_demands_have_equal_shares(
        settings in settings(),
        memory in 100_u64..400,
        cards in 1_usize..4,
        count in 2_usize..13,
        bytes in 20_u64..100,
        ns_per_byte in 10_000_u64..2_000_000,
    ) {
        let program = Program { bytes, demand: Demand::Always, asks: None };
        let mut world = World::new(settings, &vec![memory; cards], &vec![program; count], ns_per_byte, 0, 1);
        // So many turns each that one more or less does not matter.
        world.run(world.patience() * 10);
        let index = jain(world.policy.accounts().map(|(_, account)| account.share()));
        prop_assert!(index > 0.9, "{index}: {:?}", world.policy.accounts().collect::<Vec<_>>());
    }
}

fn who(process: u64) -> Who {
    Who { host: 1, process }
}

fn at(millis: u64) -> Duration {
    ms(millis)
}

struct Scene(Policy, Sight);

impl Scene {
    fn new() -> Self {
        Self::with_patience(Duration::ZERO)
    }

    fn with_patience(patience: Duration) -> Self {
        let settings = Settings {
            quantum: ms(100),
            worth: 9,
            patience,
        };
        Self(Policy::new(settings), Sight::default())
    }

    fn says(&mut self, millis: u64, input: Input) -> Vec<Output> {
        self.0.handle(input, at(millis));
        std::iter::from_fn(|| self.0.poll_output()).collect()
    }

    fn card(&mut self, millis: u64, node: u16, free_bytes: u64, is_failing: bool) -> Vec<Output> {
        let card = Card {
            memory_bytes: 100,
            free_bytes,
            is_failing,
        };
        self.1.cards.insert(node, card);
        self.says(millis, Input::Sight(self.1.clone()))
    }

    fn process(&mut self, millis: u64, id: u64, bytes: u64, is_wanted: bool) -> Vec<Output> {
        let seen = Seen {
            node: Some(1),
            bytes,
            is_wanted,
        };
        self.1.processes.insert(who(id), seen);
        self.says(millis, Input::Sight(self.1.clone()))
    }

    fn ask(&mut self, millis: u64, id: u64, process: Option<u64>, bytes: u64) -> Vec<Output> {
        let request = Input::Request {
            id,
            who: process.map(who),
            node: 1,
            bytes,
        };
        self.says(millis, request)
    }
}

#[test]
fn whom_nobody_wants_leaves_first_and_stays_out() {
    let mut scene = Scene::new();
    scene.card(0, 1, 20, false);
    scene.process(0, 1, 40, true);
    scene.process(0, 2, 40, false);
    // Its stay has not been long enough yet.
    assert_eq!(scene.ask(50, 1, None, 40), []);
    assert_eq!(scene.0.deadline(), Some(at(100)));
    assert_eq!(scene.says(100, Input::Tick), [Output::SwapOut(who(2))]);
    assert_eq!(scene.card(110, 1, 60, false), [Output::Grant(1)]);
    assert_eq!(scene.says(110, Input::Swapped(who(2), true)), []);
    scene.card(120, 1, 60, false);
    assert_eq!(scene.says(120, Input::RequestOver(1)), []);
    assert_eq!(scene.process(130, 2, 40, true), [Output::SwapIn(who(2), 1)]);
}

#[test]
fn who_has_waited_for_others_is_refused_only_when_nobody_is_known_for_a_while() {
    let mut scene = Scene::with_patience(ms(50));
    scene.card(0, 1, 0, false);
    scene.process(0, 1, 40, false);
    scene.ask(10, 1, None, 40);
    assert_eq!(scene.says(100, Input::Tick), [Output::SwapOut(who(1))]);
    // It has left, and its memory is not seen to be free yet.
    assert_eq!(scene.says(200, Input::Swapped(who(1), true)), []);
    assert_eq!(scene.0.deadline(), Some(at(250)));
    assert_eq!(scene.says(249, Input::Tick), []);
    assert_eq!(scene.says(250, Input::Tick), [Output::Refuse(1)]);
}

#[test]
fn a_grant_is_kept_until_it_is_used() {
    let mut scene = Scene::new();
    scene.card(0, 1, 50, false);
    assert_eq!(scene.ask(0, 1, None, 30), [Output::Grant(1)]);
    // The same room is not promised twice; nobody is there who could make more.
    assert_eq!(scene.ask(1, 2, None, 30), []);
    scene.card(2, 1, 20, false);
    assert_eq!(scene.says(2, Input::RequestOver(1)), [Output::Refuse(2)]);
    assert_eq!(scene.ask(3, 3, None, 101), [Output::Refuse(3)]);
}

#[test]
fn who_waits_for_room_leaves_for_another_and_comes_back_with_it() {
    let mut scene = Scene::new();
    scene.card(0, 1, 0, false);
    scene.process(0, 1, 50, true);
    scene.process(0, 2, 50, true);
    assert_eq!(scene.ask(200, 1, Some(1), 30), [Output::SwapOut(who(2))]);
    assert_eq!(scene.ask(201, 2, Some(2), 30), []);
    assert_eq!(scene.card(210, 1, 50, false), [Output::Grant(1)]);
    assert_eq!(scene.says(210, Input::Swapped(who(2), true)), []);
    scene.process(220, 1, 80, true);
    scene.card(220, 1, 20, false);
    // It has had its stay, and more of it than who waits.
    assert_eq!(
        scene.says(220, Input::RequestOver(1)),
        [Output::SwapOut(who(1))]
    );
    scene.card(230, 1, 100, false);
    assert_eq!(
        scene.says(230, Input::Swapped(who(1), true)),
        [Output::SwapIn(who(2), 1)]
    );
    scene.card(240, 1, 50, false);
    assert_eq!(
        scene.says(240, Input::Swapped(who(2), true)),
        [Output::Grant(2)]
    );
}

#[test]
fn a_card_that_is_about_to_fail_is_left_at_once_for_another() {
    let mut scene = Scene::new();
    scene.card(0, 1, 20, false);
    scene.card(0, 2, 50, false);
    scene.process(0, 1, 40, true);
    scene.process(0, 2, 40, false);
    assert_eq!(
        scene.card(1, 1, 20, true),
        [Output::SwapOut(who(1)), Output::SwapOut(who(2))]
    );
    assert_eq!(
        scene.says(5, Input::Swapped(who(1), true)),
        [Output::SwapIn(who(1), 2)]
    );
    assert_eq!(scene.says(5, Input::Swapped(who(2), true)), []);
    assert_eq!(scene.ask(6, 1, None, 10), [Output::Refuse(1)]);
}

#[test]
fn who_cannot_leave_is_not_waited_for_for_ever() {
    let mut scene = Scene::new();
    scene.card(0, 1, 0, false);
    scene.process(0, 1, 100, false);
    let mut said = scene.ask(100, 1, None, 50);
    for _ in 0..FAILURES_MAX {
        assert_eq!(said, [Output::SwapOut(who(1))]);
        let now = scene.0.now.as_millis() as u64;
        said = scene.says(now + 1, Input::Swapped(who(1), false));
        if let Some(due) = scene.0.deadline() {
            assert_eq!(said, []);
            said = scene.says(due.as_millis() as u64 + 1, Input::Tick);
        }
    }
    assert_eq!(said, [Output::Refuse(1)]);
}

#[test]
fn who_was_alone_for_an_hour_does_not_wait_for_an_hour() {
    let mut scene = Scene::new();
    scene.card(0, 1, 0, false);
    scene.process(0, 1, 100, true);
    let hour = 3_600_000;
    assert_eq!(scene.ask(hour, 1, None, 100), [Output::SwapOut(who(1))]);
    scene.card(hour + 1, 1, 100, false);
    scene.says(hour + 1, Input::Swapped(who(1), true));
    scene.process(hour + 2, 2, 100, true);
    scene.card(hour + 2, 1, 0, false);
    scene.says(hour + 2, Input::RequestOver(1));
    // It comes back after some stays of the other.
    let due = scene.0.deadline().unwrap();
    assert!(
        due <= at(hour + 2) + ms(100) * (LEAD_STAYS_MAX + 2),
        "{due:?}"
    );
}
