//! The side that is asked, in a thread that has something else to do.
//!
//! What must stay true: nothing here waits for a client, be it silent or slow. Each client has a deadline for all that it
//! asks, and another one for taking its answer; there are never more clients than a maximum, and who has been there the
//! longest makes room.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::event::{Timespec, epoll};
use serde::{Serialize, de::DeserializeOwned};

use super::{Incoming, parse, to_line};
use crate::{Exchange, Listener, Stream};

/// A client, by a number that is never used again.
pub type ClientId = u64;

/// What the listener is in the epoll instance; clients have larger numbers.
const LISTENER: ClientId = 0;

/// How much clients may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most clients at a time.
    pub clients_max: usize,
    /// Most bytes of a command.
    pub command_bytes_max: usize,
    /// How long a client may take for its command, and then for taking the answer.
    pub time_max: Duration,
}

/// Clients that ask for something, one command each.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    epoll: OwnedFd,
    limits: Limits,
    clients: BTreeMap<ClientId, Client>,
    last: ClientId,
}

#[derive(Debug)]
struct Client {
    stream: Stream,
    deadline: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its command comes.
    Asking(Incoming),
    /// Its command is the caller's.
    Waiting,
    /// So much of the answer has not left yet.
    Answered(Vec<u8>),
}

/// What is left to do for a client.
enum Step<T> {
    Nothing,
    Command(io::Result<T>),
    Over,
}

impl Server {
    /// Serves those who connect.
    pub fn new(listener: Listener, limits: Limits) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, listener.as_fd(), LISTENER)?;
        Ok(Self {
            listener,
            epoll,
            limits,
            clients: BTreeMap::new(),
            last: LISTENER,
        })
    }

    /// When to call [`Self::next_command`] though nothing has come.
    pub fn deadline(&self) -> Option<Instant> {
        self.clients.values().filter_map(Client::deadline).min()
    }

    /// Does what can be done without waiting, up to a command that is whole, or is none. To be called until there is no
    /// more, whenever the descriptor is readable, and at the deadline. Each command is to be answered.
    pub fn next_command<T: DeserializeOwned>(&mut self) -> Option<(ClientId, io::Result<T>)> {
        let now = Instant::now();
        let is_late = |client: &Client| client.deadline().is_some_and(|due| due <= now);
        self.clients.retain(|_, client| !is_late(client));
        for id in self.ready() {
            if id == LISTENER {
                self.accept();
                continue;
            }
            let Some(client) = self.clients.get_mut(&id) else {
                continue;
            };
            match client.step() {
                Step::Nothing => {}
                Step::Command(command) => {
                    client.state = State::Waiting;
                    self.watch_for(id, epoll::EventFlags::empty());
                    return Some((id, command));
                }
                Step::Over => drop(self.clients.remove(&id)),
            }
        }
        None
    }

    /// Answers a client. What it does not take at once leaves later.
    pub fn answer(&mut self, id: ClientId, answer: &impl Serialize) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Ok(line) = to_line(answer) else {
            self.clients.remove(&id);
            return;
        };
        client.state = State::Answered(line);
        client.deadline = Instant::now() + self.limits.time_max;
        match client.step::<()>() {
            Step::Over => drop(self.clients.remove(&id)),
            _ => self.watch_for(id, epoll::EventFlags::OUT),
        }
    }

    /// No more commands. Waits until clients have taken their answers, and no longer than for one of them.
    pub fn finish(self) {
        let until = Instant::now() + self.limits.time_max;
        for client in self.clients.into_values() {
            if let State::Answered(line) = client.state {
                let left = until.saturating_duration_since(Instant::now());
                // Who asked may be gone.
                let _ = Exchange::new(&client.stream, left).write_all(&line);
            }
        }
    }

    /// Who has something to be done.
    fn ready(&self) -> Vec<ClientId> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let room = rustix::buffer::spare_capacity(&mut events);
        // Interrupted: the next call hears of the same.
        let _ = epoll::wait(&self.epoll, room, Some(&Timespec::default()));
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn accept(&mut self) {
        while let Ok(stream) = self.listener.accept() {
            if self.clients.len() >= self.limits.clients_max {
                self.clients.pop_first();
            }
            let id = self.last + 1;
            let is_watched = stream.set_nonblocking(true).is_ok()
                && watch(&self.epoll, stream.as_fd(), id).is_ok();
            if !is_watched {
                continue;
            }
            self.last = id;
            let client = Client {
                stream,
                deadline: Instant::now() + self.limits.time_max,
                state: State::Asking(Incoming::new(self.limits.command_bytes_max)),
            };
            self.clients.insert(id, client);
        }
    }

    fn watch_for(&mut self, id: ClientId, events: epoll::EventFlags) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let number = epoll::EventData::new_u64(id);
        if epoll::modify(&self.epoll, &client.stream, number, events).is_err() {
            self.clients.remove(&id);
        }
    }
}

impl AsFd for Server {
    /// Readable when there is something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Client {
    /// Until when it is to have done something; none: it waits for the caller.
    fn deadline(&self) -> Option<Instant> {
        (!matches!(self.state, State::Waiting)).then_some(self.deadline)
    }

