//! One checkpoint of a tree, step by step.
//!
//! ```text
//! begin:    an image, whole or an increment; in the background (`precopy`), most of it is copied now, while the tree runs
//! stop:     look --> plugins --> catch up --> freeze --> describe    (where it cannot be saved, it runs on for a moment)
//! meet:     connections to other trees         (of a job, when all of them stand still)
//! save:     state and pages into the image     (the tree stands still)
//! let go:   the tree runs on; the disk may lag
//! finish:   trailer, fsync                     (of all members; then their round is committed)
//! keep:     what the next increment builds on
//! ```
//! What must stay true: dropped at any step, the tree runs on as it was, and its next image is a whole one; or, where it
//! is abandoned by name, one that builds on what it would have built on, and lacks nothing that was seen for this one.

use std::{
    fs::File,
    ops::Range,
    os::fd::BorrowedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    faults,
    plugins::{JobRound, ReadyPlugins, SharedPlugins},
    precopy::{self, Piece, Precopy, Present},
};
use libc::pid_t;
use serde::{Deserialize, Serialize};
use snaprig_ckpt::dump::{self, Deferred, Described, Named, Purpose, Saving, Survey};
use snaprig_ckpt_image::{
    image::{FileSink, Header, ImageId, Options as WriteOptions, Sink, Summary, Writer},
    store::{Joined, Member, Store},
};
use snaprig_ckpt_plugin::phase::Span;
use snaprig_resources::event::{Event, Reporter};
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
    opened::Item,
    plugins::owned::Owned,
    spaces::{Key, Spaces},
};
use snaprig_tracee::faults::reached;
use snaprig_tracee::{
    freeze::{Calls, Frozen},
    track::Tracking,
};

/// How often a tree is looked at again that is where it cannot be saved for a moment, and how long it runs in between.
const TRIES_MAX: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);
/// Buffers of 4 MiB that are filled before the disk has to keep up.
const BUFFERS: usize = 64;
/// Images of a chain; then there is a whole one again. A restart reads all of them, and is as slow as they are many.
const CHAIN: usize = 16;

/// What a checkpoint has of a tree's memory, and when it is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// All of it, while the tree stands still. Nothing is slower between checkpoints.
    #[default]
    Full,
    /// What was written to since the last one. A page's first write after a checkpoint takes a fault.
    Incremental,
    /// The same, most of it copied while the tree runs.
    Background,
}

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointOptions {
    /// What it has, and when that is copied.
    pub mode: Mode,
    /// Whatever the mode, it builds on no other.
    pub is_whole: bool,
    /// Compressed with zstd, at this level.
    pub zstd: Option<i32>,
}

impl CheckpointOptions {
    /// When plugins may be at work on what they save of a tree that is alone, and may end with it.
    pub fn span(&self, ends: bool) -> Span {
        match (ends, self.mode) {
            (true, _) => Span::Save,
            (false, Mode::Background) => Span::QuiesceToResume,
            (false, _) => Span::SaveToResume,
        }
    }
}

/// How long a tree stood still, and for what.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Pause {
    /// Before all of it, while it ran: until its plugins had taken down what they have.
    pub plugins: Duration,
    /// Before the checkpoint proper: to track writes, and to have calls end while memory is copied in the background.
    pub ahead: Duration,
    /// To stop all of its threads.
    pub freeze: Duration,
    /// To describe what is not memory.
    pub describe: Duration,
    /// To find the pages that are to be copied.
    pub scan: Duration,
    /// To copy them.
    pub copy: Duration,
    /// In all, to the end of the last stop.
    pub all: Duration,
}

/// What is kept from one checkpoint of a tree to the next.
#[derive(Default)]
pub struct History {
    pub named: Named,
    pub calls: Calls,
    pub tracking: Tracking,
    /// The tree was restarted in an IPC namespace of its own.
    pub has_own_ipc: bool,
    lineage: Option<Lineage>,
    reporter: Reporter,
}

