//! Open files that only count: eventfd(2), timerfd_create(2), signalfd(2).

mod restore;
mod save;

pub use self::save::hex;

use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, TreeContext},
    state::{Kind, OpenFile, Tree},
};

/// Counters of events, of time, of signals.
#[derive(Debug)]
pub struct Counters;

impl Resource for Counters {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        Ok(matches!(
            seen.anonymous(),
            Some(b"[eventfd]" | b"[timerfd]" | b"[signalfd]")
        ))
    }

    fn save(&mut self, met: FoundFile<'_>, around: &mut TreeContext<'_>) -> Result<Saved> {
        let (seen, info) = (met.seen, &met.seen.info);
        let hex = |key| info.get(key).and_then(hex).unwrap_or(0);
        let kind = match seen.anonymous() {
            Some(b"[eventfd]") => Kind::Event {
                count: hex("eventfd-count"),
                semaphore: info.number("eventfd-semaphore") == Some(1),
            },
            Some(b"[signalfd]") => Kind::Signal {
                mask: hex("sigmask"),
            },
            _ => {
                let timer = save::timer(seen, &met.copy, around.clocks)?;
                timer.ok_or_else(|| seen.refused("a timer that is not understood"))?
            }
        };
        Ok(kind.into())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        opened.each(tree, |opened, file| {
            Ok(Some(match &file.kind {
                Kind::Event { count, semaphore } => restore::event(*count, *semaphore)?,
                Kind::Signal { mask } => restore::signals(*mask)?,
                Kind::Timer {
                    clock,
                    settings,
                    ticks,
                    setting,
                } => match opened.clocks.and_then(|then| then.show(*clock)) {
                    Some(then) => restore::timer_of_tree(*clock, then, *ticks, setting)?,
                    None => restore::timer(*clock, *settings, *ticks, setting)?,
                },
                _ => return Ok(None),
            }))
        })
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Event { count, .. } => Some(format!("eventfd, {count}")),
            Kind::Signal { mask } => Some(format!("signalfd of {mask:#x}")),
            Kind::Timer { ticks, .. } => Some(format!("timerfd, {ticks} times since it was read")),
            _ => None,
        }
    }
}
