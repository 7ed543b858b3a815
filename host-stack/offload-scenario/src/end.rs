//! How a run ends: what is left to be done, what still waits, and what comes of it.

use snaprig_scenario::{
    scenario::{Ending, Outcome},
    stage::System as _,
};

use crate::{
    outcome::{App, Ended},
    state::{app::AppId, host::Host},
    world::World,
};

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

    pub(super) fn into_outcome(mut self, ending: Option<Ending>) -> Outcome<Ended> {
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
            self.net.stage.engine.crash(self.host_processes[host]);
            if self.net.stage.engine.is_alive(self.net.rig) && !crashed {
                self.close_endpoints_of_host(host);
            }
        }
        let ending = endings.iter().max_by_key(|one| one.weight()).cloned();
        let ending = ending.unwrap_or(Ending::Finished);
        let mut endless = crashed || ending == Ending::Endless || !self.comes_to_rest();
        while !endless && self.heal() {
            endless = !self.comes_to_rest();
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
        let apps = apps.collect();
        self.net
            .stage
            .into_outcome(ending, leftovers, Ended { apps })
    }
}
