//! Makes the policy real: sees the rig, hears who asks for room, has processes swapped by their programs.
//!
//! What must stay true: one thread has the policy; what takes time is done by others, which say how it ended; the rig is
//! seen before that is told.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use snaprig_coi::gate::{Answer, Ask, LINE_BYTES_MAX, SOCKET};
use snaprig_peers::{Exchange, lines};
use snaprig_wire::scif::NodeId;

use super::{
    OversubscribeError,
    policy::{Input, Output, Policy, RequestId, Settings, Who},
    report::{Report, Row},
    service::{Service, answer},
    view::{Moved, View},
};
use crate::control::{Client, Command};

/// Where snapshots are, in the rig's directory, if nobody says where.
const DIRECTORY: &str = "oversubscribe";
/// How often the rig is looked at: a tenth of a quantum, within these.
const LOOK: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];
/// The longest that a swap takes: a snapshot may be large, and its disk slow.
const SWAP_TIME_MAX: Duration = Duration::from_secs(600);
/// The longest that room is kept for a program that was granted it.
const GRANT_TIME_MAX: Duration = Duration::from_secs(60);
/// How many processes that have ended are remembered.
const ENDED_MAX: usize = 4096;
/// How long an arbiter may take to hear of a card.
const TELL_TIME_MAX: Duration = Duration::from_secs(10);

/// What happens.
pub(super) enum Event {
    /// A program asks.
    Asked(RequestId, Ask, UnixStream),
    /// Its connection has ended.
    Over(RequestId),
    /// A swap has ended: out (true) or in.
    Swapped(Who, bool, Result<Moved, String>),
    /// Somebody wants to know.
    Report(Sender<Report>),
    /// That is all.
    Stop,
}

/// Which rig, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rig's directory.
    pub rig: PathBuf,
    /// Where snapshots go, which is there; none: below the rig's directory.
    pub directory: Option<PathBuf>,
    /// The policy's.
    pub settings: Settings,
}

/// Has offload processes of all programs of a rig take turns, until it is stopped or dropped, or the rig ends.
///
/// Processes that are out then stay out: `snaprig snapify swapin` brings them back, and so does the next arbiter with the
/// same directory.
pub struct Oversubscriber {
    rig: PathBuf,
    events: Sender<Event>,
    thread: Option<JoinHandle<Report>>,
}

impl Oversubscriber {
    /// Begins.
    pub fn start(options: Options) -> Result<Self, OversubscribeError> {
        let rig = options.rig.clone();
        let directory = match options.directory {
            Some(directory) => directory,
            None => own_directory(&rig)?,
        };
        let (events, happening) = mpsc::channel();
        let service = Service::start(&rig, events.clone())?;
        let driver = Driver {
            rig: rig.clone(),
            view: View::new(&rig, &directory),
            policy: Policy::new(options.settings),
            epoch: Instant::now(),
            look_every: (options.settings.quantum / 10).clamp(LOOK[0], LOOK[1]),
            events: events.clone(),
            askers: BTreeMap::new(),
            ended: Vec::new(),
        };
        let thread = thread::spawn(move || driver.run(&happening, service));
        Ok(Self {
            rig,
            events,
            thread: Some(thread),
        })
    }

    /// A card is about to fail (true): its processes leave it for others, at once. Or it is not any more.
    pub fn card_is_failing(&self, node: NodeId, is: bool) -> Result<(), OversubscribeError> {
        tell_failing(&self.rig, node, is)
    }

    /// How processes were treated so far; none: it has ended.
    pub fn report(&self) -> Option<Report> {
        let (say, said) = mpsc::channel();
        self.events.send(Event::Report(say)).ok()?;
        said.recv().ok()
    }

    /// Somebody who can have it stop.
    pub fn stopper(&self) -> impl FnOnce() + Send + use<> {
        let events = self.events.clone();
        move || {
            // It may have ended before.
            let _ = events.send(Event::Stop);
        }
    }

    /// Waits until it is stopped, or the rig ends.
    pub fn wait(mut self) -> Option<Report> {
        self.thread.take()?.join().ok()
    }

    /// Swaps that are under way are waited for, and who waits for room is refused.
    pub fn stop(self) -> Option<Report> {
        self.stopper()();
        self.wait()
    }
}

impl Drop for Oversubscriber {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stopper()();
            // If it panicked, it is gone as well.
            let _ = thread.join();
        }
    }
}

