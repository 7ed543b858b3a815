//! How an heir has the image of its tree, by each of the ways that it may take ([`way`](super::way)).

use std::{
    fs::{self, File},
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    rc::Rc,
};

use snaprig_ckpt::restart::Staging;
use snaprig_ppmr::driver::transport::Transport;
use snaprig_resources::error::{Error, Result};

use super::{
    ahead::{Coming, Front, Read},
    handover::Ahead,
    incoming::Incoming,
    scp::Sshd,
    way::{Strategy, Way},
};

/// An image that is waited for.
pub enum Awaited {
    /// It comes along with what is said of it.
    Descriptor,
    /// It comes through a pipeline, and is read as it comes.
    Pipeline(Incoming),
    /// It comes through a pipeline, and is read when all of it is in this file.
    Kept {
        incoming: Incoming,
        file: File,
        _kept: Kept,
    },
    /// It will be in this file, which an sshd may be needed for.
    File { kept: Kept, _sshd: Option<Sshd> },
    /// It is being read.
    Coming(Box<Coming>),
}

/// A file that goes with the move: when nobody has this any more, or as soon as nobody needs it.
#[derive(Clone)]
pub struct Kept(Rc<Named>);

struct Named(PathBuf);

impl Named {
    fn remove(&self) {
        // It need not be there.
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Kept {
    fn new(path: PathBuf) -> Self {
        Self(Rc::new(Named(path)))
    }

    /// A new one.
    fn create(directory: &Path, name: &str) -> Result<(Self, File)> {
        let kept = Self::new(directory.join(name));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(kept.path());
        let file = file.map_err(|source| Error::io(kept.path().display().to_string(), source))?;
        Ok((kept, file))
    }

    fn path(&self) -> &Path {
        &self.0.0
    }

    /// Nobody will open it any more, in whatever process.
    pub fn remove(&self) {
        self.0.remove();
    }
}

impl Awaited {
    /// Waits for an image that comes so, and how the source sends it there. The calling process has one thread.
    pub fn by(strategy: &Strategy, name: &str) -> Result<(Self, Way)> {
        Ok(match strategy {
            Strategy::Descriptor => (Self::Descriptor, Way::Descriptor),
            Strategy::Pipeline(pipelined) => {
                let (incoming, to) = Incoming::lent(pipelined)?;
                (Self::Pipeline(incoming), Way::Pipeline(to))
            }
            Strategy::RdmaLocal(pipelined, directory) => {
                let (kept, file) = Kept::create(directory, name)?;
                let (incoming, to) = Incoming::written(pipelined, &file)?;
                (
                    Self::Kept {
                        incoming,
                        file,
                        _kept: kept,
                    },
                    Way::Pipeline(to),
                )
            }
            Strategy::Local(host, directory) => {
                let sshd = Sshd::start(*host)?;
                let here = directory.join(name);
                let way = Way::File {
                    path: directory.join(format!("{name}.source")),
                    copied: Some(sshd.to(here.clone())),
                };
                (
                    Self::File {
                        kept: Kept::new(here),
                        _sshd: Some(sshd),
                    },
                    way,
                )
            }
            Strategy::Shared(directory) => {
                let path = directory.join(name);
                let way = Way::File {
                    path: path.clone(),
                    copied: None,
                };
                (
                    Self::File {
                        kept: Kept::new(path),
                        _sshd: None,
                    },
                    way,
                )
            }
        })
    }

    /// Waits until it comes, if it comes through a pipeline: how chunks of it go.
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Self::Pipeline(incoming) | Self::Kept { incoming, .. } => incoming.transport(),
            Self::Descriptor | Self::File { .. } | Self::Coming(_) => None,
        }
    }

    /// Its file, which whoever opens the image once more needs to be there: one that has no name cannot be opened again on every
    /// file system that several machines have.
    pub fn kept(&self) -> Option<Kept> {
        match self {
            Self::Kept { _kept: kept, .. } | Self::File { kept, .. } => Some(kept.clone()),
            Self::Descriptor | Self::Pipeline(_) | Self::Coming(_) => None,
        }
    }

    /// Some of it is there, or is to come.
    pub fn take(&mut self, ahead: Ahead, image: Option<File>) -> Result<()> {
        if let Self::Coming(coming) = self {
            return coming.take(ahead);
        }
        let front = match (std::mem::replace(self, Self::Descriptor), image) {
            (Self::Descriptor, Some(image)) => Front::Memory { image, at: 0 },
            (Self::Pipeline(incoming), None) => Front::Incoming(Box::new(incoming)),
            // All of it is waited for first.
            (other, _) => {
                *self = other;
                return Ok(());
            }
        };
        let mut coming = Box::new(Coming::new(front)?);
        coming.take(ahead)?;
        *self = Self::Coming(coming);
        Ok(())
    }

    /// What is ready to be read when more of an image is there that is read as it comes.
    pub fn comes(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Coming(coming) => coming.comes(),
            _ => None,
        }
    }

    /// Reads what is there of it, or a little more.
    pub fn read_some(&mut self) -> Result<()> {
        match self {
            Self::Coming(coming) => coming.next().map(drop),
            _ => Ok(()),
        }
    }

    /// The tree stands still: what of it has been read, and its image.
    pub fn finish(self, image: Option<File>) -> Result<Read> {
        let in_file = |image| Read {
            staging: Staging::default(),
            image,
            rest: None,
        };
        match (self, image) {
            (Self::Coming(coming), _) => coming.finish(),
            (Self::Descriptor, Some(image)) => Ok(in_file(image)),
            (Self::Pipeline(incoming), _) => {
                Coming::new(Front::Incoming(Box::new(incoming)))?.finish()
            }
            (Self::Kept { incoming, file, .. }, _) => {
                incoming.whole()?;
                Ok(in_file(file))
            }
            (Self::File { kept, .. }, _) => {
                let path = kept.path();
                let file = File::open(path);
                let file = file.map_err(|source| Error::io(path.display().to_string(), source))?;
                Ok(in_file(file))
            }
            (Self::Descriptor, None) => Err(super::nonsense("it has no image")),
        }
    }
}
