//! Who takes all processes through the phases of a checkpoint and of a restart, as the job's coordinator does; and who
//! restarts all when one of them dies.

use std::collections::BTreeSet;

use snaprig_ckpt_ib::{
    Canary, Name, Names,
    cookie::{Cookie, Queue},
    drain::{Drain, Said, lend_ahead, said},
    faults,
    names::{Domain, Key, Port, Published},
    process::Process,
    queue_pair::{Service, Stage},
    serve,
    told::{Near, Told},
};
use snaprig_ckpt_plugin::phase::Phase;
use snaprig_hca::State;
use snaprig_sim::Point;

use super::{
    hardware::{Hardware, RECEIVE_BYTES, Receive, XRC, aliases, port},
    invariants::CUT,
    moves::Moving,
    program::{Program, Request, Which},
    run::{Member, Run},
};

/// Phases begin at each process within so long: one of these.
const SPREADS_NS: [u64; 3] = [10, 1_000, 10_000];
/// A process that drains looks again after this long, and longer each time, up to the other.
const LOOK_NS: u64 = 2_000;
const LOOK_MOST_NS: u64 = 200_000;
/// What is unreliable is waited for this long.
const UNRELIABLE_NS: u64 = 3_000_000;
/// A drain takes no longer.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Where a process can go wrong in a phase.
fn point(phase: Phase) -> &'static Point {
    match phase {
        Phase::Quiesce => &faults::QUIESCE,
        Phase::Drain => &faults::DRAIN,
        Phase::Save => &faults::SAVE,
        Phase::Resume | Phase::Go => &faults::RESUME,
        Phase::Rebuild => &faults::REBUILD,
        Phase::Exchange => &faults::EXCHANGE,
        Phase::Refill => &faults::REFILL,
    }
}

/// A process in a checkpoint.
#[derive(Clone, Debug)]
pub struct Saved {
    pub process: Process<Request, Receive>,
    pub program: Program,
    pub memory: Vec<u8>,
}

struct Round {
    phase: Phase,
    passed: BTreeSet<usize>,
    since_ns: u64,
    told: Vec<Told>,
    drains: Vec<Option<Drain>>,
    saved: Vec<Option<Saved>>,
    published: Vec<Published>,
}

/// The job.
pub struct Job {
    /// Checkpoints are ordered when so many events have happened; the next is the last here.
    orders: Vec<u64>,
    round: Option<Round>,
    pub checkpoint: Option<Vec<Saved>>,
    /// Some of them move.
    pub moving: Option<Moving>,
    lives: u32,
    /// Why checkpoints were not taken.
    pub refusals: Vec<String>,
    /// Nothing goes wrong any more: what is still ordered is taken now, and restarted.
    pub is_last: bool,
}

impl Job {
    pub fn new(mut orders: Vec<u64>) -> Self {
        orders.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            orders,
            round: None,
            checkpoint: None,
            moving: None,
            lives: 0,
            refusals: Vec::new(),
            is_last: false,
        }
    }

    pub fn is_first_life(&self) -> bool {
        self.lives == 0
    }

    /// The next checkpoint is ordered, whenever it was to be.
    pub fn order_now(&mut self) {
        if let Some(next) = self.orders.last_mut() {
            *next = 0;
        }
    }

    /// Whether a round does not end.
    pub fn waits(&self) -> Option<String> {
        let round = self.round.as_ref()?;
        Some(format!("{:?}: passed by {:?}", round.phase, round.passed))
    }

    pub fn describe(&self) -> String {
        format!(
            "life {}, {:?}, {:?}",
            self.lives,
            self.waits(),
            self.refusals
        )
    }
}

impl Run {
    /// Looks after the job, after each event.
    pub fn tend(&mut self) {
        let world = &self.fabric.world;
        // Whoever has gone to elsewhere is not missed here.
        let moving = self.job.moving.iter().filter(|it| !it.is_decided);
        let leaving = moving.flat_map(|moving| &moving.left);
        let leaving = leaving.map(|(_, left)| left);
        let mut all = self.members.iter().chain(leaving);
        if !all.all(|one| world.lives(one.hardware.slot())) {
            return self.restart();
        }
        let events = world.events();
        let is_due = |at: &u64| *at <= events || self.job.is_last;
        if self.job.round.is_none() && self.job.orders.last().is_some_and(is_due) {
            self.job.orders.pop();
            for (one, used) in self.members.iter_mut().zip(&self.layout.used) {
                one.hardware.copy_ahead(&self.fabric, *used as usize);
            }
            self.begin(Phase::Quiesce);
        }
    }

