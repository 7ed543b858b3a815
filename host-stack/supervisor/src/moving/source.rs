//! The side that a tree leaves.

use std::{fs::File, os::fd::AsFd, path::Path};

use snaprig_ckpt::dump::Purpose;
use snaprig_ckpt_image::image::{Options as WriteOptions, Sink, Writer};
use snaprig_ckpt_plugin::phase::Span;
use snaprig_resources::{board::Board, error::Result, opened::raise_limit};
use snaprig_tracee::faults::reached;

use super::{
    Note, Parts, faults,
    handover::{Ahead, Fds, Handover},
    postcopy::feeder::Feeder,
};
use crate::{
    checkpoint::{self, CheckpointOptions, History, Image, Mode, NewImage, PreparedTree, Stopped},
    plugins::{JobRound, SharedPlugins},
};

const PURPOSE: Purpose = Purpose::MovingAlong;

/// A tree that leaves.
pub struct Leaving {
    /// Where the heir waits, and how it gets the image.
    note: Note,
    handover: Option<Handover>,
    /// Its image, where that is in memory of this machine: it is nobody's once the tree is restored.
    memory: Option<File>,
    image: Image<Box<dyn Sink>>,
    /// Memory that the tree does not wait for.
    feeder: Option<Feeder>,
    /// What its heir was told of, and has not said yet that it has read.
    told: u32,
    ready: Option<PreparedTree>,
    stopped: Option<Stopped>,
}

impl Leaving {
    pub fn new(note: Note) -> Self {
        Self {
            note,
            handover: None,
            memory: None,
            image: Image::None,
            feeder: None,
            told: 0,
            ready: None,
            stopped: None,
        }
    }

    /// Whether the tree stands still.
    pub fn holds(&self) -> bool {
        self.stopped.is_some()
    }

    /// All that can be done while the tree runs: its memory is copied, and once more what was written to meanwhile; the
    /// heir has it.
    pub fn look(&mut self, directory: &Path, job: JobRound, parts: &mut Parts<'_>) -> Result<()> {
        raise_limit(super::FILES_MAX);
        let known = &mut *parts.known;
        checkpoint::look(known, PURPOSE, parts.plugins)?;
        let way = &self.note.way;
        let mode = match way.is_ahead() {
            true => Mode::Background,
            false => Mode::Full,
        };
        let how = CheckpointOptions {
            mode,
            is_whole: true,
            zstd: way.zstd(),
        };
        let opened = way.open()?;
        self.memory = opened.memory;
        let begun = NewImage::begin_with(job.board.round, &how, known, |header, options| {
            let options = WriteOptions {
                name: super::IMAGE.into(),
                buffers: way.buffers_max().min(options.buffers),
                zstd_if_faster: true,
                ..options
            };
            Ok(Writer::new(opened.sink, header, options)?)
        })?;
        let mut begun = Box::new(begun);
        let result = self.ahead(&mut begun, directory, job, known, parts.plugins);
        self.image = Image::Writing(begun);
        result
    }

    fn ahead(
        &mut self,
        begun: &mut NewImage<Box<dyn Sink>>,
        directory: &Path,
        job: JobRound,
        known: &mut History,
        plugins: &SharedPlugins,
    ) -> Result<()> {
        let handover = self.handover.insert(Handover::connect(&self.note.heir)?);
        let memory = self.memory.as_ref().map(AsFd::as_fd);
        handover.wait_no_longer_than(job.board.patience)?;
        let is_ahead = begun.is_ahead();
        // Its heir reads what comes from then on; here nobody waits for it but where all of it is to be there.
        let is_read = |begun: &mut NewImage<_>, large| {
            let written = Some(begun.settle()?);
            let ahead = Ahead {
                large,
                present: Vec::new(),
                written,
                defers: false,
            };
            handover.send_ahead(ahead, memory)?;
            handover.wait_until_read()
        };
        if is_ahead {
            let large = begun.large();
            is_read(begun, large)?;
            begun.copy_ahead(known)?;
            is_read(begun, Vec::new())?;
        } else if self.note.way.is_read_at_once() && !self.note.way.defers() {
            // It makes room meanwhile.
            let large = begun.large();
            let ahead = Ahead {
                present: begun.present(&large),
                large,
                written: Some(0),
                defers: false,
            };
            handover.send_ahead(ahead, memory)?;
            self.told += 1;
        }
        job.board.meet("copied")?;
        let ready = PreparedTree::look(PURPOSE, known, plugins, directory, Some(job), Span::Save)?;
        self.ready = Some(ready);
        if is_ahead {
            begun.catch_up(known)?;
            is_read(begun, Vec::new())?;
        }
        Ok(())
    }

