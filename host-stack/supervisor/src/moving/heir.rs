//! The side that a tree comes to.
//!
//! What must stay true: nothing of the tree runs here before it is decided that it moves.

use std::{
    fs,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    process,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::SocketFlags,
    process::Pid,
};
use snaprig_ckpt::restart::{self, Complete, Lacks, Restored, Staging};
use snaprig_ckpt_image::chain::Chain;
use snaprig_coord::{
    driver,
    member::Event,
    phase::{Moves, Order, Phase},
};
use snaprig_peers::{packets, token::random};
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
    event, huge,
    opened::raise_limit,
    state::Tree,
};
use snaprig_tracee::faults::{begin_round, reached};

use super::{
    Note,
    ahead::Remainder,
    awaited::{Awaited, Kept},
    decision::{self, Decision},
    faults,
    handover::{Arrived, Came, Handover},
    network,
    postcopy::filler::Filler,
    way::Strategy,
};
use crate::{
    again,
    job::{self, Job, Moved},
    member::Member,
    plugins::JobRound,
    supervisor::{Options, Parts, Supervisor},
    together::does,
};

/// Where the tree is waited for, in the heir's directory.
const SOCKET: &str = "heir";
/// How long whoever had the tree may take to be gone.
const LEAVING: Duration = Duration::from_secs(10);

/// Has the tree of a member of a running job go on here, and supervises it to its end; its exit status. `told` hears what
/// became of that, in a process of its own. The calling process has one thread.
pub fn inherit(
    job: &Job,
    member: &str,
    patience: Duration,
    strategy: &Strategy,
    told: impl FnOnce(&Result<Moved>),
) -> Result<i32> {
    raise_limit(super::FILES_MAX);
    let own = random::<16>().map_err(|source| Error::io("random bytes", source))?;
    let name: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
    let moves = Moves {
        member: member.to_owned(),
        heir: format!("{member}.{}", &name[..8]),
    };
    let directory = job.of_member(&moves.heir);
    let path = directory.join(SOCKET);
    decision::sweep(&job.store()?);
    fs::create_dir_all(&directory).map_err(|source| Error::io("the heir's directory", source))?;
    let (awaited, way) = Awaited::by(strategy, &name)?;
    let note = Note {
        decision: name,
        heir: path.clone(),
        way,
    };
    let heir = Heir {
        job,
        moves,
        note,
        directory,
        kept: awaited.kept(),
    };
    let listener = packets::listen(&path, 1, SocketFlags::empty());
    let listener = listener.map_err(failed)?;
    let (runs, running) = io::pipe().map_err(failed)?;
    let ordered = heir.orders(patience, runs, &awaited, told)?;
    let arrived = heir.arrives(&listener, &ordered, patience, awaited);
    // The path need not be there any more.
    let _ = fs::remove_file(&path);
    // What follows comes as long as there is what it is read from.
    let done = arrived.and_then(|(handover, tree, _rest)| heir.takes(handover, tree, running));
    if done.is_err() {
        // Whoever asked for it hears why from the order.
        let _ = io::copy(&mut &ordered, &mut io::sink());
    }
    let _ = fs::remove_dir_all(&heir.directory);
    done
}

fn failed(source: impl Into<io::Error>) -> Error {
    Error::io("the heir's socket", source.into())
}

/// A tree that has come, and is yet to be restored.
struct Come {
    arrived: Arrived,
    image: fs::File,
    /// What of it has been read already.
    staging: Staging,
    /// Who puts in place what follows, if anything does.
    filler: Option<Filler>,
}

/// What there is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    /// The source has said something.
    Said,
    /// More of the image has come.
    Comes,
}

struct Heir<'a> {
    job: &'a Job,
    moves: Moves,
    note: Note,
    directory: PathBuf,
    /// The file that the image is in, if it is in one.
    kept: Option<Kept>,
}