/// Tells whoever has processes take turns in this rig that a card is about to fail (true), or is not any more.
pub fn tell_failing(rig: &Path, node: NodeId, is: bool) -> Result<(), OversubscribeError> {
    let absent = |source| OversubscribeError::Absent {
        rig: rig.to_owned(),
        source,
    };
    let stream = UnixStream::connect(rig.join(SOCKET)).map_err(absent)?;
    let mut exchange = Exchange::new(&stream, TELL_TIME_MAX);
    lines::send(&mut exchange, &Ask::Failing(node, is)).map_err(absent)?;
    let heard: Answer = lines::receive(exchange, LINE_BYTES_MAX).map_err(absent)?;
    match heard {
        Answer::Granted => Ok(()),
        Answer::Refused => Err(OversubscribeError::NoCard { node }),
    }
}

fn own_directory(rig: &Path) -> Result<PathBuf, OversubscribeError> {
    let path = rig.join(DIRECTORY);
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(OversubscribeError::Io { path, source }),
    }
}

/// Who waits for an answer, or has one, since then.
struct Asker {
    stream: UnixStream,
    granted: Option<Instant>,
}

struct Driver {
    rig: PathBuf,
    view: View,
    policy: Policy,
    epoch: Instant,
    look_every: Duration,
    events: Sender<Event>,
    askers: BTreeMap<RequestId, Asker>,
    ended: Vec<Row>,
}

impl Driver {
    fn run(mut self, happening: &Receiver<Event>, service: Service) -> Report {
        let mut next_look = Instant::now();
        loop {
            let due = self.policy.deadline().map(|due| self.epoch + due);
            let next = due.map_or(next_look, |due| due.min(next_look));
            let left = next.saturating_duration_since(Instant::now());
            let goes_on = match happening.recv_timeout(left) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => false,
                Ok(event) => self.happens(event),
                Err(RecvTimeoutError::Timeout) => self.look(),
            };
            if !goes_on {
                break;
            }
            next_look = Instant::now() + self.look_every;
        }
        // Whoever waits hears the end of its connection.
        drop(service);
        while !self.view.swapping.is_empty() {
            match happening.recv() {
                Ok(Event::Swapped(who, is_out, result)) => self.swap_ended(who, is_out, &result),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.report()
    }

    /// Whether it goes on.
    fn happens(&mut self, event: Event) -> bool {
        match event {
            Event::Asked(id, ask, stream) => self.asked(id, ask, stream),
            Event::Over(id) => {
                let was_asking = self.askers.remove(&id).is_some();
                let goes_on = self.look();
                if was_asking {
                    self.tell(Input::RequestOver(id));
                }
                goes_on
            }
            Event::Swapped(who, is_out, result) => {
                self.swap_ended(who, is_out, &result);
                let goes_on = self.look();
                self.tell(Input::Swapped(who, result.is_ok()));
                goes_on
            }
            Event::Report(to) => {
                // Who asks may be gone.
                let _ = to.send(self.report());
                true
            }
            Event::Stop => false,
        }
    }

    fn asked(&mut self, id: RequestId, ask: Ask, stream: UnixStream) -> bool {
        match ask {
            Ask::Room {
                host,
                process,
                node,
                bytes,
            } => {
                let asker = Asker {
                    stream,
                    granted: None,
                };
                self.askers.insert(id, asker);
                let goes_on = self.look();
                let who = process.map(|process| Who { host, process });
                self.tell(Input::Request {
                    id,
                    who,
                    node,
                    bytes,
                });
                goes_on
            }
            Ask::Failing(node, is) => {
                let is_there = self.view.has_card(node);
                match is {
                    true if is_there => drop(self.view.failing.insert(node)),
                    _ => drop(self.view.failing.remove(&node)),
                }
                let said = match is_there {
                    true => Answer::Granted,
                    false => Answer::Refused,
                };
                // Who does not listen any more has told all the same.
                let _ = answer(&stream, said);
                self.look()
            }
        }
    }

    /// Sees the rig; false: it is gone.
    fn look(&mut self) -> bool {
        let before = self.rows();
        let Some(sight) = self.view.look(&self.policy) else {
            return false;
        };
        let gone = before
            .into_iter()
            .filter(|(who, _)| !sight.processes.contains_key(who));
        self.ended.extend(gone.map(|(_, row)| row.ended()));
        let surplus = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..surplus);
        for asker in self.askers.values() {
            if asker
                .granted
                .is_some_and(|at| at.elapsed() > GRANT_TIME_MAX)
            {
                asker.hang_up();
            }
        }
        self.tell(Input::Sight(sight));
        true
    }

