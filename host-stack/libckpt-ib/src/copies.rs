//! Inline data that the HCA below does not take inline: a restarted program may have another one, which takes less than the
//! program was granted. It is copied to memory of ours, and sent from there.

use std::{collections::VecDeque, ffi::c_int};

use snaprig_verbs_abi::*;

use crate::{
    objects::{Pd, Qp, Scratch, Shadow},
    real::errno,
    state::List,
};

/// Copies for requests of a queue pair, by their numbers, in order.
#[derive(Default)]
pub struct Copies(VecDeque<(u64, Scratch)>);

impl Copies {
    /// They are not needed any more.
    pub fn free(&mut self) {
        self.0.drain(..).for_each(|(_, copy)| drop(copy.free()));
    }

    /// One whose request is known to be done: all before `done` are. No more than that one is kept.
    fn again(&mut self, done: u64) -> Option<Scratch> {
        let is_done = |(number, _): &(u64, Scratch)| *number < done;
        let count = self.0.iter().take_while(|copy| is_done(copy)).count();
        let mut all = self.0.drain(..count).map(|(_, copy)| copy);
        let again = all.next();
        all.for_each(|copy| drop(copy.free()));
        again
    }
}

/// Whether inline data has to be copied: the program was granted as much, and the HCA below takes less.
#[inline]
pub fn is_needed(qp: &Qp, bytes: usize) -> bool {
    bytes > qp.inline_below as usize && bytes <= qp.granted.max_inline_data as usize
}

/// Makes a request send a copy of its inline data. All requests before `done` are.
///
/// # Safety
/// The queue pair is the program's, and alive.
pub unsafe fn copy(
    qp: &mut Qp,
    (number, done): (u64, u64),
    data: &[u8],
    real: &mut ibv_send_wr,
) -> Result<List, c_int> {
    let mut scratch = match qp.copies.again(done) {
        Some(scratch) => scratch,
        // SAFETY: a queue pair that sends has a domain, which is alive as long as it is.
        None => unsafe {
            Scratch::new(
                Pd::of(qp.ex.qp_base.pd).real,
                qp.granted.max_inline_data.into(),
            )
        }
        .map_err(|_| errno())?,
    };
    for (word, bytes) in scratch.bytes.iter_mut().zip(data.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    let list = List::from_slice(&[scratch.element(data.len() as u32)]);
    qp.copies.0.push_back((number, scratch));
    real.send_flags &= !IBV_SEND_INLINE;
    real.num_sge = list.len() as c_int;
    Ok(list)
}
