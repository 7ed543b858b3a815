//! The steps of an operation, done: RMA between the host and processes, copies on the host. Steps that
//! move neighbours are one transfer, or where the host's copy need not see the bytes, one copy ([`super::direct`]).

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use super::{Arena, Body, Payload, Piece, Runtime, arena::Room, direct::Pairs, kinds};
use crate::{
    CoiError,
    graph::{Input, OpId, Step},
};

/// Steps of one kind, one behind the other: buffers, ranges of them, and whether they are staged.
struct Moves {
    process: u64,
    send: bool,
    parts: Vec<(Arc<Body>, Range<u64>, bool)>,
}

/// What is moved at once.
struct Transfer {
    arena: Arc<Arena>,
    range: Range<u64>,
    /// The bytes from the range's end up to here are the last buffer's too, and mean nothing.
    slack: u64,
}

impl Runtime {
    /// The steps of an operation are done; or there is no room for one of its buffers, and might be.
    pub(super) fn moved(&self, id: OpId, steps: &[Step], payload: &Payload) -> Input {
        match self.move_bytes(id, steps, payload) {
            Err(error) if error.is_out_of_memory() && self.could_enter(steps) => {
                Input::NoRoom(id, error)
            }
            result => Input::Moved(id, result),
        }
    }

    /// Whether cards are large enough for what is to be in them at once.
    fn could_enter(&self, steps: &[Step]) -> bool {
        let mut wanted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for step in steps {
            let Step::Enter { process, buffer } = step else {
                continue;
            };
            let Ok(body) = self.body(*buffer) else {
                return false;
            };
            let (arena, _) = body.place(&(0..0));
            let info = arena.process(*process).map(|one| one.place().engine.info());
            let Ok(Ok(info)) = info else {
                return false;
            };
            let (bytes, _) = wanted.entry(*process).or_insert((0, info.memory_bytes));
            *bytes = bytes.saturating_add(body.len());
        }
        wanted.values().all(|(bytes, has)| bytes <= has)
    }

    /// The steps of one operation, one after the other.
    fn move_bytes(&self, id: OpId, steps: &[Step], payload: &Payload) -> Result<(), CoiError> {
        let mut moves: Option<Moves> = None;
        let mut pairs = Pairs::of(steps);
        for (at, step) in steps.iter().enumerate() {
            if pairs.is_done(at) {
                continue;
            }
            if let Some(pair) = pairs.pair(at) {
                moves.take().map_or(Ok(()), Moves::make)?;
                if self.move_directly(id, &pair, payload)? {
                    pairs.finish(&pair);
                    continue;
                }
            }
            let (process, send, buffer, range, staged) = match step {
                Step::ToProcess {
                    process,
                    buffer,
                    range,
                    staged,
                } => (*process, true, *buffer, range, *staged),
                Step::FromProcess {
                    process,
                    buffer,
                    range,
                    staged,
                } => (*process, false, *buffer, range, *staged),
                _ => {
                    moves.take().map_or(Ok(()), Moves::make)?;
                    self.other(step, &payload.pieces)?;
                    continue;
                }
            };
            let part = (self.body(buffer)?, range.clone(), staged);
            match &mut moves {
                Some(same) if (same.process, same.send) == (process, send) => same.parts.push(part),
                _ => {
                    let before = moves.replace(Moves {
                        process,
                        send,
                        parts: vec![part],
                    });
                    before.map_or(Ok(()), Moves::make)?;
                }
            }
        }
        moves.map_or(Ok(()), Moves::make)
    }

    /// A step that is no RMA.
    fn other(&self, step: &Step, pieces: &[Piece]) -> Result<(), CoiError> {
        match step {
            Step::Put {
                buffer,
                range,
                staged,
            } => {
                let body = self.body(*buffer)?;
                for (at, memory) in kinds::pieces_within(pieces, range) {
                    body.put(at, memory, *staged);
                }
            }
            Step::Take {
                buffer,
                range,
                staged,
            } => {
                let body = self.body(*buffer)?;
                for (at, memory) in kinds::pieces_within(pieces, range) {
                    body.take(at, memory, *staged);
                }
            }
            Step::Copy {
                from,
                from_at,
                from_staged,
                into,
                into_at,
                into_staged,
                bytes,
            } => {
                let into = self.body(*into)?;
                let range = *from_at..from_at + bytes;
                self.body(*from)?
                    .copy(&range, *from_staged, &into, *into_at, *into_staged);
            }
            Step::Enter { process, buffer } => {
                let body = self.body(*buffer)?;
                if let Some(arena) = body.evictable() {
                    arena.enter(&arena.process(*process)?, Room::Make)?;
                }
                self.lock().graph.entered(*buffer, *process);
            }
            Step::Leave { process, buffer } => {
                let body = self.body(*buffer)?;
                if let Some(arena) = body.evictable() {
                    arena.move_out(&arena.process(*process)?);
                }
            }
            Step::ToProcess { .. } | Step::FromProcess { .. } => {}
        }
        Ok(())
    }
}

impl Moves {
    fn make(mut self) -> Result<(), CoiError> {
        if self.send {
            let parts = self.parts.iter();
            parts.for_each(|(body, range, staged)| body.load(range, *staged));
        }
        let place = |(body, range, _): &(Arc<Body>, Range<u64>, bool)| {
            let (arena, range) = body.place(range);
            (arena.id, range.start)
        };
        self.parts.sort_by_key(place);
        for transfer in transfers(&self.parts) {
            transfer
                .arena
                .transfer(self.process, &transfer.range, self.send)?;
        }
        if !self.send {
            let parts = self.parts.iter();
            parts.for_each(|(body, range, staged)| body.unload(range, *staged));
        }
        Ok(())
    }
}

/// Parts in the order of their places, as few transfers. The rest of a buffer's last page is moved
/// along if the next buffer begins behind it.
fn transfers(parts: &[(Arc<Body>, Range<u64>, bool)]) -> Vec<Transfer> {
    let mut transfers: Vec<Transfer> = Vec::new();
    for (body, range, _) in parts {
        let (arena, place) = body.place(range);
        let is_end = range.end == body.len();
        let slack = if is_end { body.pages().end } else { place.end };
        match transfers.last_mut() {
            Some(last) if last.arena.id == arena.id && place.start <= last.slack => {
                if place.end > last.range.end {
                    (last.range.end, last.slack) = (place.end, slack);
                }
            }
            _ => transfers.push(Transfer {
                arena: arena.clone(),
                range: place,
                slack,
            }),
        }
    }
    transfers
}
