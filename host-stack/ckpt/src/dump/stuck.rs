//! TCP connections between trees with more on their way than fits where it goes: taken out by both sides, and given back.
//!
//! ```text
//! supervisor                 board               the other tree's supervisor        both trees stand still
//!   | --- "side": where ---> |                                |
//!   | <================ a connection of their own ==========> |
//!   |                  all have theirs                        |     then both take
//!   | --- "sent": no more -> |                                |     what each has taken is its image's
//!   |                                                         |
//!   | --- what was taken ----------- side ------------------> |     before a tree runs on, whatever happened:
//!   | <-- what was taken ------------------------------------ |     it sends that again
//! ```
//! What must stay true: nobody takes anything before both have a connection to give it back over; what has been given
//! back is sent before the program sends anything else, and what a program could read is there before it runs on.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use super::{abroad::End, sockets::Sockets};
use crate::{
    carry,
    error::{Error, Result},
    flow,
    job::Board,
    socket,
};

/// How long the other supervisor may take to connect.
const PATIENCE: Duration = Duration::from_secs(10);
/// A look at connections that move.
const LOOK: Duration = Duration::from_micros(200);

/// A connection with more on its way than fits where it goes.
#[derive(Debug)]
pub struct Stuck {
    pub end: End,
    fd: OwnedFd,
    /// To the supervisor of the other tree.
    side: TcpStream,
    /// What was taken.
    pub bytes: Vec<u8>,
    /// How much of it the program could have read.
    readable: u64,
}

impl Sockets {
    /// Connects the supervisors of connections that are stuck.
    pub fn connect_sides(&mut self, ends: Vec<End>, board: &Board) -> Result<()> {
        let failed = |source| Error::io("a connection to another supervisor", source);
        let (mut listeners, mut said) = (Vec::new(), Vec::new());
        for end in &ends {
            let listener = match end.accepts {
                true => {
                    let listener = TcpListener::bind((end.local.ip(), 0)).map_err(failed)?;
                    said.push((end.own("side"), listener.local_addr().map_err(failed)?));
                    Some(listener)
                }
                false => None,
            };
            listeners.push(listener);
        }
        board.publish(&said)?;
        let connecting = ends.iter().filter(|end| !end.accepts);
        let keys: Vec<_> = connecting.map(|end| end.others("side")).collect();
        let mut others = board.lookup::<SocketAddr>(&keys)?.into_iter();
        for (end, listener) in ends.into_iter().zip(listeners) {
            let side = match (listener, &mut others) {
                (Some(listener), _) => accept(&listener, &end.id),
                (None, others) => others
                    .next()
                    .ok_or_else(|| io::ErrorKind::NotFound.into())
                    .and_then(|address| connect(address, &end.id)),
            };
            let fd = self.met[end.met].copy.try_clone().map_err(failed)?;
            self.stuck.push(Stuck {
                side: side.map_err(failed)?,
                readable: socket::readable(&fd).map_err(failed)?,
                fd,
                end,
                bytes: Vec::new(),
            });
        }
        Ok(())
    }

    /// Takes out what was sent to this tree, while the others do.
    pub fn take(&mut self, board: &Board) -> Result<()> {
        if self.stuck.is_empty() {
            return Ok(());
        }
        let said: Vec<_> = self
            .stuck
            .iter()
            .map(|stuck| (stuck.end.own("sent"), ()))
            .collect();
        let keys: Vec<_> = self
            .stuck
            .iter()
            .map(|stuck| stuck.end.others("sent"))
            .collect();
        let failed = |source| Error::io("what is on its way between trees", source);
        let stuck = &mut self.stuck;
        thread::scope(|scope| {
            let mut others = Some(scope.spawn(|| board.lookup::<()>(&keys)));
            let (mut is_said, mut last) = (false, Instant::now());
            loop {
                // Before it is read: what they have sent has arrived.
                if others.as_ref().is_some_and(|others| others.is_finished())
                    && let Some(others) = others.take()
                {
                    let joined = others.join();
                    joined.map_err(|_| failed(io::Error::other("a thread panicked")))??;
                }
                let (mut read, mut unsent) = (0, 0);
                for stuck in stuck.iter_mut() {
                    flow::acknowledge(&stuck.fd);
                    read += flow::take_some(&stuck.fd, &mut stuck.bytes).map_err(failed)?;
                    unsent += socket::unsent(&stuck.fd).map_err(failed)?;
                }
                if unsent == 0 && !is_said {
                    board.publish(&said)?;
                    is_said = true;
                }
                match () {
                    () if read > 0 => last = Instant::now(),
                    () if is_said && others.is_none() => return Ok(()),
                    () if last.elapsed() > PATIENCE => {
                        return Err(failed(io::ErrorKind::TimedOut.into()));
                    }
                    () => thread::sleep(LOOK),
                }
            }
        })
    }

    /// Gives back what was taken, and sends again what others have taken.
    pub fn give_back(&mut self) {
        let mut back = Vec::new();
        for stuck in self.stuck.drain(..) {
            match carry::swap(&stuck.side, &stuck.bytes) {
                Ok(theirs) => back.push((stuck, theirs)),
                // It has not come to take anything; or its tree is lost, and so is the connection.
                Err(error) if stuck.bytes.is_empty() => {
                    tracing::info!(%error, "another supervisor has gone on already");
                }
                Err(error) => {
                    let bytes = stuck.bytes.len();
                    tracing::error!(%error, bytes, "what was taken from a connection cannot be given back");
                }
            }
        }
        for (stuck, theirs) in &back {
            if let Err(error) = flow::put(&stuck.fd, None, theirs) {
                let bytes = theirs.len();
                tracing::error!(%error, bytes, "what was taken from a connection cannot be put back");
            }
        }
        // A program that knows that there is something to read must find it there.
        let until = Instant::now() + PATIENCE;
        for (stuck, _) in back {
            let wanted = stuck.readable.min(stuck.bytes.len() as u64);
            let is_back = || socket::readable(&stuck.fd).is_ok_and(|readable| readable >= wanted);
            while !is_back() && Instant::now() < until {
                thread::sleep(LOOK);
            }
        }
    }
}

fn accept(listener: &TcpListener, id: &[u8]) -> io::Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if socket::events(listener, libc::POLLIN, left.as_millis() as i32)? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (side, _) = listener.accept()?;
        // Somebody else may have come.
        if carry::swap(&side, id).is_ok_and(|theirs| theirs == id) {
            return Ok(side);
        }
    }
}

fn connect(address: SocketAddr, id: &[u8]) -> io::Result<TcpStream> {
    let side = TcpStream::connect_timeout(&address, PATIENCE)?;
    match carry::swap(&side, id)? == id {
        true => Ok(side),
        false => Err(io::Error::other("somebody else answers there")),
    }
}