    pub fn begin(&mut self, phase: Phase) {
        let count = self.members.len();
        let now = self.fabric.world.now();
        let is_new = matches!(phase, Phase::Quiesce | Phase::Rebuild);
        if is_new {
            self.job.round = Some(Round {
                phase,
                passed: BTreeSet::new(),
                since_ns: now,
                told: Vec::new(),
                drains: vec![None; count],
                saved: vec![None; count],
                published: Vec::new(),
            });
        } else if let Some(round) = &mut self.job.round {
            round.phase = phase;
            round.passed.clear();
            round.since_ns = now;
        }
        let spread_ns = self.random.pick(&SPREADS_NS).copied().unwrap_or(1);
        for member in 0..count {
            let after = self.random.below(spread_ns);
            self.phase_later(member, after);
        }
    }

    fn phase_later(&self, member: usize, after_ns: u64) {
        let world = &self.fabric.world;
        let slot = self.members[member].hardware.slot();
        let at = world.now().saturating_add(after_ns);
        world.task(slot, at, self.phase_task(), "a phase");
    }

    /// A process does its part of a phase; or later, or never, if a fault has it so.
    pub fn phase_turn(&mut self, member: usize) {
        let Some(phase) = self.job.round.as_ref().map(|round| round.phase) else {
            return;
        };
        let slot = self.members[member].hardware.slot();
        let is_over = |round: &Round| round.passed.contains(&member);
        if self.job.round.as_ref().is_some_and(is_over) {
            return;
        }
        match self.fabric.world.process_at(slot, point(phase)) {
            None => return,
            Some(0) => {}
            Some(late_ns) => return self.phase_later(member, late_ns),
        }
        let passed = match phase {
            Phase::Quiesce => self.quiesce(member),
            Phase::Drain => match self.drain(member) {
                Ok(true) => true,
                Ok(false) => {
                    let after = self.look_after();
                    return self.phase_later(member, after);
                }
                Err(why) => {
                    self.job.refusals.push(why);
                    return self.begin(Phase::Resume);
                }
            },
            Phase::Save => self.save(member),
            Phase::Resume => self.resume(member),
            Phase::Rebuild => self.rebuild(member),
            Phase::Exchange => self.exchange(member),
            Phase::Refill if self.is_decided() => self.refill(member) && self.go(member),
            Phase::Refill => self.refill(member),
            Phase::Go => self.go(member),
        };
        if passed {
            self.passed(member);
        }
    }

    fn passed(&mut self, member: usize) {
        let count = self.members.len();
        let is_decided = self.is_decided();
        let Some(round) = &mut self.job.round else {
            return;
        };
        round.passed.insert(member);
        if round.passed.len() < count {
            return;
        }
        match round.phase {
            Phase::Quiesce => self.begin(Phase::Drain),
            Phase::Drain => self.begin(Phase::Save),
            Phase::Save => {
                self.commit();
                match self.job.is_last {
                    true => self.restart(),
                    false => match self.random.below(4) {
                        0 | 1 => self.restart(),
                        2 => self.begin(Phase::Resume),
                        _ => self.begin_move(),
                    },
                }
            }
            Phase::Rebuild => {
                let published = std::mem::take(&mut round.published);
                self.names = Names::new(published, self.canary);
                self.begin(Phase::Exchange);
            }
            Phase::Exchange => match self.decide_move() {
                true => self.begin(Phase::Refill),
                false => self.begin(Phase::Resume),
            },
            Phase::Refill if !is_decided => self.begin(Phase::Go),
            Phase::Refill | Phase::Resume | Phase::Go => {
                self.job.round = None;
                self.job.moving = None;
            }
        }
    }

