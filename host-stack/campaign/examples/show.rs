//! Prints the record of one run.
use snaprig_campaign::{check::check, run};
use snaprig_sim::{Plan, Trace};
fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next().unwrap();
    let plan = match first.parse::<u64>() {
        Ok(seed) => match args.next() {
            Some(scenario) => Plan::new(seed, 2, &scenario),
            None => snaprig_campaign::draw::draw(seed),
        },
        Err(_) => Plan::read(first.as_ref()).unwrap(),
    };
    let outcome = run(&plan, Trace::recording());
    for item in outcome.trace.record() {
        println!(
            "{:>12} {:>6} {}{}",
            item.now_ns,
            outcome.processes[item.at.0 as usize],
            if item.fault { "!!! " } else { "" },
            &item.what[..item.what.len().min(150)]
        );
    }
    println!(
        "{} {:?} {:?}",
        plan.to_text(),
        check(&outcome),
        outcome.ending
    );
}