    /// It stands still, and all of it is in the image.
    pub fn stop(&mut self, job: JobRound, parts: &mut Parts<'_>) -> Result<()> {
        let (Some(ready), Some(handover), Image::Writing(mut begun)) = (
            self.ready.take(),
            &self.handover,
            std::mem::take(&mut self.image),
        ) else {
            return Err(super::nonsense("nobody has looked at the tree"));
        };
        let stopped = match ready.stop(parts.root, parts.known, Some(job)) {
            Ok(stopped) => stopped,
            Err(error) => {
                begun.abandon(parts.known);
                return Err(error);
            }
        };
        let stopped = self.stopped.insert(stopped);
        let is_read_at_once = self.note.way.is_read_at_once();
        if is_read_at_once || begun.is_ahead() {
            let defers = self.note.way.defers();
            let ahead = Ahead {
                large: match defers {
                    // What follows is put where it belongs at once.
                    true => Vec::new(),
                    false => begun.large_of(stopped),
                },
                present: Vec::new(),
                written: (!is_read_at_once).then_some(0),
                defers,
            };
            let memory = self.memory.as_ref().map(AsFd::as_fd);
            handover.send_ahead(ahead, memory)?;
            self.told += 1;
        }
        if self.note.way.defers() {
            let (saved, deferred) = begun.save_deferring(stopped, parts.known)?;
            self.feeder = Some(Feeder::start(saved, deferred)?);
        } else {
            self.image = Image::Saved(Box::new(begun.save(stopped, parts.known)?), None);
        }
        reached(&faults::SENDING);
        Ok(())
    }

    /// The heir gets all of it, and is in the job.
    pub fn hand_over(&mut self, directory: &Path, board: &Board) -> Result<()> {
        let (Some(stopped), Some(handover)) = (&self.stopped, &self.handover) else {
            return Err(super::nonsense("the tree does not stand still"));
        };
        if let Image::Saved(saved, _) = std::mem::take(&mut self.image) {
            let (_, written) = saved.finish()?;
            self.image = Image::Written(Box::new(written.next));
        }
        self.note.way.arrive()?;
        for _ in 0..self.told {
            handover.wait_until_read()?;
        }
        let network = stopped.network()?;
        // From here on, there may be two of it if it outlives this process.
        stopped.bind()?;
        reached(&faults::SAVED);
        handover.wait_no_longer_than(board.patience)?;
        if let Some(feeder) = &self.feeder {
            handover.send_follows(feeder.follows())?;
        }
        let fds = Fds {
            image: self.memory.as_ref().map(AsFd::as_fd),
            network: network.as_fd(),
            questions: self.feeder.as_ref().map(Feeder::theirs),
        };
        handover.send(directory, &fds, &stopped.carried())?;
        reached(&faults::SENT);
        handover.wait_until_joined()
    }

    /// It goes on elsewhere; an error: not all of its memory has got there.
    pub fn end(&mut self) -> Result<()> {
        // Whatever comes of it, the tree is not this side's any more.
        let followed = self.feeder.take().map(Feeder::wait).transpose();
        self.note.way.clean_up();
        if let Some(stopped) = self.stopped.take() {
            reached(&faults::LEAVES);
            stopped.hand_over();
            reached(&faults::LEFT);
        }
        followed.map(drop)
    }

    /// It runs on here.
    pub fn stay(self, known: &mut History) -> Result<()> {
        self.note.way.clean_up();
        // The heir is told by that before anything else: it has not been given the tree.
        drop(self.handover);
        // What is under way of it ends by that, and by the heir's end.
        drop(self.feeder);
        let went = self.stopped.map(Stopped::let_go).transpose();
        drop(self.ready);
        self.image.undo(known);
        went.map(drop)
    }
}
