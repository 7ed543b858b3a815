//! `snaprig ckpt move`, `snaprig ppmr migrate`: one node's part of a running job goes on at another node, while all others stay where they are, with the
//! queue pairs that lead to it.

mod checkpointed;
mod fabric;

use std::{
    ffi::OsStr,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Child,
};

use checkpointed::{
    JobOnNodes, at_work, ckpt_of, ends_soon, long_enough, migrate, nodes, with_count,
};
use fabric::{assert_success, one_job, text, wait_until};

/// A server at node 1, and its client at node 2 once it listens.
const PAIR: &str = "\
    cd $SNAPRIG_NODES
    ./rsh node1 \"$SERVER\" & server=$!
    until grep -q ' 0A ' /proc/$(cat node1)/net/tcp || ls $SNAPRIG_FABRICS/*/cm-*-18515 > /dev/null 2>&1
    do sleep 0.01; done
    ./rsh node2 \"$CLIENT\"; client=$?
    wait $server && exit $client";

/// How what a node has comes to another one.
const WAYS: [&[&str]; 5] = [
    &["--strategy", "ppmr", "--transport", RDMA],
    &["--strategy", "ppmr", "--transport", "tcp"],
    &["--strategy", "shared"],
    &["--strategy", "ppmr", "--pre-copy", "--push"],
    &["--strategy", "ppmr", "--post-copy", "--transport", RDMA],
];
/// By RDMA, if the program is built with it.
const RDMA: &str = if cfg!(feature = "rdma") {
    "rdma"
} else {
    "auto"
};

/// A server and a client on four nodes.
struct Pair {
    directory: tempfile::TempDir,
    running: Option<Child>,
}

impl Pair {
    /// One of them works: of some, the other one has nothing to do. None: they have ended before that.
    fn launched(server: &str, client: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let job = directory.path().join("job");
        let mut run = nodes("4", &job, &["--", "bash", "-c", PAIR]);
        run.env("SERVER", server).env("CLIENT", client);
        run.process_group(0);
        let running = Some(run.spawn().expect("snaprig starts"));
        let mut pair = Self { directory, running };
        let path = Path::new(server.split(' ').next().expect("a program"));
        let name = path.file_name().and_then(OsStr::to_str);
        let name = name.expect("a program");
        let mut runs = true;
        wait_until("one of them works", || {
            runs = pair.runs();
            !runs || at_work(&job, name) >= 1
        });
        runs.then_some(pair)
    }

    fn runs(&mut self) -> bool {
        let running = self.running.as_mut().expect("it was launched");
        running.try_wait().expect("it is ours").is_none()
    }

    fn job(&self) -> PathBuf {
        self.directory.path().join("job")
    }

    /// Both move, one after the other, and the first one back. None: they have ended before that.
    fn moves(&mut self) -> Option<()> {
        for (member, to) in [("node2", "node3"), ("node1", "node4"), ("node2", "node2")] {
            let moved = ckpt_of(&self.job(), &["move", member, "--to", to]);
            if !moved.status.success() && ends_soon(|| self.runs()) {
                return None;
            }
            assert_success("ckpt move", std::slice::from_ref(&moved));
            assert!(text(&moved).contains(&format!("{member} runs on {to} now")));
        }
        Some(())
    }

    /// All that node 1 has goes on elsewhere by each of these ways, then all that node 2 has. None: they have ended before that.
    fn migrates(&mut self) -> Option<()> {
        let files = self.directory.path().to_str().expect("a name").to_owned();
        let hops = [("node1", "node3"), ("node3", "node4"), ("node4", "node1")];
        let hops = hops.into_iter().chain([("node2", "node3")]);
        for ((from, to), way) in hops.zip(WAYS) {
            let how = [&["--to", to, "--files", &files], way].concat();
            let migrated = migrate(&self.job(), from, &how);
            if !migrated.status.success() && ends_soon(|| self.runs()) {
                return None;
            }
            assert_success(&format!("{from} by {way:?}"), &[migrated]);
        }
        Some(())
    }

    /// What both have printed; they end well.
    fn ended(mut self, what: &str) -> String {
        let running = self.running.take().expect("it was launched");
        let output = running.wait_with_output().expect("it ends");
        assert_success(what, std::slice::from_ref(&output));
        text(&output)
    }
}

impl Drop for Pair {
    /// A test has failed: programs of a job outlive who keeps its nodes.
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            // SAFETY: kill(2) takes numbers alone; the group is of a child that has not been waited for.
            unsafe { libc::kill(-(running.id() as i32), libc::SIGKILL) };
            let _ = running.wait();
        }
    }
}

/// Programs that verify what they do, or count it, and what both say at their end.
macro_rules! pairs {
    ($how:ident; $($name:ident: $needs:literal, $program:literal, $count:literal, $says:literal;)*) => {
        $(
            #[test]
            #[cfg_attr(not(has_program = $needs), ignore = "it is not installed (ci/setup)")]
            fn $name() {
                let _alone = one_job();
                let (pair, says) = long_enough($count, |count| {
                    let program = with_count($program, count);
                    let mut pair = Pair::launched(&program, &format!("{program} 10.77.0.1"))?;
                    pair.$how()?;
                    Some((pair, with_count($says, count)))
                });
                let text = pair.ended($program);
                assert!(text.contains(&says), "{text}");
            }
        )*
    };
}

pairs! {
    migrates;
    writes_while_nodes_are_left: "ib_write_bw", "ib_write_bw -F -q 4 -n COUNT -s 4096", 1_000_000, "4*COUNT";
    reads_while_nodes_are_left: "ib_write_bw", "ib_read_bw -F -n COUNT -s 4096", 3_000_000, "COUNT";
    messages_while_nodes_are_left: "ib_write_bw", "ib_send_bw -F -n COUNT -s 4096", 3_000_000, "COUNT";
}

pairs! {
    moves;
    writes: "ib_write_bw", "ib_write_bw -F -q 4 -n COUNT -s 4096", 1_000_000, "4*COUNT";
    reads: "ib_write_bw", "ib_read_bw -F -n COUNT -s 4096", 3_000_000, "COUNT";
    messages: "ib_write_bw", "ib_send_bw -F -n COUNT -s 4096", 3_000_000, "COUNT";
    unreliable_messages: "ib_write_bw", "ib_send_lat -F -c UC -n COUNT", 500_000, "COUNT";
    atomics: "ib_write_bw", "ib_atomic_lat -F -n COUNT", 1_000_000, "COUNT";
    shared_receives: "ibv_rc_pingpong", "ibv_srq_pingpong -c -n COUNT", 1_000_000, "COUNT iters in";
    datagrams: "ib_write_bw", "ib_send_lat -F -c UD -n COUNT", 200_000, "COUNT";
    domains_of_xrc: "ib_write_bw", "ib_send_bw -F -c XRC -n COUNT -s 1024", 3_000_000, "COUNT";
    connections_of_the_manager: "ib_write_bw", "ib_write_bw -F -R -n COUNT -s 4096", 3_000_000, "COUNT";
    datagrams_of_the_manager: "ib_write_bw", "ib_send_lat -F -R -c UD -n COUNT", 200_000, "COUNT";
    events: "ibv_rc_pingpong", "ibv_rc_pingpong -c -e -n COUNT", 50_000, "COUNT iters in";
}

/// `tests/verbs/objects` in two halves, which look at every byte.
fn objects_move(mode: &str) {
    let _alone = one_job();
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (program, stop) = (at("objects"), at("stop"));
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/verbs/objects");
    fabric::compile(sources.as_ref(), program.as_ref());
    let program = format!("{program} {mode} {stop} {}", at("domain"));
    let pair = Pair::launched(
        &format!("{program} listen"),
        &format!("{program} 10.77.0.1"),
    );
    let mut pair = pair.expect("they work until there is a file");
    pair.moves().expect("they work until there is a file");
    fs::write(stop, "").expect("a file");
    let text = pair.ended(mode);
    assert_eq!(text.matches("all as it should be").count(), 2, "{text}");
}

macro_rules! objects {
    ($($name:ident: $mode:literal;)*) => {
        $(
            #[test]
            #[cfg_attr(
                not(has_file = "/usr/include/infiniband/verbs.h"),
                ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
            )]
            fn $name() {
                objects_move($mode);
            }
        )*
    };
}

objects! {
    memory_windows: "windows";
    a_domain_of_xrc_of_two_processes: "xrc";
    parent_domains: "inline";
    memory_that_peers_write: "ledger";
}

/// A job of which one node has moved is checkpointed and restarted like any other.
#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn an_mpi_job_that_has_moved_is_restarted() {
    let _alone = one_job();
    let mut job = JobOnNodes::launched_beside_a_spare("onesided", &["--pace-us", "300000"]);
    job.moves("node3", "node5");
    job.dump("--leave-running");
    job.moves("node2", "node3");
    job.dump("--kill");
    job.before = job.ended();
    assert_eq!(job.restarted("4", &["--model", "B"]), job.kernel.golden);
}
