//! Sockets of datagrams: those of unix(7), and udp(7) as far as the loopback device reaches.
//!
//! Each has a mailbox. A sender puts a letter straight into its receiver's; a full one makes a sender
//! of AF_UNIX wait, and loses letters of UDP.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Identity, PollMask, mask},
    wait::{Channel, Stop, SysResult},
};

use crate::{
    files::address::STORAGE_BYTES,
    passed::{Passed, release},
    table::Open,
};

/// Letters that wait in a mailbox of AF_UNIX (net.unix.max_dgram_qlen), and one more.
const UNIX_LETTERS_MAX: usize = 11;
/// Bytes that wait in a mailbox of UDP, and the longest letter of AF_UNIX
/// (net.core.rmem_default, wmem_default).
const BYTES_MAX: usize = 212_992;
const UNIX_LETTER_MAX: usize = BYTES_MAX - 32;
/// The longest letter of UDP.
const UDP_LETTER_MAX: usize = 65_507;
/// What a letter costs beside its bytes.
const LETTER_COST: usize = 512;

/// What an image says of a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxImage {
    domain: i32,
    letters: Vec<LetterImage>,
    names: [Vec<u8>; 2],
    peer: PeerImage,
    /// Whether a letter met nobody, and the next call says so.
    is_refused: bool,
    shut: [bool; 2],
}

#[cfg(test)]
impl MailboxImage {
    /// Some that a restore must not take: letters without end, and of a length that is none; names of
    /// a length that is none; descriptions and peers that are not there.
    pub fn hostile(&self) -> Vec<Self> {
        let letter = LetterImage {
            bytes: Vec::new(),
            from: Vec::new(),
            sender: Identity::default(),
            passed: Vec::new(),
        };
        let with = |change: &dyn Fn(&mut Self, LetterImage)| {
            let mut image = self.clone();
            change(&mut image, letter.clone());
            image
        };
        vec![
            with(&|image, letter| image.letters = vec![letter; UNIX_LETTERS_MAX + 1]),
            with(&|image, letter| {
                let bytes = vec![0; UNIX_LETTER_MAX + 1];
                image.letters = vec![LetterImage { bytes, ..letter }];
            }),
            with(&|image, letter| {
                let from = vec![0; STORAGE_BYTES as usize + 1];
                image.letters = vec![LetterImage { from, ..letter }];
            }),
            with(&|image, letter| {
                let passed = vec![u32::MAX];
                image.letters = vec![LetterImage { passed, ..letter }];
            }),
            with(&|image, _| image.names[1] = vec![0; STORAGE_BYTES as usize + 1]),
            with(&|image, _| image.peer = PeerImage::There(u32::MAX)),
            with(&|image, letter| {
                image.domain = libc::AF_INET;
                image.letters = vec![letter; BYTES_MAX / LETTER_COST + 1];
            }),
        ]
    }
}

/// Whom a mailbox writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PeerImage {
    /// Nobody: each letter says where to.
    None,
    /// One that is not in the image, or no more: letters are refused.
    Gone,
    /// Which of the image's.
    There(u32),
}

/// What an image says of a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterImage {
    bytes: Vec<u8>,
    from: Vec<u8>,
    sender: Identity,
    /// Which of the image's descriptions go with it.
    passed: Vec<u32>,
}

/// A datagram on its way.
pub struct Letter {
    /// What it says.
    pub bytes: Vec<u8>,
    /// The address that it is from, as its receiver is told it; empty: it has none.
    pub from: Vec<u8>,
    /// Who has sent it.
    pub sender: Identity,
    /// The descriptors that go with it.
    pub passed: Option<Passed>,
}

/// A socket of datagrams.
pub struct Mailbox {
    /// AF_UNIX, AF_INET or AF_INET6.
    pub domain: i32,
    inner: Mutex<Inner>,
    /// Woken whenever anything changes.
    pub channel: Channel,
}

