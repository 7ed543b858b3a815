//! Where a member looks for the coordinator each time that it tries.

use std::{io, time::Duration};

use snaprig_peers::{Address, Stream};

use crate::job::JobDir;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Where a member looks for the coordinator each time that it tries.
#[derive(Clone, Debug)]
pub enum Locator {
    /// Always there.
    At(Address),
    /// Where the job's directory says that it is: the next coordinator may be elsewhere.
    Job(JobDir),
}

impl Locator {
    pub(super) fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::At(address) => address.connect(CONNECT_MAX),
            Self::Job(job) => {
                let address = job.address().map_err(io::Error::other)?;
                address.connect(CONNECT_MAX)
            }
        }
    }
}
