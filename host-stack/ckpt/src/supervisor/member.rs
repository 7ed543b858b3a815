//! A tree's part in the rounds of its job: what the coordinator says, done.
//!
//! What must stay true: whatever fails, and whoever dies, a tree that was stopped for a round that is not committed runs
//! on, as soon as this supervisor hears of it.

use std::time::Duration;

use libc::pid_t;
use snaprig_ckpt_image::{
    image::FileSink,
    store::{Joined, Store},
};
use snaprig_coord::{
    driver,
    member::Event,
    message::Outcome,
    phase::{Kind, Order, Phase},
};

use super::checkpoint::{Begun, How, Known, Saved, Stopped};
use crate::{
    dump::Purpose,
    error::{Error, Result},
    job::{Board, Job, NOT_NOW},
    plugins::SharedPlugins,
    restart,
};

/// A member of a job, as its supervisor has it.
pub struct Member {
    pub name: String,
    pub link: driver::Member,
    store: Store,
    round: Option<Taking>,
}

/// A checkpoint that is being taken.
struct Taking {
    round: u64,
    kind: Kind,
    joined: Joined,
    stopped: Option<Stopped>,
    saved: Option<Saved<FileSink>>,
}

/// What comes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing that matters to others.
    Nothing,
    /// A checkpoint is complete.
    Complete(u64),
    /// The tree has ended, for its checkpoint is complete.
    Ended,
}

impl Member {
    /// Joins a job.
    pub fn join(job: &Job, name: &str) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            link: job.join(name)?,
            store: job.store()?,
            round: None,
        })
    }

    /// Whether the tree stands still.
    pub fn holds(&self) -> bool {
        self.round
            .as_ref()
            .is_some_and(|taking| taking.stopped.is_some())
    }

    /// Does what the coordinator says next, if it has said something.
    pub fn next(&mut self, root: pid_t, known: &mut Known, plugins: &SharedPlugins) -> Done {
        match self.link.next_event(Some(Duration::ZERO)) {
            Some(Event::Begin {
                round,
                phase,
                order,
            }) => {
                let result = self.begin(round, phase, &order, root, known, plugins);
                let done = match (&result, phase) {
                    (Ok(_), Phase::End) => Done::Ended,
                    _ => Done::Nothing,
                };
                self.link
                    .done(round, phase, result.map_err(|error| said(&error)));
                done
            }
            Some(Event::Undo {
                round,
                in_doubt,
                reason,
            }) => {
                let result = self.undo(in_doubt);
                if let Err(error) = &result {
                    let why = restart::chain(error);
                    eprintln!("snaprig: checkpoint {round} is undone ({reason}), but: {why}");
                }
                let ended = result.as_ref().is_ok_and(|ended| *ended);
                let result = result.map(|_| String::new()).map_err(|error| said(&error));
                self.link.done(round, Phase::Undo, result);
                if ended { Done::Ended } else { Done::Nothing }
            }
            Some(Event::Finished { round, outcome }) => {
                self.round = None;
                match outcome {
                    Outcome::Complete => Done::Complete(round),
                    Outcome::Undone { .. } => Done::Nothing,
                }
            }
            Some(Event::Refused(refusal)) => {
                eprintln!("snaprig: there will be no checkpoints: {refusal}");
                Done::Nothing
            }
            Some(Event::Joined | Event::Apart { .. }) | None => Done::Nothing,
        }
    }

    fn begin(
        &mut self,
        round: u64,
        phase: Phase,
        order: &Order,
        root: pid_t,
        known: &mut Known,
        plugins: &SharedPlugins,
    ) -> Result<String> {
        if phase == Phase::Stop {
            // First of all what can fail without anybody being stopped.
            let joined = self.store.join(round)?;
            let taking = self.round.insert(Taking {
                round,
                kind: order.kind,
                joined,
                stopped: None,
                saved: None,
            });
            let directory = Some(taking.joined.dir());
            let last = |_: &mut _| Ok(());
            let stopped = Stopped::stop(root, Purpose::Job, known, plugins, directory, last)?;
            taking.stopped = Some(stopped);
            return Ok(String::new());
        }
        let runs = || Error::Job {
            what: "it runs: what is to be restarted has ended before".into(),
        };
        let taking = self
            .round
            .as_mut()
            .filter(|taking| taking.round == round)
            .ok_or_else(runs)?;
        match phase {
            Phase::Drain => {
                let board = Board {
                    member: &self.link,
                    round,
                    patience: Duration::from_millis(order.phase_ms.into()),
                };
                taking.stopped()?.meet_others(&board)?;
            }
            Phase::Freeze => taking.save(&self.name, known)?,
            Phase::Resume => drop(taking.stopped.take().map(Stopped::let_go).transpose()?),
            Phase::Write => return taking.finish(&self.name, known),
            Phase::End => {
                taking.stopped.take().map(Stopped::end);
            }
            Phase::Stop | Phase::Connect | Phase::Refill | Phase::Go | Phase::Undo => {
                return Err(runs());
            }
        }
        Ok(String::new())
    }

    /// The tree runs on; or it has ended, if its checkpoint is complete after all.
    fn undo(&mut self, in_doubt: bool) -> Result<bool> {
        let Some(mut taking) = self.round.take() else {
            return Ok(false);
        };
        let ends = in_doubt && taking.kind == Kind::Final;
        if ends && self.store.checkpoint(taking.round).is_ok() {
            taking.stopped.take().map(Stopped::end);
            return Ok(true);
        }
        let went = taking.stopped.take().map(Stopped::let_go).transpose();
        drop(taking.saved);
        if !in_doubt {
            taking.joined.discard(&self.name)?;
        }
        went.map(|_| false)
    }
}

impl Taking {
    fn stopped(&mut self) -> Result<&mut Stopped> {
        let none = || Error::Job {
            what: "the tree is not stopped".into(),
        };
        self.stopped.as_mut().ok_or_else(none)
    }

    fn save(&mut self, name: &str, known: &mut Known) -> Result<()> {
        let image = Begun::begin(&self.joined, name, &How::default(), known)?;
        self.saved = Some(image.save(self.stopped()?, known)?);
        Ok(())
    }

    /// The image is on the disk: what goes into the manifest.
    fn finish(&mut self, name: &str, known: &mut Known) -> Result<String> {
        if self.saved.is_none() {
            self.save(name, known)?;
        }
        let none = || Error::Job {
            what: "there is no image".into(),
        };
        let (_, written) = self.saved.take().ok_or_else(none)?.finish()?;
        let report = serde_json::to_string(&written.member(name));
        report.map_err(|error| Error::io("what is said of an image", std::io::Error::from(error)))
    }
}

fn said(error: &Error) -> String {
    let mark = if matches!(error, Error::NotNow(_)) {
        NOT_NOW
    } else {
        ""
    };
    format!("{mark}{}", restart::chain(error))
}
