//! Both machines of a migration, joined without sockets and alone with anything that can be said to them: who does not
//! know the token is told nothing, a question is answered as often as it is asked, and neither machine ever does what
//! would make two of a tree, whatever happens in whatever order.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use snaprig_coord::migration::{
    ANSWER_NS, GREETING_NS, Id, PREPARED_NS, RETRY_MAX_NS, Record, SILENCE_NS, SiteId, Source,
    Target, WriteError,
    message::{ToSource, ToTarget, VERSION},
    source::{self, Config, Outcome},
    target,
};
use snaprig_peers::Token;

const ID: Id = Id([3; 16]);
const SITE: SiteId = SiteId([4; 16]);

fn config(token: Option<u8>) -> Config {
    Config {
        id: ID,
        token: token.map(|byte| Token::new([byte; 32])),
        command: vec!["program".into()],
    }
}

fn token(byte: u8) -> Option<Token> {
    Some(Token::new([byte; 32]))
}

/// Both machines and one connection, over which everything comes at once.
struct Pair {
    now: u64,
    source: Source,
    target: Target,
    connection: u64,
    is_connected: bool,
    /// What each side did that is no message.
    did: Vec<String>,
    /// Whether disks answer.
    answers: bool,
    pending: VecDeque<Pending>,
}

/// What is to come to a side.
enum Pending {
    Source(source::Input),
    Target(target::Input),
}

impl Pair {
    fn new(source: Source, target: Target) -> Self {
        Self {
            now: 0,
            source,
            target,
            connection: 0,
            is_connected: false,
            did: Vec::new(),
            answers: true,
            pending: VecDeque::new(),
        }
    }

    fn source(&mut self, input: source::Input) {
        self.pending.push_back(Pending::Source(input));
        self.run();
    }

    fn target(&mut self, input: target::Input) {
        self.pending.push_back(Pending::Target(input));
        self.run();
    }

    fn run(&mut self) {
        while let Some(next) = self.pending.pop_front() {
            match next {
                Pending::Source(input) => {
                    for output in self.source.handle(input, self.now) {
                        self.source_does(output);
                    }
                }
                Pending::Target(input) => {
                    for output in self.target.handle(input, self.now) {
                        self.target_does(output);
                    }
                }
            }
        }
    }

    fn source_does(&mut self, output: source::Output) {
        use source::{Input, Output};
        let connection = self.connection;
        let next = match output {
            Output::Connect => {
                self.connection += 1;
                self.is_connected = true;
                let connected = target::Input::Connected {
                    connection: self.connection,
                    nonce: [2; 32],
                };
                self.pending.push_back(Pending::Target(connected));
                Pending::Source(Input::Connected { nonce: [1; 32] })
            }
            Output::Send(message) if self.is_connected => Pending::Target(target::Input::Message {
                connection,
                message,
            }),
            Output::Send(_) => return,
            Output::Close => return self.cut(false),
            Output::Write(record) => {
                self.did.push(format!("{record:?}"));
                if !self.answers {
                    return;
                }
                Pending::Source(Input::Written(Ok(())))
            }
            other => return self.did.push(format!("{other:?}")),
        };
        self.pending.push_back(next);
    }

    fn target_does(&mut self, output: target::Output) {
        use target::{Input, Output};
        let next = match output {
            Output::Send { message, .. } if self.is_connected => {
                Pending::Source(source::Input::Message(message))
            }
            Output::Send { .. } => return,
            Output::Close { .. } => return self.cut(true),
            Output::Commit { id } => {
                self.did.push("Commit".into());
                if !self.answers {
                    return;
                }
                Pending::Target(Input::Committed { id, result: Ok(()) })
            }
            other => return self.did.push(format!("{other:?}")),
        };
        self.pending.push_back(next);
    }

    /// The connection ends, and a side is told.
    fn cut(&mut self, tells_source: bool) {
        if !std::mem::replace(&mut self.is_connected, false) {
            return;
        }
        let why = "it was cut".into();
        let connection = self.connection;
        self.pending.push_back(match tells_source {
            true => Pending::Source(source::Input::Closed { why }),
            false => Pending::Target(target::Input::Closed { connection }),
        });
    }

    fn copy(&mut self) {
        self.source(source::Input::Copied(Ok(())));
        self.target(target::Input::Received { id: ID });
        self.target(target::Input::Restored {
            id: ID,
            result: Ok(()),
        });
    }

