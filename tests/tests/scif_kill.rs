//! A process or a card dies while SCIF is at work: the survivor is told in bounded time, and the rig
//! goes on.

mod host;
mod pairs;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use host::on_each_platform;
use pairs::{Bench, Place, Running};

/// A survivor knows within this time.
const BOUND: Duration = Duration::from_secs(20);

/// Both ends at work: server and client.
fn at_work(bench: &Bench, server: (Place, &str), client: (Place, &str)) -> (Running, Running) {
    let (mut serving, port) = bench.serve(server.0, "kill", &[server.1]);
    let node = server.0.node().to_string();
    let arguments = ["client", &node, &port, client.1];
    let mut asking = bench.start(client.0, "kill", &arguments);
    assert_eq!(
        (serving.line(), asking.line()),
        ("works".into(), "works".into())
    );
    (serving, asking)
}

fn is_told(mut survivor: Running, what: &str) {
    let begun = Instant::now();
    assert_eq!(survivor.line(), "ended: ECONNRESET", "{what}");
    assert!(begun.elapsed() < BOUND, "{what}: {:?}", begun.elapsed());
    let (status, said) = survivor.end();
    assert_eq!(status, 0, "{what}: {said:?}");
}

fn kill(process: &Running) {
    let process = process.process.expect("it runs on the host");
    let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}

fn who_talks_to_a_host_process_that_is_killed_is_told(platform: &str) {
    let bench = Bench::new(platform, &["kill", "stream"]);
    let (victims, others) = (Place::Host, [Place::Host, Place::Card(1)]);
    for other in others {
        for work in ["recv", "send", "read", "write", "fence"] {
            // The victim is in the middle of a receive, and of RMA.
            for doing in ["recv", "write"] {
                let what = format!("{platform}: {work} on {other:?}, the victim in {doing}");
                let (survivor, victim) = at_work(&bench, (other, work), (victims, doing));
                kill(&victim);
                is_told(survivor, &what);
            }
        }
        bench.pair("stream", other, Place::Host);
    }
}

/// scif_connect(3): there is no such node, or it is lost.
fn a_card_that_is_gone_is_no_device(platform: &str) {
    let bench = Bench::new(platform, &["kill"]);
    bench.rig.card(0).kill().expect("it was there");
    for from in [Place::Host, Place::Card(2)] {
        for node in ["1", "3"] {
            let mut asking = bench.start(from, "kill", &["client", node, "1100", "recv"]);
            let no_device = format!("connect: errno {}", libc::ENODEV);
            assert_eq!(asking.line(), no_device, "{platform}: {node} from {from:?}");
            assert_eq!(asking.end().0, 1);
        }
    }
}

fn who_talks_to_a_card_that_is_killed_is_told(platform: &str) {
    for work in ["recv", "send", "read", "write", "fence"] {
        let bench = Bench::new(platform, &["kill", "stream"]);
        let victim = (Place::Card(1), "recv");
        let (_gone, here) = at_work(&bench, victim, (Place::Host, work));
        let (_too, there) = at_work(&bench, victim, (Place::Card(2), work));
        bench.rig.card(0).kill().expect("it was there");
        is_told(here, &format!("{platform}: {work} on the host"));
        is_told(there, &format!("{platform}: {work} on another card"));
        bench.pair("stream", Place::Host, Place::Card(2));
    }
}

/// Also who waits in poll(2), for messages that do not pass through the node.
#[test]
fn who_talks_to_another_program_of_the_host_is_told_when_the_rig_is_killed() {
    let directory = pairs::compiled(&["orphan"]);
    let rig = ["run", "--platform", "ptrace", "--memory", "64M", "--"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"));
    command.args(rig).arg(directory.path().join("orphan"));
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "second: hung up 1, reset 1\nfirst: hung up 1, reset 1\n";
    assert_eq!(said, expected, "{output:?}");
}

on_each_platform! {
    who_talks_to_a_host_process_that_is_killed_is_told
    a_card_that_is_gone_is_no_device
    who_talks_to_a_card_that_is_killed_is_told
}
