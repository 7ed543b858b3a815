//! What comes of plans.

use super::*;

/// A plan whose run broke an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The seed that drew it, or its number in the list.
    pub number: u64,
    /// What kind of failure.
    pub class: Class,
    /// The invariant.
    pub invariant: String,
    /// How it is broken.
    pub how: String,
    /// The smallest plan that breaks it.
    pub plan: Plan,
}

/// What came of some seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// Runs.
    pub runs: u64,
    /// Events of all runs.
    pub events: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Hash of all traces, whatever their order.
    pub trace_hash: u64,
    /// Fault points: how often each was reached, and how often something happened there.
    pub reached: BTreeMap<String, (u64, u64)>,
    /// States that the system was in, if they were counted: hashes of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub states: BTreeSet<u64>,
    /// Runs that broke an invariant.
    pub failures: u64,
    /// The first of them.
    pub found: Vec<Found>,
}

impl Results {
    /// Takes others in.
    pub fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.events += other.events;
        self.faults += other.faults;
        self.trace_hash = self.trace_hash.wrapping_add(other.trace_hash);
        for (name, (times, faults)) in other.reached {
            let reached = self.reached.entry(name).or_default();
            *reached = (reached.0 + times, reached.1 + faults);
        }
        self.states.extend(other.states);
        self.failures += other.failures;
        self.found.extend(other.found);
        self.found.sort_by_key(|found| found.number);
    }
}
