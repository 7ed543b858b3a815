//! Cards crash, are reset, unplugged and plugged in again, at every step of what goes on: whoever waits
//! is told, nobody hangs, the other cards go on, and the card that comes back works.

mod host;
mod scene;

use std::{
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use host::on_each_platform;
use scene::{SNAPRIG, TIMEOUT, quiet};
use snaprig_coi::{Engine, Process};
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_rig::{Card, CardState, Rig, RigError};
use snaprig_snapify::{Snapify, Step, StepReport};

/// Everything that is told to end does so within this time.
const BOUND: Duration = Duration::from_secs(60);

fn rig(platform: &str, cards: usize) -> Arc<Rig> {
    let platform = platform.parse().expect("it is one");
    let rig = Rig::builder().exe(SNAPRIG).cards(cards);
    let rig = rig.memory_bytes(256 << 20).platform(Some(platform));
    Arc::new(rig.start().expect("a rig"))
}

fn create(rig: &Rig, card: u16) -> Process {
    let engine = Engine::get(rig.dir(), card).expect("a card");
    let sink = kmeans::SINK.to_vec();
    Process::create(&engine, "kmeans", sink, vec![], vec![]).expect("an offload process")
}

type Work = std::thread::JoinHandle<Result<kmeans::Outcome, kmeans::OffloadError>>;

fn start(process: &Process) -> Work {
    let process = process.clone();
    std::thread::spawn(move || kmeans::run(&process, &Workload::shipped()))
}

fn finishes(work: Work) {
    let outcome = work.join().expect("no panic").expect("it finishes");
    let golden = kmeans::golden(&Workload::shipped());
    assert_eq!(outcome.to_text(), golden.to_text());
}

fn works(rig: &Rig, card: u16) {
    finishes(start(&create(rig, card)));
}

/// An observer that does something to a card when `step` begins, once.
fn at(
    step: Step,
    rig: &Arc<Rig>,
    card: usize,
    harm: fn(&Card) -> Result<(), RigError>,
) -> Arc<dyn Fn(&StepReport) + Send + Sync> {
    let (rig, done) = (rig.clone(), Mutex::new(false));
    Arc::new(move |report: &StepReport| {
        let mut done = done.lock().expect("no panic");
        if report.step == step && report.elapsed.is_none() && !*done {
            *done = true;
            harm(rig.card(card)).expect("it is done");
        }
    })
}

fn a_crashed_card_is_reset_and_works_and_the_others_never_notice(platform: &str) {
    let rig = rig(platform, 2);
    let (card, other) = (rig.card(0), rig.card(1));
    assert_eq!([card.state(), other.state()], [CardState::Online; 2]);
    let (pid, elsewhere) = (other.pid(), create(&rig, 1));
    let undisturbed = start(&elsewhere);
    let lost = create(&rig, 0);
    let work = start(&lost);
    lost.break_at(9, TIMEOUT).expect("it gets to work");
    card.kill().expect("killed");
    assert_eq!(card.state(), CardState::Crashed);
    let list = Command::new(SNAPRIG)
        .args(["card", "list", "--rig"])
        .arg(rig.dir())
        .output()
        .expect("it starts");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert_eq!(list, "card 1  crashed\ncard 2  online\n");
    work.join()
        .expect("no panic")
        .expect_err("its card is dead");
    Engine::get(rig.dir(), 0)
        .and_then(|engine| engine.connect_daemon().map(drop))
        .expect_err("nobody is there");
    let refused = card.plug().expect_err("there is one").to_string();
    assert!(refused.contains("crashed"), "{refused}");
    card.reset().expect("it comes back");
    assert_eq!(card.state(), CardState::Online);
    works(&rig, 0);
    // Its kernel stops: the process ends by itself.
    card.kill_daemon().expect("told");
    card.wait_for(CardState::Crashed, BOUND).expect("it stops");
    card.reset().expect("it comes back");
    works(&rig, 0);
    finishes(undisturbed);
    assert_eq!((other.pid(), other.state()), (pid, CardState::Online));
}

fn cards_are_killed_reset_and_unplugged_from_a_shell(platform: &str) {
    let script = "
        card() { $snaprig card \"$@\" 2>&1; }
        card kill 1; card list; card exec -- /bin/true
        card plug 1; card reset 1; card exec -- /bin/echo there
        card unplug 2 --json; card reset 2; card exec --node 2 -- /bin/true; card plug 2
        card kill-daemon 2; card reset 2; card shut-down 2; card list
        card reset 9; card kill --rig /nowhere 1; card kill 0 | head -n 1";
    let output = Command::new("timeout")
        .args(["240", SNAPRIG, "run", "--cards", "2", "--platform"])
        .args([platform, "--", "sh", "-c", script])
        .env("snaprig", SNAPRIG)
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let expected = "card 1  crashed
card 1  crashed
card 2  online
error: card 1 is crashed; snaprig card reset 1
error: card 1 is crashed: it cannot be plugged in
card 1  online
there
{
  \"2\": \"offline\"
}
error: card 2 is offline: it cannot be reset; plug it in
error: card 2 is offline; snaprig card plug 2
card 2  online
card 2  crashed
card 2  online
card 2  offline
card 1  online
card 2  offline
error: there is no card 9: the rig has cards 1 and 2
error: no rig runs in /nowhere: No such file or directory (os error 2)
error: invalid value '0' for '<CARD>': 0 is not in 1..=65535
";
    assert_eq!(
        printed,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn a_card_that_is_unplugged_at_any_step_fails_that_step_and_can_be_plugged_in_again(
    platform: &str,
) {
    let rig = rig(platform, 2);
    for step in [Step::Agree, Step::Lock, Step::Drain, Step::Capture] {
        let (process, bystander) = (create(&rig, 0), create(&rig, 1));
        let (work, undisturbed) = (start(&process), start(&bystander));
        process.break_at(9, TIMEOUT).expect("it gets to work");
        let dir = tempfile::tempdir().expect("a directory");
        let snapshot = dir.path().join("snapshot");
        let begun = Instant::now();
        let snapify = Snapify::new(&process, at(step, &rig, 0, Card::unplug));
        let done = snapify
            .pause(&snapshot)
            .and_then(|_| snapify.capture(false))
            .and_then(|_| snapify.wait(TIMEOUT));
        done.map(drop).expect_err("the card is gone");
        assert!(!snapshot.exists(), "{step:?}");
        if step == Step::Capture {
            // The pause was a success: the application stays paused, for whoever could bring its
            // process back.
            snapify.resume().expect_err("the card is gone");
        } else {
            let outcome = work.join().expect("no panic");
            outcome.expect_err("nobody can finish it");
        }
        assert!(begun.elapsed() < BOUND, "{step:?}");
        let card = rig.card(0);
        assert_eq!((card.state(), card.pid()), (CardState::Offline, None));
        let refused = card.reset().expect_err("there is none").to_string();
        assert!(refused.contains("offline"), "{refused}");
        card.plug().expect("a new card");
        assert_eq!((card.state(), card.node()), (CardState::Online, 1));
        works(&rig, 0);
        finishes(undisturbed);
    }
}

fn a_process_whose_card_is_reset_or_unplugged_is_restored_elsewhere_or_where_it_was(
    platform: &str,
) {
    let rig = rig(platform, 2);
    for (step, harm) in [
        (Step::Commit, Card::reset as fn(&Card) -> _),
        (Step::Verify, Card::unplug),
        (Step::Restore, Card::reset),
        (Step::Reconnect, Card::unplug),
    ] {
        if rig.card(1).state() == CardState::Offline {
            rig.card(1).plug().expect("a new card");
        }
        let process = create(&rig, 0);
        let work = start(&process);
        process.break_at(9, TIMEOUT).expect("it gets to work");
        let dir = tempfile::tempdir().expect("a directory");
        let card = |index| Engine::get(rig.dir(), index).expect("a card");
        // Card 2 goes while the process is on its way there.
        let snapify = Snapify::new(&process, at(step, &rig, 1, harm));
        snapify.pause(&dir.path().join("s")).expect("pause");
        snapify.capture(true).expect("capture");
        snapify.wait(TIMEOUT).expect("wait");
        let there = snapify.restore(&card(1));
        assert_eq!(there.is_ok(), step == Step::Commit, "{step:?}");
        if there.is_err() {
            // Its own card is new by now.
            rig.card(0).reset().expect("it comes back");
            snapify.restore(&card(0)).expect("card 1 takes it");
        }
        snapify.resume().expect("resume");
        finishes(work);
    }
}

fn a_card_that_is_reset_in_mid_transfer_ends_every_transfer_and_those_to_other_cards_are_exact(
    platform: &str,
) {
    const BYTES: usize = 8 << 20;
    let rig = rig(platform, 2);
    for harm in [Card::reset, Card::kill, Card::unplug, Card::shut_down] {
        let (process, bystander) = (create(&rig, 0), create(&rig, 1));
        let (started, is_started) = std::sync::mpsc::channel();
        let buffer = process.buffer(BYTES).expect("a buffer");
        let transfers = std::thread::spawn(move || {
            let data = vec![7; BYTES];
            loop {
                buffer.write(0, &data)?;
                // Nobody listens after the first time.
                let _ = started.send(());
                buffer.read(0, &mut vec![0; BYTES])?;
            }
        });
        is_started.recv().expect("the first one succeeds");
        harm(rig.card(0)).expect("it is done");
        let ended: Result<(), snaprig_coi::CoiError> = transfers.join().expect("no panic");
        ended.expect_err("the card is gone");
        let buffer = bystander.buffer(BYTES).expect("a buffer");
        let data: Vec<_> = (0..BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
        buffer.write(0, &data).expect("written");
        let mut back = vec![0; BYTES];
        buffer.read(0, &mut back).expect("read");
        assert!(back == data, "not what was written");
        match rig.card(0).state() {
            CardState::Online => {}
            CardState::Crashed => rig.card(0).reset().expect("it comes back"),
            _ => rig.card(0).plug().expect("a new card"),
        }
        works(&rig, 0);
    }
}

fn a_reset_that_is_interrupted_ends_and_the_next_one_succeeds(platform: &str) {
    let rig = rig(platform, 1);
    // A card that dies while it boots.
    let resetting = rig.clone();
    let former = rig.card(0).pid();
    let reset = std::thread::spawn(move || resetting.card(0).reset());
    while rig.card(0).pid() == former || rig.card(0).pid().is_none() {
        std::thread::yield_now();
    }
    rig.card(0).kill().expect("killed");
    let ended = reset.join().expect("no panic");
    if ended.is_err() {
        assert_eq!(rig.card(0).state(), CardState::ResetFailed);
    }
    // Everybody at once.
    std::thread::scope(|scope| {
        let resets: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| rig.card(0).reset()))
            .collect();
        for reset in resets {
            reset.join().expect("no panic").expect("it comes back");
        }
    });
    works(&rig, 0);
    // In order: nothing is killed.
    let process = create(&rig, 0);
    let begun = Instant::now();
    rig.card(0).shut_down().expect("it goes");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "it had to be killed"
    );
    assert_eq!(rig.card(0).state(), CardState::Offline);
    process.wait(TIMEOUT).expect_err("its card is gone");
    let snapify = Snapify::new(&process, quiet());
    snapify
        .pause(&rig.dir().join("s"))
        .expect_err("its card is gone");
}

on_each_platform! {
    cards_are_killed_reset_and_unplugged_from_a_shell
    a_crashed_card_is_reset_and_works_and_the_others_never_notice
    a_card_that_is_unplugged_at_any_step_fails_that_step_and_can_be_plugged_in_again
    a_process_whose_card_is_reset_or_unplugged_is_restored_elsewhere_or_where_it_was
    a_card_that_is_reset_in_mid_transfer_ends_every_transfer_and_those_to_other_cards_are_exact
    a_reset_that_is_interrupted_ends_and_the_next_one_succeeds
}
