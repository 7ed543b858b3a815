//! `COIBuffer_source.h`: writing, reading and copying.

use std::{ffi::c_void, sync::Arc};

use snaprig_coi::{
    CoiError, Process,
    ops::{Buffer, Event, Order, Piece, State, StatePlace},
};

use crate::{
    arguments::{Completion, both_or_neither, dependencies, foreign},
    arrays,
    buffer::{buffer, inside},
    process::{Entry, living},
    result::{Done, code, require},
    trace::api,
    types::{Array, CoiEvent, Handle},
};

/// The copy types that bring the whole buffer along.
const MOVE_ENTIRE: std::ops::RangeInclusive<u32> = 3..=5;

api! {
    fn COIBufferWrite(
        buffer: Handle,
        offset: u64,
        data: *const c_void,
        bytes: u64,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        // SAFETY: COI's header has the program keep `bytes` bytes at the data until the write is
        // done; null is told by `of_part`.
        let transfer = unsafe { Transfer::of_part(buffer, offset, data, bytes, &ends) }?;
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `Ends` was made of and which is all that
        // this asks for.
        unsafe { transfer.write(Handle::NULL, false, &ends) }
    }

    fn COIBufferWriteEx(
        buffer: Handle,
        process: Handle,
        offset: u64,
        data: *const c_void,
        bytes: u64,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        // SAFETY: COI's header has the program keep `bytes` bytes at the data until the write is
        // done; null is told by `of_part`.
        let transfer = unsafe { Transfer::of_part(buffer, offset, data, bytes, &ends) }?;
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `Ends` was made of and which is all that
        // this asks for.
        unsafe { transfer.write(process, MOVE_ENTIRE.contains(&kind), &ends) }
    }

    fn COIBufferRead(
        buffer: Handle,
        offset: u64,
        data_out: *mut c_void,
        bytes: u64,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        // SAFETY: COI's header has the program keep room for `bytes` bytes until the read is done,
        // which nobody else uses meanwhile; null is told by `of_part`.
        let transfer = unsafe { Transfer::of_part(buffer, offset, data_out, bytes, &ends) }?;
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `Ends` was made of and which is all that
        // this asks for.
        unsafe { transfer.read(&ends) }
    }

    fn COIBufferWriteMultiD(
        buffer: Handle,
        process: Handle,
        offset: u64,
        to: *const Array,
        from: *const Array,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        // SAFETY: COI's header has the program pass null or descriptions of arrays, and keep the
        // array in memory until the write is done; null is told by `of_array`.
        let transfer = unsafe { Transfer::of_array(buffer, offset, to, from, &ends) }?;
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `Ends` was made of and which is all that
        // this asks for.
        unsafe { transfer.write(process, MOVE_ENTIRE.contains(&kind), &ends) }
    }

    fn COIBufferReadMultiD(
        buffer: Handle,
        offset: u64,
        to: *const Array,
        from: *const Array,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        // SAFETY: COI's header has the program pass null or descriptions of arrays, and keep the
        // array in memory until the read is done; null is told by `of_array`.
        let transfer = unsafe { Transfer::of_array(buffer, offset, from, to, &ends) }?;
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `Ends` was made of and which is all that
        // this asks for.
        unsafe { transfer.read(&ends) }
    }

    fn COIBufferCopy(
        to: Handle,
        from: Handle,
        to_offset: u64,
        from_offset: u64,
        bytes: u64,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        let copy = Copy::of(to, from, to_offset, from_offset, bytes, &ends)?;
        let Copy { to, from, bytes } = copy;
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `ends` was made of and which is all that
        // `run` asks for. Both sides are buffers, and no memory of the program.
        unsafe {
            ends.run(|order| to.copy_from(None, to_offset, &from, from_offset, bytes, false, order))
        }
    }

    fn COIBufferCopyEx(
        to: Handle,
        process: Handle,
        from: Handle,
        to_offset: u64,
        from_offset: u64,
        bytes: u64,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        let ends = Ends::of(dependency_count, dependencies, completion_out);
        let copy = Copy::of(to, from, to_offset, from_offset, bytes, &ends)?;
        let Copy { to, from, bytes } = copy;
        let target = Target::of(process)?;
        let covers = to_offset == 0 && bytes == to.len();
        let whole = MOVE_ENTIRE.contains(&kind);
        // SAFETY: COI's header has the program pass as many events as it says, and null,
        // COI_EVENT_SYNC or a place for the event, which `ends` was made of and which is all that
        // `run` asks for. Both sides are buffers, and no memory of the program.
        unsafe {
            ends.run(|order| {
                target.reach(&to, covers, order, |place, order| {
                    to.copy_from(place, to_offset, &from, from_offset, bytes, whole, order)
                })
            })
        }
    }
}

/// Bytes between a buffer and the program's memory: one range, or those of an array.
struct Transfer {
    buffer: Buffer,
    pieces: Vec<Piece>,
}

impl Transfer {
    /// # Safety
    /// `data` is null, or `bytes` bytes are there until the transfer is done.
    unsafe fn of_part(
        handle: Handle,
        offset: u64,
        data: *const c_void,
        bytes: u64,
        ends: &Ends,
    ) -> Done<Self> {
        let buffer = buffer(handle)?;
        require(!data.is_null(), code::INVALID_POINTER)?;
        require(bytes > 0, code::OUT_OF_RANGE)?;
        both_or_neither(ends.dependencies.0 as usize, ends.dependencies.1)?;
        inside(&buffer, offset, bytes)?;
        // SAFETY: the caller says that so many bytes are there until the transfer is done, or that
        // it is null.
        let memory = unsafe { foreign(data.cast_mut().cast(), bytes as usize) };
        let pieces = vec![Piece { at: offset, memory }];
        Ok(Self { buffer, pieces })
    }

