//! All processes at a port go on elsewhere, and the others where they are: or, until that is decided, all where they were. They
//! go together, for the port's name is one of one port then, and whoever makes something at it gives it a name of its own.

use std::collections::BTreeSet;

use snaprig_ckpt_ib::{Below, Canary, Name, Names, moves::made_again};
use snaprig_ckpt_plugin::phase::Phase;

use super::{
    hardware::Hardware,
    run::{Member, Run},
};

/// Processes that move.
pub struct Moving {
    members: BTreeSet<usize>,
    /// Where they were, until they know that they go.
    pub left: Vec<(usize, Member)>,
    /// It is decided that they go. Nobody waits for anybody any more.
    pub is_decided: bool,
    /// What was called how before.
    names: Names,
    /// Of queue pairs that were made again: how many receives were lent to the old ones.
    lent: Vec<(usize, u32, u64)>,
}

impl Run {
    /// All have been saved: those of one port are restored elsewhere.
    pub fn begin_move(&mut self) {
        let chosen = self.random.below(self.members.len() as u64) as usize;
        let port = self.members[chosen].program.port;
        let hca = self.random.below(self.hcas.into()) as u32;
        let mut moving = Moving {
            members: BTreeSet::new(),
            left: Vec::new(),
            is_decided: false,
            names: self.names.clone(),
            lent: Vec::new(),
        };
        let saved = self.job.checkpoint.iter().flatten().cloned().enumerate();
        for (member, saved) in saved.filter(|(_, saved)| saved.program.port == port) {
            let slot = self.fabric.world.join();
            let hardware = Hardware::new(&self.fabric, slot, hca);
            self.fabric.world.put(slot, 0, &saved.memory);
            let mut arrived = Member::new(saved.process, saved.program, hardware);
            arrived.is_closed = true;
            let left = std::mem::replace(&mut self.members[member], arrived);
            moving.left.push((member, left));
            moving.members.insert(member);
        }
        self.job.moving = Some(moving);
        self.begin(Phase::Rebuild);
    }

    /// Whether others move, and this one does not.
    pub fn stays(&self, member: usize) -> bool {
        let moving = self.job.moving.as_ref();
        moving.is_some_and(|moving| !moving.members.contains(&member))
    }

    /// One that stays makes again what is connected to those that move.
    pub fn follow(&mut self, member: usize) {
        let Some(moving) = &mut self.job.moving else {
            return;
        };
        let moved = moving.members.iter();
        let of_moved = moved.flat_map(|moved| self.members[*moved].process.each_qp());
        let moved: BTreeSet<Name> = of_moved.map(|(_, pair)| pair.name).collect();
        let one = &mut self.members[member];
        for place in made_again(&one.process, &moved) {
            let mut ends = one.program.ends.iter();
            let end = ends.find(|end| end.qp == place || end.by == place);
            let which = end.expect("it is an end's").which;
            let (transport, receives) = self.layout.transports(which);
            let is_by = end.is_some_and(|end| end.qp != place);
            let transport = receives.filter(|_| is_by).unwrap_or(transport);
            let is_shared = !is_by && self.layout.connection(which).shared;
            let hardware = &mut one.hardware;
            hardware.create_again(&self.fabric, place, transport, is_shared);
            if let Some(pair) = one.process.qp(place) {
                let lent = pair.receives.unlend_all();
                moving.lent.push((member, place, lent));
            }
        }
    }

    /// Whether a queue pair was just made.
    pub fn is_new(&self, member: usize, place: u32) -> bool {
        let made = |moving: &Moving| {
            let mut all = moving.lent.iter();
            moving.members.contains(&member) || all.any(|(of, at, _)| (*of, *at) == (member, place))
        };
        self.job.moving.as_ref().is_none_or(made)
    }

    /// Whether all go on, of which some move; or nobody moves.
    pub fn decide_move(&mut self) -> bool {
        let is_undone = self.random.one_in(4);
        let Some(moving) = &mut self.job.moving else {
            return true;
        };
        if is_undone {
            self.undo_move();
            return false;
        }
        moving.is_decided = true;
        true
    }

    /// One has heard that it is decided: what was there before goes. Those that move may run already.
    pub fn change_over(&mut self, member: usize) {
        let Some(moving) = self.job.moving.as_mut().filter(|it| it.is_decided) else {
            return;
        };
        let left = moving.left.extract_if(.., |(of, _)| *of == member);
        let left: Vec<_> = left.collect();
        left.iter().for_each(|(_, left)| self.ends(left));
        if self.canary == Some(Canary::EarlyLost) {
            let (_, mut driver) = self.split(member);
            while driver.poll(0).is_some() {}
        }
        self.members[member].hardware.close_old(&self.fabric);
        self.take_what_came(member);
        if self.lives(member) {
            self.members[member].hardware.drop_old(&self.fabric);
        }
    }

    /// Whether nobody waits for others to refill.
    pub fn is_decided(&self) -> bool {
        let moving = self.job.moving.as_ref();
        moving.is_some_and(|moving| moving.is_decided)
    }

    fn undo_move(&mut self) {
        let Some(moving) = self.job.moving.take() else {
            return;
        };
        for (member, left) in moving.left {
            let arrived = std::mem::replace(&mut self.members[member], left);
            self.ends(&arrived);
        }
        self.names = moving.names;
        for member in 0..self.members.len() {
            if self.lives(member) {
                self.members[member].hardware.take_old(&self.fabric);
            }
        }
        for (member, place, lent) in moving.lent {
            if let Some(pair) = self.members[member].process.qp(place) {
                pair.receives.lend_again(lent);
            }
        }
    }

    /// What came late by an old queue pair to a shared receive queue has its receive.
    fn take_what_came(&mut self, member: usize) {
        let (process, mut driver) = self.split(member);
        while let Some(came) = driver.poll(0) {
            snaprig_ckpt_ib::serve::settle(process, &mut driver, 0, came);
        }
    }

    pub fn lives(&self, member: usize) -> bool {
        let slot = self.members[member].hardware.slot();
        self.fabric.world.lives(slot)
    }

    fn ends(&self, one: &Member) {
        let slot = one.hardware.slot();
        self.fabric.world.kill(slot);
        self.fabric.leaves(slot);
    }
}
