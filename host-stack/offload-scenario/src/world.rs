//! The system: host processes with their applications, cards, a rig with the host's node and Snapify-IO, a disk.

use std::collections::BTreeMap;

use snaprig_scenario::{
    caught::caught,
    links::Net,
    scenario::{Ending, Outcome, Watch},
    stage::{Stage, System as _},
};
use snaprig_scif::node::{EndpointId, Input};
use snaprig_sim::{Disk, Plan, ProcessId};
use snaprig_wire::scif::{HOST, NodeId};

use crate::{
    canary::Canary,
    draw,
    outcome::Ended,
    parameters::Parameters,
    state::{
        HostId,
        app::Application,
        card::Card,
        event::{Event, Role},
        host::Host,
        io::Transfers,
        ledger::Ledger,
        sockets::Sockets,
    },
    variants::Variant,
};

/// The system.
pub struct World {
    pub seed: u64,
    pub variant: Variant,
    pub parameters: Parameters,
    pub net: Net<Event>,
    pub app_processes: Vec<ProcessId>,
    /// The same, by offload process.
    pub host_processes: Vec<ProcessId>,
    /// By node, from 0.
    pub nodes: Vec<Sockets>,
    pub roles: BTreeMap<(NodeId, EndpointId), Role>,
    /// Contents of registered memory, by DMA address.
    pub memory: BTreeMap<u64, Vec<u8>>,
    pub next_address: u64,
    pub apps: Vec<Application>,
    pub hosts: Vec<Host>,
    pub cards: Vec<Card>,
    pub transfers: Transfers,
    pub disk: Disk,
    pub ledger: Ledger,
    /// Bits of memory or files were flipped on purpose.
    pub damaged: bool,
    /// The bug that this run has.
    pub canary: Option<Canary>,
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, &draw::POINTS, watch);
        let mut all = parameters.processes().into_iter().map(|one| one.name);
        let mut next = || stage.engine.process(&all.next().unwrap_or_default());
        let rig = next();
        let app_processes: Vec<_> = (0..parameters.workload.processes).map(|_| next()).collect();
        let offloads = usize::from(parameters.workload.offloads);
        let each = app_processes.iter().copied();
        let host_processes: Vec<_> = each.flat_map(|process| vec![process; offloads]).collect();
        let apps = (0..app_processes.len()).map(|app| {
            let hosts = app * offloads..(app + 1) * offloads;
            Application::new(plan.seed, &parameters.workload, app, hosts)
        });
        let apps = apps.collect();
        let card_processes: Vec<_> = (1..=parameters.cards).map(|_| next()).collect();
        let mut nodes: Vec<_> = (0..=parameters.cards).map(Sockets::new).collect();
        for node in 1..=parameters.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        Self {
            seed: plan.seed,
            // A plan of another scenario is not run by this one.
            variant: Variant::named(&plan.scenario).unwrap_or(Variant::ALL[0]),
            parameters: *parameters,
            net: Net::new(stage, rig, card_processes),
            hosts: host_processes.iter().map(|_| Host::default()).collect(),
            apps,
            app_processes,
            host_processes,
            nodes,
            roles: BTreeMap::new(),
            memory: BTreeMap::new(),
            next_address: 1 << 32,
            cards: (1..=parameters.cards).map(Card::new).collect(),
            transfers: Transfers::default(),
            disk: Disk::default(),
            ledger: Ledger::default(),
            damaged: false,
            canary,
        }
    }

    pub fn run(mut self) -> Outcome<Ended> {
        let is_looked_at = self.net.stage.tally.until.is_some();
        match self.play() {
            ending if is_looked_at => {
                let end = Ended::default();
                self.net.stage.into_outcome(ending, Vec::new(), end)
            }
            Ending::Finished => self.into_outcome(None),
            ending => self.into_outcome(Some(ending)),
        }
    }

    /// Whether everything comes to rest.
    pub fn comes_to_rest(&mut self) -> bool {
        caught(|| self.rest()).unwrap_or(false)
    }

    /// The offload processes of a host process.
    pub fn apps_hosts(&self, process: ProcessId) -> Vec<HostId> {
        let all = self.host_processes.iter().enumerate();
        all.filter(|(_, one)| **one == process)
            .map(|(host, _)| host)
            .collect()
    }

    /// The number in a page of memory.
    pub fn cell(&self, address: u64) -> u64 {
        let bytes = self.memory.get(&address);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    pub fn set_cell(&mut self, address: u64, value: u64) {
        self.memory.insert(address, value.to_le_bytes().to_vec());
    }

    pub fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
        let rig = self.net.rig;
        self.net.stage.violation(rig, invariant, what);
    }
}
