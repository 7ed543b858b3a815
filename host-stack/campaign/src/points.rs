//! Every fault point: each crate declares its own.

use snaprig_sim::Point;

use crate::system::System;

/// All of them.
pub fn all() -> Vec<Point> {
    let of_programs = snaprig_scif::faults::program::ALL;
    let (of_hcas, of_jobs) = (snaprig_hca::faults::ALL, snaprig_coord::faults::ALL);
    [&offload()[..], of_programs, of_hcas, of_jobs].concat()
}

/// Those that these scenarios can reach; with none, all.
pub fn of(scenarios: &[&str]) -> Vec<Point> {
    if scenarios.is_empty() {
        return all();
    }
    let named = |system| scenarios.iter().any(|name| System::of(name) == system);
    let systems = [
        (System::Offload, offload()),
        (System::Scif, scif()),
        (System::Verbs, snaprig_hca::faults::ALL.to_vec()),
        (System::Coord, snaprig_coord::faults::ALL.to_vec()),
    ];
    let mut found: Vec<Point> = Vec::new();
    for (_, points) in systems.into_iter().filter(|(system, _)| named(*system)) {
        let new = points.into_iter().filter(|point| !found.contains(point));
        found.extend(new.collect::<Vec<_>>());
    }
    found
}

/// Those of SCIF and the programs that use it.
pub fn scif() -> Vec<Point> {
    use snaprig_scif::faults;
    [faults::ALL, faults::program::ALL].concat()
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
