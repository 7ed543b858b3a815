//! A scenario of one's own, as a user of the library writes it for a protocol: a sender, a receiver, a link
//! that loses, doubles and delays, one invariant, one planted bug.

use snaprig::campaign::{Registry, campaign::*, canaries, scenario::protocol::*};
use std::collections::BTreeMap;

snaprig::fault_points! {
    /// A letter, or the answer to one, is on its way.
    LETTER = "post.letter", "a letter is on its way", [Drop, Duplicate, Delay];
}
canaries! {
    enum Bug {
        /// The receiver reads whatever comes.
        ReadsTwice = "reads-twice",
    }
}
const SENDER: ProcessId = ProcessId(0);
const RECEIVER: ProcessId = ProcessId(1);

#[derive(Clone, Debug)]
enum Event {
    Letter(u64),
    Answer(u64),
    Again(u64),
}

#[derive(Default)]
struct Post {
    letters: u64,
    sent: u64,
    read: Vec<u64>,
    bug: Option<Bug>,
}

impl Protocol for Post {
    const NAME: &'static str = "post";
    const PROCESSES: &'static [&'static str] = &["sender", "receiver"];
    const POINTS: &'static [Point] = ALL;
    const INVARIANTS: &'static [Invariant<Self>] = &[Invariant::checked(MESSAGES, |outcome| {
        let read = &outcome.end.read;
        (!read.iter().copied().eq(0..read.len() as u64)).then(|| format!("{read:?} were read"))
    })];
    type Event = Event;
    type Parameters = BTreeMap<String, u64>;
    type Canary = Bug;

    fn parameters(random: &mut Random) -> BTreeMap<String, u64> {
        BTreeMap::from([("letters".into(), 1 + random.below(9))])
    }

    fn new(work: &BTreeMap<String, u64>, bug: Option<Bug>) -> Self {
        let mut post = Self::default();
        (post.letters, post.bug) = (work["letters"], bug);
        post
    }

    fn start(&mut self, stage: &mut Stage<Event>) {
        if self.sent < self.letters {
            stage.send(SENDER, RECEIVER, &LETTER, Event::Letter(self.sent));
            stage.engine.after(SENDER, 50_000, Event::Again(self.sent));
        }
    }

    fn happen(&mut self, _: ProcessId, event: Event, stage: &mut Stage<Event>) {
        match event {
            Event::Letter(number) => {
                if self.bug.is_some() || number == self.read.len() as u64 {
                    self.read.push(number);
                }
                stage.send(RECEIVER, SENDER, &LETTER, Event::Answer(number));
            }
            Event::Answer(number) | Event::Again(number) if number == self.sent => {
                self.sent += u64::from(matches!(event, Event::Answer(_)));
                self.start(stage);
            }
            Event::Answer(_) | Event::Again(_) => {}
        }
    }
}

#[test]
fn a_scenario_of_ones_own_is_campaigned_shrunk_and_replayed() {
    let healthy = Simulator::of(Registry::of(Own::<Post>::scenario()));
    assert_eq!(healthy.campaign(0..5000).found, []);
    let bug = healthy.registry.canary("reads-twice");
    let buggy = healthy.clone().with(bug.ok());
    let found = &buggy.campaign(0..500).found[0];
    assert_eq!((&*found.invariant, found.plan.faults.len()), (MESSAGES, 1));
    assert_eq!(found.plan.number(&["letters"]), Some(1));
    let replayed = Plan::parse(&found.plan.to_text(), "plan.json").expect("it is a plan");
    assert_eq!(buggy.fails(&replayed).expect("again").how, found.how);
    assert_eq!(healthy.fails(&replayed), None);
}