    fn has(&self, what: &str) -> bool {
        self.did.iter().any(|done| done.starts_with(what))
    }
}

fn pair(source: Option<u8>, target: Option<u8>) -> Pair {
    let target = Target::new(SITE, target.and_then(token), BTreeSet::new(), 0);
    let mut pair = Pair::new(Source::new(config(source), 0), target);
    pair.source(source::Input::Tick);
    pair
}

#[test]
fn a_tree_moves_in_the_order_that_the_diagram_shows() {
    for token in [None, Some(7)] {
        let mut pair = pair(token, token);
        assert!(pair.has("Receive") && pair.has("Copy"), "{:?}", pair.did);
        pair.did.clear();
        pair.copy();
        let going = format!("{:?}", Record::Going(ID, SITE));
        let (gone, over) = (format!("{:?}", Record::Gone(ID)), Outcome::Gone);
        let (run, over) = (format!("Run {{ id: {ID:?} }}"), format!("Over({over:?})"));
        let expected = [&*going, "Commit", &run, "End", &gone, &over];
        assert_eq!(pair.did, expected);
        assert!(!pair.target.is_awaited());
    }
}

#[test]
fn a_target_may_be_ready_before_the_source_knows_that_the_image_is_there() {
    let mut pair = pair(None, None);
    pair.target(target::Input::Received { id: ID });
    pair.target(target::Input::Restored {
        id: ID,
        result: Ok(()),
    });
    let going = format!("{:?}", Record::Going(ID, SITE));
    assert!(!pair.has(&going), "its tree may run still");
    pair.source(source::Input::Copied(Ok(())));
    assert!(pair.has(&going) && pair.has("Commit") && pair.has("End"));
}

#[test]
fn who_does_not_know_the_token_is_told_nothing_and_the_tree_stays() {
    for (source, target) in [(Some(7), Some(8)), (Some(7), None), (None, Some(8))] {
        let mut pair = pair(source, target);
        pair.now = GREETING_NS;
        pair.target(target::Input::Tick);
        pair.source(source::Input::Tick);
        assert!(!pair.has("Receive"), "{:?}", pair.did);
        assert!(
            pair.has("LetGo") && pair.has("Over(Stays"),
            "{:?}",
            pair.did
        );
    }
    // Nor is a stranger who says what comes later.
    let mut target = Target::new(SITE, token(7), BTreeSet::from([ID]), 0);
    let nonce = [1; 32];
    let connected = target::Input::Connected {
        connection: 1,
        nonce,
    };
    target.handle(connected, 0);
    let go = target::Input::Message {
        connection: 1,
        message: ToTarget::Go { id: ID, site: SITE },
    };
    let done = target.handle(go, 0);
    let is_close = |output: &_| matches!(output, target::Output::Close { connection: 1, .. });
    assert!(done.len() == 1 && done.iter().all(is_close), "{done:?}");
}

#[test]
fn a_source_that_lost_the_answer_asks_until_it_is_told() {
    let mut pair = pair(Some(7), Some(7));
    pair.answers = false;
    pair.copy();
    pair.source(source::Input::Written(Ok(())));
    assert!(pair.has("Commit") && pair.source.is_in_doubt());
    // The connection is lost, and the target dies before anybody is told; its record is there.
    pair.cut(true);
    pair.run();
    pair.target = Target::new(SITE, token(7), BTreeSet::from([ID]), 0);
    assert!(!pair.has("LetGo"));
    pair.answers = true;
    pair.now = pair.source.deadline().expect("it asks again");
    assert!(pair.now <= RETRY_MAX_NS);
    pair.source(source::Input::Tick);
    assert!(pair.has("End") && pair.has("Over(Gone"), "{:?}", pair.did);
    // And so does one that has died itself.
    for (committed, says) in [
        (BTreeSet::from([ID]), "Over(Gone"),
        (BTreeSet::new(), "Over(Stays"),
    ] {
        let target = Target::new(SITE, token(7), committed, 0);
        let mut again = Pair::new(Source::resumed(config(Some(7)), SITE, 0), target);
        assert!(again.source.is_in_doubt());
        again.source(source::Input::Tick);
        assert!(again.has(says), "{:?}", again.did);
        assert_eq!(again.has("LetGo"), says == "Over(Stays");
    }
}

