//! Fault plans: which faults happen where and when. JSON, written by hand or drawn from a seed.
//!
//! ```json
//! { "version": 1, "seed": 7, "cards": 2, "scenario": "migrate",
//!   "workload": { "processes": 1, "pipelines": 2, "runs": 6, "buffers": 1, "writes": 2 },
//!   "faults": [ { "point": "snapify.capture", "nth": 1, "kind": { "crash": "card1" } } ] }
//! ```
//!
//! `workload` and each of its fields may be left out. In scenario "verbs" there are processes with
//! queue pairs instead of offload processes: "process1" and so on, on HCAs "hca1" and so on. In
//! scenario "scif" there are programs on the nodes: "program1" and so on, beside "rig" and "card1".
//! In scenario "coord" there are "coordinator" and "agent1" and so on.
//!
//! | field of a fault | meaning |
//! |---|---|
//! | `point` | a fault point (`snaprig faults` lists them) |
//! | `nth` | at its nth occurrence, from 1 |
//! | `at_ns` | at its first occurrence from this virtual time on, in nanoseconds |
//! | `per_mille` | at each occurrence with this probability, drawn from the seed; any number of times |
//! | `kind` | what happens: `"drop"`, `{"delay": ns}`, `{"crash": "card1"}`, ... |

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use snaprig_wire::fault::{KindName, Point};

/// Version of the format; others are refused.
pub const VERSION: u32 = 1;
/// More faults than this in one plan are a mistake.
pub const FAULTS_MAX: usize = 1000;

/// The longest delay of one fault, in nanoseconds: an hour. Delays add up, and the virtual clock has
/// an end at which no deadline passes any more.
pub const DELAY_NS_MAX: u64 = 3_600_000_000_000;
/// More bytes than this in a plan are no plan.
const PLAN_BYTES_MAX: u64 = 1 << 20;

/// A run, and what goes wrong in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// Decides the order of events, and every draw of a `per_mille`.
    pub seed: u64,
    /// How many cards there are; with verbs, HCAs.
    pub cards: u16,
    /// Which snapshots are taken; or "verbs"; or "scif"; or "coord".
    pub scenario: String,
    /// What the application does meanwhile.
    #[serde(default)]
    pub workload: Workload,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

/// What the application does, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Host processes, each with offload processes and snapshots of them; with verbs, processes,
    /// spread over the HCAs; with scif, programs on each node; with coord, agents.
    pub processes: u16,
    /// Offload processes of each host process, which share its buffers.
    pub offloads: u16,
    /// Pipelines of each; with verbs, connections between processes; with scif, pairs of
    /// programs that connect; with coord, connections between programs.
    pub pipelines: u16,
    /// Run functions on each pipeline; with verbs, messages each way on each connection; with scif,
    /// sends of each side; with coord, messages each way on each connection.
    pub runs: u16,
    /// Buffers of each host process; with scif, windows of each side.
    pub buffers: u16,
    /// How often each buffer is written, read, copied, mapped or set to a state; with scif, RMA of
    /// each side; with coord, checkpoints of the job.
    pub writes: u16,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            processes: 1,
            offloads: 1,
            pipelines: 1,
            runs: 6,
            buffers: 1,
            writes: 2,
        }
    }
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Where.
    pub point: String,
    /// When.
    #[serde(flatten)]
    pub when: When,
    /// What.
    pub kind: Kind,
}

/// When a fault happens at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At the nth occurrence, from 1.
    Nth(u64),
    /// At the first occurrence from this virtual time on.
    AtNs(u64),
    /// At each occurrence with this probability in thousandths.
    PerMille(u64),
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It does not happen.
    Drop,
    /// It happens so many nanoseconds late, at most [`DELAY_NS_MAX`].
    Delay(u64),
    /// It happens twice.
    Duplicate,
    /// It happens before what came before it.
    Reorder,
    /// This bit of it, modulo its length, is wrong.
    Corrupt(u64),
    /// It fails with this errno.
    Error(i32),
    /// This process dies.
    Crash(String),
    /// This process stops for ever.
    Hang(String),
    /// This card dies, and is started again.
    Restart(String),
    /// The disk is full, from now on.
    DiskFull,
    /// So many bytes of it are written.
    TornWrite(u64),
    /// The link to this card goes down, and both ends notice.
    LinkDown(String),
    /// The link to this card loses everything, and nobody notices.
    Partition(String),
}

