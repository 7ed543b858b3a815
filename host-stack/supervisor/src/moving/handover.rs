//! What a source gives to its heir, over a socket of this machine, with descriptors.
//!
//! ```text
//! source                                                heir
//!   | -- Ahead [, image] -------------------------------> |    as often as there is more, while the tree runs; or once,
//!   | <- it has been read ------------------------------- |    of all that is to come
//!   | -- Sheet, network namespace [, image] ------------> |    the tree stands still
//!   | -- files, sockets, shared memory: a few at a time > |
//!   | <- joined, or why it is not ----------------------- |
//!   |    ... the socket ends with either side ...         |
//! ```
//! The image comes along where both have the same memory; else it has a way of its own (`way`).

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::net::{SocketFlags, sockopt};
use serde::{Deserialize, Serialize};
use snaprig_peers::packets::{self, FDS_MAX};
use snaprig_resources::{
    error::{Error, Result, chain},
    opened::{Carried, Item},
};

use super::postcopy::{Follows, PARTS_MAX, Part};
use crate::precopy::{Piece, Present};

/// Most bytes of a message.
const MESSAGE_MAX: usize = 128 << 10;
/// The heir is in the job.
const JOINED: &str = "joined";
/// The heir has read what there is.
const READ: &[u8] = b"read";
/// Most bytes of what it says.
const SAID_MAX: usize = 2000;

/// What a source says.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Ahead(Ahead),
    /// Memory that the tree does not wait for: these, and what was told of before.
    Follows(Vec<Part>),
    All(Sheet),
    /// With a descriptor for each.
    Carried(Vec<Item>),
}

/// How much there is of an image whose tree still runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ahead {
    /// Memory that is large, as it is now.
    pub large: Vec<Piece>,
    /// Pages of it that are there, and are to come.
    pub present: Vec<Present>,
    /// Bytes of the image; none: all that are to come.
    pub written: Option<u64>,
    /// But for those behind the tree's state.
    pub defers: bool,
}

/// What comes.
#[derive(Debug, Serialize, Deserialize)]
struct Sheet {
    /// Where files of plugins are.
    directory: PathBuf,
    /// Its image comes along.
    has_image: bool,
    /// How many files, sockets and pieces of memory come behind it.
    carried: u32,
}

/// What has come.
pub enum Came {
    /// Some of it, with its image if that has no other way.
    Ahead(Ahead, Option<File>),
    All(Arrived),
}

/// A tree that has come.
pub struct Arrived {
    pub directory: PathBuf,
    /// None: it has come another way.
    pub image: Option<File>,
    pub network: OwnedFd,
    /// Memory that follows, and where it is asked for.
    pub follows: Option<(Follows, OwnedFd)>,
    pub carried: Carried,
}

/// Descriptors that a tree leaves with, beside its own.
pub struct Fds<'a> {
    /// Its image, if that has no other way.
    pub image: Option<BorrowedFd<'a>>,
    pub network: BorrowedFd<'a>,
    /// Where memory that follows is asked for.
    pub questions: Option<BorrowedFd<'a>>,
}

/// A connection between both.
pub struct Handover(OwnedFd);

impl AsFd for Handover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(source: impl Into<std::io::Error>) -> Error {
    Error::io("the socket by which a tree moves", source.into())
}

fn ended() -> Error {
    failed(std::io::ErrorKind::UnexpectedEof)
}

fn encode(message: &Message) -> Vec<u8> {
    postcard::to_stdvec(message).expect("messages hold numbers and a path")
}

impl Handover {
    /// The source's end.
    pub fn connect(heir: &Path) -> Result<Self> {
        let socket = packets::connect(heir, SocketFlags::empty());
        socket.map(Self).map_err(failed)
    }

    /// The heir's end.
    pub fn accept(listener: impl AsFd) -> Result<Self> {
        let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
        socket.map(Self).map_err(failed)
    }

