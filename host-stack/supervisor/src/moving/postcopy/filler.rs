//! The heir's side: a process beside it puts pages where they are missing, and asks for those that somebody waits for.
//!
//! One thread reads the image, and puts what comes; the other one hears what happens to the memory. A page is looked up and
//! put in one step, in which nothing is heard: the kernel refuses it as long as something has not been.

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{PidfdFlags, pidfd_open},
};
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::image::Piece;
use snaprig_peers::packets;
use snaprig_resources::error::{Error, Result, chain};
use snaprig_tracee::{
    faults::{begin_round, reached},
    ranges::Ranges,
};
use snaprig_userfault::{Userfault, missing::Happened};

use super::{
    super::{
        ahead::Remainder,
        faults,
        spoken::{WHY_MAX, hear, say},
    },
    Asks, Follows, PAGE, lost,
    missing::{Fault, Missing},
};

/// How often who cannot put a page looks whether it can; it is told before that, unless a fork(2) has failed.
const AGAIN: Duration = Duration::from_millis(10);
/// How often it is said that more has come, at most.
const SAYS_EVERY: Duration = Duration::from_millis(100);

/// What both processes say.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// The supervisor: this is the userfaultfd of a space; or the process: of a child of that.
    Space(u32),
    /// The supervisor: these were all.
    All,
    /// The process: more has come.
    More,
    /// The process: nothing is missing any more.
    Whole,
    /// The process: the rest does not come.
    Failed(String),
}

fn failed(source: impl Into<io::Error>) -> Error {
    Error::io("memory that follows a tree", source.into())
}

/// The process, as the tree's supervisor has it.
pub struct Filler {
    socket: OwnedFd,
    process: OwnedFd,
    follows: Follows,
    /// What is missing stays missing as long as somebody has these.
    userfaults: Vec<Userfault>,
}

impl Filler {
    /// Has a process read the rest of an image. The calling process has one thread.
    pub fn start(rest: &mut Remainder, questions: &OwnedFd, follows: Follows) -> Result<Self> {
        let (socket, its_own) = packets::pair().map_err(failed)?;
        // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
        match unsafe { libc::fork() } {
            0 => {
                let kept = [its_own.as_fd(), questions.as_fd()]
                    .into_iter()
                    .chain(rest.comes());
                // What ends with others is not to be open here.
                if close_others(kept).is_ok() {
                    begin_round();
                    fill(rest, &its_own, questions, &follows);
                }
                process::exit(0)
            }
            child => {
                let child = super::super::child_of(child);
                let process = child.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
                Ok(Self {
                    socket,
                    process: process.map_err(failed)?,
                    follows,
                    userfaults: Vec::new(),
                })
            }
        }
    }

    /// What follows.
    pub fn follows(&self) -> &Follows {
        &self.follows
    }

    /// The spaces that it is to fill.
    pub fn has(&mut self, spaces: Vec<(u32, Userfault)>) -> Result<()> {
        for (space, userfault) in spaces {
            say(&self.socket, &Said::Space(space), &[userfault.as_fd()]).map_err(failed)?;
            self.userfaults.push(userfault);
        }
        say(&self.socket, &Said::All, &[]).map_err(failed)
    }

    /// Until nothing is missing and nobody has a userfaultfd of the tree, with which it could not be checkpointed; and now
    /// and then as long as more comes.
    pub fn wait(mut self, more: impl FnMut()) -> Result<()> {
        self.wait_until_whole(more)?;
        drop((self.socket, self.userfaults));
        // It hears that it is not needed any more, and has nothing else to do than to end.
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        while let Err(error) = poll(&mut ended, None) {
            if error != rustix::io::Errno::INTR {
                return Err(failed(error));
            }
        }
        Ok(())
    }

    fn wait_until_whole(&mut self, mut more: impl FnMut()) -> Result<()> {
        loop {
            match hear(&self.socket).map_err(failed)? {
                Some((Said::Space(_), fds)) => {
                    self.userfaults.extend(fds.into_iter().map(Userfault::from));
                }
                Some((Said::More, _)) => more(),
                Some((Said::Whole, _)) => return Ok(()),
                Some((Said::Failed(why), _)) => {
                    return Err(Error::Job {
                        what: format!("{}: {why}", lost("the source")),
                    });
                }
                Some((Said::All, _)) => return Err(failed(io::ErrorKind::InvalidData)),
                None => return Err(lost("who puts pages in place")),
            }
        }
    }
}