impl History {
    /// None yet.
    pub fn new(reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..Self::default()
        }
    }

    /// Says why writes cannot be tracked, if that has just been found out.
    pub fn report_tracking(&mut self) {
        if let Some(source) = self.tracking.take_reason() {
            self.reporter.tell(Event::WritesUntracked { source });
        }
    }

    /// A checkpoint is complete: the next increment builds on it.
    pub fn keep(&mut self, next: Next) {
        self.lineage = next.after;
    }

    /// A checkpoint is not: the next increment builds on what was there before it.
    pub fn undone(&mut self, next: Next) {
        self.abandoned(next.before, next.after.map(|after| after.spaces));
    }

    fn abandoned(&mut self, before: Option<Lineage>, attempt: Option<Spaces>) {
        self.lineage = before.zip(attempt).map(|(before, attempt)| Lineage {
            spaces: before.spaces.undone(&attempt),
            ..before
        });
    }

    /// If the chain of a member is not there any more, none builds on it.
    pub fn check(&mut self, store: &Store, member: &str) {
        let is_there = |lineage: &Lineage| {
            let checkpoint = store.checkpoint(lineage.round);
            checkpoint.and_then(|it| it.chain(member)).is_ok()
        };
        self.lineage = self.lineage.take().filter(is_there);
    }

    /// None builds on any other round than this one.
    pub fn only_on(&mut self, round: Option<u64>) {
        self.lineage = self.lineage.take().filter(|it| Some(it.round) == round);
    }
}

/// The chain that the next increment builds on.
#[derive(Clone)]
struct Lineage {
    newest: ImageId,
    round: u64,
    images: usize,
    spaces: Spaces,
}

/// What the next increment builds on, whether an image becomes part of the chain or not.
pub struct Next {
    /// If it does; none: the next is a whole one.
    after: Option<Lineage>,
    before: Option<Lineage>,
}

/// An image that is being written.
pub struct NewImage<S: Sink> {
    writer: Writer<S>,
    round: u64,
    /// The round that it builds on, and how many images it does.
    parent: Option<u64>,
    images: usize,
    spaces: Spaces,
    /// What the next one builds on if this one is abandoned.
    before: Option<Lineage>,
    is_tracking: bool,
    /// Most of it is copied while the tree runs.
    is_ahead: bool,
    precopy: Precopy,
}

impl NewImage<FileSink> {
    /// The image of a member of a round.
    pub fn begin(
        round: &Joined,
        member: &str,
        how: &CheckpointOptions,
        known: &mut History,
    ) -> Result<Self> {
        let mut begun = Self::begin_with(round.round(), how, known, |header, options| {
            Ok(round.image(member, header, options)?)
        })?;
        begun.copy_ahead(known)?;
        Ok(begun)
    }
}

impl<S: Sink> NewImage<S> {
    /// An image that `start` makes. Nothing is in it yet.
    pub fn begin_with(
        round: u64,
        how: &CheckpointOptions,
        known: &mut History,
        start: impl FnOnce(&Header, WriteOptions) -> Result<Writer<S>>,
    ) -> Result<Self> {
        // Unless it is abandoned by name, none builds on what was before this image.
        let mut lineage = known.lineage.take();
        if let Some(lineage) = &mut lineage {
            lineage.spaces.begin();
        }
        let before = lineage.clone();
        let is_tracking = how.mode != Mode::Full && known.tracking.is_possible();
        let lineage = lineage.filter(|it| is_tracking && !how.is_whole && it.images < CHAIN);
        let header = Header {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            page_bytes: 4096,
            round,
            parent: lineage.as_ref().map(|lineage| lineage.newest),
            ..Header::default()
        };
        let options = WriteOptions {
            buffers: BUFFERS,
            zstd: how.zstd,
            ..WriteOptions::new("image")
        };
        Ok(Self {
            writer: start(&header, options)?,
            round,
            parent: lineage.as_ref().map(|lineage| lineage.round),
            images: lineage.as_ref().map_or(1, |lineage| lineage.images + 1),
            spaces: lineage.map(|lineage| lineage.spaces).unwrap_or_default(),
            before,
            is_tracking,
            is_ahead: is_tracking && how.mode == Mode::Background,
            precopy: Precopy::default(),
        })
    }

    /// Whether memory is to be copied while the tree runs.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Copies memory while the tree runs, if it is to be.
    pub fn copy_ahead(&mut self, known: &mut History) -> Result<()> {
        if self.is_ahead {
            self.precopy = precopy::copy(known, &mut self.spaces, &mut self.writer)?;
        }
        Ok(())
    }

    /// The round that it builds on.
    pub fn parent(&self) -> Option<u64> {
        self.parent
    }