#[derive(Default)]
struct Inner {
    letters: VecDeque<Letter>,
    bytes: usize,
    peer: Option<Weak<Mailbox>>,
    /// Its own address, and its peer's, as it is told them.
    names: [Vec<u8>; 2],
    /// Told by the next call (udp(7)).
    error: Option<Errno>,
    closed: bool,
    /// Whether it was shut down to receive, to send.
    shut: [bool; 2],
    arrivals: u64,
    departures: u64,
}

impl Mailbox {
    /// An empty one.
    pub fn new(domain: i32) -> Arc<Self> {
        Arc::new(Self {
            domain,
            inner: Mutex::default(),
            channel: Channel::new(),
        })
    }

    /// Two that write to each other.
    pub fn pair() -> (Arc<Self>, Arc<Self>) {
        let (one, other) = (Self::new(libc::AF_UNIX), Self::new(libc::AF_UNIX));
        one.connect(&other, Vec::new());
        other.connect(&one, Vec::new());
        (one, other)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unix(&self) -> bool {
        self.domain == libc::AF_UNIX
    }

    /// Its own address, or its peer's.
    pub fn name(&self, peer: bool) -> Option<Vec<u8>> {
        let inner = self.lock();
        let is_there = !peer || inner.peer.is_some();
        is_there.then(|| inner.names[usize::from(peer)].clone())
    }

    /// It has an address now.
    pub fn set_name(&self, name: Vec<u8>) {
        self.lock().names[0] = name;
    }

    /// connect(2).
    pub fn connect(&self, to: &Arc<Self>, name: Vec<u8>) {
        let mut inner = self.lock();
        inner.peer = Some(Arc::downgrade(to));
        inner.names[1] = name;
    }

    /// connect(2) with a port of UDP where nobody is, or with nobody.
    pub fn connect_nobody(&self, name: Option<Vec<u8>>) {
        let mut inner = self.lock();
        inner.peer = name.is_some().then(Weak::new);
        inner.names[1] = name.unwrap_or_default();
    }

    /// Whether it has a peer, there or not.
    pub fn is_connected(&self) -> bool {
        self.lock().peer.is_some()
    }

    /// Its peer: ENOTCONN if it has none, and what the last letter met.
    pub fn peer(&self) -> Result<Option<Arc<Self>>, Errno> {
        let mut inner = self.lock();
        if let Some(error) = inner.error.take() {
            return Err(error);
        }
        let peer = inner.peer.as_ref().ok_or(Errno::ENOTCONN)?.upgrade();
        let gone = peer
            .as_ref()
            .is_none_or(|peer| !std::ptr::eq(Arc::as_ptr(peer), self) && peer.lock().closed);
        if gone && self.is_unix() {
            inner.peer = None;
            return Err(Errno::ECONNREFUSED);
        }
        Ok(peer.filter(|_| !gone))
    }

    /// EMSGSIZE if a letter would be too long.
    pub fn check_len(&self, len: usize) -> Result<(), Errno> {
        let most = match self.is_unix() {
            true => UNIX_LETTER_MAX,
            false => UDP_LETTER_MAX,
        };
        match len > most {
            true => Err(Errno::EMSGSIZE),
            false => Ok(()),
        }
    }

    /// Puts a letter into the mailbox `to`, which is not there if it is a port where nobody is.
    pub fn send(&self, to: Option<Arc<Self>>, letter: Letter, cx: &mut Cx) -> SysResult<()> {
        self.check_len(letter.bytes.len())?;
        if self.lock().shut[1] {
            return Err(Errno::EPIPE.into());
        }
        let Some(to) = to else {
            let mut inner = self.lock();
            // The answer to what is lost comes to who has said whom it writes to.
            inner.error = inner.peer.is_some().then_some(Errno::ECONNREFUSED);
            return Ok(());
        };
        let is_for_me = {
            let inner = to.lock();
            let peer = inner.peer.as_ref();
            peer.is_none_or(|peer| std::ptr::eq(peer.as_ptr(), self))
        };
        if !is_for_me {
            return match self.is_unix() {
                true => Err(Errno::EPERM.into()),
                false => Ok(()),
            };
        }
        let mut inner = to.lock();
        if self.is_unix() {
            if inner.shut[0] {
                return Err(Errno::EPIPE.into());
            }
            if inner.letters.len() >= UNIX_LETTERS_MAX {
                return Err(wait(cx, to.channel));
            }
        } else if inner.shut[0] || inner.bytes + letter.bytes.len() + LETTER_COST > BYTES_MAX {
            return Ok(());
        }
        inner.bytes += letter.bytes.len() + LETTER_COST;
        inner.letters.push_back(letter);
        inner.arrivals += 1;
        drop(inner);
        (cx.wake)(to.channel);
        Ok(())
    }

    /// Takes the first letter, or shows it to `show` and leaves it there.
    pub fn receive<T>(
        &self,
        cx: &mut Cx,
        takes: bool,
        show: impl FnOnce(&mut Letter) -> T,
    ) -> SysResult<Option<T>> {
        let mut inner = self.lock();
        if let Some(error) = inner.error.take() {
            return Err(error.into());
        }
        let Some(first) = inner.letters.front_mut() else {
            return match inner.shut[0] {
                true if !cx.nonblock => Ok(None),
                _ => Err(wait(cx, self.channel)),
            };
        };
        let shown = show(first);
        if takes && let Some(letter) = inner.letters.pop_front() {
            inner.bytes -= letter.bytes.len() + LETTER_COST;
            inner.departures += 1;
            drop(inner);
            release(letter.passed, cx.wake);
            (cx.wake)(self.channel);
        }
        Ok(Some(shown))
    }

    /// Bytes of the first letter.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        inner.letters.front().map_or(0, |letter| letter.bytes.len())
    }

