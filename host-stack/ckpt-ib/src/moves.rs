//! All processes at a port go on elsewhere, and the others where they are.
//!
//! ```text
//!  phase      those that move                        those that stay
//!  quiesce, drain, save: all, as in a checkpoint
//!             are restored elsewhere
//!  rebuild    makes everything again                 makes queue pairs again whose peer moves, beside the old ones
//!             real names of all, to the board
//!  exchange   connects; posts receives again         the same of those that it has made
//!             what came late by the old ones is taken
//!             '------------- decided: nobody waits for anybody any more ---'
//!  refill, go posts again what nobody carried out    the old ones go; the same
//! ```
//! Until it is decided, those that move can go on where they were: their queue pairs, and what they were connected to, are as
//! they were. So nothing is carried out before. From then on, those that move may have sent by the new ones what those that stay
//! have not looked for yet. They go together: a port's name is one of one port then, and what is made at it
//! later has a name of its own.

use std::collections::BTreeSet;

use crate::{Name, Process, queue_pair::Stage};

/// Places of queue pairs of a process that stays which are made again, as their peers are these. One that has failed is as good
/// as it was.
pub fn made_again<S, R>(process: &Process<S, R>, moved: &BTreeSet<Name>) -> Vec<u32> {
    let follows = process
        .each_qp()
        .filter(|(_, pair)| pair.stage != Stage::Failed)
        .filter(|(_, pair)| pair.peer.is_some_and(|peer| moved.contains(&peer)));
    follows.map(|(place, _)| place).collect()
}