    fn quiesce(&mut self, member: usize) -> bool {
        let one = &mut self.members[member];
        one.is_closed = true;
        if let Some(round) = &mut self.job.round {
            round.told.push(Told::new(&said(&one.process)));
        }
        // Others may not have.
        let may_lose = one
            .process
            .each_qp()
            .any(|(_, pair)| pair.service != Service::Reliable);
        if may_lose && self.random.one_in(2) {
            let (process, mut driver) = self.split(member);
            let lent = lend_ahead(process, &mut driver, 2, |_| RECEIVE_BYTES);
            lent.expect("there is memory");
        }
        // Unless it has died of it.
        self.lives(member)
    }

    fn look_after(&mut self) -> u64 {
        let since_ns = self.job.round.as_ref().map_or(0, |round| round.since_ns);
        let waited_ns = self.fabric.world.now().saturating_sub(since_ns);
        let least = LOOK_NS.max(waited_ns / 8).min(LOOK_MOST_NS);
        least + self.random.below(LOOK_NS)
    }

    fn drain(&mut self, member: usize) -> Result<bool, String> {
        let now = self.fabric.world.now();
        let Some(mut round) = self.job.round.take() else {
            return Ok(false);
        };
        let mut failed = Vec::new();
        let done = self.drain_of(member, &mut round, &mut failed);
        for drain in round.drains.iter_mut().flatten() {
            for one in &failed {
                drain.failed(one);
            }
        }
        let since_ns = round.since_ns;
        let mut done = done.map_err(|refusal| refusal.to_string());
        if done == Ok(false)
            && now > since_ns + UNRELIABLE_NS
            && let Some(drain) = &round.drains[member]
            && drain.give_up(&mut self.members[member].process)
        {
            done = Ok(true);
        }
        self.job.round = Some(round);
        if done == Ok(false) && now > since_ns + PATIENCE_NS {
            let drain = self
                .job
                .round
                .as_ref()
                .and_then(|round| round.drains[member].as_ref());
            let missing = drain.and_then(|drain| drain.missing(&self.members[member].process));
            return Err(missing.map_or_else(String::new, |refusal| refusal.to_string()));
        }
        done
    }

    fn drain_of(
        &mut self,
        member: usize,
        round: &mut Round,
        failed: &mut Vec<snaprig_ckpt_ib::drain::Failed>,
    ) -> Result<bool, snaprig_ckpt_ib::drain::Refusal> {
        let aliases = aliases(self.hcas);
        let (process, mut driver) = self.split(member);
        let slot = &mut round.drains[member];
        let drain = match slot {
            Some(drain) => drain,
            None => {
                process.rename(&aliases);
                let near = Near::of(process);
                let told = round.told.iter().map(|one| one.near(&near, &aliases));
                let told: Result<Vec<Vec<Said>>, _> = told.collect();
                let told = told.expect("all have said it here").concat();
                let drain = Drain::new(process, &told, aliases)?;
                slot.insert(drain)
            }
        };
        drain.step(process, &mut driver, failed)
    }

    fn save(&mut self, member: usize) -> bool {
        let is_tracked = self.canary != Some(Canary::WritesUntracked);
        let one = &mut self.members[member];
        let Some(round) = &mut self.job.round else {
            return false;
        };
        if let Some(drain) = &round.drains[member] {
            drain.finish(&mut one.process);
        }
        let saved = Saved {
            process: one.process.clone(),
            program: one.program.clone(),
            memory: one.hardware.copied(&self.fabric, is_tracked),
        };
        round.saved[member] = Some(saved);
        true
    }

    fn commit(&mut self) {
        let Some(round) = &mut self.job.round else {
            return;
        };
        let saved: Vec<_> = round.saved.drain(..).flatten().collect();
        if let Some(what) = is_inconsistent(&saved) {
            self.violations.push((CUT, what));
        }
        self.job.checkpoint = Some(saved);
    }

    fn resume(&mut self, member: usize) -> bool {
        self.open(member);
        self.serve_all(member);
        true
    }

    /// The program is let in again.
    fn open(&mut self, member: usize) {
        let one = &mut self.members[member];
        one.is_closed = false;
        let slot = one.hardware.slot();
        for task in std::mem::take(&mut one.deferred) {
            self.fabric.world.task_soon(slot, task, "it goes on");
        }
    }

