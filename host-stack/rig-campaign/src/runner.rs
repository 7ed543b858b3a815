//! What runs plans on real rigs, for campaigns.

use std::{collections::BTreeMap, io, path::Path, sync::Mutex};

use snaprig_campaign::{
    campaign::{Found, Ran, Runner},
    report::{Failure, write_file, write_line},
    scenario::{Broken, Class},
};
use snaprig_card_platform::Kind;
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_sim::Plan;

use crate::{faults::lock, plan::draw, run::run, work::sweep};

/// Runs plans on real rigs.
pub struct RigRunner {
    platform: Option<Kind>,
    golden: String,
    /// Also of runs that do not fail.
    talkative: bool,
    /// What everybody said in runs, by plan.
    logs: Mutex<BTreeMap<String, String>>,
}

impl RigRunner {
    /// With cards on this platform.
    pub fn new(platform: Option<Kind>) -> Self {
        sweep();
        Self {
            platform,
            golden: kmeans::golden(&Workload::shipped()).to_text(),
            talkative: false,
            logs: Mutex::default(),
        }
    }

    /// Runs a plan, and says what everybody said.
    pub fn replay(mut self, plan: &Plan) -> (Ran, String) {
        self.talkative = true;
        let ran = self.run(plan);
        let log = lock(&self.logs).remove(&plan.to_text());
        (ran, log.unwrap_or_default())
    }
}

impl Runner for RigRunner {
    fn name(&self) -> String {
        "rig".into()
    }

    fn chunk(&self) -> u64 {
        1
    }

    fn draw(&self, seed: u64) -> Plan {
        draw(seed)
    }

    fn run(&self, plan: &Plan) -> Ran {
        let outcome = match run(plan, self.platform, &self.golden) {
            Ok(outcome) => outcome,
            Err(error) => {
                let how = error.to_string();
                lock(&self.logs).insert(plan.to_text(), how.clone());
                let invariant = "the run can be made";
                return Ran {
                    broken: Some(Broken {
                        invariant,
                        how,
                        class: Class::Crash,
                    }),
                    ..Ran::default()
                };
            }
        };
        if outcome.violation.is_some() || self.talkative {
            lock(&self.logs).insert(plan.to_text(), outcome.log);
        }
        let reached = outcome.done.reached.into_iter();
        let reached: Vec<_> = reached
            .map(|(name, (times, hit))| (name, times, hit))
            .collect();
        Ran {
            events: reached.iter().map(|(_, times, _)| times).sum(),
            faults: reached.iter().map(|(.., hit)| hit).sum(),
            reached,
            broken: outcome.violation,
            ..Ran::default()
        }
    }

    /// Faults are left out as long as the same invariant breaks. A run takes a second, and need not
    /// be the same again, so nothing else is tried.
    fn shrink(&self, plan: &Plan, broken: &Broken) -> Plan {
        let mut best = plan.clone();
        for index in (0..plan.faults.len()).rev() {
            let mut candidate = best.clone();
            candidate.faults.remove(index);
            let found = self.run(&candidate).broken;
            if found.is_some_and(|found| found.invariant == broken.invariant) {
                best = candidate;
            }
        }
        best
    }

    fn report(&self, folder: &Path, found: &Found) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let plan = found.plan.to_text();
        write_file(&folder.join("plan.json"), plan.as_bytes())?;
        let logs = lock(&self.logs);
        let log = logs.get(&plan).map_or("", String::as_str);
        let log = format!("{}: {}\n{log}", found.invariant, found.how);
        write_file(&folder.join("log.txt"), log.as_bytes())?;
        Failure::new(found, true, None).write(folder)?;
        write_line(folder, snaprig_campaign::standard())
    }
}