    /// SO_ERROR.
    pub fn take_error(&self) -> Option<Errno> {
        self.lock().error.take()
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: i32, wake: &mut dyn FnMut(Channel)) -> Result<(), Errno> {
        let mut inner = self.lock();
        inner.shut[0] |= how != libc::SHUT_WR;
        inner.shut[1] |= how != libc::SHUT_RD;
        inner.arrivals += 1;
        let is_there = self.is_unix() || inner.peer.is_some();
        drop(inner);
        wake(self.channel);
        is_there.then_some(()).ok_or(Errno::ENOTCONN)
    }

    /// What is ready (poll(2)).
    pub fn poll(&self) -> PollMask {
        let inner = self.lock();
        let when = mask;
        let peer = inner.peer.as_ref().and_then(Weak::upgrade);
        let full = peer.is_some_and(|peer| {
            !std::ptr::eq(Arc::as_ptr(&peer), self)
                && self.is_unix()
                && peer.lock().letters.len() >= UNIX_LETTERS_MAX
        });
        when(
            !inner.letters.is_empty() || inner.error.is_some() || inner.shut[0],
            libc::POLLIN,
        ) | when(inner.error.is_some(), libc::POLLERR)
            | when(inner.shut[0], libc::POLLRDHUP)
            | when(inner.shut == [true; 2], libc::POLLHUP)
            | when(!full, libc::POLLOUT)
    }

    /// How often something came (`File::edges`).
    pub fn edges(&self) -> u64 {
        let inner = self.lock();
        inner.arrivals + inner.departures
    }

    /// What wakes who waits for it.
    pub fn channels(&self) -> Vec<Channel> {
        let peer = self.lock().peer.as_ref().and_then(Weak::upgrade);
        let peers = peer.map(|peer| peer.channel);
        peers.into_iter().chain([self.channel]).collect()
    }

