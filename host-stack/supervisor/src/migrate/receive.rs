//! The target's side of a migration: keeps the image in a directory of checkpoints until it is complete, restores the
//! tree, decides when it is asked to, and supervises the tree from then on.
//!
//! ```text
//! caller:      listens --> image --.
//! supervisor:                      '--> listens --> restore --> Ready .. Go --> commit --> run --> supervise, and answer
//! ```
//! What must stay true: whoever has said Ready listens where the source looks for it.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use snaprig_ckpt::restart::{self, Complete, Restored};
use snaprig_ckpt_image::{
    chain::Chain,
    image::{Reader, Summary},
    store::{Manifest, Member, Prepared, Round, Store},
};
use snaprig_coord::migration::{
    Id, WriteError,
    target::{Input, Output},
};
use snaprig_resources::{
    error::{Error, Result, chain},
    state::Tree,
};
use snaprig_tracee::faults::{begin_round, reached};

use super::{
    Target,
    endpoint::Endpoint,
    faults, files, record,
    sources::Sources,
    syncing::{Syncing, WrittenBehind},
};
use crate::{
    again,
    supervisor::{MEMBER, Options, Parts, Supervisor},
};

/// Waits for a tree that migrates here, and supervises it to its end; its exit status. The image is a checkpoint in the
/// directory, like those that follow it. The calling process has one thread.
pub fn receive(directory: &Path, at: &Target, options: &Options) -> Result<i32> {
    let store = Store::open(directory)?;
    record::settled_departure(directory)?;
    let site = record::site(directory)?;
    let arrivals = record::arrivals(&store)?;
    let mut endpoint = Endpoint::new(site, at, arrivals, &options.reporter)?;
    loop {
        endpoint.go_on();
        while let Some(work) = endpoint.next_work() {
            if let Output::Receive {
                connection,
                id,
                command,
            } = work
            {
                begin_round();
                reached(&faults::BEGUN);
                let arrival = ArrivingTree {
                    store: &store,
                    endpoint,
                    id,
                    command,
                    options,
                };
                return arrival.arrive(connection);
            }
        }
        endpoint.wait(None)?;
    }
}

/// A tree that comes.
struct ArrivingTree<'a> {
    store: &'a Store,
    endpoint: Endpoint,
    id: Id,
    command: Vec<String>,
    options: &'a Options,
}

/// An image that has come.
struct Image {
    file: File,
    /// Taken when it is waited for.
    syncing: Cell<Option<Syncing>>,
    summary: Summary,
    chain: Chain,
}

