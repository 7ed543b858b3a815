//! Looks at a fabric that runs, breaks it, heals it.

use std::{
    fs::File,
    io::{self, Read, Seek},
    os::fd::OwnedFd,
    path::{self, Path},
    time::Duration,
};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::{
    Description, FabricError, FaultRequest,
    place::Place,
    protocol::{Answer, Ask},
    socket, start,
};

/// How long the daemon has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The longest description: many times that of a fabric with all the queue pairs that it can have.
const DESCRIPTION_BYTES_MAX: u64 = 256 << 20;

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

    /// Ports, links, what is wrong with the paths, queue pairs.
    pub fn describe(&self) -> Result<Description, FabricError> {
        let (_, fds) = self.ask(&Ask::Describe)?;
        let file = fds.into_iter().next().ok_or(io::ErrorKind::InvalidData);
        let mut file = File::from(file.map_err(io::Error::from)?);
        file.rewind()?;
        let mut bytes = Vec::new();
        file.take(DESCRIPTION_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(postcard::from_bytes(&bytes).map_err(io::Error::other)?)
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

    fn ask(&self, ask: &Ask) -> Result<(Answer, Vec<OwnedFd>), FabricError> {
        socket::send(&self.socket, ask, &[])?;
        match socket::receive::<Answer>(&self.socket)? {
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Some((Answer::Refused(errno), _)) => Err(FabricError::Refused(errno)),
            Some(answer) => Ok(answer),
        }
    }
}