fn close_others<'a>(kept: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
    let kept: BTreeSet<RawFd> = kept.map(|fd| fd.as_raw_fd()).collect();
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        open.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for fd in open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // SAFETY: this process was forked to fill memory, and uses none of what others own in its copy of theirs.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// What both threads know.
struct Known {
    missing: Missing,
    /// By the numbers that `missing` has.
    userfaults: Vec<Arc<Userfault>>,
}

struct Filling<'a> {
    known: Mutex<Known>,
    /// Something has been heard.
    heard: Condvar,
    supervisor: &'a OwnedFd,
    questions: &'a OwnedFd,
    /// Nothing is missing, and there are only zeroes to be put.
    is_whole: AtomicBool,
}

/// In a process of its own: to the end.
fn fill(rest: &mut Remainder, supervisor: &OwnedFd, questions: &OwnedFd, follows: &Follows) {
    let mut known = Known {
        missing: Missing::default(),
        userfaults: Vec::new(),
    };
    loop {
        match hear(supervisor) {
            Ok(Some((Said::Space(space), fds))) => {
                let none = Ranges::default();
                let pages = follows.spaces().get(&space).unwrap_or(&none);
                for userfault in fds {
                    known.missing.add(space, pages);
                    known.userfaults.push(Arc::new(userfault.into()));
                }
            }
            Ok(Some((Said::All, _))) => break,
            // Nothing has run.
            _ => return,
        }
    }
    let filling = Filling {
        known: Mutex::new(known),
        heard: Condvar::new(),
        supervisor,
        questions,
        is_whole: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| match filling.reads(rest) {
            Ok(()) => {
                filling.is_whole.store(true, Ordering::Release);
                // If one is gone, the other one hears of it by that.
                let _ = say(supervisor, &Said::Whole, &[]);
                let _ = filling.asks(&Asks::Whole);
            }
            Err(error) => filling.fails(&error),
        });
        filling.hears();
        process::exit(0)
    });
}

