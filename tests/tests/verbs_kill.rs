//! SIGKILL of either side or of the control daemon, at any moment: the others are told in bounded
//! time, and nothing is left.

mod fabric;

use std::{collections::BTreeSet, fs, time::Duration};

use fabric::{Fabric, free_port, text, wait_for_listener, wait_until};

/// Whom to kill.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Server,
    Client,
    Daemon,
}

/// How often: `SNAPRIG_KILLS` for more.
fn rounds() -> u64 {
    let rounds = std::env::var("SNAPRIG_KILLS").ok();
    rounds.map_or(15, |rounds| {
        rounds.parse().expect("SNAPRIG_KILLS is a number")
    })
}

fn shared_memory() -> BTreeSet<String> {
    let names = fs::read_dir("/dev/shm").into_iter().flatten();
    names
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn kill_one(round: u64) {
    let victim = [Victim::Server, Victim::Client, Victim::Daemon][round as usize % 3];
    let fabric = Fabric::new(&[]);
    let port = free_port();
    let port_text = port.to_string();
    let events = if round.is_multiple_of(2) {
        &["-e"][..]
    } else {
        &[]
    };
    let program = [
        &["ibv_rc_pingpong", "-n", "100000000", "-p", &port_text],
        events,
    ]
    .concat();
    let mut server = fabric.start(&program);
    wait_for_listener(port);
    let mut client = fabric.start(&[&program[..], &["127.0.0.1"]].concat());
    // Before they meet, each waits for the other by TCP, which is not ours to end.
    wait_until("messages move", || {
        text(&fabric.tell(&["list"])).matches(" Rts ").count() == 2
    });
    std::thread::sleep(Duration::from_micros(round * 7919 % 60_000));
    match victim {
        Victim::Server => server.kill(),
        Victim::Client => client.kill(),
        Victim::Daemon => {
            for daemon in fabric.daemons() {
                // SAFETY: kill(2) takes numbers alone; it is a daemon of this test's directory.
                unsafe { libc::kill(daemon, libc::SIGKILL) };
            }
        }
    }
    for (name, output) in [("server", server.output()), ("client", client.output())] {
        assert!(
            !output.status.success(),
            "{round} {victim:?}: {name} went on: {}",
            text(&output)
        );
    }
    if matches!(victim, Victim::Daemon) {
        // Its files are taken over by the next one, which ends as it should.
        let next = fabric.start(&["ibv_devices"]).output();
        assert!(text(&next).contains("snaprig_0"), "{}", text(&next));
    }
    fabric.ended();
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn whoever_is_killed_the_others_end_and_nothing_is_left() {
    let before = shared_memory();
    for round in 0..rounds() {
        kill_one(round);
    }
    assert_eq!(before, shared_memory());
}