    /// The image is not to be.
    pub fn abandon(self, known: &mut History) {
        known.abandoned(self.before, Some(self.spaces));
    }

    /// The tree's largest memory.
    pub fn large(&mut self) -> Vec<Piece> {
        precopy::large(&mut self.spaces)
    }

    /// What of that is there.
    pub fn present(&mut self, large: &[Piece]) -> Vec<Present> {
        precopy::present(&mut self.spaces, large)
    }

    /// The largest memory of a tree that stands still.
    pub fn large_of(&mut self, stopped: &Stopped) -> Vec<Piece> {
        let mut large = Vec::new();
        let processes = &stopped.described.tree.processes;
        for (held, process) in stopped.frozen.processes.iter().zip(processes) {
            let Some(body) = &process.body else { continue };
            let areas = body.areas.iter().filter(|area| area.is_own());
            let areas = areas.map(|area| (area.start..area.end, area.flags.contains(b"nr")));
            let space = self.spaces.meet(Key::Process(held.pid)).number();
            large.extend(precopy::pieces(space, areas));
        }
        precopy::largest(large)
    }

    /// The sink has all that was copied; how many bytes it has.
    pub fn settle(&mut self) -> Result<u64> {
        self.writer.settle(0)?;
        Ok(self.writer.written())
    }

    /// Copies what was written to since most of it was copied, if it was: while the tree runs.
    pub fn catch_up(&mut self, known: &mut History) -> Result<()> {
        match self.precopy.passes {
            0 => Ok(()),
            _ => precopy::pass(known, &mut self.spaces, &mut self.writer, &mut self.precopy)
                .map(drop),
        }
    }

    /// Writes what is left of the pages, and the state. All bytes have been read when it returns: who goes on need not
    /// wait for the disk.
    pub fn save(self, stopped: &mut Stopped, known: &mut History) -> Result<Saved<S>> {
        let defer = |_: &Described, _: &mut [Saving]| Vec::new();
        Ok(self.save_but(defer, stopped, known)?.0)
    }

    /// The same, but for the pages that can wait: they are to be [written](Saved::write_deferred) later.
    pub fn save_deferring(
        self,
        stopped: &mut Stopped,
        known: &mut History,
    ) -> Result<(Saved<S>, Vec<Deferred>)> {
        self.save_but(dump::defer, stopped, known)
    }

    fn save_but(
        mut self,
        defer: impl FnOnce(&Described, &mut [Saving]) -> Vec<Deferred>,
        stopped: &mut Stopped,
        known: &mut History,
    ) -> Result<(Saved<S>, Vec<Deferred>)> {
        let written = self.write(defer, stopped, known);
        let (left, deferred) = written.map_err(|error| match stopped.frozen.lost() {
            Some(pid) => Error::Killed { pid },
            None => error,
        })?;
        reached(&faults::WRITTEN);
        let is_tracked = self.is_tracking && known.tracking.is_possible();
        let saved = Saved {
            writer: self.writer,
            round: self.round,
            images: self.images,
            spaces: is_tracked.then_some(self.spaces),
            before: self.before,
            copied: Copied {
                ahead: self.precopy.bytes,
                passes: self.precopy.passes,
                stopped: left,
            },
        };
        Ok((saved, deferred))
    }
}

impl<S: Sink> NewImage<S> {
    /// How many bytes of private memory were left, and what is left for later.
    fn write(
        &mut self,
        defer: impl FnOnce(&Described, &mut [Saving]) -> Vec<Deferred>,
        stopped: &mut Stopped,
        known: &mut History,
    ) -> Result<(u64, Vec<Deferred>)> {
        let Stopped {
            described,
            frozen,
            pause,
            ..
        } = stopped;
        let begun = Instant::now();
        described.number(&mut self.spaces)?;
        let tracking = self.is_tracking.then_some(&mut known.tracking);
        let mut saving = dump::look(described, frozen, tracking, &mut self.spaces)?;
        known.report_tracking();
        let looked = Instant::now();
        let deferred = defer(described, &mut saving);
        let left = saving.iter().map(Saving::bytes).sum();
        dump::write(described, saving, &mut self.spaces, &mut self.writer)?;
        (pause.scan, pause.copy) = (looked - begun, looked.elapsed());
        pause.ahead = self.precopy.stopped;
        Ok((left, deferred))
    }
}