impl Filling<'_> {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The supervisor ends the tree, and with it all that waits.
    fn fails(&self, error: &Error) {
        let why = chain(error).chars().take(WHY_MAX).collect();
        let _ = say(self.supervisor, &Said::Failed(why), &[]);
    }

    fn asks(&self, what: &Asks) -> io::Result<()> {
        say(self.questions, what, &[])
    }

    /// The image to its end; nothing is missing then.
    fn reads(&self, rest: &mut Remainder) -> Result<()> {
        let mut said = Instant::now();
        while let Some(piece) = rest.next()? {
            match piece {
                Piece::Pages {
                    space,
                    address,
                    bytes,
                } => self.comes(space, address..address + bytes.len() as u64, Some(bytes))?,
                Piece::Zeroes {
                    space,
                    address,
                    bytes,
                } => self.comes(space, address..address.saturating_add(bytes), None)?,
                Piece::State(_) | Piece::Gone { .. } => {
                    return Err(super::super::nonsense("what follows are not pages"));
                }
            }
            reached(&faults::FILLED);
            if said.elapsed() >= SAYS_EVERY {
                // If it is gone, the other thread hears of that.
                let _ = say(self.supervisor, &Said::More, &[]);
                said = Instant::now();
            }
        }
        rest.ends()?;
        match self.lock().missing.is_none() {
            true => Ok(()),
            false => Err(super::super::nonsense("memory that was to follow has not")),
        }
    }

    /// Puts pages wherever they are missing; none: they are zeroes.
    fn comes(&self, space: u32, source: Range<u64>, pages: Option<&[u8]>) -> Result<()> {
        let mut known = self.lock();
        while let Some(place) = known.missing.place(space, &source) {
            let userfault = known.userfaults[place.of].clone();
            let put = |bytes: u64| match pages {
                Some(pages) => {
                    let from = (place.source.start - source.start) as usize;
                    userfault.put(place.at, &pages[from..][..bytes as usize])
                }
                None => userfault.put_zeroes(&(place.at..place.at + bytes)),
            };
            let bytes = place.source.end - place.source.start;
            let mut done = put(bytes);
            // All of it may be of several areas, one of which begins or ends in it.
            if matches!(&done, Err(error) if error.raw_os_error() == Some(libc::ENOENT))
                && bytes > PAGE
            {
                done = put(PAGE);
            }
            let of = place.of;
            match done.map_err(|error| (error.raw_os_error(), error)) {
                Ok(bytes) => known.missing.is_there(of, &(place.at..place.at + bytes)),
                // There is one already; or none can be, where nothing happens: what was mapped is not inherited by a child.
                Err((Some(libc::EEXIST | libc::ENOENT), _)) => {
                    known.missing.is_there(of, &(place.at..place.at + PAGE));
                }
                Err((Some(libc::ESRCH), _)) => known.missing.ended(of),
                Err((Some(libc::EAGAIN), _)) => {
                    let waited = self.heard.wait_timeout(known, AGAIN);
                    known = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Err((_, error)) => return Err(failed(error)),
            }
        }
        known.missing.came(space, &source);
        Ok(())
    }

    /// What happens to the memory, until the supervisor needs nobody for it, or is gone, and with it the tree. What was never
    /// there is missing, too, as long as there is a userfaultfd.
    fn hears(&self) {
        let mut source_is_there = true;
        loop {
            let userfaults = self.lock().userfaults.clone();
            let mut ready = vec![PollFd::new(self.supervisor, PollFlags::IN)];
            ready.extend(
                userfaults
                    .iter()
                    .map(|one| PollFd::new(&**one, PollFlags::IN)),
            );
            if source_is_there {
                ready.push(PollFd::new(self.questions, PollFlags::IN));
            }
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return self.fails(&failed(error)),
            }
            let is_ready: Vec<_> = ready.iter().map(|one| !one.revents().is_empty()).collect();
            if is_ready[0] {
                return match self.is_whole.load(Ordering::Acquire) {
                    true => {}
                    false => self.lingers(),
                };
            }
            for (of, _) in is_ready[1..=userfaults.len()]
                .iter()
                .enumerate()
                .filter(|(_, ready)| **ready)
            {
                if let Err(error) = self.hear(of, &userfaults[of]) {
                    self.fails(&error);
                }
            }
            // It says nothing: it has ended.
            if source_is_there && is_ready[userfaults.len() + 1] {
                source_is_there = false;
                if !self.is_whole.load(Ordering::Acquire) {
                    self.fails(&lost("the source"));
                }
            }
        }
    }

    fn hear(&self, of: usize, userfault: &Userfault) -> Result<()> {
        let mut known = self.lock();
        while let Some(happened) = userfault.next().map_err(failed)? {
            match happened {
                Happened::Fault(address) => {
                    let page = address / PAGE * PAGE;
                    match known.missing.fault(of, page) {
                        Fault::Ask { space, address } => {
                            // If nobody is there to be asked, that is heard of by its end.
                            let _ = self.asks(&Asks::Page { space, address });
                        }
                        Fault::Asked => {}
                        Fault::Zero => zero(userfault, page),
                    }
                }
                Happened::Forked(child) => {
                    say(self.supervisor, &Said::Space(0), &[child.as_fd()]).map_err(failed)?;
                    known.missing.forked(of);
                    known.userfaults.push(Arc::new(child));
                }
                Happened::Moved { from, to, bytes } => known.missing.moved(of, from, to, bytes),
                Happened::Dropped(addresses) => known.missing.is_there(of, &addresses),
            }
            self.heard.notify_all();
        }
        Ok(())
    }

    /// Whoever waits for a page is to wait until it ends: nobody sees zeroes in its place.
    fn lingers(&self) {
        let userfaults = self.lock().userfaults.clone();
        let nowhere = 0..PAGE;
        for userfault in userfaults {
            let is_gone = || {
                let put = userfault.put_zeroes(&nowhere);
                matches!(put, Err(error) if error.raw_os_error() == Some(libc::ESRCH))
            };
            while !is_gone() {
                // Its children and what it does to its memory are not waited for by anybody.
                while let Ok(Some(_)) = userfault.next() {}
                thread::sleep(AGAIN);
            }
        }
    }
}

/// A page where there is none, and none is to come.
fn zero(userfault: &Userfault, page: u64) {
    let page = page..page + PAGE;
    if userfault.put_zeroes(&page).is_err() {
        // Whoever waits looks again: there is one, or something has happened that is yet to be read.
        let _ = userfault.wake(&page);
    }
}
