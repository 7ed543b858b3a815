//! What programs that measure are told of (`COIProcess_source.h`).

use std::{
    ffi::c_void,
    sync::{Arc, Mutex},
};

use snaprig_coi::process::{Notification, NotificationId, NotificationKind};

use crate::{
    arguments::{set_context, user_data},
    handles::lock,
    process::{Entry, entry},
    result::{Done, code, require},
    trace::api,
    types::{CoiEvent, Handle, NotificationCallback},
};

/// USER_EVENT_SIGNALED.
const USER_EVENT: u32 = 5;

/// A callback of a process.
pub struct Registered {
    callback: NotificationCallback,
    id: NotificationId,
}

/// Callbacks for COI_PROCESS_SOURCE, with what each is to be given.
static OF_SOURCE: Mutex<Vec<(NotificationCallback, usize)>> = Mutex::new(Vec::new());

fn same(one: NotificationCallback, other: NotificationCallback) -> bool {
    std::ptr::fn_addr_eq(one, other)
}

api! {
    fn COIRegisterNotificationCallback(
        process: Handle,
        callback: Option<NotificationCallback>,
        user_data: *const c_void,
    ) {
        let callback = callback.ok_or(code::INVALID_POINTER)?;
        let data = user_data.addr();
        if process != Handle::SOURCE {
            let entry = entry(process)?;
            return register(process, &entry, callback, data);
        }
        let mut all = lock(&OF_SOURCE);
        require(!all.iter().any(|(known, _)| same(*known, callback)), code::ALREADY_EXISTS)?;
        all.push((callback, data));
        Ok(())
    }

    fn COIUnregisterNotificationCallback(process: Handle, callback: Option<NotificationCallback>) {
        let callback = callback.ok_or(code::INVALID_POINTER)?;
        let (found, left) = match process {
            Handle::SOURCE => {
                let mut all = lock(&OF_SOURCE);
                let found = all.iter().position(|(known, _)| same(*known, callback));
                found.map(|at| all.remove(at));
                (found.is_some(), all.len())
            }
            _ => unregister(entry(process)?.as_ref(), callback),
        };
        if left == 0 {
            set_context(None);
        }
        require(found, code::DOES_NOT_EXIST)
    }
}

pub extern "C" fn COINotificationCallbackSetContext(data: *const c_void) {
    set_context(Some(data));
}

fn register(handle: Handle, process: &Entry, callback: NotificationCallback, data: usize) -> Done {
    let mut all = lock(&process.callbacks);
    require(
        !all.iter().any(|one| same(one.callback, callback)),
        code::ALREADY_EXISTS,
    )?;
    let id = process.process.notify(Arc::new(move |told: &Notification| {
        let kind = match told.kind {
            NotificationKind::RunReady => 0,
            NotificationKind::RunStart => 1,
            NotificationKind::RunComplete => 2,
            NotificationKind::BufferReady => 3,
            NotificationKind::BufferComplete => 4,
            NotificationKind::UserEvent => USER_EVENT,
        };
        let event = CoiEvent {
            number: told.event.0,
            kind: match kind {
                USER_EVENT => CoiEvent::USER,
                _ => CoiEvent::OPERATION,
            },
        };
        // SAFETY: the program registered this function with COI's header, which has it be one of
        // this type that may be called from another thread until it is unregistered; its
        // `user_data` is handed back as it came, and not followed here.
        unsafe { callback(kind, handle, event, user_data(told.tag, data)) };
    }));
    all.push(Registered { callback, id });
    Ok(())
}

/// Whether it was registered, and how many others are.
fn unregister(process: &Entry, callback: NotificationCallback) -> (bool, usize) {
    let mut all = lock(&process.callbacks);
    let found = all.iter().position(|one| same(one.callback, callback));
    let found = found.map(|at| all.remove(at));
    let left = all.len();
    // A callback that is under way may want to register another.
    drop(all);
    let is = found.is_some();
    if let Some(one) = found {
        process.process.stop_notifying(one.id);
    }
    (is, left)
}

/// The program signals an event of its own.
pub fn source_event(event: CoiEvent, context: u64) {
    let all = lock(&OF_SOURCE).clone();
    for (callback, data) in all {
        // SAFETY: the program registered this function with COI's header, which has it be one of
        // this type, until it is unregistered; its `user_data` is handed back as it came, and not
        // followed here.
        unsafe { callback(USER_EVENT, Handle::SOURCE, event, user_data(context, data)) };
    }
}
