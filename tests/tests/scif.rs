//! C programs that were written against scif.h: compiled by gcc with nothing but the header and the
//! library, run with either end on the host or on a card, on every platform.
//!
//! Their sources are in `fixtures/scif`.

mod host;
mod pairs;

use host::on_each_platform;
use pairs::{Bench, Place};

/// Both on the host, across, and on two cards.
const WAYS: [(Place, Place); 5] = [
    (Place::Host, Place::Host),
    (Place::Host, Place::Card(1)),
    (Place::Card(1), Place::Host),
    (Place::Card(1), Place::Card(2)),
    (Place::Card(1), Place::Card(1)),
];

fn every_way(platform: &str, program: &str) {
    let bench = Bench::new(platform, &[program]);
    for (server, client) in WAYS {
        bench.pair(program, server, client);
    }
}

fn messages_of_any_size_arrive(platform: &str) {
    every_way(platform, "stream");
}

fn messages_arrive_whoever_waits_and_however(platform: &str) {
    every_way(platform, "traffic");
}

fn registered_memory_is_shared_and_copied_truthfully(platform: &str) {
    every_way(platform, "rma");
}

fn windows_come_and_go_while_the_peer_copies(platform: &str) {
    every_way(platform, "lease");
}

fn children_copy_where_their_parents_have_copied(platform: &str) {
    every_way(platform, "forked");
}

fn fences_wait_for_what_was_marked_and_signals_follow_it(platform: &str) {
    every_way(platform, "fence");
}

fn endpoints_can_be_polled_by_every_means(platform: &str) {
    every_way(platform, "poll");
}

/// All that is documented, as far as it can be provoked: the same on the host and on a card.
fn errors_are_those_of_the_manual_pages(platform: &str) {
    const GOLDEN: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/scif/errors.golden"
    );
    let golden = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    let bench = Bench::new(platform, &["errors"]);
    for (server, client) in WAYS {
        let (serving, port) = bench.serve(server, "errors", &[]);
        let node = server.node().to_string();
        let asking = bench.start(client, "errors", &["client", &node, &port]);
        let (status, said) = asking.end();
        let said = said.join("\n") + "\n";
        assert_eq!(status, 0, "{server:?} {client:?}: {said}");
        let (status, served) = serving.end();
        assert_eq!(status, 0, "{server:?} {client:?}: {served:?} {said}");
        if std::env::var_os("SNAPRIG_BLESS").is_some() {
            std::fs::write(GOLDEN, &said).expect("it can be written");
            return;
        }
        assert_eq!(said, golden, "{server:?} {client:?}");
    }
}

fn mapped_windows_outlive_everything(platform: &str) {
    every_way(platform, "mmap");
}

fn memory_that_a_program_shares_with_others_can_be_a_window(platform: &str) {
    let bench = Bench::new(platform, &["shared"]);
    for server in [Place::Host, Place::Card(1)] {
        for client in [Place::Host, Place::Card(1), Place::Card(2)] {
            bench.pair("shared", server, client);
        }
    }
}

#[test]
fn a_program_that_is_alone_is_told_what_is_missing() {
    let bench = Bench::new("ptrace", &["alone"]);
    let run = |rig: Option<&str>| {
        let mut command = bench.command("alone");
        command.arg("open");
        match rig {
            Some(rig) => command.env("SNAPRIG_RIG", rig),
            None => command.env_remove("SNAPRIG_RIG"),
        };
        let output = command.output().expect("it runs");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let [said, why] = run(None);
    assert_eq!(said, "scif_open: ENXIO\n");
    assert!(
        why.contains("SNAPRIG_RIG is not set") && why.lines().count() == 1,
        "{why}"
    );
    let [said, why] = run(Some("/nonexistent"));
    assert_eq!(said, "scif_open: ENODEV\n");
    assert!(
        why.contains("/nonexistent") && why.lines().count() == 1,
        "{why}"
    );
    let (status, said) = bench.start(Place::Host, "alone", &[]).end();
    let expected = [
        "scif_bind(1023): EACCES",
        "scif_bind(1024): no error",
        "scif_bind(1023), privileged: no error",
        "scif_accept, a signal: EINTR",
        "scif_recv, a signal: EINTR",
        "memory: parent, 0",
        "child: abc",
        "parent: ok",
    ];
    let mut said = said;
    said.sort();
    let mut expected = expected.map(str::to_owned);
    expected.sort();
    assert_eq!((status, said), (0, expected.to_vec()));
}

on_each_platform! {
    messages_of_any_size_arrive
    messages_arrive_whoever_waits_and_however
    registered_memory_is_shared_and_copied_truthfully
    windows_come_and_go_while_the_peer_copies
    children_copy_where_their_parents_have_copied
    fences_wait_for_what_was_marked_and_signals_follow_it
    endpoints_can_be_polled_by_every_means
    errors_are_those_of_the_manual_pages
    mapped_windows_outlive_everything
    memory_that_a_program_shares_with_others_can_be_a_window
}
