//! A tree moves to another supervisor, on this machine or another: live, as an image that is sent while it runs.

mod files;
mod receive;
mod target;
mod wire;

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_ckpt::dump::Purpose;
use snaprig_ckpt_image::image::Writer;
use snaprig_peers::Stream;
use snaprig_resources::error::{Error, Result};

use self::{
    files::PluginFiles,
    wire::{Answer, Begin, Go, Running},
};
pub use self::{receive::receive, target::Target};
use crate::{
    checkpoint::{self, Copied, How, Mode, NewImage, Stopped},
    supervisor::Supervisor,
};

/// A migration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Migrated {
    /// Bytes that were sent.
    pub bytes: u64,
    /// How memory was copied.
    pub copied: Copied,
    /// How long the tree ran nowhere.
    pub blackout: Duration,
    /// How long all of it took.
    pub took: Duration,
}

/// Where an image goes; what the other side says is read elsewhere.
struct Sent(Stream);

impl Write for Sent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Supervisor<'_> {
    /// The tree goes on at another supervisor. Whatever goes wrong before that has it restored, it runs on here.
    pub fn migrate(&mut self, to: &Target) -> Result<Migrated> {
        self.is_alone()?;
        let begun = Instant::now();
        let failed = |source| Error::io(format!("migration to {to}"), source);
        let stream = to.address().connect(wire::CONNECT_MAX).map_err(failed)?;
        let purpose = match stream.is_local().map_err(failed)? {
            true => Purpose::Moving,
            false => Purpose::Alone,
        };
        checkpoint::look(&mut self.known, purpose, &self.parts.plugins)?;
        wire::greet(&stream, to.token()?.as_ref()).map_err(failed)?;
        let command = self.command.clone();
        wire::send(&stream, &Begin { command }).map_err(failed)?;
        let how = How {
            mode: Mode::Background,
            is_whole: true,
            zstd: self.options.zstd,
        };
        let sent = Sent(stream.try_clone().map_err(failed)?);
        let number = self.last.map_or(1, |last| last + 1);
        let image = NewImage::begin_with(number, &how, &mut self.known, |header, options| {
            Ok(Writer::new(sent, header, options)?)
        });
        let mut image = image.map_err(|error| why(&stream, error))?;
        let last = |known: &mut _| image.catch_up(known);
        let (known, plugins) = (&mut self.known, &self.parts.plugins);
        let own = PluginFiles::make(&self.parts.directory)?;
        let stopped = Stopped::stop(self.root, purpose, known, plugins, own.path(), last);
        let mut stopped = stopped.map_err(|error| why(&stream, error))?.alone()?;
        let written = (|| {
            let saved = image.save(&mut stopped, &mut self.known)?;
            let written = saved.finish()?.1;
            own.send(&stream).map_err(failed)?;
            match wire::receive_restored(&stream).map_err(failed)? {
                Answer::Ready => Ok(written),
                Answer::Failed(what) => Err(Error::Refusal { what }),
            }
        })();
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                stopped.let_go()?;
                return Err(why(&stream, error));
            }
        };
        let since = stopped.since();
        stopped.end();
        self.status = 128 + libc::SIGKILL;
        let went =
            wire::send(&stream, &Go).and_then(|()| wire::receive_restored::<Running>(&stream));
        went.map_err(|source| {
            Error::io(
                format!(
                    "the program has ended here, and {to} has not said that it goes on there: if it does not, \
                     restart it from the checkpoint that is there"
                ),
                source,
            )
        })?;
        Ok(Migrated {
            bytes: written.summary.totals.file_bytes,
            copied: written.copied,
            blackout: since.elapsed(),
            took: begun.elapsed(),
        })
    }
}

/// What the other side has said before it closed the connection, or the error as it is.
fn why(stream: &Stream, error: Error) -> Error {
    if !matches!(error, Error::Write(_)) {
        return error;
    }
    match wire::receive(stream) {
        Ok(Answer::Failed(what)) => Error::Refusal { what },
        _ => error,
    }
}
