//! `COIEvent_source.h`: waiting, callbacks, events of the program's own.

use std::{collections::BTreeMap, ffi::c_void, sync::Mutex, time::Duration};

use snaprig_coi::ops::{self, Event};

use crate::{
    arguments::{array, context, give, known},
    fork,
    handles::lock,
    notify,
    result::{Done, Failure, code, require},
    trace::api,
    types::{CoiEvent, EventCallback},
};

/// User events that are not signalled yet, with the context of the thread that made each.
static USER_EVENTS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

api! {
    fn COIEventWait(
        count: u16,
        events: *const CoiEvent,
        timeout_milliseconds: i32,
        for_all: u8,
        signaled_count_out: *mut u32,
        signaled_out: *mut u32,
    ) {
        require(!events.is_null(), code::INVALID_POINTER)?;
        require(timeout_milliseconds >= -1 && count > 0, code::OUT_OF_RANGE)?;
        let places = (signaled_count_out.is_null(), signaled_out.is_null());
        let needed = count > 1 && for_all == 0;
        require(!needed || places == (false, false), code::ARGUMENT_MISMATCH)?;
        require(places.0 == places.1, code::ARGUMENT_MISMATCH)?;
        let timeout = u64::try_from(timeout_milliseconds).ok().map(Duration::from_millis);
        // SAFETY: the pointer is not null, and COI's header has the program pass `count` events,
        // which stay during the call.
        let events = unsafe { array(events, count.into()) };
        let done = wait(events, for_all != 0, timeout);
        let tell = |indices: &[u32]| {
            // SAFETY: COI's header has the program pass room for one number, and for as many as
            // there are events; `wait` gives no more indices than that. `tell` is called only if
            // neither is null.
            unsafe {
                give(signaled_count_out, indices.len() as u32);
                for (at, index) in indices.iter().enumerate() {
                    signaled_out.add(at).write(*index);
                }
            }
        };
        match done {
            Ok(indices) => {
                if !signaled_out.is_null() {
                    tell(&indices);
                }
                Ok(())
            }
            Err(failure) => {
                if !signaled_out.is_null() {
                    tell(&signaled(events));
                }
                Err(failure)
            }
        }
    }

    fn COIEventRegisterUserEvent(event_out: *mut CoiEvent) {
        require(!event_out.is_null(), code::INVALID_POINTER)?;
        fork::watch();
        let context = context();
        let number = ops::register_user_event(context).0;
        lock(&USER_EVENTS).insert(number, context);
        let kind = CoiEvent::USER;
        // SAFETY: COI's header has the program pass null or a place for the event, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(event_out, CoiEvent { number, kind }) };
        Ok(())
    }

    fn COIEventSignalUserEvent(event: CoiEvent) {
        require(event.kind == CoiEvent::USER, code::INVALID_HANDLE)?;
        // Only the first signal counts, and only of an event that there is.
        let Some(context) = lock(&USER_EVENTS).remove(&event.number) else {
            return Ok(());
        };
        if !is_signaled(Event(event.number)) {
            notify::source_event(event, context);
        }
        // The card may have been first.
        let _ = ops::signal(Event(event.number));
        Ok(())
    }

    fn COIEventUnregisterUserEvent(event: CoiEvent) {
        require(event.kind == CoiEvent::USER, code::INVALID_HANDLE)?;
        lock(&USER_EVENTS).remove(&event.number);
        // One that is signalled already needs nothing.
        let _ = ops::unregister(Event(event.number));
        Ok(())
    }

    fn COIEventRegisterCallback(
        event: CoiEvent,
        callback: Option<EventCallback>,
        user_data: *const c_void,
        flags: u64,
    ) {
        require(event.kind <= CoiEvent::KIND_MAX, code::INVALID_HANDLE)?;
        let callback = callback.ok_or(code::INVALID_HANDLE)?;
        require(flags == 0, code::ARGUMENT_MISMATCH)?;
        let data = user_data.addr();
        let call = move |result: u32| {
            // SAFETY: the program registered this function with COI's header, which has it be one
            // of this type that may be called from another thread until the event is done; its
            // `user_data` is handed back as it came, and not followed here.
            unsafe { callback(event, result, std::ptr::without_provenance(data)) };
        };
        match known(event) {
            Some(event) => ops::on_complete(event, move |_, done| {
                call(done.map_or_else(|error| error.code(), |()| code::SUCCESS));
            }),
            None => call(code::SUCCESS),
        }
        Ok(())
    }
}

/// Waits; which are signalled. What is no event was signalled long ago.
fn wait(events: &[CoiEvent], for_all: bool, timeout: Option<Duration>) -> Done<Vec<u32>> {
    let real: Vec<(u32, Event)> = events
        .iter()
        .zip(0..)
        .filter_map(|(event, index)| Some((index, known(*event)?)))
        .collect();
    let others = events.len() - real.len();
    if real.is_empty() {
        return Ok((0..events.len() as u32).collect());
    }
    let list: Vec<Event> = real.iter().map(|(_, event)| *event).collect();
    // What is over already is enough for whoever waits for any.
    if others == 0 || for_all {
        ops::wait(&list, for_all, timeout).map_err(|error| match error.code() {
            code @ (code::TIME_OUT_REACHED | code::EVENT_CANCELED) => {
                Failure::new(code, error.to_string())
            }
            // Of several, nobody asks which.
            _ if events.len() > 1 => Failure::new(code::PROCESS_DIED, error.to_string()),
            _ => error.into(),
        })?;
    }
    Ok(signaled(events))
}

/// Which of these are signalled now.
fn signaled(events: &[CoiEvent]) -> Vec<u32> {
    let all = events.iter().zip(0..);
    all.filter(|(event, _)| known(**event).is_none_or(is_signaled))
        .map(|(_, index)| index)
        .collect()
}

fn is_signaled(event: Event) -> bool {
    match ops::wait(&[event], true, Some(Duration::ZERO)) {
        Ok(_) => true,
        Err(error) => error.code() != code::TIME_OUT_REACHED,
    }
}
