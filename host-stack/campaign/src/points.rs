//! Every fault point: each crate declares its own.

use snaprig_sim::Point;

use crate::verbs;

/// All of them.
pub fn all() -> Vec<Point> {
    [&offload()[..], snaprig_hca::faults::ALL].concat()
}

/// Those that these scenarios can reach; with none, all.
pub fn of(scenarios: &[&str]) -> Vec<Point> {
    let verbs = scenarios.iter().filter(|name| **name == verbs::SCENARIO);
    match scenarios.len() - verbs.count() {
        _ if scenarios.is_empty() => all(),
        0 => snaprig_hca::faults::ALL.to_vec(),
        others if others == scenarios.len() => offload(),
        _ => all(),
    }
}

/// Those of the offload stack.
pub fn offload() -> Vec<Point> {
    let of_crates = [
        snaprig_scif::faults::ALL,
        snaprig_coi::faults::ALL,
        coi_device::faults::ALL,
        snaprig_snapify::faults::ALL,
        snaprig_snapify_io::faults::ALL,
    ];
    of_crates.concat()
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_points_have_one_name() {
        let mut names: Vec<_> = super::all().iter().map(|point| point.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }
}
