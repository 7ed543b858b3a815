//! What the process tells its host unasked, in order, on a connection of its own. Whoever has
//! something to tell never waits: one thread sends, when the machine lets it.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use snaprig_offload_wire::coi::{Channel as Kind, Notice};

use super::{Runtime, machine::Input};

/// What is still to be told.
#[derive(Default)]
pub struct Notices {
    waiting: Mutex<Waiting>,
    added: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Notice>,
    /// The thread that tells has nothing to tell, and is to be woken: which is a system call.
    idle: bool,
}

impl Notices {
    /// Has the host told of something. References that are given back add up.
    pub fn put(&self, notice: Notice) {
        let mut waiting = self.lock();
        if let (
            Notice::Released { id, count, told },
            Some(Notice::Released {
                id: last,
                count: sum,
                told: after,
            }),
        ) = (&notice, waiting.queue.back_mut())
            && id == last
        {
            *sum = sum.saturating_add(*count);
            *after = *told;
            return;
        }
        waiting.queue.push_back(notice);
        if std::mem::take(&mut waiting.idle) {
            self.added.notify_one();
        }
    }

    fn next(&self) -> Notice {
        let mut waiting = self.lock();
        loop {
            match waiting.queue.pop_front() {
                Some(notice) => return notice,
                None => {
                    waiting.idle = true;
                    waiting = self
                        .added
                        .wait(waiting)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that tells: until the host's end is gone.
pub fn serve(runtime: &'static Runtime) {
    let Some(channel) = runtime.wait_for_channel(Kind::Notice, || false) else {
        return;
    };
    loop {
        let notice = runtime.notices.next();
        // Nothing may be in the channel when the snapshot is taken.
        runtime.begin_sending();
        let sent = channel.send(&notice);
        runtime.end_sending(Input::Noticed);
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_that_are_given_back_add_up_and_nothing_changes_places() {
        let notices = Notices::default();
        let told = 0;
        let released = |id, count| Notice::Released { id, count, told };
        let event = Notice::UserEvent(3);
        for notice in [
            released(1, 1),
            released(1, 2),
            released(2, 1),
            event.clone(),
        ] {
            notices.put(notice);
        }
        notices.put(released(2, 1));
        let told: Vec<_> = (0..4).map(|_| notices.next()).collect();
        assert_eq!(
            told,
            [released(1, 3), released(2, 1), event, released(2, 1)]
        );
    }
}
