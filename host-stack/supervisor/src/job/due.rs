//! Checkpoints of a job that nobody asks for: its coordinator orders them. There is one at most, so there is one order
//! each time, whichever members come and go.

use snaprig_resources::error::chain;
use std::{
    thread,
    time::{Duration, Instant},
};

use super::{Job, JobDump, order};
use crate::schedule::{Due, Schedule};
use snaprig_resources::event::Event;

/// How often it is looked what the job's settings are.
const LOOK: Duration = Duration::from_secs(1);

/// Orders checkpoints when they are due, by the job's settings or at an interval that counts more; for as long as the
/// process lives.
pub fn order_when_due(job: &Job, interval: Option<Duration>) -> ! {
    let (mut schedule, mut due) = (Schedule::Asked, Due::new(Schedule::Asked));
    loop {
        let settings = job.settings().map(|settings| settings.schedule);
        let settings = settings.unwrap_or_else(|error| {
            job.reporter.failed(&error);
            Some(schedule)
        });
        let wanted = interval.map(Schedule::Every).or(settings);
        let wanted = wanted.unwrap_or_default();
        if wanted != schedule {
            (schedule, due) = (wanted, Due::new(wanted));
        }
        if due.is_now() {
            take(job, &mut due);
        }
        thread::sleep(due.left().unwrap_or(LOOK).min(LOOK));
    }
}

/// A checkpoint; unless there is nobody.
fn take(job: &Job, due: &mut Due) {
    let cost = due.cost();
    let taken = job.control().and_then(|control| {
        let begun = Instant::now();
        match control.status()?.members.is_empty() {
            true => Ok(None),
            false => order::dump(job, &control, &JobDump::default(), begun).map(Some),
        }
    });
    match taken {
        // What it costs is that all of it stands still.
        Ok(Some(dumped)) => return due.ended(cost, dumped.pause),
        Ok(None) => {}
        Err(error) => {
            let why = chain(&error);
            job.reporter.tell(Event::NotTaken { why });
        }
    }
    due.failed();
    // However often it is due: what is in the way is there for a while.
    thread::sleep(LOOK);
}
