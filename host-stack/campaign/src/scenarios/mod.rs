//! The scenarios that come with snaprig: a folder each, and a line each in [`ALL`].

pub mod ckpt_ib;
pub mod coord;
pub mod migration;
pub mod oversubscribe;
pub mod plugins;
pub mod ppmr;
pub mod scif;
pub mod verbs;

pub use snaprig_offload_scenario as offload;
use snaprig_scenario::registry::{Entry, Registry};
use std::sync::LazyLock;

/// All of them. When no scenario is asked for, the first takes the seeds that none of the others does.
pub static ALL: &[Entry] = &[
    Entry::new(&offload::Offload, 1),
    Entry::new(&verbs::Verbs, 5),
    Entry::new(&scif::Scif, 4),
    Entry::new(&coord::Coord, 10),
    Entry::new(&plugins::Plugins, 12),
    Entry::new(&migration::Migration, 20),
    Entry::new(&ckpt_ib::CkptIb, 9),
    Entry::new(&oversubscribe::Oversubscribe, 16),
    Entry::new(&ppmr::Ppmr, 14),
];

/// All of them, as campaigns and `snaprig repro` know them.
pub fn standard() -> &'static Registry {
    static STANDARD: LazyLock<Registry> = LazyLock::new(|| Registry::listed(ALL, "snaprig repro"));
    &STANDARD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_points_scenarios_or_planted_bugs_have_one_name() {
        let all = standard();
        let points = all.points(&[]).into_iter().map(|point| point.name);
        let canaries = all.canaries().map(|(canary, _)| canary.name);
        for names in [
            points.collect::<Vec<_>>(),
            canaries.collect(),
            all.names().collect(),
        ] {
            let mut sorted = names.clone();
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|two| two[0] != two[1]), "{sorted:?}");
        }
    }
}
