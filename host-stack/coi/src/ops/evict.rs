//! Paging: when a card has no room for a buffer, the memory of others that nobody uses goes, those first
//! that were not used for longest. What is valid only there is moved to the host; the memory comes back
//! when an operation needs it, at the same address (COIProcessSetCacheSize, COIBufferCreate).
//!
//! What must stay true: nothing goes unless what goes, and what is free, is enough; memory of a buffer
//! that run functions, references or the host use stays where it is.

use std::sync::Arc;

use super::{Event, Payload, RUNTIME, wait};
use crate::{
    graph::Work,
    process::{Inner, lock},
};

/// One buffer less in a process that needs so many bytes; whether there was one that helps.
pub(super) fn make_room(process: &Arc<Inner>, needed: u64) -> bool {
    // One at a time looks at what is free.
    let _one_at_a_time = lock(&process.evicting);
    let buffers: Vec<_> = lock(&process.buffers).values().cloned().collect();
    let present = |arena: u64| lock(&process.arenas).contains_key(&arena);
    let free = process.place().engine.info().map(|info| info.free_bytes);
    let mut runtime = RUNTIME.lock();
    let idle = buffers.iter().filter_map(|body| {
        let arena = body.evictable()?;
        let absent = runtime.graph.is_absent(body.id, process.id);
        let since = runtime.graph.idle_since(body.id)?;
        (!absent && present(arena.id)).then_some((since, body))
    });
    let idle: Vec<_> = idle.collect();
    let bytes: u64 = idle.iter().map(|(_, body)| body.len()).sum();
    if bytes.saturating_add(free.unwrap_or(0)) < needed {
        return false;
    }
    let Some((_, oldest)) = idle.iter().min_by_key(|(since, _)| *since) else {
        return false;
    };
    let work = Work::Evict {
        buffer: oldest.id,
        range: 0..oldest.len(),
        process: process.id,
    };
    let Ok(id) = runtime.graph.submit(work, &[]) else {
        return false;
    };
    runtime.payloads.insert(id, Arc::new(Payload::silent()));
    runtime.open.insert(id);
    drop(runtime);
    RUNTIME.perform(Some(id));
    wait(&[Event(id)], true, None).is_ok()
}
