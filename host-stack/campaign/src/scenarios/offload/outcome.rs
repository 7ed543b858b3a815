//! What comes of a run.

use super::*;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The application finished.
    Finished,
    /// The application was told that it cannot.
    Failed(String),
    /// Somebody waits for something that never comes.
    Stuck(String),
    /// It never came to rest.
    Endless,
    /// The code under test panicked.
    Crashed(String),
}

impl Ending {
    /// The worse, the more.
    pub(super) fn weight(&self) -> u8 {
        match self {
            Self::Finished => 0,
            Self::Failed(_) => 1,
            Self::Stuck(_) => 2,
            Self::Endless => 3,
            Self::Crashed(_) => 4,
        }
    }
}

/// What came of one application.
#[derive(Debug)]
pub struct App {
    /// How it ended.
    pub ending: Ending,
    /// Whether its process was lost, and nothing could bring it back.
    pub lost: bool,
    /// Results of run functions, by pipeline, in the order in which they were asked for.
    pub results: Vec<Vec<Option<u64>>>,
    /// What it waits for, if it does.
    pub waiting: Option<String>,
    /// What is wrong with its snapshot on the disk; `None`: it is whole, or not there.
    pub snapshot: Option<String>,
    /// Calls that were told of an error, in its own words.
    pub errors: Vec<String>,
}

/// What there is to know of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended: the worst of all applications.
    pub ending: Ending,
    /// Every application.
    pub apps: Vec<App>,
    /// What must never happen, and did: the invariant, and how.
    pub violations: Vec<(&'static str, String)>,
    /// Offload processes that are left on living cards, with nobody who owns them.
    pub leftovers: Vec<String>,
    /// Faults that happened.
    pub faults: u64,
    /// Those of them of which somebody must have been told.
    pub loud_faults: u64,
    /// The states that the system was in, if that was asked for.
    pub states: BTreeSet<u64>,
    /// Fault points, how often each was reached and how often something happened there.
    pub reached: Vec<(&'static str, u64, u64)>,
    /// Virtual time at the end.
    pub now_ns: u64,
    /// What happened.
    pub trace: Trace,
    /// Names of the processes, for traces.
    pub processes: Vec<String>,
    /// Queue pairs and what came of their work, in scenario "verbs".
    pub verbs: verbs::Ended,
    /// Connections between programs and what came of them, in scenario "scif".
    pub scif: scif::Ended,
}

impl World {
    fn app_ending(&self, app: AppId) -> Ending {
        let app = &self.apps[app];
        let mut hosts = self.hosts[app.hosts()].iter();
        hosts.find_map(Host::ending).unwrap_or_else(|| app.ending())
    }

    /// What a host process that lives still waits for.
    fn app_waits(&self, app: AppId) -> Option<String> {
        let app = &self.apps[app];
        let mut hosts = self.hosts[app.hosts()].iter();
        let lives = hosts.all(|host| host.alive && host.failure.is_none());
        app.waiting().filter(|_| lives)
    }

    pub(super) fn into_outcome(mut self, ending: Option<Ending>) -> Outcome {
        let endings: Vec<_> = (0..self.apps.len())
            .map(|app| ending.clone().unwrap_or_else(|| self.app_ending(app)))
            .collect();
        let all = ending.is_none();
        let waiting: Vec<_> = (0..self.apps.len())
            .map(|app| self.app_waits(app).filter(|_| all))
            .collect();
        let crashed = matches!(ending, Some(Ending::Crashed(_)));
        // The host processes go, and nothing of them may stay.
        for host in 0..self.hosts.len() {
            self.hosts[host].alive = false;
            self.net.engine.crash(self.host_processes[host]);
            if self.net.engine.is_alive(self.net.rig) && !crashed {
                self.close_endpoints_of_host(host);
            }
        }
        let ending = endings.iter().max_by_key(|one| one.weight()).cloned();
        let ending = ending.unwrap_or(Ending::Finished);
        let mut endless = crashed || ending == Ending::Endless || self.rest().is_some();
        while !endless && self.heal() {
            endless = self.rest().is_some();
        }
        let leftovers = match endless {
            true => Vec::new(),
            false => self.leftovers(),
        };
        let snapshots = self.broken_snapshots();
        let each = self.apps.iter().zip(endings).zip(waiting);
        let apps = each.map(|((app, ending), waiting)| {
            let hosts = &self.hosts[app.hosts()];
            let mut snapshots = snapshots[app.hosts()].iter();
            App {
                ending,
                waiting,
                lost: hosts.iter().any(|host| host.lost),
                results: app.results(),
                snapshot: snapshots.find_map(Clone::clone),
                errors: hosts.iter().flat_map(|host| host.errors.clone()).collect(),
            }
        });
        let reached = self.net.engine.faults().reached().iter();
        Outcome {
            apps: apps.collect(),
            violations: self.violations,
            leftovers,
            faults: self.net.tally.faults,
            loud_faults: self.net.tally.loud,
            states: self.states.unwrap_or_default(),
            reached: reached
                .map(|(name, reached)| (*name, reached.times, reached.faults))
                .collect(),
            now_ns: self.net.engine.now_ns(),
            processes: self.net.engine.names(),
            trace: self.net.engine.trace,
            verbs: verbs::Ended::default(),
            scif: scif::Ended::default(),
            ending,
        }
    }
}
