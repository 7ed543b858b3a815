//! Fault plans: which faults happen where and when. JSON, written by hand or drawn from a seed.
//!
//! ```json
//! { "version": 1, "seed": 7, "cards": 2, "scenario": "migrate",
//!   "workload": { "processes": 1, "pipelines": 2, "runs": 6, "buffers": 1, "writes": 2 },
//!   "faults": [ { "point": "snapify.capture", "nth": 1, "kind": { "crash": "card1" } } ] }
//! ```
//!
//! A plan says which scenario it is a run of, and what goes wrong in it. Everything else in it, `cards` and
//! `workload` above, are the scenario's own parameters: the simulator carries them without knowing what
//! they mean, and the scenario reads them as a type of its own ([`Plan::parameters_as`]).
//!
//! | field of a fault | meaning |
//! |---|---|
//! | `point` | a fault point (`snaprig faults` lists them) |
//! | `nth` | at its nth occurrence, from 1 |
//! | `at_ns` | at its first occurrence from this virtual time on, in nanoseconds |
//! | `per_mille` | at each occurrence with this probability, drawn from the seed; any number of times |
//! | `kind` | what happens: `"drop"`, `{"delay": ns}`, `{"crash": "card1"}`, ... |

use std::{fs, io, path::Path};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IntoDeserializer},
};
use serde_json::Value;

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

/// The parameters of a scenario, by name, as only the scenario understands them.
pub type Parameters = serde_json::Map<String, Value>;

/// A run, and what goes wrong in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// Decides the order of events, and every draw of a `per_mille`.
    pub seed: u64,
    /// Which system runs, and what it does.
    pub scenario: String,
    /// Whatever else the plan says: how much of everything the scenario is to have.
    #[serde(flatten)]
    pub parameters: Parameters,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Vec<Fault>,
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
    /// The link of this device comes up again, and both ends notice.
    LinkUp(String),
    /// The ports of this device are known by other GIDs, and their users are told.
    GidChange(String),
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
            Self::LinkUp(_) => KindName::LinkUp,
            Self::GidChange(_) => KindName::GidChange,
        }
    }

    /// The process that it names.
    pub fn process(&self) -> Option<&str> {
        match self {
            Self::Crash(process)
            | Self::Hang(process)
            | Self::Restart(process)
            | Self::LinkDown(process)
            | Self::Partition(process)
            | Self::LinkUp(process)
            | Self::GidChange(process) => Some(process),
            _ => None,
        }
    }
}

/// What has a name in plans: a process, or a device that runs none. Faults are done to it by that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// As plans call it.
    pub name: String,
    /// What can happen to it, of the kinds of faults that name a process.
    pub kinds: &'static [KindName],
}

impl Process {
    /// What can happen to a program: it dies, or stops for ever.
    pub const PROGRAM: &[KindName] = &[KindName::Crash, KindName::Hang];
    /// What can happen to a machine with a link of its own, which is started again when it has died.
    pub const MACHINE: &[KindName] = &[
        KindName::Crash,
        KindName::Hang,
        KindName::Restart,
        KindName::LinkDown,
        KindName::Partition,
    ];
    /// What can happen to a device, which has a link and runs no program.
    pub const DEVICE: &[KindName] = &[KindName::LinkDown, KindName::Partition];

    /// A process to which these kinds of faults can happen.
    pub fn new(name: impl Into<String>, kinds: &'static [KindName]) -> Self {
        Self {
            name: name.into(),
            kinds,
        }
    }

    /// Processes that are told apart by a number, from 1 on.
    pub fn numbered(
        name: &str,
        count: u16,
        kinds: &'static [KindName],
    ) -> impl Iterator<Item = Self> {
        (1..=count).map(move |number| Self::new(format!("{name}{number}"), kinds))
    }

