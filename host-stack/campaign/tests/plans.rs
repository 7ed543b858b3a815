//! Plans that nobody would write: every one that is accepted runs to an end, and no invariant breaks.

use proptest::{prelude::*, sample::select};
use serde_json::json;
use snaprig_campaign::scenario::Watch;
use snaprig_sim::{Fault, Kind, KindName, Plan, When, plan::DELAY_NS_MAX};

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
    let all = snaprig_campaign::standard().points(&[&plan.scenario]);
    let processes = snaprig_campaign::standard().processes(plan);
    let processes = processes.expect("the parameters are the scenario's");
    // Whom a kind of fault can be about; nobody, if no fault of this system is of that kind.
    let those = move |kind: KindName| {
        let can = processes.iter().filter(|process| process.can(kind));
        let names: Vec<_> = can.map(|process| process.name.clone()).collect();
        if names.is_empty() {
            vec![String::new()]
        } else {
            names
        }
    };
    (
        select(all),
        any::<prop::sample::Index>(),
        when(),
        extreme(),
        any::<i32>(),
    )
        .prop_flat_map(move |(point, kind, when, number, errno)| {
            let name = point.kinds[kind.index(point.kinds.len())];
            select(those(name)).prop_map(move |process| Fault {
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
                    KindName::Restart => Kind::Restart(process),
                    KindName::DiskFull => Kind::DiskFull,
                    KindName::TornWrite => Kind::TornWrite(number),
                    KindName::LinkDown => Kind::LinkDown(process),
                    KindName::Partition => Kind::Partition(process),
                    KindName::LinkUp => Kind::LinkUp(process),
                    KindName::GidChange => Kind::GidChange(process),
                },
            })
        })
}

/// A plan of any scenario. Those that there were then read what earlier versions wrote, the same parameters for all; for the
/// others a seed draws them.
fn plan() -> impl Strategy<Value = Plan> {
    let workload = (1..=3u16, 1..=2u16, 1..=3u16, 1..=5u16, 0..=3u16, 0..=3u16);
    let names: Vec<_> = snaprig_campaign::standard().names().collect();
    let system = (any::<u64>(), 1..=4u16, select(names), workload);
    system.prop_flat_map(|(seed, cards, scenario, work)| {
        let (processes, offloads, pipelines, runs, buffers, writes) = work;
        let earlier = Plan::new(seed, scenario).with(&json!({
            "cards": cards,
            "workload": {
                "processes": processes,
                "offloads": offloads,
                "pipelines": pipelines,
                "runs": runs,
                "buffers": buffers,
                "writes": writes,
            },
        }));
        let all = snaprig_campaign::standard();
        let plan = match all.check_system(&earlier) {
            Ok(()) => earlier,
            Err(_) => all.draw(seed, &[scenario]),
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
        snaprig_campaign::standard().check(&plan).expect("it is a plan");
        let finished = snaprig_campaign::standard().run(&plan, Watch::default());
        let broken = finished.expect("it is a plan").broken;
        prop_assert_eq!(broken, None, "{}", plan.to_text());
    }
}
