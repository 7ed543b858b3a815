//! What comes back from the process: results of run functions, and what it tells unasked.

use snaprig_offload_wire::coi::{Notice, RunResult};

use super::{Machine, Output, Pause, Value, told::Heard};
use crate::CoiError;

/// Most notices that a process may send before its host knows that it runs again.
const EARLY_NOTICES_MAX: usize = 65_536;

impl Machine {
    pub(super) fn result(&mut self, number: u32, result: RunResult) {
        if self.pause == Pause::Paused && self.settled {
            if self.early.insert(number, result).is_some() {
                self.fate = Some(Err(()));
            }
            return;
        }
        let pipeline = self.pipelines.get_mut(number as usize);
        let taken = pipeline.and_then(|pipeline| {
            let ticket = pipeline.in_flight.take()?;
            pipeline.received += 1;
            Some((ticket, pipeline.begun))
        });
        let Some((ticket, begun)) = taken else {
            // A result that nobody asked for: the process makes no sense any more.
            self.fate = Some(Err(()));
            return;
        };
        self.finished += 1;
        match result {
            RunResult::Returned { value, added, told } => {
                if !begun {
                    self.outputs.push_back(Output::Started(ticket));
                }
                self.hear(
                    told,
                    Heard::Result(ticket, Value::Returned { value, added }),
                );
            }
            RunResult::Refused(why) => {
                let (node, errno) = (self.node, 0);
                self.fail(ticket, CoiError::Refused { node, errno, why });
            }
        }
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        if self.pause == Pause::Paused && self.settled {
            match self.early_notices.len() < EARLY_NOTICES_MAX {
                true => self.early_notices.push_back(notice),
                false => self.fate = Some(Err(())),
            }
            return;
        }
        self.notices += 1;
        let (pipeline, count) = match notice {
            Notice::Started { pipeline, count } => (pipeline, count),
            Notice::Released { id, count, told } => {
                return self.hear(told, Heard::Released { id, count, told });
            }
            notice => return self.outputs.push_back(Output::Notice(notice)),
        };
        // One that comes after its result says nothing new.
        let Some(pipeline) = self.pipelines.get_mut(pipeline as usize) else {
            return;
        };
        if let Some(ticket) = pipeline
            .in_flight
            .filter(|_| !pipeline.begun && pipeline.sent == count)
        {
            pipeline.begun = true;
            self.outputs.push_back(Output::Started(ticket));
        }
    }

    pub(super) fn remove_pipeline(&mut self, number: u32) {
        let Some(pipeline) = self.pipelines.get_mut(number as usize) else {
            return;
        };
        pipeline.live = false;
        for (ticket, _) in std::mem::take(&mut pipeline.queue) {
            self.fail(ticket, CoiError::InvalidHandle("no such pipeline".into()));
        }
    }
}
