//! Windows of peers that programs have mapped: all that may be done with them on a card, every way in which a
//! mapping ends, and what is left of one whose other side is gone.

mod host;
mod pairs;

use host::on_each_platform;
use pairs::{Bench, Place, Running};

const HOST: Place = Place::Host;
const CARD: Place = Place::Card(1);
const OTHER: Place = Place::Card(2);

fn what_a_card_has_mapped_is_memory_like_any_and_goes_with_who_has_mapped_it(platform: &str) {
    let bench = Bench::new(platform, &["mapped"]);
    for server in [HOST, CARD, OTHER] {
        bench.pair("mapped", server, CARD);
    }
}

/// Both ends, with the server's window mapped.
fn mapped(bench: &Bench, server: Place, client: Place) -> (Running, Running) {
    let (mut serving, port) = bench.serve(server, "survive", &[]);
    let node = server.node().to_string();
    let mut asking = bench.start(client, "survive", &["client", &node, &port]);
    assert_eq!(serving.line(), "mapped");
    assert_eq!(asking.line(), "mapped");
    (serving, asking)
}

fn is_fine(survivor: Running, what: &str) {
    let (status, said) = survivor.end();
    assert_eq!(status, 0, "{what}: {said:?}");
}

fn kill(process: &Running) {
    let process = process.process.expect("it runs on the host");
    let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}

fn what_a_host_process_that_is_killed_has_lent_stays_as_it_was(platform: &str) {
    let bench = Bench::new(platform, &["survive"]);
    for client in [CARD, HOST] {
        let (victim, survivor) = mapped(&bench, HOST, client);
        kill(&victim);
        is_fine(survivor, &format!("{platform}: client on {client:?}"));
    }
    let (survivor, victim) = mapped(&bench, CARD, HOST);
    kill(&victim);
    is_fine(survivor, &format!("{platform}: server"));
}

fn what_a_card_that_is_killed_has_lent_stays_as_it_was(platform: &str) {
    for client in [HOST, OTHER] {
        let bench = Bench::new(platform, &["survive"]);
        let (_gone, survivor) = mapped(&bench, CARD, client);
        bench.rig.card(0).kill().expect("it was there");
        is_fine(survivor, &format!("{platform}: client on {client:?}"));
    }
    for server in [HOST, OTHER] {
        let bench = Bench::new(platform, &["survive"]);
        let (survivor, _gone) = mapped(&bench, server, CARD);
        bench.rig.card(0).kill().expect("it was there");
        is_fine(survivor, &format!("{platform}: server on {server:?}"));
    }
}

on_each_platform! {
    what_a_card_has_mapped_is_memory_like_any_and_goes_with_who_has_mapped_it
    what_a_host_process_that_is_killed_has_lent_stays_as_it_was
    what_a_card_that_is_killed_has_lent_stays_as_it_was
}
