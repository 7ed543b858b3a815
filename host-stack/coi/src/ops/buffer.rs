//! Buffers: memory that moves between the host and offload processes as operations need it.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::{
    Access, Body, BufferOptions, Event, MapKind, Order, Payload, Piece, RUNTIME, State, StatePlace,
};
use crate::{
    CoiError, Process,
    graph::{Input, Mode, OpId, Place, Use, Work},
};

/// A buffer, or a part of one. Clones are the same.
#[derive(Clone)]
pub struct Buffer {
    body: Arc<Body>,
    family: Arc<Family>,
    range: Range<u64>,
    /// This one itself, as opposed to what it is a part of.
    own: Arc<AtomicBool>,
    is_sub: bool,
}

/// A buffer and its sub-buffers.
struct Family {
    open_cl: bool,
    /// Sub-buffers that there are.
    parts: AtomicUsize,
}

/// A look of the host's at a buffer.
#[derive(Clone)]
pub struct Mapping {
    buffer: Buffer,
    at: u64,
    map: OpId,
}

impl Buffer {
    /// Makes a buffer that is in all of these processes (COIBufferCreate,
    /// COIBufferCreateFromMemory).
    pub fn create(processes: &[Process], options: BufferOptions) -> Result<Self, CoiError> {
        let bytes = options.bytes;
        if bytes == 0 || processes.is_empty() {
            return Err(CoiError::OutOfRange(
                "a buffer has bytes, and a process that it is for".into(),
            ));
        }
        let mut unique: Vec<Process> = Vec::new();
        for process in processes {
            if let Some(error) = process.0.end_known() {
                return Err(error);
            }
            if !unique.contains(process) {
                unique.push(process.clone());
            }
        }
        if options.sink_memory.is_some() && unique.len() > 1 {
            let what = "memory of a process is a buffer of that process alone";
            return Err(CoiError::Mismatch(what.into()));
        }
        let body = Body::create(&unique, &options)?;
        if let Some(initial) = options.initial {
            body.put(0, initial.part(0, bytes), false);
        }
        let only_in = options.sink_memory.map(|_| Place::Process(unique[0].id()));
        let untouched = options.initial.is_none() && options.memory.is_none();
        let blank = untouched && only_in.is_none() && body.is_fresh();
        let mut state = RUNTIME.lock();
        state.bodies.insert(body.id, Arc::downgrade(&body));
        state
            .graph
            .add_buffer(body.id, bytes, options.open_cl, blank, only_in);
        drop(state);
        let family = Family {
            open_cl: options.open_cl,
            parts: AtomicUsize::new(0),
        };
        Ok(Self {
            body,
            family: Arc::new(family),
            range: 0..bytes,
            own: Arc::new(AtomicBool::new(true)),
            is_sub: false,
        })
    }