    pub fn serve_all(&mut self, member: usize) {
        let places = self.members[member].process.qps.len() as u32;
        for place in 0..places {
            self.serve(member, Queue::Receives(place));
        }
        self.serve(member, Queue::Shared(0));
        self.serve(member, Queue::Shared(XRC));
    }

    /// All is killed, and restarted from the last complete checkpoint; without one, from the beginning.
    fn restart(&mut self) {
        let world = &self.fabric.world;
        let moving = self.job.moving.take();
        let left = moving.iter().flat_map(|moving| &moving.left);
        for one in self.members.iter().chain(left.map(|(_, left)| left)) {
            if world.lives(one.hardware.slot()) {
                world.kill(one.hardware.slot());
            }
        }
        let first_keys = self.first_keys();
        self.fabric.forget(first_keys);
        self.job.lives += 1;
        self.job.round = None;
        let Some(checkpoint) = self.job.checkpoint.clone() else {
            return self.launch();
        };
        let count = checkpoint.len();
        let shift = self.random.below(self.hcas.into()) as u32;
        let mut order: Vec<usize> = (0..count).collect();
        for place in (1..count).rev() {
            order.swap(place, self.random.below(place as u64 + 1) as usize);
        }
        let mut slots = vec![0; count];
        for member in order {
            slots[member] = self.fabric.world.join();
        }
        self.members.clear();
        for (member, saved) in checkpoint.into_iter().enumerate() {
            let hca = (member as u32 + shift) % self.hcas;
            let mut hardware = Hardware::new(&self.fabric, slots[member], hca);
            hardware.is_narrow = self.random.one_in(4);
            self.fabric.world.put(slots[member], 0, &saved.memory);
            let mut one = Member::new(saved.process, saved.program, hardware);
            one.is_closed = true;
            self.members.push(one);
        }
        self.begin(Phase::Rebuild);
    }

    fn rebuild(&mut self, member: usize) -> bool {
        match self.stays(member) {
            true => self.follow(member),
            false => self.make_all(member),
        }
        self.publish(member);
        true
    }

    fn make_all(&mut self, member: usize) {
        let one = &mut self.members[member];
        if one.process.behind.contains_key(&XRC) {
            one.hardware.share(&self.fabric, |_| false);
        }
        for end in &one.program.ends {
            let (transport, receives) = self.layout.transports(end.which);
            let is_shared = self.layout.connection(end.which).shared;
            one.hardware.create(&self.fabric, transport, is_shared);
            one.hardware.call(&self.fabric, end.qp, end.name);
            if let Some(transport) = receives {
                one.hardware.create(&self.fabric, transport, false);
                one.hardware.call(&self.fabric, end.by, end.by_name);
            }
        }
        for region in 0..one.program.keys.len() {
            one.hardware.register(&self.fabric, region);
        }
        for pair in one.process.qps.iter_mut().flatten() {
            pair.receives.unlend_all();
        }
        for receives in one.process.shared.iter_mut().flatten() {
            receives.unlend_all();
        }
    }

    /// What the others are told of a process.
    fn publish(&mut self, member: usize) {
        let domain = Domain(member as u64);
        let mut published = Published::default();
        let one = &self.members[member];
        if let (Some(behind), Some((_, real))) = (one.process.behind.get(&XRC), one.hardware.xrc) {
            published.shared.push((behind.name, real, domain));
        }
        for end in &one.program.ends {
            let real = |place: u32| one.hardware.ends[place as usize].0;
            published.queue_pairs.push((end.name, real(end.qp), domain));
            if end.by != end.qp {
                let domain = Domain(u64::MAX);
                published
                    .queue_pairs
                    .push((end.by_name, real(end.by), domain));
            }
        }
        for (key, real) in one.program.keys.iter().zip(&one.hardware.keys) {
            published.keys.push(Key {
                domain,
                port: one.program.port,
                key: *key,
                real: *real,
            });
        }
        let real_port = port(one.hardware.node.hca);
        published.ports.push(Port {
            guid: one.program.port,
            lid: one.program.port as u16,
            real_guid: real_port,
            real_lid: real_port as u16,
            mtu: 5,
        });
        if let Some(round) = &mut self.job.round {
            round.published.push(published);
        }
    }

