//! The target's side of a migration: holds the image in a directory of checkpoints until it is complete, restores the
//! tree, and supervises it from then on.

use snaprig_resources::error::chain;
use std::{
    cell::Cell,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use snaprig_ckpt::restart::{self, Restored};
use snaprig_ckpt_image::{
    chain::Chain,
    image::{Reader, Summary},
    store::{Manifest, Member, Store},
};
use snaprig_peers::{Listener, Stream};
use snaprig_resources::error::{Error, Result};
use snaprig_resources::event::Event;

use super::{
    files,
    target::Target,
    wire::{self, Answer, Begin, Go, Running},
};
use crate::{
    again,
    supervisor::{MEMBER, Options, Parts, Supervisor},
};

/// Waits for a tree that migrates here, and supervises it to its end; its exit status. The image is a checkpoint in the
/// directory, like those that follow it. The calling process has one thread.
pub fn receive(directory: &Path, at: &Target, options: &Options) -> Result<i32> {
    let store = Store::open(directory)?;
    let token = at.token()?;
    let listener = Listener::bind(at.address())
        .map_err(|source| Error::io(format!("listening at {at}"), source))?;
    loop {
        let accepted = listener.accept();
        let stream = accepted.map_err(|source| Error::io(format!("{at}"), source))?;
        match wire::meet(&stream, token.as_ref()) {
            Ok(()) => {
                drop(listener);
                let arrived = arrive(&store, &stream, options);
                return arrived.inspect_err(|error| {
                    // Who hears it runs on.
                    let _ = wire::send(&stream, &Answer::Failed(chain(error)));
                });
            }
            Err(source) => options.reporter.tell(Event::ConnectionRefused { source }),
        }
    }
}

/// From an image on its way to a tree that runs.
fn arrive(store: &Store, stream: &Stream, options: &Options) -> Result<i32> {
    let failed = |source| Error::io("the connection of a migration", source);
    let Begin { command } = wire::receive(stream).map_err(failed)?;
    let number = store.rounds()?.last().map_or(1, |last| last + 1);
    let round = store.begin(number, 0)?;
    let path = round.joined().dir().join(format!("{MEMBER}.img"));
    let unwritten = |source| Error::io(path.display().to_string(), source);
    let mut create = File::options();
    create.read(true).write(true).create_new(true);
    let file = create.open(&path).map_err(unwritten)?;
    let summary = hold(stream, &file)?;
    files::receive(stream, round.joined().dir()).map_err(failed)?;
    let images = Chain::open(std::slice::from_ref(&path))?;
    let tree = restart::read_tree(&images)?;
    let directory = &round.joined().dir().to_owned();
    // Not the closure's own: processes between this one and the supervisor give theirs up.
    let round = Cell::new(Some(round));
    let commit = || -> Result<()> {
        file.sync_all().map_err(unwritten)?;
        let Some(round) = round.take() else {
            return Ok(());
        };
        let members = vec![Member::new(MEMBER, &summary)];
        round.commit(Manifest::now(command.clone(), None, members))?;
        Ok(())
    };
    again::within(&tree, &options.reporter, |complete| {
        let parts = Parts::new(store.dir(), store.clone())?;
        let decided = || {
            wire::send(stream, &Answer::Ready)?;
            wire::receive_restored(stream).map(|Go| ())
        };
        let mut is_ready = false;
        let mut restore = || -> Result<()> {
            let mut restored = Restored::open(&tree, &images, None, &options.reporter)?;
            restored.grow(&images, again::drops_privileges(), None)?;
            again::rebuild(&mut restored, &parts, directory, None)?;
            is_ready = true;
            decided().map_err(failed)?;
            again::go(restored, complete, &parts)
        };
        if let Err(error) = restore() {
            return Err(match is_ready {
                // The other side may have ended its tree: then this is all that there is of it.
                true => match commit() {
                    Ok(()) => in_doubt(store.dir(), &error),
                    Err(also) => also,
                },
                false => error,
            });
        }
        // It runs. Who asked need not hear of it.
        let _ = wire::send(stream, &Running);
        if let Err(error) = commit() {
            let why = chain(&error);
            options.reporter.tell(Event::NotKept { why });
        }
        Supervisor::of_restarted(parts, &tree, command.clone(), options).run()
    })
}

fn in_doubt(directory: &Path, error: &Error) -> Error {
    Error::Refusal {
        what: format!(
            "the other side has not said that its program has ended ({}); if it has, `snaprig ckpt restart {}` goes on",
            chain(error),
            directory.display()
        ),
    }
}

/// Takes an image in, every byte of which is checked.
fn hold(stream: &Stream, file: &File) -> Result<Summary> {
    let tee = Tee {
        from: stream,
        to: file,
    };
    let mut reader = Reader::new(tee, "the image that is sent")?;
    while reader.next()?.is_some() {}
    let summary = reader.summary().copied();
    summary.ok_or_else(|| Error::io("an image without an end", io::ErrorKind::UnexpectedEof))
}

/// What is read is kept.
struct Tee<'a> {
    from: &'a Stream,
    to: &'a File,
}

impl Read for Tee<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(to)?;
        self.to.write_all(&to[..count])?;
        Ok(count)
    }
}