impl Kind {
    /// Without its particulars.
    pub fn name(&self) -> KindName {
        match self {
            Self::Drop => KindName::Drop,
            Self::Delay(_) => KindName::Delay,
            Self::Duplicate => KindName::Duplicate,
            Self::Reorder => KindName::Reorder,
            Self::Corrupt(_) => KindName::Corrupt,
            Self::Error(_) => KindName::Error,
            Self::Crash(_) => KindName::Crash,
            Self::Hang(_) => KindName::Hang,
            Self::Restart(_) => KindName::Restart,
            Self::DiskFull => KindName::DiskFull,
            Self::TornWrite(_) => KindName::TornWrite,
            Self::LinkDown(_) => KindName::LinkDown,
            Self::Partition(_) => KindName::Partition,
        }
    }

    /// The process that it names.
    pub fn process(&self) -> Option<&str> {
        match self {
            Self::Crash(process)
            | Self::Hang(process)
            | Self::Restart(process)
            | Self::LinkDown(process)
            | Self::Partition(process) => Some(process),
            _ => None,
        }
    }

    /// Whether only a card can have that happen to it.
    fn needs_a_card(&self) -> bool {
        matches!(
            self,
            Self::Restart(_) | Self::LinkDown(_) | Self::Partition(_)
        )
    }

    /// Whether only a program can have that happen to it.
    fn needs_a_program(&self) -> bool {
        matches!(self, Self::Crash(_) | Self::Hang(_) | Self::Restart(_))
    }
}

/// Whether what has this name in a plan is a card; an HCA is one.
pub fn is_card(name: &str) -> bool {
    name.starts_with("card") || is_hca(name)
}

/// Whether what has this name in a plan is an HCA, which runs no program.
pub fn is_hca(name: &str) -> bool {
    name.starts_with("hca")
}

/// Why a plan is no good.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is no plan.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// It is for another snaprig.
    #[error("the plan is of version {found}, this snaprig reads version {VERSION}")]
    Version {
        /// Its version.
        found: u64,
    },
    /// Too many faults.
    #[error("the plan has {found} faults; at most {FAULTS_MAX} make sense")]
    TooMany {
        /// How many.
        found: usize,
    },
    /// There is no such point.
    #[error("fault {index}: there is no fault point {name:?}; `snaprig faults` lists them")]
    Point {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        name: String,
    },
    /// That cannot happen there.
    #[error("fault {index}: {kind} does not apply to {point}; {applies} do")]
    Kind {
        /// Which fault, from 0.
        index: usize,
        /// Its point.
        point: String,
        /// What it says.
        kind: KindName,
        /// What would be possible.
        applies: String,
    },
    /// There is no such process.
    #[error("fault {index}: there is no process {name:?}; there are {processes}")]
    Process {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        name: String,
        /// What would be possible.
        processes: String,
    },
    /// That happens to cards only.
    #[error("fault {index}: {kind} is for cards, and {name} is none")]
    NoCard {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        kind: KindName,
        /// Of which process.
        name: String,
    },
    /// That happens to programs only.
    #[error("fault {index}: {kind} is for what runs a program, and {name} does not")]
    NoProgram {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        kind: KindName,
        /// Of which HCA.
        name: String,
    },
    /// A number in it is out of range.
    #[error("fault {index}: {why}")]
    Range {
        /// Which fault, from 0.
        index: usize,
        /// Why.
        why: &'static str,
    },
}

impl Plan {
    /// A plan of the current version without faults.
    pub fn new(seed: u64, cards: u16, scenario: &str) -> Self {
        Self {
            version: VERSION,
            seed,
            cards,
            scenario: scenario.into(),
            workload: Workload::default(),
            faults: Vec::new(),
        }
    }