#[test]
fn another_target_at_the_same_address_does_not_answer_for_it() {
    let other = SiteId([5; 16]);
    for committed in [BTreeSet::new(), BTreeSet::from([ID])] {
        let target = Target::new(other, token(7), committed, 0);
        let mut again = Pair::new(Source::resumed(config(Some(7)), SITE, 0), target);
        again.source(source::Input::Tick);
        assert!(again.source.is_in_doubt());
        assert!(!again.has("LetGo") && !again.has("End"), "{:?}", again.did);
    }
}

#[test]
fn a_target_decides_alone_and_gives_up_what_nobody_wants() {
    let mut pair = pair(None, None);
    pair.answers = false;
    pair.copy();
    assert!(pair.has("Going"));
    pair.now = PREPARED_NS;
    pair.target(target::Input::Tick);
    assert!(pair.has("Drop"));
    // The source hears of it, and when its record is written it knows that it did not say Go.
    pair.source(source::Input::Written(Ok(())));
    assert!(pair.has("LetGo") && pair.has("Erase") && !pair.has("Commit"));
}

#[test]
fn a_decision_that_is_in_doubt_is_withdrawn_before_anybody_is_told() {
    let mut pair = pair(None, None);
    pair.copy_without_a_disk();
    let doubt = |in_doubt| {
        let why = "the disk".into();
        Err(WriteError { why, in_doubt })
    };
    let committed = target::Input::Committed {
        id: ID,
        result: doubt(true),
    };
    pair.target(committed);
    assert!(pair.has("Withdraw") && !pair.has("LetGo") && !pair.has("Run"));
    let not_yet = target::Input::Withdrawn {
        id: ID,
        result: Err("the disk".into()),
    };
    pair.target(not_yet);
    // Asked again meanwhile, it does not know.
    pair.now += ANSWER_NS;
    pair.source(source::Input::Tick);
    pair.now = pair.source.deadline().expect("it asks again");
    pair.source(source::Input::Tick);
    assert!(!pair.has("LetGo") && !pair.has("End"));
    pair.did.clear();
    pair.target(target::Input::Tick);
    assert!(pair.has("Withdraw"));
    pair.target(target::Input::Withdrawn {
        id: ID,
        result: Ok(()),
    });
    assert!(pair.has("Drop") && pair.has("LetGo"), "{:?}", pair.did);
}

impl Pair {
    /// The source has said Go, and the target's disk takes its time.
    fn copy_without_a_disk(&mut self) {
        self.answers = false;
        self.copy();
        self.source(source::Input::Written(Ok(())));
        assert!(self.has("Commit"));
    }
}

#[test]
fn silence_ends_a_migration_before_it_is_decided() {
    let mut pair = pair(None, None);
    pair.now = SILENCE_NS - 1;
    pair.source(source::Input::Progress);
    pair.target(target::Input::Progress { id: ID });
    pair.now = SILENCE_NS;
    pair.source(source::Input::Tick);
    assert!(!pair.has("LetGo"));
    pair.now = 2 * SILENCE_NS;
    pair.source(source::Input::Tick);
    assert!(pair.has("StopCopying") && pair.has("LetGo") && pair.has("Drop"));
}

/// A few migrations, so that answers can be about another one.
fn id() -> impl Strategy<Value = Id> {
    (0..3u8).prop_map(|byte| Id([byte + 2; 16]))
}

fn to_source() -> impl Strategy<Value = ToSource> {
    prop_oneof![
        (0..5u32).prop_map(|version| ToSource::Hello {
            version,
            nonce: [2; 32]
        }),
        any::<[u8; 32]>().prop_map(ToSource::Proof),
        id().prop_map(|id| ToSource::Ready { id, site: SITE }),
        id().prop_map(|id| ToSource::Failed {
            id,
            why: "no".into()
        }),
        id().prop_map(|id| ToSource::Running { id }),
    ]
}

fn to_target() -> impl Strategy<Value = ToTarget> {
    prop_oneof![
        (0..5u32).prop_map(|version| ToTarget::Hello {
            version,
            nonce: [2; 32]
        }),
        any::<[u8; 32]>().prop_map(ToTarget::Proof),
        id().prop_map(|id| ToTarget::Go { id, site: SITE }),
        id().prop_map(|id| ToTarget::Gone { id }),
        id().prop_map(|id| ToTarget::Abandon { id }),
    ]
}

