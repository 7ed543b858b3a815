//! `COIPipeline_source.h`: pipelines and run functions.

use std::{ffi::c_void, sync::Arc};

use snaprig_coi::{Function, Pipeline, ops::Access};

use crate::{
    arguments::{Completion, array, both_or_neither, dependencies, foreign, give},
    buffer::buffer,
    engine::{self, cores},
    environment::Affinity,
    handles::Table,
    process::{Entry, entry},
    result::{Done, code, require},
    trace::api,
    types::{CoiEvent, CpuMask, Handle},
};

/// PTHREAD_STACK_MIN.
const STACK_BYTES_MIN: u32 = 16_384;
const PAGE_BYTES: u32 = 4096;
/// COI_PIPELINE_MAX_IN_BUFFERS.
const BUFFERS_MAX: u32 = 16_384;
/// COI_PIPELINE_MAX_IN_MISC_DATA_LEN.
const MISC_BYTES_MAX: u16 = 32_768;

/// A pipeline, and its process.
struct Line {
    pipeline: Pipeline,
    process: Arc<Entry>,
}

static PIPELINES: Table<Arc<Line>> = Table::new();

api! {
    fn COIPipelineCreate(
        process: Handle,
        mask: *const CpuMask,
        stack_bytes: u32,
        pipeline_out: *mut Handle,
    ) {
        require(!pipeline_out.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(pipeline_out, Handle::NULL) };
        let process = entry(process)?;
        let small = stack_bytes > 0 && stack_bytes < STACK_BYTES_MIN;
        require(!small && stack_bytes.is_multiple_of(PAGE_BYTES), code::OUT_OF_RANGE)?;
        // SAFETY: COI's header has the program pass null, for which `as_ref` gives none, or a mask
        // of 16 words, which stays during the call.
        let mask = unsafe { mask.as_ref() };
        require(mask.is_none_or(|mask| mask.iter().any(|word| *word != 0)), code::OUT_OF_RANGE)?;
        let mask = mask.map_or(&[][..], |mask| mask);
        let _affinity = Affinity::enter()?;
        let pipeline = process.process.pipeline_with(mask, stack_bytes.into())?;
        let handle = PIPELINES.insert(Arc::new(Line { pipeline, process }));
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(pipeline_out, handle) };
        Ok(())
    }

    fn COIPipelineDestroy(pipeline: Handle) {
        let line = PIPELINES.remove(pipeline)?;
        match line.pipeline.destroy() {
            // With its process it is gone already.
            Err(error) if error.code() == code::PROCESS_DIED => Ok(()),
            done => Ok(done?),
        }
    }

    fn COIPipelineRunFunction(
        pipeline: Handle,
        function: usize,
        buffer_count: u32,
        buffers: *const Handle,
        access: *const u32,
        dependency_count: u32,
        dependencies: *const CoiEvent,
        misc: *const c_void,
        misc_bytes: u16,
        return_value_out: *mut c_void,
        return_value_bytes: u16,
        completion_out: *mut CoiEvent,
    ) {
        let run = Run {
            pipeline,
            function,
            buffers: (buffer_count, buffers, access),
            dependencies: (dependency_count, dependencies),
            misc: (misc, misc_bytes),
            returned: (return_value_out, return_value_bytes),
            completion: Completion::of(completion_out),
        };
        run.check()?;
        // SAFETY: COI's header has the program pass arrays of the lengths that it says, or null,
        // the data that it says, and a place for the return value that stays until the function is
        // done: this is what `submit` asks for.
        unsafe { run.submit() }
    }

    fn COIPipelineGetEngine(pipeline: Handle, engine_out: *mut Handle) {
        require(pipeline != Handle::NULL, code::INVALID_HANDLE)?;
        require(!engine_out.is_null(), code::INVALID_POINTER)?;
        let line = PIPELINES.get(pipeline)?;
        require(!line.process.is_destroyed(), code::PROCESS_DIED)?;
        // It may be on another card than at first.
        let engine = engine::handle(line.process.process.engine());
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(engine_out, engine) };
        Ok(())
    }

    fn COIPipelineSetCPUMask(process: Handle, core: u32, thread: u8, mask_out: *mut CpuMask) {
        require(!mask_out.is_null(), code::INVALID_POINTER)?;
        let process = entry(process)?;
        let (cores, threads) = cores(&process.process.engine())?;
        require(core < cores && u32::from(thread) < threads, code::OUT_OF_RANGE)?;
        let bit = core as usize * threads as usize + usize::from(thread);
        // SAFETY: the pointer is not null, and COI's header has the program pass a mask that it has
        // cleared, so that its 16 words are initialised, and which this call alone uses meanwhile.
        let mask = unsafe { &mut *mask_out };
        let word = mask.get_mut(bit / 64).ok_or(code::OUT_OF_RANGE)?;
        *word |= 1 << (bit % 64);
        Ok(())
    }

    fn COIPipelineClearCPUMask(mask: *mut CpuMask) {
        require(!mask.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(mask, [0; 16]) };
        Ok(())
    }
}