    /// Whatever is waited for comes within this time.
    pub fn wait_no_longer_than(&self, patience: Duration) -> Result<()> {
        let patience = Some(patience.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, patience)
            .and_then(|()| sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, patience))
            .map_err(failed)
    }

    /// Some of an image is there, or will be; the heir is to read it ([`Self::wait_until_read`]).
    pub fn send_ahead(&self, ahead: Ahead, image: Option<BorrowedFd<'_>>) -> Result<()> {
        let said = encode(&Message::Ahead(ahead));
        packets::send(&self.0, &said, image.as_slice()).map_err(failed)
    }

    /// Until the heir has read what it was told of.
    pub fn wait_until_read(&self) -> Result<()> {
        let mut bytes = [0; READ.len()];
        match packets::receive(&self.0, &mut bytes).map_err(failed)? {
            Some(_) if bytes == READ => Ok(()),
            _ => Err(ended()),
        }
    }

    /// What there is has been read.
    pub fn say_read(&self) -> Result<()> {
        packets::send(&self.0, READ, &[]).map_err(failed)
    }

    /// Memory that the tree does not wait for.
    pub fn send_follows(&self, follows: &Follows) -> Result<()> {
        for some in follows.parts().chunks(PARTS_MAX) {
            let some = encode(&Message::Follows(some.to_owned()));
            packets::send(&self.0, &some, &[]).map_err(failed)?;
        }
        Ok(())
    }

    /// All of a tree leaves.
    pub fn send(
        &self,
        directory: &Path,
        fds: &Fds<'_>,
        carried: &[(Item, BorrowedFd<'_>)],
    ) -> Result<()> {
        let sheet = Sheet {
            directory: directory.to_owned(),
            has_image: fds.image.is_some(),
            carried: carried.len() as u32,
        };
        let sheet = encode(&Message::All(sheet));
        let fds = [fds.network]
            .into_iter()
            .chain(fds.image)
            .chain(fds.questions);
        let fds: Vec<_> = fds.collect();
        packets::send(&self.0, &sheet, &fds).map_err(failed)?;
        for some in carried.chunks(FDS_MAX) {
            let (items, fds): (Vec<_>, Vec<_>) = some.iter().copied().unzip();
            let said = encode(&Message::Carried(items));
            packets::send(&self.0, &said, &fds).map_err(failed)?;
        }
        Ok(())
    }

    /// More of a tree comes.
    pub fn receive(&self) -> Result<Came> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let mut follows = Follows::default();
        loop {
            let (message, fds) = self.message(&mut bytes)?;
            match message {
                Message::Ahead(ahead) => {
                    let image = fds.into_iter().next();
                    return Ok(Came::Ahead(ahead, image.map(File::from)));
                }
                Message::Follows(parts) => follows.add(&parts)?,
                Message::All(sheet) => return self.receive_all(sheet, fds, follows),
                Message::Carried(_) => {
                    return Err(super::nonsense("what goes along before all of it"));
                }
            }
        }
    }

    /// What the source says next.
    fn message(&self, bytes: &mut [u8]) -> Result<(Message, Vec<OwnedFd>)> {
        let received = packets::receive(&self.0, bytes).map_err(failed)?;
        let (len, fds) = received.ok_or_else(ended)?;
        let message = postcard::from_bytes(&bytes[..len]).map_err(|_| ended())?;
        Ok((message, fds))
    }

    fn receive_all(&self, sheet: Sheet, fds: Vec<OwnedFd>, follows: Follows) -> Result<Came> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let mut came = fds.into_iter();
        let network = came.next().ok_or_else(ended)?;
        let image = if sheet.has_image { came.next() } else { None };
        let questions = came.next();
        let mut carried = Carried::new();
        while carried.len() < sheet.carried as usize {
            match self.message(&mut bytes)? {
                (Message::Carried(items), fds) if items.len() == fds.len() && !fds.is_empty() => {
                    carried.extend(items.into_iter().zip(fds));
                }
                _ => return Err(ended()),
            }
        }
        Ok(Came::All(Arrived {
            directory: sheet.directory,
            image: image.map(File::from),
            network,
            follows: questions.map(|questions| (follows, questions)),
            carried,
        }))
    }

    /// The heir says that it is in the job, or why it is not.
    pub fn say_joined<T>(&self, joined: &Result<T>) -> Result<()> {
        let said = match joined {
            Ok(_) => JOINED.to_owned(),
            Err(error) => chain(error),
        };
        packets::send(&self.0, &said.as_bytes()[..said.len().min(SAID_MAX)], &[]).map_err(failed)
    }

    /// Until the heir has said that it is in the job.
    pub fn wait_until_joined(&self) -> Result<()> {
        let mut bytes = [0; SAID_MAX];
        let received = packets::receive(&self.0, &mut bytes).map_err(failed)?;
        let said = received.map(|(len, _)| String::from_utf8_lossy(&bytes[..len]));
        match said.as_deref().unwrap_or("it has ended") {
            JOINED => Ok(()),
            why => Err(Error::Job {
                what: format!("where the tree is to go on, it cannot be restored: {why}"),
            }),
        }
    }

    /// Until the other side is gone, or the time is over.
    pub fn wait_for_end(&self) {
        while let Ok(Some(_)) = packets::receive(&self.0, &mut [0; 16]) {}
    }
}
