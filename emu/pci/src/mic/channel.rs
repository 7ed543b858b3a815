//! One DMA channel, as the host's driver sees it. No I/O: descriptors go out by slot, the card's
//! tail comes in. The card is hostile: a tail that passes what was issued is an error.

use std::collections::VecDeque;

use snaprig_wire::dma::{DESCRIPTOR_BYTES, Descriptor};

use super::{DmaDone, DmaError};

struct Job {
    copies: Vec<Descriptor>,
    issued: usize,
    finished: usize,
    done: DmaDone,
}

pub(super) struct Channel {
    /// Slots of the ring; one stays empty.
    len: u32,
    head: u32,
    tail: u32,
    jobs: VecDeque<Job>,
    pub(super) dead: bool,
}

impl Channel {
    pub(super) fn new(len: u32) -> Self {
        Self {
            len,
            head: 0,
            tail: 0,
            jobs: VecDeque::new(),
            dead: false,
        }
    }

    pub(super) fn push(&mut self, copies: Vec<Descriptor>, done: DmaDone) {
        self.jobs.push_back(Job {
            copies,
            issued: 0,
            finished: 0,
            done,
        });
    }

    /// Issues as many descriptors as there is room for: (slot, bytes) each. The last of a job and
    /// the last before the ring is full interrupt.
    pub(super) fn issue(&mut self, mut write: impl FnMut(u32, [u8; DESCRIPTOR_BYTES])) -> u32 {
        let mut room = self.len - 1 - self.outstanding();
        for job in &mut self.jobs {
            while room > 0 && job.issued < job.copies.len() {
                room -= 1;
                let last = job.issued + 1 == job.copies.len();
                let interrupt = last || room == 0;
                let copy = Descriptor {
                    interrupt,
                    ..job.copies[job.issued]
                };
                write(self.head, copy.encode());
                self.head = (self.head + 1) % self.len;
                job.issued += 1;
            }
        }
        self.head
    }

    pub(super) fn outstanding(&self) -> u32 {
        (self.head + self.len - self.tail) % self.len
    }

    /// The card's tail is now here; the jobs that are over. `None`: an impossible tail.
    pub(super) fn completed(&mut self, tail: u32) -> Option<Vec<DmaDone>> {
        if tail >= self.len {
            return None;
        }
        let mut count = (tail + self.len - self.tail) % self.len;
        if count > self.outstanding() {
            return None;
        }
        self.tail = tail;
        let mut over = Vec::new();
        while let Some(job) = self.jobs.front_mut() {
            let n = (count as usize).min(job.issued - job.finished);
            job.finished += n;
            count -= n as u32;
            if job.finished < job.copies.len() {
                break;
            }
            over.extend(self.jobs.pop_front().map(|job| job.done));
        }
        Some(over)
    }

    /// The channel halted at its tail and will be enabled anew, empty. The job that failed, and
    /// its error; the others are to be issued again.
    pub(super) fn halted(&mut self, why: u32) -> Option<(DmaDone, DmaError)> {
        (self.head, self.tail) = (0, 0);
        let failed = self.jobs.pop_front()?;
        self.jobs
            .iter_mut()
            .for_each(|job| job.issued = job.finished);
        let index = failed.finished;
        Some((failed.done, DmaError::Copy { index, why }))
    }

    /// The device is gone: everything that waits.
    pub(super) fn kill(&mut self) -> Vec<DmaDone> {
        self.dead = true;
        self.jobs.drain(..).map(|job| job.done).collect()
    }
}
