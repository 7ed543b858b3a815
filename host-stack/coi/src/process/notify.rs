//! What a process tells unasked, and whom its host tells of what happens to it
//! (COIRegisterNotificationCallback).

use std::{collections::BTreeMap, sync::Arc};

use snaprig_offload_wire::{
    coi::{Command, Notice},
    coi_result::code,
};

use super::{Inner, LibraryOptions, Process, lock};
use crate::{
    CoiError,
    ops::{self, Event},
};

/// What happened, in the order of COI_NOTIFICATIONS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotificationKind {
    /// All that a run function depends on is done.
    RunReady,
    /// It begins on the card.
    RunStart,
    /// It is done.
    RunComplete,
    /// All that a movement of bytes depends on is done.
    BufferReady,
    /// It is done.
    BufferComplete,
    /// The process has signaled a user event.
    UserEvent,
}

/// Something that happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// What.
    pub kind: NotificationKind,
    /// The operation, or the user event.
    pub event: Event,
    /// What whoever asked for it gave along.
    pub tag: u64,
}

/// Takes notifications, on whichever thread they come up.
pub type NotificationSink = Arc<dyn Fn(&Notification) + Send + Sync>;

/// One that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotificationId(u64);

#[derive(Default)]
pub(super) struct Notifications {
    last: u64,
    sinks: BTreeMap<NotificationId, NotificationSink>,
}

impl Process {
    /// Has what happens to the process be told.
    pub fn notify(&self, callback: NotificationSink) -> NotificationId {
        let mut notifications = lock(&self.0.notifications);
        notifications.last += 1;
        let id = NotificationId(notifications.last);
        notifications.sinks.insert(id, callback);
        id
    }

    /// Has it not be told any more.
    pub fn stop_notifying(&self, id: NotificationId) {
        lock(&self.0.notifications).sinks.remove(&id);
    }

    /// Waits until what the process has written is written here. It always is: its output comes in
    /// order, and is written before anything that comes after it is heard of.
    pub fn flush_proxy(&self) {}
}

impl Inner {
    /// Whether anybody wants to know what happens.
    pub fn is_observed(&self) -> bool {
        !lock(&self.notifications).sinks.is_empty()
    }

    /// Tells everybody who wants to know.
    pub fn notify(&self, notification: &Notification) {
        let sinks: Vec<_> = lock(&self.notifications).sinks.values().cloned().collect();
        for sink in sinks {
            sink(notification);
        }
    }

    /// The process tells something unasked.
    pub(super) fn noticed(self: &Arc<Self>, notice: Notice) {
        match notice {
            Notice::UserEvent(id) => ops::signaled_by(self, Event(id)),
            Notice::LoadLibrary {
                request,
                file,
                name,
                search_path,
                flags,
            } => {
                // Its answer is a command, which the thread that listens must not wait for.
                let process = Process(self.clone());
                std::thread::spawn(move || {
                    let loaded = process.load_file(&file, name, search_path, flags);
                    let (result, library) = match loaded {
                        Ok(library) => (code::SUCCESS, library.0),
                        Err(CoiError::LibraryLoaded(library)) => (code::ALREADY_EXISTS, library),
                        Err(error) => (error.code(), 0),
                    };
                    // A process that is gone waits no more.
                    let _ = process.0.command(Command::LibraryLoaded {
                        request,
                        result,
                        library,
                    });
                });
            }
            // The graph has heard of those.
            Notice::Released { .. } | Notice::Started { .. } => {}
        }
    }
}

impl Process {
    fn load_file(
        &self,
        file: &str,
        name: Option<String>,
        library_path: Option<String>,
        flags: i32,
    ) -> Result<super::Library, CoiError> {
        let options = LibraryOptions::from_file(file, library_path)?;
        self.load_library(LibraryOptions {
            name,
            flags,
            ..options
        })
    }
}