/// Refuses what cannot be saved before memory is copied. What plugins have, they say when they are asked.
pub fn look(known: &mut History, purpose: Purpose, plugins: &SharedPlugins) -> Result<()> {
    if plugins.borrow().are_none() {
        let purpose = (purpose, known.has_own_ipc);
        return match Survey::look(purpose, &mut known.named, &Owned::default()) {
            // When it is stopped it is looked at again.
            Err(Error::NotNow(_)) => Ok(()),
            looked => looked.map(drop),
        };
    }
    Ok(())
}

/// A tree that runs, when all has been found out that can be before it stands still. Dropped, it runs on.
pub struct PreparedTree {
    before: Survey,
    gathered: ReadyPlugins,
    plugins: Duration,
}

impl PreparedTree {
    /// Looks at the descendants of this process; what their plugins have to save is in the round's directory then, or where the
    /// `span` goes beyond saving, when they have [finished](crate::plugins::Plugins::finish).
    pub fn look(
        purpose: Purpose,
        known: &mut History,
        plugins: &SharedPlugins,
        directory: &Path,
        job: Option<JobRound>,
        span: Span,
    ) -> Result<Self> {
        let mut tries = 0;
        let begun = Instant::now();
        let gathered = ReadyPlugins::of(plugins, directory, job, span)?;
        let plugins = begun.elapsed();
        let before = loop {
            let purpose = (purpose, known.has_own_ipc);
            match Survey::look(purpose, &mut known.named, &gathered.owned()) {
                Err(Error::NotNow(_)) if tries < TRIES_MAX => tries += 1,
                looked => break looked?,
            }
            thread::sleep(BETWEEN_TRIES);
        };
        Ok(Self {
            before,
            gathered,
            plugins,
        })
    }

    /// Stops it; `root` is its first process.
    pub fn stop(self, root: pid_t, known: &mut History, job: Option<JobRound>) -> Result<Stopped> {
        let Self {
            before,
            mut gathered,
            plugins,
        } = self;
        let mut tries = 0;
        loop {
            let since = Instant::now();
            let mut frozen = Frozen::freeze(&mut known.calls)?;
            let held = Instant::now();
            match describe(&mut frozen, root, &before, known, &gathered) {
                Ok(described) => {
                    reached(&faults::DESCRIBED);
                    let pause = Pause {
                        plugins,
                        freeze: held - since,
                        describe: held.elapsed(),
                        ..Pause::default()
                    };
                    return Ok(Stopped {
                        since,
                        described,
                        frozen,
                        gathered,
                        pause,
                    });
                }
                // The tree runs on for a moment, and gets past what is in the way.
                Err(Error::NotNow(_)) if tries < TRIES_MAX => frozen.let_go()?,
                // What is left of the tree is a tree as well.
                Err(_) if tries < TRIES_MAX && frozen.lost().is_some() => frozen.let_go()?,
                Err(error) => return Err(error),
            }
            tries += 1;
            thread::sleep(BETWEEN_TRIES);
            gathered = gathered.again(job)?;
        }
    }
}

/// A tree that stands still, and is described.
pub struct Stopped {
    since: Instant,
    described: Described,
    frozen: Frozen,
    gathered: ReadyPlugins,
    pause: Pause,
}

impl Stopped {
    /// Stops the descendants of this process, of which `root` is the first; what their plugins have to save is in the
    /// round's directory then, as in [`PreparedTree::look`]. `last` is done while they still run, when all that takes long has
    /// been done.
    pub fn stop(
        root: pid_t,
        purpose: Purpose,
        known: &mut History,
        plugins: &SharedPlugins,
        (directory, span): (&Path, Span),
        last: impl FnOnce(&mut History) -> Result<()>,
    ) -> Result<Self> {
        let ready = PreparedTree::look(purpose, known, plugins, directory, None, span)?;
        last(known)?;
        ready.stop(root, known, None)
    }

    /// When it was stopped.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// From now on, the tree ends if this process does, until it is let go: it migrates.
    pub fn bind(&self) -> Result<()> {
        Ok(self.frozen.bind()?)
    }

    /// The tree is in no job: connections to others are refused.
    pub fn alone(mut self) -> Result<Self> {
        self.described.alone()?;
        Ok(self)
    }

    /// All trees of the job stand still: connections between them are described.
    pub fn meet_others(&mut self, board: &Board) -> Result<()> {
        self.described.meet_others(board)
    }

