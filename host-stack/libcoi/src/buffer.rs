//! `COIBuffer_source.h`: making, mapping and placing buffers.

use std::ffi::c_void;

use snaprig_coi::{
    Process,
    ops::{Buffer, BufferOptions, MapKind, Mapping, State, StatePlace},
};

use crate::{
    arguments::{Completion, array, both_or_neither, dependencies, foreign, give},
    handles::Table,
    memory,
    process::{entry, living},
    result::{Done, code, require},
    trace::api,
    types::{
        CoiEvent, Handle,
        buffer::{NORMAL, OPENCL, PINNED, STREAMING_TO_SINK, STREAMING_TO_SOURCE},
        flag,
    },
};

static BUFFERS: Table<Buffer> = Table::new();
static MAPPINGS: Table<Mapping> = Table::new();

/// The buffer that it is a handle of.
pub fn buffer(handle: Handle) -> Done<Buffer> {
    BUFFERS.get(handle)
}

api! {
    fn COIBufferCreate(
        bytes: u64,
        kind: u32,
        flags: u32,
        initial: *const c_void,
        process_count: u32,
        processes: *const Handle,
        buffer_out: *mut Handle,
    ) {
        let same = flags & (flag::SAME_ADDRESS_SINKS | flag::SAME_ADDRESS_SINKS_AND_SOURCE) != 0;
        require(!(same && flags & flag::HUGE_PAGES != 0), code::NOT_SUPPORTED)?;
        require(flags & flag::SINK_MEMORY == 0, code::NOT_SUPPORTED)?;
        require(bytes > 0, code::OUT_OF_RANGE)?;
        require(!buffer_out.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(buffer_out, Handle::NULL) };
        require(flags & !flag::ALL == 0, code::OUT_OF_RANGE)?;
        flags_go_with(kind, flags)?;
        require(process_count > 0, code::OUT_OF_RANGE)?;
        require(!processes.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass `process_count` handles, or null, for which
        // `array` gives none. They are looked up within this call, and never followed.
        let processes = owners(unsafe { array(processes, process_count as usize) })?;
        let length = usize::try_from(bytes).map_err(|_| code::OUT_OF_MEMORY)?;
        let options = BufferOptions {
            bytes,
            open_cl: waits_for_nobody(kind),
            same_address_as_source: flags & flag::SAME_ADDRESS_SINKS_AND_SOURCE != 0,
            huge: flags & flag::HUGE_PAGES != 0,
            // SAFETY: the pointer is not null, and COI's header has the program pass as many bytes
            // then as the buffer has; they are copied before this returns.
            initial: (!initial.is_null()).then(|| unsafe { foreign(initial.cast_mut().cast(), length) }),
            ..BufferOptions::default()
        };
        let handle = BUFFERS.insert(Buffer::create(&processes, options)?);
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(buffer_out, handle) };
        Ok(())
    }

    fn COIBufferCreateFromMemory(
        bytes: u64,
        kind: u32,
        flags: u32,
        memory: *mut c_void,
        process_count: u32,
        processes: *const Handle,
        buffer_out: *mut Handle,
    ) {
        require(bytes > 0, code::OUT_OF_RANGE)?;
        require(!buffer_out.is_null() && !memory.is_null(), code::INVALID_POINTER)?;
        require(flags & !flag::ALL == 0, code::OUT_OF_RANGE)?;
        require(process_count > 0, code::OUT_OF_RANGE)?;
        require(!processes.is_null(), code::INVALID_POINTER)?;
        require(matches!(kind, NORMAL | PINNED | OPENCL), code::NOT_SUPPORTED)?;
        let on_sink = flags & flag::SINK_MEMORY != 0;
        require(!on_sink || kind == NORMAL, code::NOT_SUPPORTED)?;
        flags_go_with(kind, flags)?;
        let same = flags & (flag::SAME_ADDRESS_SINKS | flag::SAME_ADDRESS_SINKS_AND_SOURCE) != 0;
        let mixed = on_sink && (same || flags & flag::HUGE_PAGES != 0 || process_count > 1);
        require(!mixed, code::ARGUMENT_MISMATCH)?;
        require(!same, code::NOT_SUPPORTED)?;
        // SAFETY: COI's header has the program pass `process_count` handles, or null, for which
        // `array` gives none. They are looked up within this call, and never followed.
        let processes = owners(unsafe { array(processes, process_count as usize) })?;
        if !on_sink && flags & flag::OPTIMIZE_NO_DMA == 0 {
            memory::writable(memory.addr(), bytes)?;
        }
        let length = usize::try_from(bytes).map_err(|_| code::OUT_OF_MEMORY)?;
        let options = BufferOptions {
            bytes,
            open_cl: waits_for_nobody(kind),
            huge: flags & flag::HUGE_PAGES != 0,
            // SAFETY: COI's header has the program keep these bytes, as many as the buffer has, for
            // as long as the buffer is; null was refused above.
            memory: (!on_sink).then(|| unsafe { foreign(memory.cast(), length) }),
            // An address of the process's, which is nowhere here.
            sink_memory: on_sink.then(|| memory.addr() as u64),
            ..BufferOptions::default()
        };
        let handle = BUFFERS.insert(Buffer::create(&processes, options)?);
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(buffer_out, handle) };
        Ok(())
    }

    fn COIBufferCreateSubBuffer(buffer: Handle, bytes: u64, offset: u64, buffer_out: *mut Handle) {
        let whole = self::buffer(buffer)?;
        require(whole.is_open_cl(), code::NOT_SUPPORTED)?;
        require(bytes > 0, code::OUT_OF_RANGE)?;
        inside(&whole, offset, bytes)?;
        require(!buffer_out.is_null(), code::INVALID_POINTER)?;
        let handle = BUFFERS.insert(whole.sub_buffer(offset, bytes)?);
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(buffer_out, handle) };
        Ok(())
    }

    fn COIBufferDestroy(buffer: Handle) {
        self::buffer(buffer)?.destroy()?;
        BUFFERS.remove(buffer)?;
        Ok(())
    }

    fn COIBufferMap(
        buffer: Handle,
        offset: u64,
        bytes: u64,
        kind: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
        map_out: *mut Handle,
        data_out: *mut *mut c_void,
    ) {
        let buffer = self::buffer(buffer)?;
        both_or_neither(dependency_count as usize, dependencies)?;
        require(!data_out.is_null() && !map_out.is_null(), code::INVALID_POINTER)?;
        let kind = match kind {
            1 => MapKind::ReadWrite,
            2 => MapKind::ReadOnly,
            3 => MapKind::WriteEntire,
            _ => return Err(code::OUT_OF_RANGE.into()),
        };
        let bytes = if bytes == 0 { buffer.len() } else { bytes };
        inside(&buffer, offset, bytes)?;
        // SAFETY: `both_or_neither` was asked above, and COI's header has the program pass as many
        // events as it says, which are copied within this call.
        let after = unsafe { self::dependencies(dependency_count, dependencies) };
        let completion = Completion::of(completion_out);
        let (mapping, event) = buffer.map(offset, bytes, kind, completion.order(&after))?;
        let data = mapping.pointer();
        let handle = MAPPINGS.insert(mapping);
        // SAFETY: COI's header has the program pass null or a place for each answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe {
            give(data_out, data.cast());
            give(map_out, handle);
            completion.deliver(Ok(event))
        }
    }

    fn COIBufferUnmap(
        map: Handle,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        both_or_neither(dependency_count as usize, dependencies)?;
        // Whoever comes second has no handle any more.
        let mapping = MAPPINGS.remove(map)?;
        // SAFETY: `both_or_neither` was asked above, and COI's header has the program pass as many
        // events as it says, which are copied within this call.
        let after = unsafe { self::dependencies(dependency_count, dependencies) };
        let completion = Completion::of(completion_out);
        let event = mapping.unmap(completion.order(&after));
        // SAFETY: COI's header has the program pass null, COI_EVENT_SYNC, COI_EVENT_ASYNC or a place for an event,
        // which `completion` tells apart; it is written before this returns.
        unsafe { completion.deliver(event) }
    }

    fn COIBufferGetSinkAddress(buffer: Handle, address_out: *mut u64) {
        let buffer = self::buffer(buffer)?;
        require(!address_out.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(address_out, buffer.sink_address(None)?) };
        Ok(())
    }

    fn COIBufferGetSinkAddressEx(process: Handle, buffer: Handle, address_out: *mut u64) {
        require(!address_out.is_null(), code::INVALID_POINTER)?;
        let buffer = self::buffer(buffer)?;
        require(process != Handle::SOURCE, code::OUT_OF_RANGE)?;
        let process = match process {
            Handle::NULL => None,
            process => Some(entry(process)?),
        };
        let process = process.as_ref().map(|entry| &entry.process);
        require(process.is_none_or(|process| buffer.is_on(process)), code::OUT_OF_RANGE)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(address_out, buffer.sink_address(process)?) };
        Ok(())
    }

    fn COIBufferSetState(
        buffer: Handle,
        process: Handle,
        state: u32,
        no_move: u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        completion_out: *mut CoiEvent,
    ) {
        both_or_neither(dependency_count as usize, dependencies)?;
        let state = match state {
            0 => State::Valid,
            1 => State::Invalid,
            2 => State::ValidMayDrop,
            _ => return Err(code::OUT_OF_RANGE.into()),
        };
        let drop_here = matches!(state, State::ValidMayDrop) && process == Handle::SOURCE;
        require(!drop_here, code::ARGUMENT_MISMATCH)?;
        require(no_move <= 1, code::OUT_OF_RANGE)?;
        let to_all = process == Handle::SINK_OWNERS && no_move == 0;
        require(!to_all, code::ARGUMENT_MISMATCH)?;
        let buffer = self::buffer(buffer)?;
        let one = match process {
            Handle::SOURCE | Handle::SINK_OWNERS => None,
            process => Some(living(process)?),
        };
        let place = match (&one, process) {
            (Some(entry), _) => StatePlace::Process(&entry.process),
            (None, Handle::SOURCE) => StatePlace::Source,
            (None, _) => StatePlace::SinkOwners,
        };
        // SAFETY: `both_or_neither` was asked above, and COI's header has the program pass as many
        // events as it says, which are copied within this call.
        let after = unsafe { self::dependencies(dependency_count, dependencies) };
        let completion = Completion::of(completion_out);
        let event = buffer.set_state(place, state, no_move == 0, completion.order(&after));
        // SAFETY: COI's header has the program pass null, COI_EVENT_SYNC, COI_EVENT_ASYNC or a place for an event,
        // which `completion` tells apart; it is written before this returns.
        unsafe { completion.deliver(event) }
    }

    fn COIBufferAddRefcnt(process: Handle, buffer: Handle, count: u64) {
        let buffer = self::buffer(buffer)?;
        let process = entry(process)?;
        if count == 0 {
            // No reference to add; but what is not there is said first.
            return match buffer.add_references(&process.process, 0) {
                Err(error) if error.code() == code::NOT_INITIALIZED => Err(error.into()),
                _ => Err(code::ERROR.into()),
            };
        }
        Ok(buffer.add_references(&process.process, count)?)
    }

    fn COIBufferReleaseRefcnt(process: Handle, buffer: Handle, count: u64) {
        let buffer = self::buffer(buffer)?;
        let process = entry(process)?;
        require(count > 0, code::ERROR)?;
        Ok(buffer.release_references(&process.process, count)?)
    }
}

