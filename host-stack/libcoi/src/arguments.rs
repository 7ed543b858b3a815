//! What a program's pointers and numbers stand for.

use std::{
    cell::Cell,
    ffi::{CStr, c_void},
    slice,
};

use snaprig_coi::{
    CoiError,
    ops::{self, Event, Foreign, Order},
};

use crate::{
    result::{Done, code, require},
    strings::Text,
    types::CoiEvent,
};

/// A string.
///
/// # Safety
/// It is null, or a string that ends with a null byte and stays during the call.
pub unsafe fn text(Text(pointer): Text) -> Option<String> {
    // SAFETY: the pointer is not null, and the caller says that it is a string then; it is copied
    // before this returns.
    let text = (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })?;
    Some(text.to_string_lossy().into_owned())
}

/// An array; empty if there is none.
///
/// # Safety
/// `pointer` is null, or `count` initialised values are there, which stay, unchanged, for `'a`.
pub unsafe fn array<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    match pointer.is_null() || count == 0 {
        true => &[],
        // SAFETY: the pointer is neither null nor the count 0, and the caller says that so many
        // values are there then, and stay for `'a`; a range of memory is no longer than
        // `isize::MAX`.
        false => unsafe { slice::from_raw_parts(pointer, count) },
    }
}

/// Leaves a value where the program wants it.
///
/// # Safety
/// `place` is null, or a place that one value can be written to.
pub unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the pointer is not null, and the caller says that it can be written through then;
        // nothing is read.
        unsafe { place.write(value) };
    }
}

/// Memory of the program that an operation reads or writes.
///
/// # Safety
/// `pointer` is null, or `bytes` bytes are there until the operation is done that is given the
/// result.
pub unsafe fn foreign(pointer: *mut u8, bytes: usize) -> Foreign {
    match pointer.is_null() {
        true => Foreign::none(),
        // SAFETY: the pointer is not null, and the caller says that so many bytes are there then
        // until the operation is done, which is what `Foreign::new` asks for.
        false => unsafe { Foreign::new(pointer, bytes) },
    }
}

/// A number goes with an array: both, or neither.
pub fn both_or_neither<T>(count: usize, pointer: *const T) -> Done {
    require((count == 0) == pointer.is_null(), code::ARGUMENT_MISMATCH)
}

/// The events that an operation waits for. What was never an event, or is not one of an operation, is
/// over: nobody waits for it.
///
/// # Safety
/// As for [`array()`], during the call; [`both_or_neither`] holds for both.
pub unsafe fn dependencies(count: u32, pointer: *const CoiEvent) -> Vec<Event> {
    // SAFETY: the caller says that so many events are there; they are copied before this returns.
    let events = unsafe { array(pointer, count as usize) };
    events.iter().filter_map(|event| known(*event)).collect()
}

/// The event, if there ever was one.
pub fn known(event: CoiEvent) -> Option<Event> {
    let is = event.kind <= CoiEvent::KIND_MAX && ops::known(Event(event.number));
    is.then_some(Event(event.number))
}

/// Where the completion event of an operation goes.
#[derive(Clone, Copy)]
pub enum Completion {
    /// The call waits for it.
    Wait,
    /// COI_EVENT_ASYNC: nobody cares.
    Forget,
    /// Here.
    At(*mut CoiEvent),
}

impl Completion {
    pub fn of(place: *mut CoiEvent) -> Self {
        match place.addr() {
            0 | 2 => Self::Wait,
            1 => Self::Forget,
            _ => Self::At(place),
        }
    }

    /// The order of an operation that ends like this.
    pub fn order(self, after: &[Event]) -> Order<'_> {
        Order {
            after,
            wait: matches!(self, Self::Wait),
            tag: context(),
        }
    }

    /// Hands the event out.
    ///
    /// # Safety
    /// The place, if there is one, can be written to, as the program promised when it passed it.
    pub unsafe fn deliver(self, event: Result<Event, CoiError>) -> Done {
        let number = event?.0;
        let kind = CoiEvent::OPERATION;
        // SAFETY: the caller says that the place can be written to, which is all that `put` asks
        // for.
        unsafe { self.put(CoiEvent { number, kind }) };
        Ok(())
    }

    /// # Safety
    /// The place, if there is one, can be written to, as the program promised when it passed it.
    pub unsafe fn put(self, event: CoiEvent) {
        if let Self::At(place) = self {
            // SAFETY: the caller says that the place can be written to; nothing of it is read.
            unsafe { place.write(event) };
        }
    }
}

thread_local! {
    static CONTEXT: Cell<u64> = const { Cell::new(0) };
}

/// What the thread has set with COINotificationCallbackSetContext, as an operation's tag: 0 if nothing,
/// else one more than the pointer.
pub fn context() -> u64 {
    CONTEXT.get()
}

/// Sets it, or takes it away.
pub fn set_context(data: Option<*const c_void>) {
    CONTEXT.set(data.map_or(0, |data| (data.addr() as u64).wrapping_add(1)));
}

/// The pointer of a tag, if one was set; else what a callback was registered with.
pub fn user_data(tag: u64, registered: usize) -> *const c_void {
    let address = tag.checked_sub(1).map_or(registered, |data| data as usize);
    std::ptr::without_provenance(address)
}