    /// What an image says of it; `open` and `mailbox` say which of the image's something is.
    pub fn image(
        &self,
        open: impl Fn(&Arc<Open>) -> Option<u32>,
        mailbox: impl Fn(&Arc<Self>) -> Option<u32>,
    ) -> MailboxImage {
        let inner = self.lock();
        let passed = |passed: &Passed| passed.files().iter().filter_map(&open).collect();
        let letters = inner.letters.iter().map(|letter| LetterImage {
            bytes: letter.bytes.clone(),
            from: letter.from.clone(),
            sender: letter.sender,
            passed: letter.passed.as_ref().map(passed).unwrap_or_default(),
        });
        let peer = inner.peer.as_ref().map(|peer| peer.upgrade());
        MailboxImage {
            domain: self.domain,
            letters: letters.collect(),
            names: inner.names.clone(),
            peer: match peer {
                None => PeerImage::None,
                Some(peer) => peer
                    .and_then(|peer| mailbox(&peer))
                    .map_or(PeerImage::Gone, PeerImage::There),
            },
            is_refused: inner.error.is_some(),
            shut: inner.shut,
        }
    }

    /// Descriptors that are on their way in it.
    pub fn in_flight(&self) -> Vec<Arc<Open>> {
        let inner = self.lock();
        let passed = inner
            .letters
            .iter()
            .filter_map(|letter| letter.passed.as_ref());
        passed.flat_map(Passed::files).cloned().collect()
    }

    /// One of an image, without its letters and its peer.
    pub fn from_image(image: &MailboxImage) -> Result<Arc<Self>, Errno> {
        let mailbox = Self::new(image.domain);
        let letters = image.letters.iter();
        let fits = letters
            .clone()
            .all(|letter| mailbox.check_len(letter.bytes.len()).is_ok());
        let bytes: usize = letters.map(|letter| letter.bytes.len() + LETTER_COST).sum();
        let is_full = match mailbox.is_unix() {
            true => image.letters.len() > UNIX_LETTERS_MAX,
            false => bytes > BYTES_MAX,
        };
        let from = image.letters.iter().map(|letter| &letter.from);
        let mut names = from.chain(&image.names);
        if !fits || is_full || names.any(|name| name.len() > STORAGE_BYTES as usize) {
            return Err(Errno::EBADMSG);
        }
        let mut inner = mailbox.lock();
        inner.names = image.names.clone();
        inner.error = image.is_refused.then_some(Errno::ECONNREFUSED);
        inner.shut = image.shut;
        drop(inner);
        Ok(mailbox)
    }

    /// Puts the letters and the peer of an image back; `passed` and `mailbox` find what it refers to.
    pub fn refill<E>(
        &self,
        image: &MailboxImage,
        passed: impl Fn(&[u32]) -> Result<Passed, E>,
        mailbox: impl FnOnce(u32) -> Result<Arc<Self>, E>,
    ) -> Result<(), E> {
        let peer = match image.peer {
            PeerImage::None => None,
            PeerImage::Gone => Some(Weak::new()),
            PeerImage::There(index) => Some(Arc::downgrade(&mailbox(index)?)),
        };
        let letters = image.letters.iter().map(|letter| {
            let passed = match letter.passed.is_empty() {
                true => None,
                false => Some(passed(&letter.passed)?),
            };
            Ok(Letter {
                bytes: letter.bytes.clone(),
                from: letter.from.clone(),
                sender: letter.sender,
                passed,
            })
        });
        let letters = letters.collect::<Result<VecDeque<_>, E>>()?;
        let mut inner = self.lock();
        inner.peer = peer;
        inner.bytes = letters
            .iter()
            .map(|letter| letter.bytes.len() + LETTER_COST)
            .sum();
        inner.arrivals = letters.len() as u64;
        inner.letters = letters;
        Ok(())
    }

    /// Its socket is gone.
    pub fn close(&self, wake: &mut dyn FnMut(Channel)) {
        let mut inner = self.lock();
        inner.closed = true;
        let lost = std::mem::take(&mut inner.letters);
        drop(inner);
        for letter in lost {
            release(letter.passed, wake);
        }
        wake(self.channel);
    }
}

fn wait(cx: &Cx, channel: Channel) -> Stop {
    match cx.nonblock {
        true => Errno::EAGAIN.into(),
        false => Stop::wait(channel),
    }
}