fn written() -> impl Strategy<Value = Result<(), WriteError>> {
    prop_oneof![
        Just(Ok(())),
        any::<bool>().prop_map(|in_doubt| Err(WriteError {
            why: "no".into(),
            in_doubt
        }))
    ]
}

fn source_input() -> impl Strategy<Value = source::Input> {
    use source::Input;
    prop_oneof![
        Just(Input::Connected { nonce: [1; 32] }),
        Just(Input::Closed { why: "lost".into() }),
        to_source().prop_map(Input::Message),
        Just(Input::Copied(Ok(()))),
        Just(Input::Copied(Err("no".into()))),
        written().prop_map(Input::Written),
        Just(Input::Cancel),
        Just(Input::Tick),
    ]
}

fn target_input() -> impl Strategy<Value = target::Input> {
    use target::Input;
    let connection = || 1..4u64;
    prop_oneof![
        connection().prop_map(|connection| Input::Connected {
            connection,
            nonce: [1; 32]
        }),
        connection().prop_map(|connection| Input::Closed { connection }),
        (connection(), to_target()).prop_map(|(connection, message)| Input::Message {
            connection,
            message
        }),
        id().prop_map(|id| Input::Received { id }),
        (id(), any::<bool>()).prop_map(|(id, well)| Input::Restored {
            id,
            result: if well { Ok(()) } else { Err("no".into()) }
        }),
        (id(), written()).prop_map(|(id, result)| Input::Committed { id, result }),
        (id(), any::<bool>()).prop_map(|(id, well)| Input::Withdrawn {
            id,
            result: if well { Ok(()) } else { Err("no".into()) }
        }),
        Just(Input::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_source_lets_go_only_of_what_the_target_cannot_have(
        inputs in prop::collection::vec((source_input(), 0..40_000_000_000u64), 0..60),
        is_resumed: bool,
    ) {
        use source::Output;
        let (mut source, mut now) = match is_resumed {
            true => (Source::resumed(config(None), SITE, 0), 0),
            false => (Source::new(config(None), 0), 0),
        };
        let (mut asked, mut told, mut recorded, mut over) = (is_resumed, false, is_resumed, 0);
        for (input, later) in inputs {
            now += later;
            told |= matches!(&input, source::Input::Message(ToSource::Failed { id, .. }) if *id == ID);
            for output in source.handle(input, now) {
                match output {
                    Output::Write(Record::Going(..)) => recorded = true,
                    Output::Send(ToTarget::Go { id, site: SITE }) => {
                        prop_assert!(recorded && id == ID);
                        asked = true;
                    }
                    Output::LetGo => prop_assert!(!asked || told, "it may run at the target"),
                    Output::Over(_) => over += 1,
                    _ => {}
                }
            }
        }
        prop_assert!(over <= 1);
    }

    #[test]
    fn a_target_runs_only_what_is_decided_and_never_says_otherwise(
        inputs in prop::collection::vec((target_input(), 0..40_000_000_000u64, any::<bool>()), 0..80),
    ) {
        use target::{Input, Output};
        let (mut target, mut now, mut next) = (Target::new(SITE, None, BTreeSet::new(), 0), 0, 1u8);
        let (mut decided, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for (input, later, begins) in inputs {
            now += later;
            let mut all = vec![input];
            if begins && next < 5 {
                // Each attempt is another one.
                next += 1;
                let (id, connection) = (Id([next; 16]), 1);
                let nonce = [1; 32];
                let version = VERSION;
                let says = |message| Input::Message { connection, message };
                all.push(Input::Connected { connection, nonce });
                all.push(says(ToTarget::Hello { version, nonce }));
                all.push(says(ToTarget::Begin { id, command: vec![] }));
                all.push(Input::Restored { id, result: Ok(()) });
            }
            for input in all {
                if let Input::Committed { id, result: Ok(()) } = &input {
                    decided.insert(*id);
                }
                for output in target.handle(input, now) {
                    match output {
                        Output::Run { id } => prop_assert!(decided.contains(&id) && !refused.contains(&id)),
                        Output::Send { message: ToSource::Running { id }, .. } => {
                            prop_assert!(decided.contains(&id) && !refused.contains(&id));
                        }
                        Output::Send { message: ToSource::Failed { id, .. }, .. } => {
                            refused.insert(id);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}
