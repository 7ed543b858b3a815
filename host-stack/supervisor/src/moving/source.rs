//! The side that a tree leaves.

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use rustix::fs::{MemfdFlags, memfd_create};
use snaprig_ckpt::dump::Purpose;
use snaprig_ckpt_image::image::{FileSink, Options as WriteOptions, Writer};
use snaprig_ckpt_plugin::phase::Span;
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
};
use snaprig_tracee::faults::reached;

use super::{
    Parts, faults,
    handover::{Ahead, Handover},
};
use crate::{
    checkpoint::{self, CheckpointOptions, History, Image, Mode, NewImage, PreparedTree, Stopped},
    plugins::{JobRound, SharedPlugins},
};

const PURPOSE: Purpose = Purpose::MovingAlong;

/// A tree that leaves.
pub struct Leaving {
    /// Where the heir waits.
    heir: PathBuf,
    handover: Option<Handover>,
    /// Its image, in memory: it is nobody's once the tree is restored.
    file: File,
    image: Image,
    ready: Option<PreparedTree>,
    stopped: Option<Stopped>,
}

impl Leaving {
    pub fn new(heir: PathBuf) -> Result<Self> {
        let memory = memfd_create("snaprig-moving", MemfdFlags::CLOEXEC);
        let memory = memory.map_err(|source| Error::io("memory for an image", source))?;
        Ok(Self {
            heir,
            handover: None,
            file: memory.into(),
            image: Image::None,
            ready: None,
            stopped: None,
        })
    }

    /// Whether the tree stands still.
    pub fn holds(&self) -> bool {
        self.stopped.is_some()
    }

    /// All that can be done while the tree runs: its memory is copied, and once more what was written to meanwhile; the
    /// heir has it.
    pub fn look(&mut self, directory: &Path, job: JobRound, parts: &mut Parts<'_>) -> Result<()> {
        let known = &mut *parts.known;
        checkpoint::look(known, PURPOSE, parts.plugins)?;
        let how = CheckpointOptions {
            mode: Mode::Background,
            is_whole: true,
            zstd: None,
        };
        let failed = |source| Error::io(super::IMAGE, source);
        let file = self.file.try_clone().map_err(failed)?;
        let begun = NewImage::begin_with(job.board.round, &how, known, |header, options| {
            let name = super::IMAGE.into();
            let options = WriteOptions { name, ..options };
            Ok(Writer::new(
                FileSink::new(file).map_err(failed)?,
                header,
                options,
            )?)
        })?;
        let mut begun = Box::new(begun);
        let result = self.ahead(&mut begun, directory, job, known, parts.plugins);
        self.image = Image::Writing(begun);
        result
    }

    fn ahead(
        &mut self,
        begun: &mut NewImage<FileSink>,
        directory: &Path,
        job: JobRound,
        known: &mut History,
        plugins: &SharedPlugins,
    ) -> Result<()> {
        let handover = self.handover.insert(Handover::connect(&self.heir)?);
        handover.wait_no_longer_than(job.board.patience)?;
        let large = begun.large();
        let is_ahead = !large.is_empty();
        if is_ahead {
            let written = begun.settle()?;
            handover.send_ahead(Ahead { large, written }, self.file.as_fd())?;
        }
        job.board.meet("copied")?;
        let ready = PreparedTree::look(PURPOSE, known, plugins, directory, Some(job), Span::Save)?;
        self.ready = Some(ready);
        begun.catch_up(known)?;
        if is_ahead {
            let (large, written) = (Vec::new(), begun.settle()?);
            handover.send_ahead(Ahead { large, written }, self.file.as_fd())?;
        }
        Ok(())
    }

    /// It stands still, and all of it is in the image.
    pub fn stop(&mut self, job: JobRound, parts: &mut Parts<'_>) -> Result<()> {
        let (Some(ready), Image::Writing(begun)) =
            (self.ready.take(), std::mem::take(&mut self.image))
        else {
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
        self.image = Image::Saved(Box::new(begun.save(stopped, parts.known)?), None);
        Ok(())
    }

    /// The heir gets all of it, and is in the job.
    pub fn hand_over(&mut self, directory: &Path, board: &Board) -> Result<()> {
        let (Some(stopped), Some(handover), Image::Saved(saved, _)) = (
            &self.stopped,
            &self.handover,
            std::mem::take(&mut self.image),
        ) else {
            return Err(super::nonsense("the tree does not stand still"));
        };
        let (_, written) = saved.finish()?;
        self.image = Image::Written(Box::new(written.next));
        let network = stopped.network()?;
        // From here on, there may be two of it if it outlives this process.
        stopped.bind()?;
        reached(&faults::SAVED);
        handover.wait_no_longer_than(board.patience)?;
        let both = (self.file.as_fd(), network.as_fd());
        handover.send(directory, both, &stopped.carried())?;
        reached(&faults::SENT);
        handover.wait_until_joined()
    }

    /// It goes on elsewhere.
    pub fn end(&mut self) {
        if let Some(stopped) = self.stopped.take() {
            reached(&faults::LEAVES);
            stopped.hand_over();
            reached(&faults::LEFT);
        }
    }

    /// It runs on here.
    pub fn stay(self, known: &mut History) -> Result<()> {
        // The heir is told by that before anything else: it has not been given the tree.
        drop(self.handover);
        let went = self.stopped.map(Stopped::let_go).transpose();
        drop(self.ready);
        self.image.undo(known);
        went.map(drop)
    }
}