    /// Reads or writes what can be.
    fn step<T: DeserializeOwned>(&mut self) -> Step<T> {
        match &mut self.state {
            State::Asking(came) => match came.read_from(&mut self.stream) {
                Ok(0) => Step::Over,
                Ok(_) => match came.next_line() {
                    Ok(None) => Step::Nothing,
                    Ok(Some(line)) => Step::Command(parse(&line)),
                    Err(error) => Step::Command(Err(error)),
                },
                Err(error) if is_for_now(&error) => Step::Nothing,
                Err(_) => Step::Over,
            },
            // An error, or the end: the answer is for nobody.
            State::Waiting => Step::Over,
            State::Answered(line) => match self.stream.write(line) {
                Ok(count) if count == line.len() => Step::Over,
                Ok(count) => {
                    line.drain(..count);
                    Step::Nothing
                }
                Err(error) if is_for_now(&error) => Step::Nothing,
                Err(_) => Step::Over,
            },
        }
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, id: ClientId) -> io::Result<()> {
    let number = epoll::EventData::new_u64(id);
    Ok(epoll::add(epoll, fd, number, epoll::EventFlags::IN)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use crate::{Address, lines};

    const LIMITS: Limits = Limits {
        clients_max: 3,
        command_bytes_max: 16,
        time_max: Duration::from_secs(3600),
    };

    struct Served {
        _directory: tempfile::TempDir,
        server: Server,
        address: Address,
    }

    fn serve(limits: Limits) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Unix(directory.path().join("socket"));
        let listener = Listener::bind(&address).unwrap();
        Served {
            _directory: directory,
            server: Server::new(listener, limits).unwrap(),
            address,
        }
    }

    impl Served {
        fn connect(&self) -> Stream {
            self.address.connect(Duration::from_secs(60)).unwrap()
        }

        /// All commands that are there: each call returns at once, whoever is silent.
        fn commands(&mut self) -> Vec<(ClientId, Option<u32>)> {
            let mut all = Vec::new();
            // What has been sent by this thread is there. One call may do no more than accept.
            for _ in 0..3 {
                while let Some((id, command)) = self.server.next_command() {
                    all.push((id, command.ok()));
                }
            }
            all
        }
    }

    #[test]
    fn whoever_waits_for_the_caller_is_not_late() {
        let time_max = Duration::from_millis(1);
        let mut served = serve(Limits { time_max, ..LIMITS });
        // A loaded machine may take longer than that to accept.
        let (mut client, commands) = loop {
            let mut client = served.connect();
            lines::send(&mut client, &7).unwrap();
            let commands = served.commands();
            if !commands.is_empty() {
                break (client, commands);
            }
        };
        let asked = Instant::now();
        while asked.elapsed() <= time_max {
            assert_eq!(served.commands(), []);
        }
        served.server.answer(commands[0].0, &"seven");
        let answer: String = lines::receive(&mut client, 100).unwrap();
        assert_eq!(answer, "seven");
    }

    #[test]
    fn a_silent_client_and_a_slow_one_keep_nobody_waiting() {
        let mut served = serve(LIMITS);
        let _silent = served.connect();
        let mut slow = served.connect();
        for byte in b"12" {
            slow.write_all(&[*byte]).unwrap();
            assert_eq!(served.commands(), []);
        }
        let mut quick = served.connect();
        lines::send(&mut quick, &3).unwrap();
        let commands = served.commands();
        assert_eq!(commands, [(3, Some(3))]);
        served.server.answer(3, &"three");
        assert_eq!(receive(&mut quick), "\"three\"\n");
        slow.write_all(b"\n").unwrap();
        assert_eq!(served.commands(), [(2, Some(12))]);
        served.server.answer(2, &"twelve");
        assert_eq!(receive(&mut slow), "\"twelve\"\n");
    }

    #[test]
    fn who_has_been_there_the_longest_makes_room() {
        let mut served = serve(LIMITS);
        let mut clients: Vec<_> = (0..4).map(|_| served.connect()).collect();
        assert_eq!(served.commands(), []);
        assert_eq!(served.server.clients.len(), 3);
        assert_eq!(receive(&mut clients[0]), "");
    }

    #[test]
    fn who_takes_too_long_is_given_up() {
        let mut served = serve(Limits {
            time_max: Duration::ZERO,
            ..LIMITS
        });
        let mut client = served.connect();
        client.write_all(b"1").unwrap();
        assert_eq!(served.commands(), []);
        assert!(served.server.deadline().is_none());
        // With what it had said unread, the end is a reset.
        let error = client.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(error, Ok(0) | Err(io::ErrorKind::ConnectionReset)));
    }

    #[test]
    fn what_is_no_command_is_told_and_answered() {
        let mut served = serve(LIMITS);
        for wrong in ["{}\n", "a command that is too long"] {
            let mut client = served.connect();
            client.write_all(wrong.as_bytes()).unwrap();
            let [(id, None)] = served.commands()[..] else {
                panic!("it is a command");
            };
            served.server.answer(id, &"no");
            assert_eq!(receive(&mut client), "\"no\"\n");
        }
    }

    #[test]
    fn a_long_answer_leaves_as_it_is_taken() {
        let mut served = serve(LIMITS);
        let mut client = served.connect();
        lines::send(&mut client, &1).unwrap();
        let [(id, Some(1))] = served.commands()[..] else {
            panic!("there is a command");
        };
        let long = "x".repeat(4 << 20);
        served.server.answer(id, &long);
        assert!(served.server.deadline().is_some());
        let reader = std::thread::spawn(move || receive(&mut client));
        served.server.finish();
        assert_eq!(reader.join().unwrap().len(), long.len() + 3);
    }

    /// All that the server says until it hangs up.
    fn receive(client: &mut Stream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }
}
