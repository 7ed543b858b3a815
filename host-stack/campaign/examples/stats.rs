//! Counts.
use snaprig_campaign::{draw::draw, run};
use snaprig_sim::Trace;
use std::collections::BTreeMap;
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let start = std::time::Instant::now();
    let (mut endings, mut points, mut events, mut faults) =
        (BTreeMap::new(), BTreeMap::new(), 0, 0);
    for seed in 0..n {
        let outcome = run(&draw(seed), Trace::default());
        let full = outcome.results.iter().flatten().count();
        *endings
            .entry(format!(
                "{} lost {} results {full}",
                format!("{:?}", outcome.ending)
                    .split(['(', '"'])
                    .next()
                    .unwrap(),
                outcome.lost
            ))
            .or_insert(0) += 1;
        for (name, times, faults) in &outcome.reached {
            let e = points.entry(*name).or_insert((0, 0));
            e.0 += times;
            e.1 += faults;
        }
        events += outcome.trace.events();
        faults += outcome.faults;
    }
    println!(
        "{:.0}/s, {} events a run, {} faults",
        n as f64 / start.elapsed().as_secs_f64(),
        events / n,
        faults
    );
    for (e, n) in endings {
        println!("{n:>8} {e}");
    }
    for (e, (a, b)) in points {
        println!("{e:<24} {a:>9} {b:>6}");
    }
}
