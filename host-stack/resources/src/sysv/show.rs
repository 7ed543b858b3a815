//! What an image says of System V objects, for people.

use crate::state::{Segment, Sysv};

/// A line for each object.
pub fn lines(sysv: &Sysv) -> Vec<String> {
    let mut lines = Vec::new();
    for Segment {
        object,
        space,
        size,
        huge_bytes,
    } in &sysv.segments
    {
        let (id, key) = (object.id, object.key);
        let pages = match huge_bytes {
            0 => String::new(),
            bytes => format!(", huge pages of {} kB", bytes >> 10),
        };
        lines.push(format!(
            "{space:>5} System V shared memory {id}, key {key:#x}, {size} bytes{pages}"
        ));
    }
    for set in &sysv.sets {
        let (id, key, count) = (set.object.id, set.object.key, set.values.len());
        lines.push(format!("semaphores {id}, key {key:#x}: {count}"));
    }
    for queue in &sysv.queues {
        let (id, key, count) = (queue.object.id, queue.object.key, queue.messages.len());
        lines.push(format!("queue {id}, key {key:#x}: {count} messages"));
    }
    lines
}
