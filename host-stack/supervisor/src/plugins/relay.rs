//! Questions of plugins on their way to the board: that of the tree, or, in a job, the coordinator's.
//!
//! What must stay true: the supervisor does not wait for an answer; a coordinator that is slow, or gone, makes plugins
//! late, and nothing else.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, mpsc},
};

use rustix::event::{EventfdFlags, eventfd};
use snaprig_ckpt_plugin::message::{Answer, BATCH_BYTES, Question};
use snaprig_coord::{
    Ns,
    coordinator::CALLS_MAX,
    message::{Answer as Found, Call, CallError},
    plugins::{Answers, Board as OwnBoard, QuestionId, unscoped},
};
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
};

/// What members say of how many plugins they have.
const COUNTS: &[u8] = b"plugins/";
/// Calls to the coordinator at the same time: others of this member need some as well.
const CALLS: usize = CALLS_MAX / 2;

/// What comes of a call to the coordinator.
type Called = std::result::Result<Found, CallError>;

/// Where questions go.
pub struct Relay {
    own: OwnBoard,
    is_in_job: bool,
    /// For the coordinator, and not there yet.
    waiting: VecDeque<(QuestionId, Question, Ns)>,
    calls: usize,
    answered: mpsc::Receiver<(QuestionId, Called)>,
    answer: mpsc::Sender<(QuestionId, Called)>,
    /// Of barriers between phases, by number: who gives a round up does not wait for the last one.
    met: mpsc::Receiver<(u64, Called)>,
    meet: mpsc::Sender<(u64, Called)>,
    meeting: u64,
    /// Counts answers, and barriers.
    ready: Arc<OwnedFd>,
}

impl Relay {
    pub fn new() -> rustix::io::Result<Self> {
        let (answer, answered) = mpsc::channel();
        let (meet, met) = mpsc::channel();
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            own: OwnBoard::default(),
            is_in_job: false,
            waiting: VecDeque::new(),
            calls: 0,
            answered,
            answer,
            met,
            meet,
            meeting: 0,
            ready: Arc::new(ready),
        })
    }

    /// A phase begins.
    pub fn begin(&mut self, is_in_job: bool) {
        self.is_in_job = is_in_job;
    }

    /// A round is over: what was published goes with it.
    pub fn end(&mut self) {
        self.own = OwnBoard::default();
        self.waiting.clear();
    }

    /// When [`Relay::expire`] is due.
    pub fn deadline(&self) -> Option<Ns> {
        let waiting = self.waiting.iter().map(|(.., deadline_ns)| *deadline_ns);
        waiting.chain(self.own.deadline()).min()
    }

    /// What comes of questions for which it is too late.
    pub fn expire(&mut self, now: Ns) -> Answers {
        let mut answers = self.own.expire(now);
        self.waiting.retain(|(id, _, deadline_ns)| {
            let is_late = *deadline_ns <= now;
            if is_late {
                answers.push((*id, Err("the job's board is not reachable".into())));
            }
            !is_late
        });
        answers
    }

    /// A question; what comes of it, and of others, now.
    pub fn ask(
        &mut self,
        id: QuestionId,
        question: Question,
        deadline_ns: Ns,
        board: Option<&Board>,
        now: Ns,
    ) -> Answers {
        if !self.is_in_job {
            return self.own.ask(id, question, deadline_ns);
        }
        self.waiting.push_back((id, question, deadline_ns));
        self.send_waiting(board, now);
        Vec::new()
    }

    /// To the coordinator, as far as it takes them.
    pub fn send_waiting(&mut self, board: Option<&Board>, now: Ns) {
        let Some(board) = board else {
            return;
        };
        while self.calls < CALLS
            && let Some((id, question, deadline_ns)) = self.waiting.pop_front()
        {
            let patience_ms = deadline_ns.saturating_sub(now) / 1_000_000;
            let patience_ms = u32::try_from(patience_ms).unwrap_or(u32::MAX);
            let Some(call) = call(question, board.round, patience_ms) else {
                continue;
            };
            self.calls += 1;
            let (answer, ready) = (self.answer.clone(), self.ready.clone());
            board.member.start_call(call, move |result| {
                // The supervisor may have ended.
                let _ = answer.send((id, result));
                let _ = rustix::io::write(&*ready, &1u64.to_ne_bytes());
            });
        }
    }

    /// Comes to a barrier of the trees of a job.
    pub fn meet(&mut self, name: String, board: &Board) {
        self.meeting += 1;
        let call = Call::Barrier {
            round: board.round,
            name,
            patience_ms: u32::try_from(board.patience.as_millis()).unwrap_or(u32::MAX),
        };
        let (number, meet, ready) = (self.meeting, self.meet.clone(), self.ready.clone());
        board.member.start_call(call, move |result| {
            // The supervisor may have ended.
            let _ = meet.send((number, result));
            let _ = rustix::io::write(&*ready, &1u64.to_ne_bytes());
        });
    }

    /// What has come of that; none: not all are there.
    pub fn met(&mut self) -> Option<std::result::Result<(), CallError>> {
        let mut met = self.met.try_iter();
        let (_, result) = met.find(|(number, _)| *number == self.meeting)?;
        Some(result.map(drop))
    }

    /// What the coordinator has answered.
    pub fn answers(&mut self) -> Answers {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.ready, &mut count);
        let answers: Vec<_> = self.answered.try_iter().collect();
        self.calls -= answers.len();
        let answers = answers.into_iter();
        answers
            .map(|(id, result)| {
                (
                    id,
                    result.map_err(|error| error.to_string()).and_then(found),
                )
            })
            .collect()
    }
}