    fn tell(&mut self, input: Input) {
        self.policy.handle(input, self.epoch.elapsed());
        while let Some(output) = self.policy.poll_output() {
            match output {
                Output::SwapOut(who) => {
                    let snapshot = self.view.snapshot(who).unwrap_or_default();
                    self.swap(who, true, Command::SwapOut(snapshot));
                }
                Output::SwapIn(who, node) => self.swap(who, false, Command::SwapIn(node)),
                Output::Grant(id) => self.answer(id, Answer::Granted),
                Output::Refuse(id) => self.answer(id, Answer::Refused),
            }
        }
    }

    fn answer(&mut self, id: RequestId, said: Answer) {
        if let Some(asker) = self.askers.get_mut(&id) {
            asker.granted = Some(Instant::now());
            if answer(&asker.stream, said).is_err() || said == Answer::Refused {
                asker.hang_up();
            }
        }
    }

    /// Has a process's program swap it.
    fn swap(&mut self, who: Who, is_out: bool, command: Command) {
        tracing::debug!(?who, ?command, "swap");
        self.view.swapping.insert(who);
        let (rig, events) = (self.rig.clone(), self.events.clone());
        let free_bytes = self.view.free_bytes(who);
        thread::spawn(move || {
            let before = free_bytes();
            let swapped = Client::connect(&rig, who.host)
                .and_then(|mut client| client.run_for(Some(who.process), &command, SWAP_TIME_MAX))
                .map(|report| Moved {
                    bytes: report.bytes,
                    freed_bytes: free_bytes().saturating_sub(before),
                })
                .map_err(|error| error.to_string());
            // Nobody may be there any more whom it concerns.
            let _ = events.send(Event::Swapped(who, is_out, swapped));
        });
    }

    fn swap_ended(&mut self, who: Who, is_out: bool, result: &Result<Moved, String>) {
        self.view.swapping.remove(&who);
        match (is_out, result) {
            (true, Ok(moved)) => self.view.learn(who, Some(*moved)),
            (false, Ok(_)) => self.view.forget_snapshot(who),
            (_, Err(why)) => {
                tracing::warn!(?who, is_out, why, "a swap has failed");
                if !is_out {
                    self.view.learn(who, None);
                }
            }
        }
    }

    fn report(&self) -> Report {
        let living = self.rows().into_iter().map(|(_, row)| row);
        Report::of(self.ended.iter().cloned().chain(living).collect())
    }

    /// What has become of those that there are.
    fn rows(&self) -> Vec<(Who, Row)> {
        let all = self.policy.accounts().map(|(who, account)| {
            let (name, card) = (self.view.name(who), self.policy.card(who));
            (who, Row::new(who, name, card, account))
        });
        all.collect()
    }
}

impl Asker {
    /// Its request is over when the connection's thread has heard that.
    fn hang_up(&self) {
        // The other end may have done so before.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::{
        Phase,
        control::{Described, Report as Said},
        snapshot_name,
    };

    /// A rig whose cards have gone.
    fn rig() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    fn options(rig: &Path) -> Options {
        let settings = Settings {
            patience: Duration::ZERO,
            ..Settings::default()
        };
        Options {
            rig: rig.to_owned(),
            directory: None,
            settings,
        }
    }

    fn ask(rig: &Path, ask: Ask) -> Answer {
        let mut stream = UnixStream::connect(rig.join(SOCKET)).expect("it listens");
        lines::send(&mut stream, &ask).expect("it hears");
        lines::receive(stream, LINE_BYTES_MAX).expect("it answers")
    }