impl Heir<'_> {
    /// Orders the move, by a process of its own; what has its end with that one's.
    fn orders(
        &self,
        patience: Duration,
        runs: PipeReader,
        awaited: &Awaited,
        told: impl FnOnce(&Result<Moved>),
    ) -> Result<PipeReader> {
        let (ordered, orders) = io::pipe().map_err(failed)?;
        let heir = rustix::process::getpid();
        // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
        match unsafe { libc::fork() } {
            0 => process::exit(self.order(heir, patience, runs, awaited, told)),
            child if child < 0 => Err(failed(io::Error::last_os_error())),
            _ => {
                drop(orders);
                Ok(ordered)
            }
        }
    }

    /// Waits for the tree, as long as its order is under way.
    fn arrives(
        &self,
        listener: &OwnedFd,
        ordered: &PipeReader,
        patience: Duration,
        mut awaited: Awaited,
    ) -> Result<(Handover, Come, Option<Remainder>)> {
        self.wait(listener, ordered)?;
        let handover = Handover::accept(listener)?;
        handover.wait_no_longer_than(patience)?;
        loop {
            // The pools of its pipeline hold no more than they do: nobody waits until all of it is there.
            if self.wait_for(&handover, awaited.comes(), ordered)? == Ready::Comes {
                awaited.read_some()?;
                continue;
            }
            match handover.receive()? {
                Came::Ahead(ahead, image) => {
                    awaited.take(ahead, image)?;
                    handover.say_read()?;
                }
                Came::All(mut arrived) => {
                    let mut read = awaited.finish(arrived.image.take())?;
                    let filler = match (&mut read.rest, arrived.follows.take()) {
                        (Some(rest), Some((follows, questions))) => {
                            Some(Filler::start(rest, &questions, follows)?)
                        }
                        (None, None) => None,
                        _ => return Err(super::nonsense("memory follows, or it does not")),
                    };
                    let come = Come {
                        arrived,
                        image: read.image,
                        staging: read.staging,
                        filler,
                    };
                    // Whoever has begun it ends what it is read from.
                    return Ok((handover, come, read.rest));
                }
            }
        }
    }

    /// Until more comes; not if the order has ended.
    fn wait(&self, from: &impl AsFd, ordered: &PipeReader) -> Result<()> {
        self.wait_for(from, None, ordered).map(drop)
    }

    /// The same, of an image, too.
    fn wait_for(
        &self,
        from: &impl AsFd,
        comes: Option<BorrowedFd<'_>>,
        ordered: &PipeReader,
    ) -> Result<Ready> {
        let mut ready = vec![
            PollFd::new(from, PollFlags::IN),
            PollFd::new(ordered, PollFlags::IN),
        ];
        ready.extend(comes.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        loop {
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
                Ok(_) if ready[0].revents().contains(PollFlags::IN) => return Ok(Ready::Said),
                Ok(_) if ready[1].revents().is_empty() => return Ok(Ready::Comes),
                Ok(_) => {
                    return Err(Error::Job {
                        what: format!("{} has not come", self.moves.member),
                    });
                }
            }
        }
    }

    /// In a process of its own: the order, to its end.
    fn order(
        &self,
        heir: Pid,
        patience: Duration,
        mut runs: PipeReader,
        awaited: &Awaited,
        told: impl FnOnce(&Result<Moved>),
    ) -> i32 {
        let since = Arc::new(OnceLock::new());
        let seen = since.clone();
        // The clock of who restores the tree may be the tree's, which is another one.
        thread::spawn(move || {
            if runs.read(&mut [0]).is_ok_and(|count| count == 1) {
                let _ = seen.set(Instant::now());
            }
        });
        let since_it_runs = || since.get().map_or(Duration::ZERO, Instant::elapsed);
        let moved = job::move_member(self.job, &self.moves, &self.note, patience, since_it_runs);
        // What others hear of its end is that they are not connected any more.
        let is_gone = rustix::process::getppid() != Some(heir);
        let moved = moved.map(|moved| Moved {
            transport: awaited.transport(),
            ..moved
        });
        let moved = moved.map_err(|error| match is_gone {
            true => Error::Job {
                what: format!(
                    "{}; where it was to go on, whoever takes it was killed, as when there is too little memory",
                    crate::chain(&error)
                ),
            },
            false => error,
        });
        told(&moved);
        match moved {
            Ok(_) => 0,
            Err(error) => {
                self.job.reporter.failed(&error);
                1
            }
        }
    }

    /// Restores the tree, and goes on with it if that is decided.
    fn takes(&self, handover: Handover, come: Come, running: PipeWriter) -> Result<i32> {
        begin_round();
        reached(&faults::ARRIVED);
        let image = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&come.image)
        );
        let chain = Chain::open(&[PathBuf::from(image)])?;
        let mut tree = restart::read_tree(&chain)?;
        let job = self.job;
        // Memory is there twice: it is the move that makes them too few.
        if let Some(why) = huge::do_without(&mut tree, &chain)? {
            job.reporter.tell(event::Event::OrdinaryPages { why });
        }
        let tree = &tree;
        again::within(tree, &job.reporter, move |complete| {
            let joined = self.joins(&come.arrived);
            handover.say_joined(&joined)?;
            let (mut parts, link) = joined?;
            let inheritance = Inheritance {
                heir: self,
                link: &link,
                tree,
                chain: &chain,
                parts: &parts,
            };
            let round = match inheritance.takes(complete, &handover, come, running) {
                Ok(round) => round,
                Err(error) => {
                    link.leave();
                    return Err(error);
                }
            };
            self.is_found_by_name();
            if let Some(round) = round {
                link.done(round, Phase::Go, Ok(String::new()));
            }
            parts.member = Some(Member::inherited(job, &self.moves.member, link)?);
            Supervisor::of_restarted(parts, tree, Vec::new(), &Options::of_member(job)).run()
        })
    }

    /// Joins the job, where the tree can be restored.
    fn joins(&self, arrived: &Arrived) -> Result<(Parts, driver::Member)> {
        self.be_where(arrived)?;
        let parts = Parts::new(&self.directory, self.job.store()?)?;
        Ok((parts, self.job.inherit(&self.moves.heir)?))
    }

    /// In the network namespace of the tree: its sockets are there, and its addresses.
    fn be_where(&self, arrived: &Arrived) -> Result<()> {
        network::leave_for(arrived.network.as_fd()).map_err(|source| {
            Error::io(
                "the network namespace of the tree (root can be there)",
                source,
            )
        })
    }

    /// Whoever asks for the member finds this supervisor. If not, it is there all the same.
    fn is_found_by_name(&self) {
        let there = self.job.of_member(&self.moves.member);
        let _ = fs::create_dir_all(&there);
        let name = crate::control::CONTROL;
        let _ = fs::rename(self.directory.join(name), there.join(name));
    }
}

