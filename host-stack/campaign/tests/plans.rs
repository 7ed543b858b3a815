//! Plans that nobody would write: every one that is accepted runs to an end, and no invariant breaks.

use proptest::{prelude::*, sample::select};
use snaprig_campaign::{
    check::check,
    points, run,
    system::{impossible, processes, scenarios},
};
use snaprig_sim::{
    Fault, Kind, KindName, Plan, Trace, When, Workload,
    plan::{DELAY_NS_MAX, is_card, is_hca},
};

/// A number near an end, or any.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![0..10u64, Just(u64::MAX), Just(u64::MAX / 2), any::<u64>()]
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        (1..200u64).prop_map(When::Nth),
        extreme()
            .prop_filter("from 1", |nth| *nth > 0)
            .prop_map(When::Nth),
        extreme().prop_map(When::AtNs),
        (1..=1000u64).prop_map(When::PerMille),
    ]
}

fn fault(plan: &Plan) -> impl Strategy<Value = Fault> + use<> {
    let (all, names) = (points::of(&[&plan.scenario]), processes(plan));
    let those = |is: fn(&str) -> bool| {
        let names = names.iter().filter(|name| is(name));
        names.cloned().collect::<Vec<_>>()
    };
    let (processes, mut cards) = (those(|name| !is_hca(name)), those(is_card));
    if cards.is_empty() {
        // No fault of this system is about one.
        cards.push(String::new());
    }
    (
        select(all),
        any::<prop::sample::Index>(),
        when(),
        extreme(),
        any::<i32>(),
    )
        .prop_flat_map(move |(point, kind, when, number, errno)| {
            let name = point.kinds[kind.index(point.kinds.len())];
            let (processes, cards) = (processes.clone(), cards.clone());
            (select(processes), select(cards)).prop_map(move |(process, card)| Fault {
                point: point.name.into(),
                when,
                kind: match name {
                    KindName::Drop => Kind::Drop,
                    KindName::Delay => Kind::Delay(number.min(DELAY_NS_MAX)),
                    KindName::Duplicate => Kind::Duplicate,
                    KindName::Reorder => Kind::Reorder,
                    KindName::Corrupt => Kind::Corrupt(number),
                    KindName::Error => Kind::Error(errno),
                    KindName::Crash => Kind::Crash(process),
                    KindName::Hang => Kind::Hang(process),
                    KindName::Restart => Kind::Restart(card),
                    KindName::DiskFull => Kind::DiskFull,
                    KindName::TornWrite => Kind::TornWrite(number),
                    KindName::LinkDown => Kind::LinkDown(card),
                    KindName::Partition => Kind::Partition(card),
                },
            })
        })
}

fn plan() -> impl Strategy<Value = Plan> {
    let workload = (1..=3u16, 1..=2u16, 1..=3u16, 1..=5u16, 0..=3u16, 0..=3u16);
    let system = (
        any::<u64>(),
        1..=4u16,
        select(scenarios().collect::<Vec<_>>()),
        workload,
    );
    system.prop_flat_map(|(seed, cards, scenario, work)| {
        let (processes, offloads, pipelines, runs, buffers, writes) = work;
        let mut plan = Plan::new(seed, cards, scenario);
        plan.workload = Workload {
            processes,
            offloads,
            pipelines,
            runs,
            buffers,
            writes,
        };
        prop::collection::vec(fault(&plan), 0..6).prop_map(move |faults| Plan {
            faults,
            ..plan.clone()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_a_plan_says_it_is_survived(plan in plan()) {
        prop_assert_eq!(impossible(&plan), None);
        plan.check(&points::all(), &processes(&plan)).expect("it is a plan");
        let broken = check(&run(&plan, Trace::default(), None));
        prop_assert_eq!(broken, None, "{}", plan.to_text());
    }
}