impl AsFd for Relay {
    /// Readable when there are [`Relay::answers`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// A question as the coordinator is asked it.
fn call(question: Question, round: u64, patience_ms: u32) -> Option<Call> {
    Some(match question {
        Question::Publish(entries) => Call::Publish { round, entries },
        Question::Lookup(keys) => Call::Lookup {
            round,
            keys,
            patience_ms,
        },
        Question::Collect { prefix, after } => Call::Collect {
            round,
            prefix,
            after,
            bytes_max: BATCH_BYTES as u32,
        },
        Question::Barrier { name, count } => Call::Count {
            round,
            name,
            count,
            patience_ms,
        },
        // It is answered by the supervisor itself.
        Question::Variable(_) => return None,
    })
}

/// An answer as plugins are told it.
fn found(answer: Found) -> std::result::Result<Answer, String> {
    match answer {
        Found::Done => Ok(Answer::Done),
        Found::Values(values) => snaprig_coord::plugins::fits(values),
        Found::Entries(entries) => {
            // That is how a coordinator says that there are no more.
            let is_all = entries.is_empty();
            let known = entries.into_iter();
            let known = known.map(|(key, value)| (unscoped(&key).to_vec(), value));
            Ok(Answer::Entries {
                entries: known.collect(),
                is_all,
            })
        }
        other => Err(format!("the coordinator answers {other:?}")),
    }
}

/// How many plugins there are in all trees of a job, by name: each member says how many it has, and waits for all.
pub fn count_all(
    board: &Board,
    member: &str,
    own: &BTreeMap<String, u32>,
) -> Result<BTreeMap<String, u32>> {
    count(board, member, own)?;
    board.meet("plugins-counted")?;
    counted(board)
}

/// A member says how many plugins it has, instead of what it said before.
pub fn count(board: &Board, member: &str, own: &BTreeMap<String, u32>) -> Result<()> {
    let key = [COUNTS, member.as_bytes()].concat();
    board.publish(&[(key, own)])
}

/// What all members have said.
pub fn counted(board: &Board) -> Result<BTreeMap<String, u32>> {
    let entries = board.member.collect(board.round, COUNTS)?;
    let mut all = BTreeMap::new();
    for (_, value) in entries {
        let counts: BTreeMap<String, u32> =
            postcard::from_bytes(&value).map_err(|error| Error::Job {
                what: format!("what a member says of its plugins: {error}"),
            })?;
        for (name, count) in counts {
            let sum: &mut u32 = all.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    Ok(all)
}
