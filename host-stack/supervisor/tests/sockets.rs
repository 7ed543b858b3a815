//! Sockets of real programs, with what is on its way through them.

mod common;

use common::{Job, Trees, program};

fn all_kinds(mut job: Job) {
    job.stays_what_it_was("ready\nall right\n");
}

#[test]
fn sockets_of_all_kinds_are_what_they_were() {
    all_kinds(Job::launch(&["/usr/bin/python3", &program("sockets.py")]));
}

#[test]
fn those_of_an_ordinary_user_are_as_well() {
    all_kinds(Job::launch_as_nobody(&[
        "/usr/bin/python3",
        &program("sockets.py"),
    ]));
}

#[test]
fn options_groups_and_netlink_are_what_they_were() {
    for mut job in [Job::launch, Job::launch_as_nobody]
        .map(|launch| launch(&["/usr/bin/python3", &program("options.py")]))
    {
        job.stays_what_it_was("ready\nall right\n");
    }
}

/// Also those that have been checkpointed several times since they were read from.
#[test]
fn connections_that_are_full_both_ways_stay_so() {
    for mut job in [Job::launch, Job::launch_as_nobody]
        .map(|launch| launch(&["/usr/bin/python3", &program("flow.py")]))
    {
        job.wait_for("ready");
        job.dump(false).unwrap();
        job.over_again();
        job.tell("stop");
        assert_eq!((job.ended(), &*job.output()), (0, "ready\nright\n"));
    }
}

/// A sender that never stops, while its receiver reads fast, slowly, and not at all.
fn saturated(mut job: Job, rounds: u64) {
    for (says, tells) in [("fast", "slowly"), ("slow", "not"), ("full", "")] {
        job.wait_for(says);
        for _ in 0..if tells.is_empty() { rounds } else { 3 } {
            job.dump(false)
                .unwrap_or_else(|why| panic!("{says}: {why}; {}", job.output()));
        }
        if !tells.is_empty() {
            job.tell(tells);
        }
    }
    job.over_again();
    job.dump(false).unwrap();
    job.tell("stop");
    assert_eq!(
        (job.ended(), &*job.output()),
        (0, "fast\nslow\nfull\nright\n")
    );
}

#[test]
fn a_receiver_that_does_not_read_is_checkpointed_again_and_again() {
    let program = program("saturated.py");
    saturated(Job::launch(&["/usr/bin/python3", &program, "both"]), 30);
}

/// Who may not look at what a sender still has needs room for it at the receiver, which grows a little each time.
#[test]
fn one_of_an_ordinary_user_is_as_well() {
    let mut job = Job::launch_as_nobody(&["/usr/bin/python3", &program("saturated.py"), "still"]);
    job.wait_for("full");
    for _ in 0..8 {
        job.dump(false)
            .unwrap_or_else(|why| panic!("{why}; {}", job.output()));
    }
    job.over_again();
    job.tell("stop");
    assert_eq!((job.ended(), &*job.output()), (0, "full\nright\n"));
}

#[test]
fn one_between_trees_is_as_well() {
    for mut trees in [Trees::new(), Trees::of_nobody()] {
        let saturated = program("saturated.py");
        for name in ["receiver", "sender"] {
            trees.launch(name, &["/usr/bin/python3", &saturated, name]);
        }
        trees.wait_for("receiver ready");
        trees.wait_for("sender ready");
        trees.tell("go");
        trees.wait_for("full");
        for _ in 0..6 {
            trees.dump(false).unwrap();
        }
        trees.tell("stop");
        trees.ended();
        let output = trees.output();
        assert!(
            output.contains("sent") && output.contains("right"),
            "{output}"
        );
    }
}

fn under_load(mut job: Job) {
    job.wait_for("ready");
    for _ in 0..20 {
        job.dump(false).unwrap();
        job.over_again();
    }
    job.tell("stop");
    let (status, output) = (job.ended(), job.output());
    assert!(
        status == 0 && output.contains("right") && !output.contains("wrong"),
        "{status}: {output}"
    );
}

#[test]
fn a_python_server_and_its_clients_lose_nothing() {
    under_load(Job::launch(&["/usr/bin/python3", &program("echo.py")]));
}

#[test]
fn redis_and_its_benchmark_lose_nothing() {
    under_load(Job::launch(&["bash", &program("redis.sh")]));
}

/// A server of which an earlier connection is left behind (TIME_WAIT), and that has not, or no longer, SO_REUSEADDR.
fn listens_again(reuses: bool) {
    let code = format!(
        "import os, socket, time\n\
         l = socket.socket()\n\
         l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, {})\n\
         l.bind(('127.0.0.1', 0)); l.listen(5); at = l.getsockname()\n\
         c = socket.create_connection(at); s, _ = l.accept()\n\
         s.close(); assert c.recv(1) == b''; c.close()\n\
         l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)\n\
         print('ready', flush=True)\n\
         while not os.path.exists('go'): time.sleep(0.005)\n\
         c = socket.create_connection(at); s, _ = l.accept()\n\
         s.send(b'there'); there = c.recv(10) == b'there'\n\
         there = there and l.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0\n\
         print('right' if there else 'wrong', flush=True)",
        u8::from(reuses)
    );
    let mut job = Job::launch_as_nobody(&["/usr/bin/python3", "-c", &code]);
    job.wait_for("ready");
    job.dump(true).unwrap();
    job.ended();
    job.restart();
    job.tell("go");
    let (status, output) = (job.ended(), job.output());
    assert!(status == 0 && output.ends_with("right\n"), "{output}");
    assert_eq!(output.contains("TIME_WAIT"), !reuses, "{output}");
}

#[test]
fn a_port_that_was_bound_with_reuse_is_had_at_once() {
    listens_again(true);
}

/// Linux gives it to nobody before its connections are forgotten: a minute at most.
#[test]
#[ignore = "it waits for a minute (TIME_WAIT): ci/run --all"]
fn a_port_that_was_bound_without_is_waited_for() {
    listens_again(false);
}
