//! Where programs ask for room ([`snaprig_coi::gate`]): a socket in the rig's directory, a thread a connection.
//!
//! What must stay true: there is one in a rig; who has said nothing useful within two seconds is not listened to; a request
//! is over when its connection is, whoever ends it; with the service all connections end.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc::Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::net::Shutdown;
use snaprig_coi::gate::{Answer, LINE_BYTES_MAX, SOCKET};
use snaprig_peers::{Exchange, lines};

use super::{OversubscribeError, driver::Event, policy::RequestId};
use crate::control::lock;

/// Most connections at a time; who comes then is refused.
const CONNECTIONS_MAX: usize = 1024;
/// How long a program may take to ask, and to take its answer.
const TIME_MAX: Duration = Duration::from_secs(2);

/// The service, until it is dropped: nobody can ask any more then.
pub(super) struct Service {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    askers: Arc<Mutex<Askers>>,
}

/// All connections.
#[derive(Default)]
struct Askers {
    streams: BTreeMap<RequestId, UnixStream>,
    last: RequestId,
    /// There are no more.
    is_over: bool,
}

impl Askers {
    /// One more, and its number; none: there are too many, or no more.
    fn add(&mut self, asker: &UnixStream) -> Option<RequestId> {
        if self.is_over || self.streams.len() >= CONNECTIONS_MAX {
            return None;
        }
        self.last += 1;
        self.streams.insert(self.last, asker.try_clone().ok()?);
        Some(self.last)
    }
}

impl Service {
    /// Has this channel told of all requests.
    pub fn start(rig: &Path, events: Sender<Event>) -> Result<Self, OversubscribeError> {
        let path = rig.join(SOCKET);
        let failed = |source| OversubscribeError::Io {
            path: path.clone(),
            source,
        };
        if UnixStream::connect(&path).is_ok() {
            let rig = rig.to_owned();
            return Err(OversubscribeError::Another { rig });
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = Arc::new(UnixListener::bind(&path).map_err(failed)?);
        let askers = Arc::<Mutex<Askers>>::default();
        let (listening, shared) = (listener.clone(), askers.clone());
        let thread = thread::spawn(move || serve(&listening, &shared, &events));
        Ok(Self {
            listener,
            path,
            thread: Some(thread),
            askers,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Nobody can connect any more, and whoever waits for that hears so.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            // If it panicked, it is gone as well.
            let _ = thread.join();
        }
        let mut askers = lock(&self.askers);
        askers.is_over = true;
        for asker in askers.streams.values() {
            // The other end may have done so before.
            let _ = asker.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(listener: &UnixListener, askers: &Arc<Mutex<Askers>>, events: &Sender<Event>) {
    loop {
        let asker = match listener.accept() {
            Ok((asker, _)) => asker,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(_) => return,
        };
        let Some(id) = lock(askers).add(&asker) else {
            continue;
        };
        let (askers, events) = (askers.clone(), events.clone());
        thread::spawn(move || {
            // An asker that breaks off has its own reasons.
            let _ = converse(asker, id, &events);
            lock(&askers).streams.remove(&id);
        });
    }
}

/// Hears what is asked, and waits until the connection ends.
fn converse(mut asker: UnixStream, id: RequestId, events: &Sender<Event>) -> io::Result<()> {
    let ask = lines::receive(Exchange::new(&asker, TIME_MAX), LINE_BYTES_MAX)?;
    let over = || io::Error::from(io::ErrorKind::BrokenPipe);
    events
        .send(Event::Asked(id, ask, asker.try_clone()?))
        .map_err(|_| over())?;
    // It has nothing more to say.
    let ended = asker.read(&mut [0]);
    let _ = asker.shutdown(std::net::Shutdown::Both);
    events.send(Event::Over(id)).map_err(|_| over())?;
    ended.map(drop)
}

/// Answers, if the asker listens.
pub(super) fn answer(asker: &UnixStream, answer: Answer) -> io::Result<()> {
    lines::send(&mut Exchange::new(asker, TIME_MAX), &answer)
}