    /// The tree runs on.
    pub fn let_go(self) -> Result<Pause> {
        // Copies of descriptors would keep what the tree closes.
        drop(self.described);
        self.frozen.let_go()?;
        let pause = ended(self.pause, self.since);
        drop(self.gathered);
        Ok(pause)
    }

    /// The network namespace that it is in.
    pub fn network(&self) -> Result<File> {
        let first = self.frozen.processes.first().map_or(0, |first| first.pid);
        let path = format!("/proc/{first}/ns/net");
        File::open(&path).map_err(|source| Error::io(path, source))
    }

    /// What goes along with it as it is.
    pub fn carried(&self) -> Vec<(Item, BorrowedFd<'_>)> {
        self.described.carried()
    }

    /// The tree ends, for it goes on elsewhere, with what it has carried along.
    pub fn hand_over(self) -> Pause {
        self.described.forget_locks(&self.frozen);
        self.end()
    }

    /// The tree ends, for its checkpoint is complete.
    pub fn end(mut self) -> Pause {
        self.described.abandon();
        // Copies of descriptors would keep connections until they are closed.
        self.frozen.kill();
        drop(self.described);
        self.gathered.forget();
        ended(self.pause, self.since)
    }
}

fn describe(
    frozen: &mut Frozen,
    root: pid_t,
    before: &Survey,
    known: &mut History,
    gathered: &ReadyPlugins,
) -> Result<Described> {
    if !gathered.is_all() {
        return Err(Error::refused(root, "its plugins come and go").for_now());
    }
    dump::describe(frozen, root, before, &mut known.named, &gathered.owned())
}

fn ended(pause: Pause, since: Instant) -> Pause {
    Pause {
        all: pause.ahead + since.elapsed(),
        ..pause
    }
}

/// How memory was copied.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Copied {
    /// Bytes while the tree ran.
    pub ahead: u64,
    /// Times that memory was looked at for it.
    pub passes: u32,
    /// Bytes of private memory while it stood still.
    pub stopped: u64,
}

/// An image whose bytes may still be on their way to the disk.
pub struct Saved<S: Sink> {
    writer: Writer<S>,
    round: u64,
    images: usize,
    /// None: nothing is tracked.
    spaces: Option<Spaces>,
    before: Option<Lineage>,
    copied: Copied,
}

/// How far the image of a member is.
#[derive(Default)]
pub enum Image<S: Sink = FileSink> {
    #[default]
    None,
    Writing(Box<NewImage<S>>),
    /// And the round that it builds on.
    Saved(Box<Saved<S>>, Option<u64>),
    Written(Box<Next>),
}

impl<S: Sink> Image<S> {
    /// It is not to be.
    pub fn undo(self, known: &mut History) {
        match self {
            Self::None => {}
            Self::Writing(begun) => begun.abandon(known),
            Self::Saved(saved, _) => saved.abandon(known),
            Self::Written(next) => known.undone(*next),
        }
    }
}

/// An image that is where it belongs.
pub struct Written {
    /// What it is.
    pub summary: Summary,
    /// How its pages were copied.
    pub copied: Copied,
    /// What the next one builds on.
    pub next: Next,
}

impl<S: Sink> Saved<S> {
    /// The image is not to be.
    pub fn abandon(self, known: &mut History) {
        known.abandoned(self.before, self.spaces);
    }

    /// Writes some of the pages that were left for later.
    pub fn write_deferred(&mut self, deferred: &Deferred, part: Range<u64>) -> Result<()> {
        deferred.write(part, &mut self.writer)
    }

    /// The sink has all that was written so far.
    pub fn settle(&mut self) -> Result<()> {
        Ok(self.writer.settle(0)?)
    }

    /// Waits until the sink has all of it, and gives that back.
    pub fn finish(self) -> Result<(S, Written)> {
        let (sink, summary) = self.writer.finish()?;
        let (round, images) = (self.round, self.images);
        let after = self.spaces.map(|spaces| Lineage {
            newest: summary.id,
            round,
            images,
            spaces,
        });
        let before = self.before;
        let written = Written {
            summary,
            copied: self.copied,
            next: Next { after, before },
        };
        Ok((sink, written))
    }
}

impl Written {
    /// The image as that of a member of its round.
    pub fn member(&self, name: &str) -> Member {
        Member::new(name, &self.summary)
    }
}