/// Whether a buffer of that type may be used while it is mapped. (Streaming buffers are never mapped while functions
/// use the same version of them; here there is one version, and who maps it waits.)
fn waits_for_nobody(kind: u32) -> bool {
    kind == OPENCL || kind == PINNED
}

/// COI_VALID_BUFFER_TYPES_AND_FLAGS.
fn flags_go_with(kind: u32, flags: u32) -> Done {
    let allowed = match kind {
        NORMAL => flag::ALL,
        STREAMING_TO_SINK => {
            flag::OPTIMIZE_SOURCE_WRITE | flag::OPTIMIZE_SINK_READ | flag::OPTIMIZE_SINK_WRITE
        }
        STREAMING_TO_SOURCE => flag::OPTIMIZE_SOURCE_READ | flag::OPTIMIZE_SINK_WRITE,
        PINNED => flag::ALL & !(flag::OPTIMIZE_NO_DMA | flag::HUGE_PAGES | flag::SINK_MEMORY),
        OPENCL => flag::ALL & !flag::SINK_MEMORY,
        _ => return Err(code::NOT_SUPPORTED.into()),
    };
    require(flags & !allowed == 0, code::ARGUMENT_MISMATCH)
}

/// The processes that a buffer is for.
fn owners(handles: &[Handle]) -> Done<Vec<Process>> {
    let entries = handles.iter().map(|handle| living(*handle));
    entries.map(|entry| Ok(entry?.process.clone())).collect()
}

/// That a part is one of the buffer.
pub fn inside(buffer: &Buffer, offset: u64, bytes: u64) -> Done {
    let end = offset.checked_add(bytes);
    require(
        end.is_some_and(|end| end <= buffer.len()),
        code::OUT_OF_RANGE,
    )
}