    /// A part of it (COIBufferCreateSubBuffer).
    pub fn sub_buffer(&self, offset: u64, bytes: u64) -> Result<Self, CoiError> {
        if !self.family.open_cl || self.is_sub {
            return Err(CoiError::NotSupported(
                "only buffers of OpenCL's kind have sub-buffers, and those have none",
            ));
        }
        let range = self.inside(offset, bytes)?;
        self.family.parts.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            range,
            own: Arc::new(AtomicBool::new(true)),
            is_sub: true,
            ..self.clone()
        })
    }

    /// Takes it away, once nothing uses it any more (COIBufferDestroy).
    pub fn destroy(&self) -> Result<(), CoiError> {
        let no_more = || CoiError::InvalidHandle("the buffer is destroyed already".into());
        if self.is_sub {
            return match self.own.swap(false, Ordering::Relaxed) {
                true => {
                    self.family.parts.fetch_sub(1, Ordering::Relaxed);
                    Ok(())
                }
                false => Err(no_more()),
            };
        }
        if self.family.parts.load(Ordering::Relaxed) > 0 {
            return Err(CoiError::Retry("the buffer has sub-buffers"));
        }
        let buffer = self.body.id;
        RUNTIME.submit(Work::Destroy { buffer }, Payload::default(), Order::now())?;
        if !self.own.swap(false, Ordering::Relaxed) {
            return Err(no_more());
        }
        self.body.leave();
        super::forget(buffer);
        Ok(())
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether it is of OpenCL's kind.
    pub fn is_open_cl(&self) -> bool {
        self.family.open_cl
    }

    /// Its number, which is that of the buffer that it is a part of.
    pub fn id(&self) -> u64 {
        self.body.id
    }

    pub(crate) fn body(&self) -> &Arc<Body> {
        &self.body
    }

    /// Whether it was made for this process.
    pub fn is_on(&self, process: &Process) -> bool {
        self.body.is_in(process.id())
    }

    /// Its address in a process; `None`: in the first one that it was made for.
    pub fn sink_address(&self, process: Option<&Process>) -> Result<u64, CoiError> {
        match process {
            Some(process) if !self.is_on(process) => Err(CoiError::OutOfRange(
                "the buffer was not made for that process".into(),
            )),
            None if self.body.first_process().is_none() => {
                Err(CoiError::OutOfRange("the buffer is in no process".into()))
            }
            _ => Ok(self.body.sink_address() + self.range.start),
        }
    }

    /// A range of it, as one of the whole.
    fn inside(&self, at: u64, bytes: u64) -> Result<Range<u64>, CoiError> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.len() && bytes > 0 => {
                Ok(self.range.start + at..self.range.start + end)
            }
            _ => Err(CoiError::OutOfRange(format!(
                "{bytes} bytes at {at} of a buffer of {} bytes",
                self.len()
            ))),
        }
    }

    fn target(&self, to: Option<&Process>) -> Result<Option<u64>, CoiError> {
        let Some(process) = to else {
            return Ok(None);
        };
        self.must_be_on(process)?;
        match process.0.end_known() {
            Some(error) => Err(error),
            None => Ok(Some(process.id())),
        }
    }

    fn must_be_on(&self, process: &Process) -> Result<(), CoiError> {
        match self.is_on(process) {
            true => Ok(()),
            false => Err(CoiError::Missing(
                "the buffer was not made for that process".into(),
            )),
        }
    }

    /// Pieces in order, their places in the whole.
    fn place(&self, pieces: Vec<Piece>) -> Result<(Vec<Piece>, Vec<Range<u64>>), CoiError> {
        let mut pieces = pieces;
        for piece in &mut pieces {
            piece.at = self.inside(piece.at, piece.memory.len())?.start;
        }
        pieces.sort_by_key(|piece| piece.at);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for piece in &pieces {
            let end = piece.at + piece.memory.len();
            match ranges.last_mut() {
                Some(last) if last.end == piece.at => last.end = end,
                Some(last) if last.end > piece.at => return Err(CoiError::Overlap),
                _ => ranges.push(piece.at..end),
            }
        }
        Ok((pieces, ranges))
    }

    /// Writes memory of the caller's into it (COIBufferWrite, COIBufferWriteEx,
    /// COIBufferWriteMultiD): to a process, or to where it is valid. `whole` moves all of it to that
    /// process, written or not.
    pub fn write(
        &self,
        to: Option<&Process>,
        pieces: Vec<Piece>,
        whole: bool,
        order: Order<'_>,
    ) -> Result<Event, CoiError> {
        let (pieces, ranges) = self.place(pieces)?;
        let work = Work::Write {
            buffer: self.body.id,
            all: self.range.clone(),
            ranges,
            to: self.target(to)?,
            whole,
        };
        let payload = Payload {
            pieces,
            ..Payload::default()
        };
        RUNTIME.submit(work, payload, order)
    }

    /// Reads from it into memory of the caller's (COIBufferRead, COIBufferReadMultiD).
    pub fn read(&self, pieces: Vec<Piece>, order: Order<'_>) -> Result<Event, CoiError> {
        let (pieces, ranges) = self.place(pieces)?;
        let work = Work::Read {
            buffer: self.body.id,
            ranges,
        };
        let payload = Payload {
            pieces,
            ..Payload::default()
        };
        RUNTIME.submit(work, payload, order)
    }

    /// Copies bytes of another buffer, or from elsewhere in the same, into it (COIBufferCopy,
    /// COIBufferCopyEx). No bytes are as many as it has.
    #[expect(clippy::too_many_arguments, reason = "as many as the C function has")]
    pub fn copy_from(
        &self,
        to: Option<&Process>,
        at: u64,
        source: &Self,
        source_at: u64,
        bytes: u64,
        whole: bool,
        order: Order<'_>,
    ) -> Result<Event, CoiError> {
        let bytes = if bytes == 0 { self.len() } else { bytes };
        let work = Work::Copy {
            from: source.body.id,
            from_at: source.inside(source_at, bytes)?.start,
            into: self.body.id,
            all: self.range.clone(),
            into_at: self.inside(at, bytes)?.start,
            bytes,
            to: self.target(to)?,
            whole,
        };
        RUNTIME.submit(work, Payload::default(), order)
    }

    /// Has the host look at a range of it (COIBufferMap); no bytes at 0 are all.
    pub fn map(
        &self,
        at: u64,
        bytes: u64,
        kind: MapKind,
        order: Order<'_>,
    ) -> Result<(Mapping, Event), CoiError> {
        let bytes = if (at, bytes) == (0, 0) {
            self.len()
        } else {
            bytes
        };
        let range = self.inside(at, bytes)?;
        let work = Work::Map {
            buffer: self.body.id,
            range: range.clone(),
            mode: match kind {
                MapKind::ReadWrite => Mode::Write,
                MapKind::ReadOnly => Mode::Read,
                MapKind::WriteEntire => Mode::WriteEntire,
            },
        };
        let event = RUNTIME.submit(work, Payload::default(), order)?;
        let mapping = Mapping {
            buffer: self.clone(),
            at: range.start,
            map: event.0,
        };
        Ok((mapping, event))
    }

    /// Says where it is valid (COIBufferSetState).
    pub fn set_state(
        &self,
        place: StatePlace<'_>,
        state: State,
        move_data: bool,
        order: Order<'_>,
    ) -> Result<Event, CoiError> {
        let mismatch = |what: &str| Err(CoiError::Mismatch(what.into()));
        let place = match place {
            StatePlace::Source if state == State::ValidMayDrop => {
                return mismatch("the host's copy is never dropped");
            }
            StatePlace::Source => Some(Place::Host),
            StatePlace::SinkOwners if move_data => {
                return mismatch("bytes are moved to one process, not to all");
            }
            StatePlace::SinkOwners => None,
            StatePlace::Process(process) => {
                self.must_be_on(process)?;
                self.target(Some(process))?.map(Place::Process)
            }
        };
        let work = Work::SetState {
            buffer: self.body.id,
            range: self.range.clone(),
            place,
            state,
            move_bytes: move_data,
        };
        RUNTIME.submit(work, Payload::default(), order)
    }

    /// Gives a process references to it (COIBufferAddRefcnt).
    pub fn add_references(&self, process: &Process, count: u64) -> Result<(), CoiError> {
        self.known_to(process)?;
        let place = Place::Process(process.id());
        let valid = RUNTIME.lock().graph.valid(self.body.id, &self.range, place);
        if !valid.0 {
            return Err(CoiError::NotInitialized(
                "the buffer is not valid in that process".into(),
            ));
        }
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.count_references(process, count);
        Ok(())
    }

    /// Takes them away again (COIBufferReleaseRefcnt).
    pub fn release_references(&self, process: &Process, count: u64) -> Result<(), CoiError> {
        self.known_to(process)?;
        let held = RUNTIME.lock().graph.references(process.id(), self.body.id);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if held < count || held == 0 {
            return Err(CoiError::OutOfRange(format!(
                "the process holds {held} references to the buffer"
            )));
        }
        self.count_references(process, -count);
        Ok(())
    }

    fn known_to(&self, process: &Process) -> Result<(), CoiError> {
        match self.is_on(process) {
            true => Ok(()),
            false => Err(CoiError::InvalidHandle(
                "the buffer was not made for that process".into(),
            )),
        }
    }

    fn count_references(&self, process: &Process, count: i64) {
        super::handle(Input::Counted {
            process: process.id(),
            buffer: self.body.id,
            count,
        });
    }

    /// As a run function of a process uses it.
    pub(crate) fn used_by(&self, process: &Process, access: Access) -> Result<Use, CoiError> {
        self.must_be_on(process)?;
        Ok(Use {
            buffer: self.body.id,
            range: self.range.clone(),
            mode: access.mode(),
            add_ref: access.adds_reference(),
        })
    }
}

impl Mapping {
    /// Where the host sees it, as soon as the map's event has happened.
    pub fn pointer(&self) -> *mut u8 {
        self.buffer.body.pointer(self.at)
    }

    /// The host looks at it no more (COIBufferUnmap).
    pub fn unmap(&self, order: Order<'_>) -> Result<Event, CoiError> {
        let work = Work::Unmap { map: self.map };
        RUNTIME.submit(work, Payload::default(), order)
    }
}
