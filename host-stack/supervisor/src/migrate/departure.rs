//! A tree leaves: its memory is sent while it runs, then it stands still, and goes on where it was or elsewhere, as the
//! machine of the source says.
//!
//! What must stay true: from when it stands still until it is known that it goes on here, the tree ends if this process
//! does.

use std::{
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use snaprig_ckpt::dump::Purpose;
use snaprig_ckpt_image::image::Writer;
use snaprig_ckpt_plugin::phase::Span;
use snaprig_coord::migration::{
    Id, Record, SILENCE_NS, Source, WriteError,
    source::{Config, Outcome},
};
use snaprig_peers::{Stream, token::random};
use snaprig_resources::{
    error::{Error, Result, chain},
    event::Event,
};
use snaprig_tracee::faults::{begin_round, reached};

use super::{
    Migrated, Target,
    asking::{SourceDriver, SourceTree},
    faults,
    files::PluginFiles,
    record::{self, Departure},
};
use crate::{
    checkpoint::{self, CheckpointOptions, Copied, Mode, NewImage, Stopped},
    control::{Reply, Request},
    supervisor::Supervisor,
};

impl Supervisor<'_> {
    /// The tree goes on at another supervisor, or, if it is known that it does not, here.
    pub fn migrate(&mut self, to: &Target) -> Result<Migrated> {
        self.is_alone()?;
        begin_round();
        let begun = Instant::now();
        let id = random().map_err(|source| Error::io("random bytes", source))?;
        let config = Config {
            id: Id(id),
            token: to.token()?,
            command: self.command.clone(),
        };
        let before = record::settled_departure(&self.parts.directory)?;
        let before = before.map(|before| before.without_earlier());
        let leaving = DepartingTree {
            supervisor: self,
            to,
            before,
            purpose: Purpose::Alone,
            is_known: false,
            stopped: None,
            sent: None,
            blackout: Duration::ZERO,
            error: None,
        };
        let mut asking = SourceDriver::new(Source::new(config, 0), to, leaving);
        let outcome = asking.run();
        let DepartingTree {
            sent,
            blackout,
            error,
            ..
        } = asking.tree;
        match (outcome, sent) {
            (Outcome::Gone, Some((bytes, copied))) => Ok(Migrated {
                bytes,
                copied,
                blackout,
                took: begun.elapsed(),
            }),
            (Outcome::Gone, None) => Err(Error::Refusal {
                what: format!("{to} has a tree that was not sent"),
            }),
            (Outcome::Stays { why }, _) => Err(error.unwrap_or(Error::Refusal { what: why })),
        }
    }
}

/// A tree that leaves.
struct DepartingTree<'a, 'o> {
    supervisor: &'a mut Supervisor<'o>,
    to: &'a Target,
    /// What was written down of an earlier departure.
    before: Option<Departure>,
    purpose: Purpose,
    /// Whether the purpose is, and that the tree can be had.
    is_known: bool,
    stopped: Option<Stopped>,
    /// Bytes that were, and how memory was copied.
    sent: Option<(u64, Copied)>,
    blackout: Duration,
    /// What went wrong here.
    error: Option<Error>,
}

impl DepartingTree<'_, '_> {
    /// Keeps an error, and says it.
    fn failed(&mut self, error: Error) -> String {
        let why = chain(&error);
        self.error = Some(error);
        why
    }

    /// Refuses what cannot be had before anything of it is copied.
    fn look(&mut self, stream: &Stream) -> Result<()> {
        let failed = |source| Error::io(format!("migration to {}", self.to), source);
        stream
            .set_silence_max(Duration::from_nanos(SILENCE_NS))
            .map_err(failed)?;
        if stream.is_local().map_err(failed)? {
            self.purpose = Purpose::Moving;
        }
        let of = &mut *self.supervisor;
        checkpoint::look(&mut of.known, self.purpose, &of.parts.plugins)
    }

    fn send(&mut self, stream: &Stream) -> Result<()> {
        let of = &mut *self.supervisor;
        let failed = |source| Error::io(format!("migration to {}", self.to), source);
        let how = CheckpointOptions {
            mode: Mode::Background,
            is_whole: true,
            zstd: of.options.zstd,
        };
        let sent = ImageStream(stream.try_clone().map_err(failed)?);
        let number = of.last.map_or(1, |last| last + 1);
        let mut image = NewImage::begin_with(number, &how, &mut of.known, |header, options| {
            Ok(Writer::new(sent, header, options)?)
        })?;
        image.copy_ahead(&mut of.known)?;
        let last = |known: &mut _| image.catch_up(known);
        let (known, plugins) = (&mut of.known, &of.parts.plugins);
        let own = PluginFiles::make(&of.parts.directory)?;
        let files = (own.path(), Span::Save);
        let stopped = Stopped::stop(of.root, self.purpose, known, plugins, files, last)?;
        let mut stopped = stopped.alone()?;
        // From now on the target may restore it, and change files that it has: it must not run on by itself.
        stopped.bind()?;
        reached(&faults::BOUND);
        let written = image.save(&mut stopped, &mut of.known);
        // Whatever comes of it, the machine says whether it is let go.
        self.stopped = Some(stopped);
        let written = written?.finish()?.1;
        own.send(stream).map_err(failed)?;
        self.sent = Some((written.summary.totals.file_bytes, written.copied));
        reached(&faults::COPIED);
        Ok(())
    }
}

impl SourceTree for DepartingTree<'_, '_> {
    fn connected(&mut self, stream: &Stream) -> Result<(), String> {
        if self.is_known {
            return Ok(());
        }
        let looked = self.look(stream);
        self.is_known = looked.is_ok();
        looked.map_err(|error| self.failed(error))
    }

    fn copy(&mut self, stream: &Stream) -> Result<(), String> {
        let sent = self.send(stream);
        sent.map_err(|error| self.failed(error))
    }

    fn write(&mut self, record: Record) -> Result<(), WriteError> {
        let departure = Departure {
            record,
            to: self.to.clone(),
            last: self.supervisor.last,
            before: self.before.clone().map(Box::new),
        };
        let directory = &self.supervisor.parts.directory;
        record::set_departure(directory, Some(&departure)).map_err(|error| WriteError {
            why: format!("{}: {error}", record::path(directory).display()),
            in_doubt: true,
        })
    }

    fn erase(&mut self) {
        let directory = &self.supervisor.parts.directory;
        // If it stays, the target is asked again some day, and says the same.
        let _ = record::set_departure(directory, self.before.as_ref());
    }

    fn let_go(&mut self) {
        if let Some(Err(error)) = self.stopped.take().map(Stopped::let_go) {
            self.failed(error);
        }
    }

    fn end(&mut self) {
        if let Some(stopped) = self.stopped.take() {
            self.blackout = stopped.since().elapsed();
            stopped.end();
        }
        self.supervisor.status = 128 + libc::SIGKILL;
    }

    fn doubts(&mut self) {
        let to = self.to.to_string();
        let reporter = &self.supervisor.options.reporter;
        reporter.tell(Event::MigrationInDoubt { to });
    }

    fn client(&self) -> Option<BorrowedFd<'_>> {
        Some(self.supervisor.parts.clients.as_fd())
    }

    fn answer(&mut self) {
        let busy = Reply::Failed(format!(
            "the program is on its way to {}, and stands still until that says whether it has it",
            self.to
        ));
        let clients = &mut self.supervisor.parts.clients;
        while let Some((client, _)) = clients.next_command::<Request>() {
            clients.answer(client, &busy);
        }
    }
}

/// Where an image goes; what the other side says is read elsewhere.
struct ImageStream(Stream);

impl Write for ImageStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