    /// A program that has this process, and answers so many commands.
    fn program(rig: &Path, pid: u32, process: &Described) {
        let listener = UnixListener::bind(rig.join(format!("host-{pid}.sock"))).expect("bound");
        let said = Said {
            processes: vec![process.clone()],
            ..Said::default()
        };
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, said) = (client.expect("a client"), said.clone());
                thread::spawn(move || {
                    let mut commands = lines::Receiver::new(&client, LINE_BYTES_MAX);
                    while let Ok(Some(_)) = commands.next_line() {
                        if lines::send(&mut &client, &said).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }

    fn process(number: u64, state: Phase) -> Described {
        Described {
            process: number,
            card: 2,
            card_pid: 7,
            name: "sink".into(),
            state,
            buffer_bytes: 4096,
            is_wanted: true,
            steps: Vec::new(),
        }
    }

    #[test]
    fn there_is_one_in_a_rig_and_nothing_is_left_of_it() {
        let rig = rig();
        let first = Oversubscriber::start(options(rig.path())).expect("it starts");
        let another = Oversubscriber::start(options(rig.path())).err();
        assert!(matches!(another, Some(OversubscribeError::Another { .. })));
        let refused = first.card_is_failing(1, true);
        assert!(matches!(
            refused,
            Err(OversubscribeError::NoCard { node: 1 })
        ));
        let report = first.stop().expect("it reports");
        assert!(report.processes.is_empty());
        assert!(!rig.path().join(SOCKET).exists());
        let absent = tell_failing(rig.path(), 1, true);
        assert!(matches!(absent, Err(OversubscribeError::Absent { .. })));
        drop(Oversubscriber::start(options(rig.path())).expect("it starts again"));
    }

    #[test]
    fn where_there_is_no_card_there_is_no_room() {
        let rig = rig();
        let oversubscriber = Oversubscriber::start(options(rig.path())).expect("it starts");
        let room = Ask::Room {
            host: 7,
            process: None,
            node: 1,
            bytes: 1,
        };
        assert_eq!(ask(rig.path(), room), Answer::Refused);
        // Who says something else is not answered, and does no harm.
        let mut stream = UnixStream::connect(rig.path().join(SOCKET)).expect("it listens");
        lines::send(&mut stream, &"give me a card").expect("it hears");
        assert!(lines::receive::<Answer>(stream, LINE_BYTES_MAX).is_err());
        assert_eq!(ask(rig.path(), room), Answer::Refused);
        assert!(oversubscriber.report().is_some());
    }

    #[test]
    fn an_arbiter_that_ends_refuses_who_waits() {
        let rig = rig();
        let settings = Settings::default();
        let oversubscriber = Oversubscriber::start(Options {
            settings,
            ..options(rig.path())
        });
        let oversubscriber = oversubscriber.expect("it starts");
        program(rig.path(), 7, &process(1, Phase::SwappedOut));
        // A process that is out, of an arbiter before: its request waits for a card.
        let snapshot = rig.path().join(DIRECTORY).join(snapshot_name("sink", 7, 1));
        fs::create_dir_all(snapshot).expect("made");
        let mut stream = UnixStream::connect(rig.path().join(SOCKET)).expect("it listens");
        let room = Ask::Room {
            host: 7,
            process: Some(1),
            node: 1,
            bytes: 1,
        };
        lines::send(&mut stream, &room).expect("it hears");
        let report = oversubscriber.stop().expect("it reports");
        assert!(report.processes.len() <= 1);
        assert!(!matches!(
            lines::receive::<Answer>(stream, LINE_BYTES_MAX),
            Ok(Answer::Granted)
        ));
    }

    #[test]
    fn processes_that_others_have_paused_or_swapped_out_are_left_alone() {
        let rig = rig();
        let directory = own_directory(rig.path()).expect("made");
        program(rig.path(), 7, &process(1, Phase::Running));
        program(rig.path(), 8, &process(1, Phase::SwappedOut));
        program(rig.path(), 9, &process(1, Phase::SwappedOut));
        program(rig.path(), 10, &process(1, Phase::Captured));
        let own = directory.join(snapshot_name("sink", 9, 1));
        fs::create_dir_all(own).expect("made");
        let mut view = View::new(rig.path(), &directory);
        let policy = Policy::new(Settings::default());
        let sight = view.look(&policy).expect("it is there");
        let seen: Vec<_> = sight
            .processes
            .iter()
            .map(|(who, seen)| (who.host, seen.node, seen.is_wanted))
            .collect();
        assert_eq!(seen, [(7, Some(2), true), (9, None, true)]);
        // What it takes beside its buffers is learnt when it is swapped.
        let who = Who {
            host: 7,
            process: 1,
        };
        let moved = |bytes, freed_bytes| Some(Moved { bytes, freed_bytes });
        let bytes =
            |view: &mut View| view.look(&policy).expect("it is there").processes[&who].bytes;
        view.learn(who, moved(64 << 20, 70 << 20));
        assert_eq!(bytes(&mut view), 70 << 20);
        // Others were busy there.
        view.learn(who, moved(64 << 20, 0));
        assert_eq!(bytes(&mut view), (64 << 20) - 4096);
        view.learn(who, moved(64 << 20, 100 << 20));
        assert_eq!(bytes(&mut view), 72 << 20);
        drop(rig);
        assert!(view.look(&policy).is_none());
    }
}