    fn exchange(&mut self, member: usize) -> bool {
        if !self.stays(member) {
            self.post_again(member, Queue::Shared(0));
            self.post_again(member, Queue::Shared(XRC));
        }
        for end in self.members[member].program.ends.clone() {
            for (place, peer) in self.pairs(end.which) {
                if self.is_new(member, place) {
                    self.bring_up(member, (end.which, place), peer);
                }
            }
        }
        true
    }

    /// A queue pair that was just made is connected, and has the receives that no message has taken.
    fn bring_up(&mut self, member: usize, (which, place): (Which, u32), peer: Name) {
        self.driver(member).raise(place, which, peer, State::Init);
        if !(self.stays(member) && self.canary == Some(Canary::ReceivesLeft)) {
            self.post_again(member, Queue::Receives(place));
        }
        self.driver(member).raise(place, which, peer, State::Rts);
        let pair = self.members[member].process.qp(place);
        if pair.is_some_and(|pair| pair.stage == Stage::Failed) {
            let (_, of_hca) = self.members[member].hardware.ends[place as usize];
            let done = self.fabric.world.state(&of_hca, State::Error);
            assert!(done.is_ok(), "{done:?}");
        }
    }

    /// Receives that no message has taken.
    fn post_again(&mut self, member: usize, queue: Queue) {
        let (process, mut driver) = self.split(member);
        if matches!(queue, Queue::Shared(place) if driver.me.shared_at(place).is_none()) {
            return;
        }
        serve::post_again(process, &mut driver, queue).expect("one has room");
    }

    /// Requests that nobody carried out.
    fn refill(&mut self, member: usize) -> bool {
        self.change_over(member);
        if !self.lives(member) {
            return false;
        }
        let places = 0..self.members[member].process.qps.len() as u32;
        let new: Vec<_> = places.filter(|place| self.is_new(member, *place)).collect();
        let (process, driver) = self.split(member);
        for place in new {
            let Some(pair) = process.qp(place) else {
                continue;
            };
            pair.limit_sends(driver.me.sends_max());
            for (number, posted) in pair.sends.outstanding() {
                let cookie = Cookie {
                    queue: Queue::Sends(place),
                    own: posted.wr_id.is_none(),
                    number,
                };
                let is_signaled = posted.signaled || pair.sends.asks(number);
                match driver.send(place, &posted.request, is_signaled, cookie) {
                    Some(done) => assert_eq!(done, Ok(())),
                    // It has died of it.
                    None => return false,
                }
            }
        }
        self.release_all(member);
        // Unless it has died of it.
        let lives = self.lives(member);
        if lives {
            self.serve_all(member);
        }
        lives
    }

    fn go(&mut self, member: usize) -> bool {
        self.open(member);
        if !self.stays(member) {
            self.schedule(member);
        }
        true
    }
}

/// Where what is saved has a message under way, if it has.
fn is_inconsistent(saved: &[Saved]) -> Option<String> {
    let all = || saved.iter().flat_map(|one| one.process.each_qp());
    let taken = |by: Name, from: Name| {
        let (_, pair) = all().find(|(_, pair)| pair.name == by)?;
        pair.sends_messages().then(|| pair.taken.of(from))
    };
    let taken_behind = |name: Name, by: Name| {
        let mut all = saved.iter().flat_map(|one| one.process.behind.values());
        let found = all.find(|behind| behind.name == name);
        found.map_or(0, |behind| behind.taken_by(by))
    };
    let mut reliable =
        all().filter(|(_, pair)| pair.service == Service::Reliable && pair.sends_messages());
    reliable.find_map(|(_, pair)| {
        let peer = pair.peer?;
        let sent: u64 = pair.sent.iter().map(|(_, count)| count).sum();
        let behind = pair.sent.iter().filter_map(|(to, _)| to.shared_name());
        let taken =
            taken(peer, pair.name)? + behind.map(|name| taken_behind(name, peer)).sum::<u64>();
        (taken != sent || !pair.sends.is_settled())
            .then(|| format!("{}: {sent} sent, {taken} have come", pair.name))
    })
}
