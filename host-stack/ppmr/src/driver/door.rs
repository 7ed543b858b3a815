//! Where sources come in: who comes says who it is, and agrees on how chunks go, in time, or is let go.
//!
//! What must stay true: nobody keeps a thread for longer than [`GREETING_MAX`] before it is known, and no more than
//! [`GREETINGS_MAX`] do at one time.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use snaprig_peers::{Address, Exchange, Listener, Nonce, Stream, Token};

use super::{
    agree::Ways,
    connection::{Link, Way},
    greeting::{Purpose, answer, ask},
    lock,
};
use crate::Mode;

/// How long a connection may take to be known, and to be whole.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Most sockets that are not known yet, or wait for the other one of their connection.
const GREETINGS_MAX: usize = 64;
/// How long nobody is let in after that was not possible, for want of descriptors, say.
const REST: Duration = Duration::from_millis(20);

/// Connects to a target, and agrees with it on how chunks go.
pub fn connect(target: &Address, token: &Token, ways: &Ways, mode: Mode) -> io::Result<Link> {
    let until = Instant::now() + GREETING_MAX;
    let left = || until.saturating_duration_since(Instant::now());
    let control = target.connect(left())?;
    let mut exchange = Exchange::new(&control, left());
    let nonce = ask(&mut exchange, token, Purpose::Control)?;
    let way = match ways.offer(&mut exchange, mode)? {
        Some(pair) => Way::Rdma(pair),
        None => {
            let chunks = target.connect(left())?;
            let mut exchange = Exchange::new(&chunks, left());
            ask(&mut exchange, token, Purpose::Chunks(nonce))?;
            Way::Socket(chunks)
        }
    };
    Ok(Link { control, way })
}

/// A target's door.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    porter: Porter,
}

/// Who finds out who comes.
#[derive(Debug)]
struct Porter {
    token: Token,
    ways: Ways,
    /// Where sockets of chunks are waited for.
    waiting: Mutex<BTreeMap<Nonce, Sender<Stream>>>,
}

impl Door {
    /// At this address, of a node that can this.
    pub fn open(address: &Address, token: &Token, ways: Ways) -> io::Result<Self> {
        Ok(Self {
            listener: Listener::bind(address)?,
            porter: Porter {
                token: token.clone(),
                ways,
                waiting: Mutex::default(),
            },
        })
    }

    /// Where it is.
    pub fn address(&self) -> io::Result<Address> {
        self.listener.address()
    }

    /// What nobody comes in by any more when it is shut down (shutdown(2)).
    pub fn listening(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Lets sources in until it is over, which is looked at when somebody comes, or nobody can any more.
    pub fn serve(
        self,
        is_over: impl Fn() -> bool,
        connected: impl Fn(Link) + Send + Sync + 'static,
    ) {
        let Self { listener, porter } = self;
        // Whoever is greeted has a part of it.
        let greets = Arc::new((porter, connected));
        loop {
            let socket = listener.accept();
            if is_over() {
                return;
            }
            match socket {
                Ok(socket) if Arc::strong_count(&greets) <= GREETINGS_MAX => {
                    let greets = greets.clone();
                    thread::spawn(move || {
                        // Who is not let in hears that its socket is closed.
                        if let Ok(Some(link)) = greets.0.greet(socket) {
                            (greets.1)(link);
                        }
                    });
                }
                Ok(_) => {}
                Err(_) => thread::sleep(REST),
            }
        }
    }
}

impl Porter {
    /// Who came; none: it has brought the socket of chunks of another one.
    fn greet(&self, socket: Stream) -> io::Result<Option<Link>> {
        let until = Instant::now() + GREETING_MAX;
        let mut exchange = Exchange::new(&socket, GREETING_MAX);
        let nonce = match answer(&mut exchange, &self.token)? {
            (Purpose::Control, nonce) => nonce,
            (Purpose::Chunks(of), _) => {
                if let Some(waits) = lock(&self.waiting).remove(&of) {
                    // It may have waited for too long.
                    let _ = waits.send(socket);
                }
                return Ok(None);
            }
        };
        let (sends, comes) = channel();
        // Its chunks may come before it is known here that they are to come.
        lock(&self.waiting).insert(nonce, sends);
        let way = self.ways.answer(&mut exchange).and_then(|pair| {
            let Some(pair) = pair else {
                let left = until.saturating_duration_since(Instant::now());
                let came = comes.recv_timeout(left).map(Way::Socket);
                return came.map_err(|_| io::ErrorKind::TimedOut.into());
            };
            Ok(Way::Rdma(pair))
        });
        lock(&self.waiting).remove(&nonce);
        let (control, way) = (socket, way?);
        Ok(Some(Link { control, way }))
    }
}