/// A tree that is being restored.
struct Inheritance<'a> {
    heir: &'a Heir<'a>,
    link: &'a driver::Member,
    tree: &'a Tree,
    chain: &'a Chain,
    parts: &'a Parts,
}

impl Inheritance<'_> {
    /// Goes through the move with all others, until the tree runs; the round, if it is still under way.
    fn takes(
        &self,
        complete: Complete,
        handover: &Handover,
        come: Come,
        mut running: PipeWriter,
    ) -> Result<Option<u64>> {
        let (round, order) = self.begins(handover)?;
        let name = &self.heir.moves.heir;
        let Come {
            arrived: Arrived {
                directory, carried, ..
            },
            image,
            staging,
            mut filler,
        } = come;
        let mut restored = does(self.link, round, Phase::Connect, || {
            let board = Board {
                member: self.link,
                round,
                patience: Duration::from_millis(order.phase_ms.into()),
            };
            let reporter = &self.heir.job.reporter;
            let carried = (None, Some(carried));
            let mut restored = Restored::open_with(self.tree, self.chain, carried, reporter)?;
            restored.have(staging);
            let drops_privileges = again::drops_privileges();
            match &mut filler {
                None => restored.grow(self.chain, drops_privileges, Some(&board))?,
                Some(filler) => {
                    let follows = filler.follows().clone();
                    let mut told = |spaces| filler.has(spaces);
                    let lacks = Some(Lacks::new(follows.spaces(), &mut told));
                    restored.grow_lacking(self.chain, drops_privileges, Some(&board), lacks)?;
                }
            }
            let channels = restored.wake_plugins()?;
            let job = JobRound {
                member: name,
                board: &board,
            };
            let mut plugins = self.parts.plugins.borrow_mut();
            plugins.arrive(channels, &directory, job)?;
            reached(&faults::RESTORED);
            Ok(restored)
        })?;
        let still = self.is_decided(round)?;
        reached(&faults::DECIDED);
        self.parts.plugins.borrow_mut().refill(&directory)?;
        let mut runs = || {
            // Who has ordered it may have gone.
            let _ = running.write(&[1]);
            self.link.rename(&self.heir.moves.member);
            reached(&faults::RUNS);
        };
        match filler {
            None => {
                again::go(restored, complete, self.parts)?;
                runs();
            }
            Some(filler) => {
                restored.run()?;
                self.parts.plugins.borrow_mut().go();
                runs();
                // However much follows, and however slowly, it is not given up as long as it comes.
                filler.wait(|| self.link.gets_on(round, Phase::Go))?;
                restored.keep(complete);
            }
        }
        // Processes around this one have it as well: it takes no more memory.
        let _ = image.set_len(0);
        if let Some(kept) = &self.heir.kept {
            kept.remove();
        }
        // The other one has a socket of the same name until it is gone.
        handover.wait_no_longer_than(LEAVING)?;
        handover.wait_for_end();
        Ok(still.then_some(round))
    }

    /// Until it is to connect. A coordinator that has come after the round's knows nothing of it, and says nothing: that the
    /// tree stays where it was is heard from the source's end of the handover.
    fn begins(&self, handover: &Handover) -> Result<(u64, Order)> {
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(self.link.ready(), PollFlags::IN),
                PollFd::new(handover, PollFlags::IN),
            ];
            // EINTR: as if nothing had come.
            let _ = poll(&mut ready, None);
            if ready[0].revents().is_empty() && !ready[1].revents().is_empty() {
                return Err(Error::Missing {
                    what: "the source has given up the move".into(),
                });
            }
            match self.link.next_event(Some(Duration::ZERO)) {
                Some(Event::Begin {
                    round,
                    phase: Phase::Connect,
                    order,
                }) => return Ok((round, order)),
                Some(Event::Joined | Event::Finished { .. }) | None => {}
                Some(other) => return Err(lost(&other)),
            }
        }
    }

    /// Whether the round is under way still, if it is decided; an error: the tree stays where it was.
    fn is_decided(&self, round: u64) -> Result<bool> {
        loop {
            match self.link.next_event(None) {
                Some(Event::Begin {
                    phase: Phase::Go, ..
                }) => return Ok(true),
                Some(Event::Undo {
                    in_doubt, reason, ..
                }) => {
                    let decision = Decision::of(&self.parts.store, &self.heir.note.decision)?;
                    let is_decided = in_doubt && decision.is_for_it()?;
                    self.link.done(round, Phase::Undo, Ok(String::new()));
                    return match is_decided {
                        true => Ok(false),
                        false => Err(Error::Missing { what: reason }),
                    };
                }
                Some(Event::Refused(refusal)) => {
                    return Err(lost(&Event::Refused(refusal)));
                }
                Some(_) | None => {}
            }
        }
    }
}

fn lost(event: &Event) -> Error {
    let what = match event {
        Event::Apart { why } => why.clone(),
        Event::Undo { reason, .. } => reason.clone(),
        Event::Refused(refusal) => refusal.to_string(),
        _ => "it is told what is not due".into(),
    };
    Error::Missing { what }
}
