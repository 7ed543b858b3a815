//! A tree's part in the rounds of its job: what the coordinator says, done.
//!
//! What must stay true: whatever fails, and whoever dies, a tree that was stopped for a round that is not committed runs
//! on, as soon as this supervisor hears of it.

use crate::{
    checkpoint::{self, CheckpointOptions, History, Image, NewImage, PreparedTree, Stopped},
    faults,
    job::{Job, Note, Report},
    moving::{self, Moving},
    plugins::{JobRound, SharedPlugins},
};
use snaprig_resources::error::chain;
use snaprig_tracee::faults::{begin_round, reached};
use std::time::Duration;

use libc::pid_t;
use snaprig_ckpt::dump::{self, Purpose};
use snaprig_ckpt_image::store::{Joined, Store};
use snaprig_ckpt_plugin::phase::Span;
use snaprig_coord::{
    driver,
    member::Event,
    message::{NOT_NOW, Outcome},
    phase::{Kind, Order, Phase},
};
use snaprig_resources::event::{self, Reporter};
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
};

/// A member of a job, as its supervisor has it.
pub struct Member {
    pub name: String,
    pub link: driver::Member,
    store: Store,
    round: Option<RoundInProgress>,
    moving: Option<Moving>,
    reporter: Reporter,
}

/// A checkpoint that is being taken.
struct RoundInProgress {
    round: u64,
    kind: Kind,
    joined: Joined,
    image: Image,
    ready: Option<PreparedTree>,
    stopped: Option<Stopped>,
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
    /// The tree has ended here, and goes on elsewhere.
    Moved,
}

impl Member {
    /// Joins a job.
    pub fn join(job: &Job, name: &str) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            link: job.join(name)?,
            store: job.store()?,
            round: None,
            moving: None,
            reporter: job.reporter.clone(),
        })
    }

    /// The member that has come by this connection with a tree that was another one's.
    pub fn inherited(job: &Job, name: &str, link: driver::Member) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            link,
            store: job.store()?,
            round: None,
            moving: None,
            reporter: job.reporter.clone(),
        })
    }

    /// Whether the tree stands still.
    pub fn holds(&self) -> bool {
        let taking = self.round.as_ref();
        taking.is_some_and(|taking| taking.stopped.is_some())
            || self.moving.as_ref().is_some_and(Moving::holds)
    }

    /// The tree has ended: it is no member any more.
    pub fn leave(mut self) {
        // What is written may be part of a checkpoint.
        let undone = self.round.take();
        let undone = undone.filter(|taking| !matches!(taking.image, Image::Written(_)));
        if let Some(taking) = undone {
            // What cannot be removed is when the next round is committed.
            let _ = taking.joined.discard(&self.name);
        }
        self.link.leave();
    }

    /// Does what the coordinator says next, if it has said something.
    pub fn next(&mut self, root: pid_t, known: &mut History, plugins: &SharedPlugins) -> Done {
        match self.link.next_event(Some(Duration::ZERO)) {
            Some(Event::Begin {
                round,
                phase,
                order,
            }) if order.kind == Kind::Move => {
                let result = self.moves(round, phase, &order, root, known, plugins);
                let gone = matches!(result, Ok(true));
                let result = result.map(|_| String::new()).map_err(|error| said(&error));
                self.link.done(round, phase, result);
                if gone { Done::Moved } else { Done::Nothing }
            }
            Some(Event::Finished { .. }) if self.moving.is_some() => {
                self.moving = None;
                Done::Nothing
            }
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
                let (result, end) = match self.moving.take() {
                    Some(moving) => {
                        let mut parts = self.parts(root, known, plugins);
                        (moving.undo(in_doubt, &mut parts), Done::Moved)
                    }
                    None => (self.undo(in_doubt, known), Done::Ended),
                };
                if let Err(error) = &result {
                    let why = chain(error);
                    self.reporter
                        .tell(event::Event::NotUndone { round, reason, why });
                }
                let ended = result.as_ref().is_ok_and(|ended| *ended);
                let result = result.map(|_| String::new()).map_err(|error| said(&error));
                self.link.done(round, Phase::Undo, result);
                if ended { end } else { Done::Nothing }
            }
            Some(Event::Finished { round, outcome }) => {
                let taking = self.round.take().filter(|taking| taking.round == round);
                match (outcome, taking.map(|taking| taking.image)) {
                    (Outcome::Complete, image) => {
                        if let Some(Image::Written(next)) = image {
                            known.keep(*next);
                        }
                        Done::Complete(round)
                    }
                    (Outcome::Undone { .. }, _) => Done::Nothing,
                }
            }
            Some(Event::Refused(refusal)) => {
                let why = refusal.to_string();
                self.reporter.tell(event::Event::MemberRefused { why });
                Done::Nothing
            }
            Some(Event::Joined | Event::Apart { .. }) | None => Done::Nothing,
        }
    }

    /// Does a phase of a move; whether the tree is gone.
    fn moves(
        &mut self,
        round: u64,
        phase: Phase,
        order: &Order,
        root: pid_t,
        known: &mut History,
        plugins: &SharedPlugins,
    ) -> Result<bool> {
        if phase == Phase::Look {
            self.moving = Some(Moving::new(&self.name, round, order, &self.store)?);
        }
        let none = || Error::Job {
            what: "there is no move".into(),
        };
        let mut moving = self.moving.take().ok_or_else(none)?;
        let result = moving.phase(phase, order, &mut self.parts(root, known, plugins));
        self.moving = Some(moving);
        result
    }

    fn parts<'a>(
        &'a self,
        root: pid_t,
        known: &'a mut History,
        plugins: &'a SharedPlugins,
    ) -> moving::Parts<'a> {
        moving::Parts {
            link: &self.link,
            name: &self.name,
            root,
            known,
            plugins,
        }
    }

    fn begin(
        &mut self,
        round: u64,
        phase: Phase,
        order: &Order,
        root: pid_t,
        known: &mut History,
        plugins: &SharedPlugins,
    ) -> Result<String> {
        let board = Board {
            member: &self.link,
            round,
            patience: Duration::from_millis(order.phase_ms.into()),
        };
        if phase == Phase::Look {
            begin_round();
            reached(&faults::BEGUN);
            let taking = self.round.insert(RoundInProgress {
                round,
                kind: order.kind,
                joined: self.store.join(round)?,
                image: Image::None,
                ready: None,
                stopped: None,
            });
            let note = Note::of(order)?;
            known.only_on(note.base);
            known.check(&self.store, &self.name);
            taking.look(&self.name, &note, known, plugins, &board)?;
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
            Phase::Stop => {
                let ready = taking.ready.take().ok_or_else(runs)?;
                let job = JobRound {
                    member: &self.name,
                    board: &board,
                };
                taking.stopped = Some(ready.stop(root, known, Some(job))?);
            }
            Phase::Drain => taking.stopped()?.meet_others(&board)?,
            Phase::Freeze => taking.save(known)?,
            Phase::Resume => drop(taking.stopped.take().map(Stopped::let_go).transpose()?),
            Phase::Write => return taking.finish(&self.name, known, plugins),
            Phase::End => {
                taking.stopped.take().map(Stopped::end);
            }
            Phase::Look | Phase::Connect | Phase::Refill | Phase::Go | Phase::Undo => {
                return Err(runs());
            }
        }
        Ok(String::new())
    }

    /// The tree runs on; or it has ended, if its checkpoint is complete after all.
    fn undo(&mut self, in_doubt: bool, known: &mut History) -> Result<bool> {
        let Some(mut taking) = self.round.take() else {
            return Ok(false);
        };
        let ends = in_doubt && taking.kind == Kind::Final;
        if ends && self.store.checkpoint(taking.round).is_ok() {
            taking.stopped.take().map(Stopped::end);
            return Ok(true);
        }
        let went = taking.stopped.take().map(Stopped::let_go).transpose();
        drop(taking.ready);
        // If it is in doubt as well: the next order names the round that there is.
        taking.image.undo(known);
        if !in_doubt {
            taking.joined.discard(&self.name)?;
        }
        went.map(|_| false)
    }
}