impl ArrivingTree<'_> {
    /// From an image on its way to the end of the tree.
    fn arrive(mut self, connection: u64) -> Result<i32> {
        let received = self.receive(connection);
        let (round, image) = received.or_else(|error| self.fails(error))?;
        let tree = restart::read_tree(&image.chain).or_else(|error| self.fails(error))?;
        reached(&faults::RECEIVED);
        let mut round = Some(round);
        let (round, image) = (&mut round, &image);
        let reporter = &self.options.reporter.clone();
        let tree = &tree;
        again::within(tree, reporter, move |complete| {
            let prepared = self.prepare(tree, image, round);
            let prepared = prepared.or_else(|error| self.fails(error))?;
            let (id, result) = (self.id, Ok(()));
            self.endpoint.handle(Input::Restored { id, result });
            let parts = self.decide(prepared, complete)?;
            let mut supervisor = Supervisor::of_restarted(parts, tree, self.command, self.options);
            supervisor.sources = Sources::new(self.endpoint);
            supervisor.run()
        })
    }

    /// Takes in the image, and what plugins have put beside it.
    fn receive(&mut self, connection: u64) -> Result<(Round, Image)> {
        let number = self.store.rounds()?.last().map_or(1, |last| last + 1);
        let round = self.store.begin(number, 0)?;
        let directory = round.joined().dir();
        let path = directory.join(format!("{MEMBER}.img"));
        let mut create = File::options();
        create.read(true).write(true).create_new(true);
        let unwritten = |source| Error::io(path.display().to_string(), source);
        let file = create.open(&path).map_err(unwritten)?;
        let summary = self.endpoint.read_from(connection, |from| {
            let summary = keep(from, &file)?;
            let failed = |source| Error::io("the connection of a migration", source);
            files::receive(from, directory).map_err(failed)?;
            Ok(summary)
        })?;
        self.endpoint.handle(Input::Progress { id: self.id });
        self.endpoint.handle(Input::Received { id: self.id });
        let chain = Chain::open(std::slice::from_ref(&path))?;
        // The supervisor listens, once it is there: no process that is made from here on may have the socket.
        self.endpoint.stop_listening();
        let syncing = Syncing::begin(&file).map_err(unwritten)?;
        let image = Image {
            file,
            syncing: Cell::new(Some(syncing)),
            summary,
            chain,
        };
        Ok((round, image))
    }

    /// Restores the tree, which stands still, and has everything on the disk but the decision. The round is the caller's
    /// until then: the processes between that and this one have none.
    fn prepare<'t>(
        &mut self,
        tree: &'t Tree,
        image: &Image,
        round: &mut Option<Round>,
    ) -> Result<RestoredTree<'t>> {
        self.endpoint.listen()?;
        let parts = Parts::new(self.store.dir(), self.store.clone())?;
        let mut restored = Restored::open(tree, &image.chain, None, &self.options.reporter)?;
        restored.grow(&image.chain, again::drops_privileges(), None)?;
        let Some(round) = round.take() else {
            return Err(refusal("the tree has come twice"));
        };
        again::rebuild(&mut restored, &parts, round.joined().dir(), None)?;
        if let Some(syncing) = image.syncing.take() {
            let unwritten = |source| Error::io("the image", source);
            syncing.finish(&image.file).map_err(unwritten)?;
        }
        let members = vec![Member::new(MEMBER, &image.summary)];
        let manifest = Manifest {
            arrivals: self.endpoint.add_arrival(self.id),
            ..Manifest::now(self.command.clone(), None, members)
        };
        let number = round.joined().round();
        let prepared = round.prepare(manifest)?;
        reached(&faults::RESTORED);
        Ok(RestoredTree {
            restored,
            number,
            round: Some(prepared),
            parts,
        })
    }

    /// Does what the machine says until the tree runs. If it never will, whoever asks is told so for a while.
    fn decide(&mut self, mut tree: RestoredTree<'_>, complete: Complete) -> Result<Parts> {
        loop {
            while let Some(work) = self.endpoint.next_work() {
                match work {
                    Output::Commit { id } => {
                        let result = tree.commit();
                        self.endpoint.handle(Input::Committed { id, result });
                    }
                    Output::Withdraw { id } => {
                        let result = tree.withdraw(self.store);
                        self.endpoint.handle(Input::Withdrawn { id, result });
                    }
                    Output::Run { .. } => {
                        reached(&faults::DECIDED);
                        let RestoredTree {
                            restored, parts, ..
                        } = tree;
                        again::go(restored, complete, &parts)
                            .map_err(|error| does_not_run(self.store, &error))?;
                        reached(&faults::RUNS);
                        return Ok(parts);
                    }
                    Output::Drop { .. } => {
                        drop(tree);
                        self.endpoint.linger_after_giving_up()?;
                        return Err(refusal(
                            "the program was given up: nobody has said that it is to go on here",
                        ));
                    }
                    Output::Receive { .. } | Output::Send { .. } | Output::Close { .. } => {}
                }
            }
            self.endpoint.wait(None)?;
            self.endpoint.go_on();
        }
    }

    /// The tree cannot be had. The source is told.
    fn fails<T>(&mut self, error: Error) -> Result<T> {
        self.endpoint.handle(Input::Restored {
            id: self.id,
            result: Err(chain(&error)),
        });
        while self.endpoint.next_work().is_some() {}
        Err(error)
    }
}

/// A tree that is restored, and stands still.
struct RestoredTree<'t> {
    restored: Restored<'t>,
    number: u64,
    /// None: it was published, or that was tried.
    round: Option<Prepared>,
    parts: Parts,
}

impl RestoredTree<'_> {
    /// The decision.
    fn commit(&mut self) -> Result<(), WriteError> {
        let published = self.round.take().map(Prepared::publish);
        match published {
            Some(Err(error)) => Err(WriteError {
                why: chain(&error),
                in_doubt: true,
            }),
            _ => Ok(()),
        }
    }

    /// It was none.
    fn withdraw(&mut self, store: &Store) -> Result<(), String> {
        let withdrawn = store.retract(self.number);
        withdrawn.map_err(|error| chain(&error))
    }
}

fn refusal(what: &str) -> Error {
    let what = what.into();
    Error::Refusal { what }
}

/// It is this side's, and does not run.
fn does_not_run(store: &Store, error: &Error) -> Error {
    Error::Refusal {
        what: format!(
            "the program is here now, but does not run ({}); `snaprig ckpt restart {}` goes on",
            chain(error),
            store.dir().display()
        ),
    }
}

/// Keeps an image that comes, every byte of which is checked.
fn keep(from: &mut dyn Read, file: &File) -> Result<Summary> {
    let to = WrittenBehind::new(file);
    let tee = Tee { from, to };
    let mut reader = Reader::new(tee, "the image that is sent")?;
    while reader.next()?.is_some() {}
    let summary = reader.summary().copied();
    summary.ok_or_else(|| Error::io("an image without an end", io::ErrorKind::UnexpectedEof))
}

/// What is read is kept.
struct Tee<'a> {
    from: &'a mut dyn Read,
    to: WrittenBehind<'a>,
}

impl Read for Tee<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(to)?;
        self.to.write_all(&to[..count])?;
        Ok(count)
    }
}