    /// Reads a plan from a file.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let name = || path.display().to_string();
        let io = |source| PlanError::Io {
            path: name(),
            source,
        };
        let len = fs::metadata(path).map_err(io)?.len();
        if len > PLAN_BYTES_MAX {
            return Err(io(io::ErrorKind::FileTooLarge.into()));
        }
        let text = fs::read_to_string(path).map_err(io)?;
        Self::parse(&text, &name())
    }

    /// Reads a plan from text; `path` is for errors.
    pub fn parse(text: &str, path: &str) -> Result<Self, PlanError> {
        let json = |source| PlanError::Json {
            path: path.into(),
            source,
        };
        // The version first: nothing else of another version's plan need make sense.
        let value: serde_json::Value = serde_json::from_str(text).map_err(json)?;
        if let Some(found) = value.get("version").and_then(serde_json::Value::as_u64)
            && found != u64::from(VERSION)
        {
            return Err(PlanError::Version { found });
        }
        serde_json::from_str(text).map_err(json)
    }

    /// The plan as text.
    ///
    /// # Panics
    /// Never: a plan holds only what JSON can say.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plan is plain data") + "\n"
    }

    /// Checks it against what there is.
    pub fn check(&self, points: &[Point], processes: &[String]) -> Result<(), PlanError> {
        if self.faults.len() > FAULTS_MAX {
            let found = self.faults.len();
            return Err(PlanError::TooMany { found });
        }
        for (index, fault) in self.faults.iter().enumerate() {
            let point = points.iter().find(|point| point.name == fault.point);
            let name = fault.point.clone();
            let point = point.ok_or(PlanError::Point { index, name })?;
            let kind = fault.kind.name();
            if !point.kinds.contains(&kind) {
                let names: Vec<_> = point.kinds.iter().map(|kind| kind.name()).collect();
                return Err(PlanError::Kind {
                    index,
                    point: fault.point.clone(),
                    kind,
                    applies: names.join(", "),
                });
            }
            if let Some(name) = fault.kind.process()
                && !processes.iter().any(|process| process == name)
            {
                return Err(PlanError::Process {
                    index,
                    name: name.into(),
                    processes: processes.join(", "),
                });
            }
            if let Some(name) = fault.kind.process()
                && fault.kind.needs_a_card()
                && !is_card(name)
            {
                let name = name.into();
                return Err(PlanError::NoCard { index, kind, name });
            }
            if let Some(name) = fault.kind.process()
                && fault.kind.needs_a_program()
                && is_hca(name)
            {
                let name = name.into();
                return Err(PlanError::NoProgram { index, kind, name });
            }
            let why = match (fault.when, &fault.kind) {
                (When::Nth(0), _) => "nth counts from 1",
                (When::PerMille(0 | 1001..), _) => "per_mille is 1 to 1000",
                (_, Kind::Delay(ns)) if *ns > DELAY_NS_MAX => {
                    "a delay is at most 3,600,000,000,000 ns (an hour)"
                }
                _ => continue,
            };
            return Err(PlanError::Range { index, why });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [Point; 1] = [Point {
        name: "a.b",
        what: "a place",
        kinds: &[KindName::Crash, KindName::Delay, KindName::Restart],
    }];

    fn check(fault: &str) -> Result<(), PlanError> {
        let text = format!(
            r#"{{"version": 1, "seed": 7, "cards": 2, "scenario": "s", "faults": [{fault}]}}"#
        );
        Plan::parse(&text, "plan.json")?.check(&POINTS, &["card1".into(), "rig".into()])
    }

    #[test]
    fn a_plan_survives_its_text() {
        let mut plan = Plan::new(7, 2, "migrate");
        for (when, kind) in [
            (When::Nth(1), Kind::Crash("card1".into())),
            (When::AtNs(9), Kind::Delay(5)),
            (When::PerMille(10), Kind::Drop),
        ] {
            plan.faults.push(Fault {
                point: "a.b".into(),
                when,
                kind,
            });
        }
        assert_eq!(Plan::parse(&plan.to_text(), "").unwrap(), plan);
    }

    #[test]
    fn bad_plans_are_refused_with_what_is_wrong() {
        check(r#"{"point": "a.b", "nth": 1, "kind": {"crash": "card1"}}"#).unwrap();
        for (fault, says) in [
            (
                r#"{"point": "a.b", "nth": 1, "kind": {"restart": "rig"}}"#,
                "rig is none",
            ),
            (
                r#"{"point": "x", "nth": 1, "kind": "drop"}"#,
                "no fault point",
            ),
            (
                r#"{"point": "a.b", "nth": 1, "kind": "drop"}"#,
                "crash, delay, restart do",
            ),
            (
                r#"{"point": "a.b", "nth": 0, "kind": {"delay": 1}}"#,
                "from 1",
            ),
            (
                r#"{"point": "a.b", "per_mille": 1001, "kind": {"delay": 1}}"#,
                "1 to 1000",
            ),
            (
                r#"{"point": "a.b", "at_ns": -1, "kind": {"delay": 1}}"#,
                "plan.json",
            ),
            (
                r#"{"point": "a.b", "nth": 1, "kind": {"delay": 3600000000001}}"#,
                "an hour",
            ),
            (r#"{"point": "a.b", "kind": {"delay": 1}}"#, "plan.json"),
            (
                r#"{"point": "a.b", "nth": 1, "kind": {"crash": "card9"}}"#,
                "card1",
            ),
            (r#"{"point": "a.b", "nth": 1, "kind": "fire"}"#, "plan.json"),
        ] {
            let error = check(fault).unwrap_err().to_string();
            assert!(error.contains(says), "{fault}: {error}");
        }
        let version = Plan::parse(r#"{"version": 2, "new": 1}"#, "");
        assert!(matches!(version, Err(PlanError::Version { found: 2 })));
        let mut many = Plan::new(1, 2, "s");
        let fault = Fault {
            point: "a.b".into(),
            when: When::Nth(1),
            kind: Kind::Delay(1),
        };
        many.faults = vec![fault; FAULTS_MAX + 1];
        let error = many.check(&POINTS, &[]);
        assert!(matches!(error, Err(PlanError::TooMany { .. })));
    }
}