    /// # Safety
    /// Both descriptions are null or can be read, and the array in memory is there until the
    /// transfer is done.
    unsafe fn of_array(
        handle: Handle,
        offset: u64,
        in_buffer: *const Array,
        in_memory: *const Array,
        ends: &Ends,
    ) -> Done<Self> {
        let buffer = buffer(handle)?;
        both_or_neither(ends.dependencies.0 as usize, ends.dependencies.1)?;
        let described = !in_buffer.is_null() && !in_memory.is_null();
        require(described, code::INVALID_HANDLE)?;
        // SAFETY: neither is null here, and the caller says that descriptions are there then, which
        // are copied.
        let (there, here) = unsafe { (in_buffer.read(), in_memory.read()) };
        let moves = arrays::moves(&there, &here, offset, buffer.len(), here.base)?;
        // SAFETY: `moves` were made for the array that `here` describes, so that they are within
        // it, and the caller says that it is there until the transfer is done.
        let pieces = unsafe { arrays::pieces(&moves, here.base) };
        Ok(Self { buffer, pieces })
    }

    /// # Safety
    /// As for [`Ends::run`].
    unsafe fn write(self, process: Handle, whole: bool, ends: &Ends) -> Done {
        let Self { buffer, pieces } = self;
        let target = Target::of(process)?;
        let covers = pieces.len() == 1 && pieces[0].memory.len() == buffer.len();
        // SAFETY: the caller promises what `run` asks for; the pieces were made for memory that is
        // there until they are done.
        unsafe {
            ends.run(|order| {
                target.reach(&buffer, covers, order, |to, order| {
                    buffer.write(to, pieces, whole, order)
                })
            })
        }
    }

    /// # Safety
    /// As for [`Ends::run`].
    unsafe fn read(self, ends: &Ends) -> Done {
        // SAFETY: the caller promises what `run` asks for; the pieces were made for memory that is
        // there until they are done.
        unsafe { ends.run(|order| self.buffer.read(self.pieces, order)) }
    }
}

/// The buffers of a copy, and how much it is of.
struct Copy {
    to: Buffer,
    from: Buffer,
    bytes: u64,
}

impl Copy {
    fn of(
        to_handle: Handle,
        from_handle: Handle,
        to_offset: u64,
        from_offset: u64,
        bytes: u64,
        ends: &Ends,
    ) -> Done<Self> {
        let (to, from) = (buffer(to_handle)?, buffer(from_handle)?);
        both_or_neither(ends.dependencies.0 as usize, ends.dependencies.1)?;
        let bytes = if bytes == 0 { to.len() } else { bytes };
        inside(&from, from_offset, bytes)?;
        inside(&to, to_offset, bytes)?;
        // Parts of one buffer by different handles are compared below.
        let apart = from_offset + bytes <= to_offset || to_offset + bytes <= from_offset;
        require(to_handle != from_handle || apart, code::MEMORY_OVERLAP)?;
        Ok(Self { to, from, bytes })
    }
}

/// What an operation waits for, and who waits for it.
struct Ends {
    dependencies: (u32, *const CoiEvent),
    completion: Completion,
}

impl Ends {
    fn of(count: u32, events: *const CoiEvent, completion: *mut CoiEvent) -> Self {
        Self {
            dependencies: (count, events),
            completion: Completion::of(completion),
        }
    }

    /// # Safety
    /// There are as many events as `self.dependencies` says, and the place for the event of the
    /// operation, if there is one, can be written to.
    unsafe fn run(&self, start: impl FnOnce(Order<'_>) -> Result<Event, CoiError>) -> Done {
        // SAFETY: the caller says that so many events are there; they are copied within this call.
        let after = unsafe { dependencies(self.dependencies.0, self.dependencies.1) };
        let event = start(self.completion.order(&after));
        // SAFETY: the caller says that the place for the event, if there is one, can be written to.
        unsafe { self.completion.deliver(event) }
    }
}

/// Where something is to be written.
enum Target {
    Anywhere,
    Source,
    Process(Arc<Entry>),
}

impl Target {
    fn of(process: Handle) -> Done<Self> {
        Ok(match process {
            Handle::NULL => Self::Anywhere,
            Handle::SOURCE => Self::Source,
            process => Self::Process(living(process)?),
        })
    }

    /// Starts a write there. What is valid on the source is written there: for that, it is made valid
    /// there first, with what it holds unless the write covers all of it.
    fn reach(
        &self,
        buffer: &Buffer,
        covers: bool,
        order: Order<'_>,
        write: impl FnOnce(Option<&Process>, Order<'_>) -> Result<Event, CoiError>,
    ) -> Result<Event, CoiError> {
        match self {
            Self::Anywhere => write(None, order),
            Self::Process(entry) => write(Some(&entry.process), order),
            Self::Source => {
                let here = Order {
                    after: &[],
                    wait: false,
                    tag: order.tag,
                };
                let event = buffer.set_state(StatePlace::Source, State::Valid, !covers, here)?;
                let mut after = order.after.to_vec();
                after.push(event);
                write(
                    None,
                    Order {
                        after: &after,
                        ..order
                    },
                )
            }
        }
    }
}