impl RoundInProgress {
    fn stopped(&mut self) -> Result<&mut Stopped> {
        let none = || Error::Job {
            what: "the tree is not stopped".into(),
        };
        self.stopped.as_mut().ok_or_else(none)
    }

    /// All that can be done while the tree runs.
    fn look(
        &mut self,
        name: &str,
        note: &Note,
        known: &mut History,
        plugins: &SharedPlugins,
        board: &Board,
    ) -> Result<()> {
        checkpoint::look(known, Purpose::Job, plugins)?;
        dump::refuse_outside_peers(board, plugins.borrow().are_none())?;
        let how = CheckpointOptions {
            mode: note.mode,
            is_whole: note.is_whole,
            zstd: note.zstd,
        };
        let begun = NewImage::begin(&self.joined, name, &how, known)?;
        let mut begun = Box::new(begun);
        let result = board.meet("copied").and_then(|()| {
            let job = JobRound {
                member: name,
                board,
            };
            let (directory, job) = (self.joined.dir(), Some(job));
            // Others wait in Quiesce, for all to be there.
            let span = match self.kind {
                Kind::Background => Span::SaveToResume,
                _ => Span::Save,
            };
            self.ready = Some(PreparedTree::look(
                Purpose::Job,
                known,
                plugins,
                directory,
                job,
                span,
            )?);
            begun.catch_up(known)
        });
        self.image = Image::Writing(begun);
        result
    }

    fn save(&mut self, known: &mut History) -> Result<()> {
        let Image::Writing(begun) = std::mem::take(&mut self.image) else {
            return Err(no_image());
        };
        let parent = begun.parent();
        let saved = begun.save(self.stopped()?, known)?;
        self.image = Image::Saved(Box::new(saved), parent);
        Ok(())
    }

    /// The image is on the disk: what goes into the manifest.
    fn finish(
        &mut self,
        name: &str,
        known: &mut History,
        plugins: &SharedPlugins,
    ) -> Result<String> {
        if let Image::Writing(_) = self.image {
            self.save(known)?;
        }
        let Image::Saved(saved, parent) = std::mem::take(&mut self.image) else {
            return Err(no_image());
        };
        let (_, written) = saved.finish()?;
        let image = written.member(name);
        self.image = Image::Written(Box::new(written.next));
        if self.kind == Kind::Background {
            plugins.borrow_mut().finish()?;
        }
        let report = serde_json::to_string(&Report { image, parent });
        report.map_err(|error| Error::io("what is said of an image", std::io::Error::from(error)))
    }
}

fn no_image() -> Error {
    Error::Job {
        what: "there is no image".into(),
    }
}

fn said(error: &Error) -> String {
    let mark = if matches!(error, Error::NotNow(_)) {
        NOT_NOW
    } else {
        ""
    };
    format!("{mark}{}", chain(error))
}
