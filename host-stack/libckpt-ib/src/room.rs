//! Requests that a send queue below has no room for: that of a restart may be shorter than what the program was granted.
//!
//! They go below when others complete ([`snaprig_ckpt_ib::sends`]). Where a program waits for what they do at their peer, and asks
//! for no completion, nobody polls; so a thread of ours does, for as long as there are such requests.

use std::{thread, time::Duration};

use snaprig_ckpt_ib::{
    Below,
    queue_pair::{QueuePair, Stage},
    serve::settle,
};
use snaprig_ckpt_plugin::without_signals;

use crate::{
    objects::{Cq, Shadow},
    plugin::serve_all,
    post::release,
    state::{Receive, Request, State, get, lock},
};

/// How often it is looked whether there is room.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Whether requests of a queue pair wait for room.
pub fn waits(pair: &QueuePair<Request, Receive>) -> bool {
    pair.sends.is_short() && pair.sends.has_held() && pair.stage != Stage::Holds
}

/// Requests wait: they are seen to.
#[cold]
pub fn see_to(state: &mut State) {
    if state.things.makes_room {
        return;
    }
    let thread = thread::Builder::new().name("snaprig-room".into());
    let begun = without_signals(|| {
        thread.spawn(|| {
            while make_room(&mut lock()) {
                thread::sleep(LOOK_EVERY);
            }
        })
    });
    match begun {
        Ok(_) => state.things.makes_room = true,
        Err(why) => eprintln!("snaprig: requests wait for room in a short send queue: {why}"),
    }
}

/// Whether there are requests for which there was none.
fn make_room(state: &mut State) -> bool {
    let waiting = |state: &State| -> Vec<u32> {
        let all = state.process.each_qp().filter(|(_, pair)| waits(pair));
        all.map(|(place, _)| place).collect()
    };
    for place in waiting(state) {
        let State { process, things } = &mut *state;
        let Some(qp) = get(&things.qps, place) else {
            continue;
        };
        // SAFETY: what is in the table is alive, and so is its completion queue. The lock is held.
        unsafe {
            let cq = Cq::of((*qp).ex.qp_base.send_cq).place;
            while let Some(came) = things.poll(cq) {
                settle(process, things, cq, came);
            }
            release(state, &mut *qp);
        }
    }
    if let Err(why) = serve_all(state) {
        eprintln!("snaprig: receives that waited for a checkpoint are lost: {why}");
    }
    state.things.makes_room = !waiting(state).is_empty();
    state.things.makes_room
}
