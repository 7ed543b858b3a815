//! Others move: what is connected with those is so again, beside what there is, until it is decided ([`crate::follow`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::RawFd,
};

use snaprig_ckpt_ib::{Name, Process};

use super::{
    Stage,
    again::{Listener, open, said},
    device,
};
use crate::state::{Receive, Request, Things};

/// Connections of a process that stays with those that move, beside what there is.
#[derive(Debug, Default)]
pub struct Follows {
    /// Ids that are connected so.
    numbers: BTreeSet<u32>,
    /// A device of our own.
    own: Option<RawFd>,
    /// For which id, on which device, what was made.
    pub made: Vec<(u32, RawFd, u32)>,
}

impl Things {
    /// Others move, of whose queue pairs these are the names: ids that are connected with them, and where those are listened for
    /// that were asked.
    pub fn follow(
        &mut self,
        process: &Process<Request, Receive>,
        moved: &BTreeSet<Name>,
    ) -> Result<Listener, String> {
        let names = self.names_of_ids(process);
        let mut own = Listener::default();
        let mut follows = Follows::default();
        for (number, id) in &self.manager.ids {
            let named = names.get(&id.qp);
            let Some((name, _)) =
                named.filter(|(_, peer)| peer.is_some_and(|peer| moved.contains(&peer)))
            else {
                continue;
            };
            if let Stage::Connected(asks) = id.stage {
                follows.numbers.insert(*number);
                own.queue_pairs.extend((!asks).then_some(*name));
            }
        }
        if !follows.numbers.is_empty() {
            follows.own = Some(open()?);
        }
        self.manager.follows = Some(follows);
        self.listen_for(&mut own)?;
        Ok(own)
    }

    /// Connects with those that move, beside what there is.
    pub fn connect_beside(
        &mut self,
        process: &Process<Request, Receive>,
        all: &[Listener],
    ) -> Result<(), String> {
        let Some(follows) = &self.manager.follows else {
            return Ok(());
        };
        let Some(own) = follows.own else {
            return Ok(());
        };
        let numbers = follows.numbers.clone();
        let (calls, awaited, _) = self.find_ends(process, all, &numbers);
        let mut asking = BTreeMap::new();
        for mut call in calls {
            let Some(id) = self.manager.ids.get(&call.number) else {
                continue;
            };
            let made = device::create_id(own, id.uid, id.port_space, id.qp_type);
            let real = made.map_err(|errno| said("an id cannot be made again", errno))?;
            call.next(own, real)?;
            asking.insert(real, call);
        }
        self.exchange(own, asking, awaited)
    }

    /// It is decided that they move: what was made takes the place of what there was.
    pub fn change_over_ids(&mut self) -> Result<(), String> {
        let made = self
            .manager
            .follows
            .as_mut()
            .map(|follows| std::mem::take(&mut follows.made));
        for (number, from, real) in made.into_iter().flatten() {
            let Some(id) = self.manager.ids.get(&number) else {
                continue;
            };
            self.destroy_below(id)?;
            self.hand_over_to(number, from, real)?;
        }
        self.leave_ids();
        Ok(())
    }

    /// What was made beside goes, or is where it belongs.
    pub fn leave_ids(&mut self) {
        let own = self.manager.follows.take().and_then(|follows| follows.own);
        let listening = self.manager.listening.take().map(|one| one.device);
        for device in own.into_iter().chain(listening) {
            device::close(device);
        }
    }
}
