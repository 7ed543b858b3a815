//! Looks at a fabric that runs, breaks it, heals it.

use std::{
    io,
    os::fd::OwnedFd,
    path::{self, Path},
    time::Duration,
};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::{
    FabricError, FaultRequest,
    place::Place,
    protocol::{Answer, Ask},
    socket, start,
};

/// How long the daemon has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A connection to a fabric's control daemon, which does not end before it does.
#[derive(Debug)]
pub struct Operator {
    socket: OwnedFd,
}

impl Operator {
    /// Of a fabric that runs.
    pub fn connect(place: &Place) -> Result<Self, FabricError> {
        let socket = start::try_connect(&place.socket());
        Self::new(socket.map_err(|source| FabricError::NotRunning {
            name: place.name.clone(),
            source,
        })?)
    }

    pub(crate) fn new(socket: OwnedFd) -> Result<Self, FabricError> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX)).map_err(io::Error::from)?;
        Ok(Self { socket })
    }

    /// Ports, links, what is wrong with the paths, queue pairs: for people.
    pub fn describe(&self) -> Result<String, FabricError> {
        match self.ask(&Ask::Describe)? {
            Answer::Text(text) => Ok(text),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Breaks or heals it.
    pub fn fault(&self, request: FaultRequest) -> Result<(), FabricError> {
        self.ask(&Ask::Fault(request)).map(drop)
    }

    /// Has every packet written to a file (pcapng) from now on; with none, no more.
    pub fn capture(&self, file: Option<&Path>) -> Result<(), FabricError> {
        let file = file.map(path::absolute).transpose()?;
        self.ask(&Ask::Capture { file }).map(drop)
    }

    /// Has it carry out a fault plan's faults of packets, from now on, in place of an earlier plan.
    pub fn plan(&self, file: &Path) -> Result<(), FabricError> {
        let file = path::absolute(file)?;
        self.ask(&Ask::Plan { file }).map(drop)
    }

    /// Ends the fabric, whoever uses it, and returns when nothing of it is left.
    pub fn end(&self) -> Result<(), FabricError> {
        self.ask(&Ask::End)?;
        // The daemon's end is the socket's.
        match socket::receive::<Answer>(&self.socket)? {
            None => Ok(()),
            Some(_) => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Answer, FabricError> {
        socket::send(&self.socket, ask, &[])?;
        match socket::receive::<Answer>(&self.socket)? {
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Some((Answer::Refused(errno), _)) => Err(FabricError::Refused(errno)),
            Some((answer, _)) => Ok(answer),
        }
    }
}