/// The arguments of COIPipelineRunFunction.
struct Run {
    pipeline: Handle,
    function: usize,
    buffers: (u32, *const Handle, *const u32),
    dependencies: (u32, *const CoiEvent),
    misc: (*const c_void, u16),
    returned: (*mut c_void, u16),
    completion: Completion,
}

impl Run {
    /// Those that say something without being followed.
    fn check(&self) -> Done {
        let (count, buffers, access) = self.buffers;
        let in_range = count <= BUFFERS_MAX && self.misc.1 <= MISC_BYTES_MAX;
        require(in_range, code::OUT_OF_RANGE)?;
        require(self.function != 0, code::INVALID_HANDLE)?;
        both_or_neither(count as usize, buffers)?;
        both_or_neither(count as usize, access)?;
        both_or_neither(self.dependencies.0 as usize, self.dependencies.1)?;
        both_or_neither(self.misc.1.into(), self.misc.0)?;
        both_or_neither(self.returned.1.into(), self.returned.0)
    }

    /// # Safety
    /// The arrays, the data and the events are null, or as long as is said, and stay during the
    /// call; the return value's place is null, or stays until the function is done; the event's
    /// place can be written to.
    unsafe fn submit(self) -> Done {
        let (count, buffers, access) = self.buffers;
        // SAFETY: the caller says that both arrays are null or have `count` entries, which stay
        // during the call.
        let (handles, access) = unsafe {
            (
                array(buffers, count as usize),
                array(access, count as usize),
            )
        };
        let mut used = Vec::with_capacity(handles.len());
        for (handle, access) in handles.iter().zip(access) {
            let buffer = buffer(*handle)?;
            used.push((buffer, Access::from_coi(*access).ok_or(code::OUT_OF_RANGE)?));
        }
        let used: Vec<_> = used
            .iter()
            .map(|(buffer, access)| (buffer, *access))
            .collect();
        let done = PIPELINES.get(self.pipeline).and_then(|line| {
            require(!line.process.is_destroyed(), code::PROCESS_DIED)?;
            let address = self.function as u64;
            require(line.process.has_function(address), code::INVALID_HANDLE)?;
            let (misc, returned) = (self.misc, self.returned);
            // SAFETY: the caller says that the events and the data are there, which are copied
            // within this call, and that the return value's place stays until the function is done.
            let (after, misc, returned) = unsafe {
                (
                    dependencies(self.dependencies.0, self.dependencies.1),
                    array(misc.0.cast::<u8>(), misc.1.into()),
                    foreign(returned.0.cast(), returned.1.into()),
                )
            };
            let order = self.completion.order(&after);
            let function = Function::at(address);
            let event = line.pipeline.submit(function, &used, misc, returned, order);
            // SAFETY: the caller says that the event's place, if there is one, can be written to.
            unsafe { self.completion.deliver(event) }
        });
        if done.is_err() {
            // As MPSS's library does; such an event is over.
            let none = CoiEvent { number: 0, kind: 0 };
            // SAFETY: the caller says that the event's place, if there is one, can be written to.
            unsafe { self.completion.put(none) };
        }
        done
    }
}