    /// Whether this can happen to it.
    pub fn can(&self, kind: KindName) -> bool {
        self.kinds.contains(&kind)
    }
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
    /// That cannot happen to this process.
    #[error("fault {index}: {name} does not {kind}; what can happen to it: {applies}")]
    Victim {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        kind: KindName,
        /// Of which process.
        name: String,
        /// What would be possible.
        applies: String,
    },
    /// Its parameters are not those of its scenario.
    #[error("scenario {scenario:?}: {source}")]
    Parameters {
        /// Which scenario.
        scenario: String,
        /// What is wrong with them.
        source: serde_json::Error,
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
    /// A plan of the current version without parameters and without faults.
    pub fn new(seed: u64, scenario: &str) -> Self {
        Self {
            version: VERSION,
            seed,
            scenario: scenario.into(),
            parameters: Parameters::new(),
            faults: Vec::new(),
        }
    }

    /// The same plan with these parameters in place of those of the same names.
    ///
    /// # Panics
    /// If they are no structure with named fields, or cannot be said in JSON: a mistake of whoever wrote
    /// the type.
    #[must_use]
    pub fn with(mut self, parameters: &impl Serialize) -> Self {
        match serde_json::to_value(parameters) {
            Ok(Value::Object(parameters)) => self.parameters.extend(parameters),
            other => panic!("parameters of a plan have names: {other:?}"),
        }
        self
    }

    /// The parameters as the scenario's own type.
    pub fn parameters_as<T: DeserializeOwned>(&self) -> Result<T, PlanError> {
        T::deserialize((&self.parameters).into_deserializer()).map_err(|source| {
            PlanError::Parameters {
                scenario: self.scenario.clone(),
                source,
            }
        })
    }

    /// A number among the parameters, by the names that lead to it.
    pub fn number(&self, path: &[&str]) -> Option<u64> {
        let (first, rest) = path.split_first()?;
        let first = self.parameters.get(*first)?;
        let found = rest.iter().try_fold(first, |value, name| value.get(name))?;
        found.as_u64()
    }

    /// The names that lead to each number among the parameters.
    pub fn numbers(&self) -> Vec<Vec<&str>> {
        let mut found = Vec::new();
        collect_numbers(&self.parameters, &mut Vec::new(), &mut found);
        found
    }

    /// Changes a number among the parameters, if it is there.
    pub fn set_number(&mut self, path: &[&str], number: u64) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let first = self.parameters.get_mut(*first);
        let found = first.and_then(|first| {
            rest.iter()
                .try_fold(first, |value, name| value.get_mut(*name))
        });
        if let Some(found) = found {
            *found = number.into();
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
        let value: Value = serde_json::from_str(text).map_err(json)?;
        if let Some(found) = value.get("version").and_then(Value::as_u64)
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
    pub fn check(&self, points: &[Point], processes: &[Process]) -> Result<(), PlanError> {
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
            if let Some(name) = fault.kind.process() {
                check_victim(index, kind, name, processes)?;
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

fn collect_numbers<'a>(
    parameters: &'a Parameters,
    path: &mut Vec<&'a str>,
    found: &mut Vec<Vec<&'a str>>,
) {
    for (name, value) in parameters {
        path.push(name);
        match value {
            Value::Number(_) => found.push(path.clone()),
            Value::Object(inner) => collect_numbers(inner, path, found),
            _ => {}
        }
        path.pop();
    }
}

/// Checks that a fault's process exists, and that the fault can happen to it.
fn check_victim(
    index: usize,
    kind: KindName,
    name: &str,
    processes: &[Process],
) -> Result<(), PlanError> {
    let Some(process) = processes.iter().find(|process| process.name == name) else {
        let names: Vec<_> = processes.iter().map(|process| &*process.name).collect();
        return Err(PlanError::Process {
            index,
            name: name.into(),
            processes: names.join(", "),
        });
    };
    if process.can(kind) {
        return Ok(());
    }
    let applies: Vec<_> = process.kinds.iter().map(|kind| kind.name()).collect();
    Err(PlanError::Victim {
        index,
        kind,
        name: name.into(),
        applies: applies.join(", "),
    })
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
        Plan::parse(&text, "plan.json")?.check(
            &POINTS,
            &[
                Process::new("card1", Process::MACHINE),
                Process::new("rig", Process::PROGRAM),
            ],
        )
    }

    #[test]
    fn a_plan_survives_its_text() {
        let mut plan = Plan::new(7, "migrate").with(&serde_json::json!({"cards": 2}));
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
    fn parameters_are_carried_as_they_are_and_read_by_who_knows_them() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Own {
            cards: u16,
            #[serde(default)]
            workload: Work,
        }
        #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Work {
            runs: u16,
        }
        let text =
            r#"{"version": 1, "seed": 7, "cards": 3, "scenario": "s", "workload": {"runs": 5}}"#;
        let mut plan = Plan::parse(text, "").unwrap();
        let own = Own {
            cards: 3,
            workload: Work { runs: 5 },
        };
        assert_eq!(plan, Plan::new(7, "s").with(&own));
        assert_eq!(plan.parameters_as::<Own>().unwrap(), own);
        assert_eq!(plan.number(&["workload", "runs"]), Some(5));
        assert_eq!(plan.number(&["workload", "writes"]), None);
        assert_eq!(plan.numbers(), [vec!["cards"], vec!["workload", "runs"]]);
        plan.set_number(&["workload", "runs"], 2);
        plan.set_number(&["workload", "writes"], 2);
        assert_eq!(plan.number(&["workload", "runs"]), Some(2));
        plan.parameters.insert("fault".into(), Value::Null);
        let error = plan.parameters_as::<Own>().unwrap_err().to_string();
        assert!(error.contains("unknown field `fault`"), "{error}");
        assert!(Plan::new(7, "s").parameters_as::<Own>().is_err());
    }

    #[test]
    fn bad_plans_are_refused_with_what_is_wrong() {
        check(r#"{"point": "a.b", "nth": 1, "kind": {"crash": "card1"}}"#).unwrap();
        for (fault, says) in [
            (
                r#"{"point": "a.b", "nth": 1, "kind": {"restart": "rig"}}"#,
                "rig does not restart",
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
        let mut many = Plan::new(1, "s");
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
