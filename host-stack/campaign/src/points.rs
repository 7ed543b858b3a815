//! Every fault point of the stack: each crate declares its own.

use snaprig_sim::Point;

/// All of them.
pub fn all() -> Vec<Point> {
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
