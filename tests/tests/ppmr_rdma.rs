//! Images in a pipeline by RDMA, between two processes with an HCA each: they come as they were written, whichever way chunks
//! go; and who dies, or cannot be reached any more, is noticed by name, and soon.

mod fabric;

use std::{
    error::Error,
    path::PathBuf,
    process::{Child, Output, Stdio},
    time::{Duration, Instant},
};

use fabric::{text, wait_until};
use snaprig::{Fabric, PathFaults};
use snaprig_peers::Token;
use tempfile::TempDir;

const SNAPRIG: &str = fabric::SNAPRIG;
const MOVE: &str = env!("CARGO_BIN_EXE_ppmr-move");
/// More than any test waits for.
const ENDLESS: &str = "1000000000000";
/// A link that is down is noticed in a second, and who is dead at once; machines are busy.
const SOON: Duration = Duration::from_secs(20);
/// How chunks go: pulled, or put.
const MODES: [&[&str]; 2] = [&[], &["--push"]];

type Outcome = Result<(), Box<dyn Error>>;

/// A source and a target, and what they have in common.
struct Pair<'a> {
    fabric: &'a Fabric,
    directory: TempDir,
}

impl<'a> Pair<'a> {
    fn new(fabric: &'a Fabric) -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        Token::create(&directory.path().join("token"))?;
        Ok(Self { fabric, directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts one of the two on an HCA of its own.
    fn start(&self, role: &str, hca: &str, arguments: &[&str]) -> std::io::Result<Child> {
        let mut command = self.fabric.command(MOVE);
        let token = self.path("token");
        command.arg(role).arg("--token").arg(token);
        command.args(["--device", hca]).arg(self.path("socket"));
        command.args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    }

    /// Starts a target, and a source once that listens.
    fn both(&self, target: &[&str], source: &[&str]) -> std::io::Result<[Child; 2]> {
        let socket = self.path("socket");
        // One that was killed has left it there.
        let _ = std::fs::remove_file(&socket);
        let target = self.start("target", "snaprig_0", target)?;
        wait_until("the target listens", || socket.exists());
        Ok([target, self.start("source", "snaprig_1", source)?])
    }

    /// Waits until so many packets more have come to an HCA that chunks must be under way.
    fn chunks_move(&self) {
        let packets = || {
            let description = self.fabric.describe().expect("it runs");
            let ports = description.hcas.iter().flat_map(|hca| &hca.ports);
            ports
                .map(|port| port.counters["port_xmit_packets"])
                .sum::<u64>()
        };
        let before = packets();
        wait_until("chunks move", || packets() > before + 10_000);
    }
}

fn output(mut child: Child) -> Output {
    wait_until("a program ends", || {
        child.try_wait().expect("it is ours").is_some()
    });
    child.wait_with_output().expect("it is ours")
}

/// Fails unless it has failed, and says one of these.
fn assert_fails(child: Child, reasons: &[&str]) {
    let output = output(child);
    let text = text(&output);
    let is_named = reasons.iter().any(|reason| text.contains(reason));
    assert!(!output.status.success() && is_named, "{text}");
}

const LOST: &str = "the connection between source and target was lost";
const TRANSFER: &str = "a chunk could not be transferred";

#[snaprig::test(hcas = 2, model = "AB", exe = SNAPRIG)]
fn eight_images_come_as_they_were_written(fabric: Fabric) -> Outcome {
    let pair = Pair::new(&fabric)?;
    let sizes = (1u32..=8).map(|n| (n * 3_000_017).to_string());
    let sizes: Vec<_> = sizes.collect();
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    for mode in MODES {
        let both = pair.both(&["--streams", "8"], &[mode, &sizes].concat())?;
        let [target, source] = both.map(output);
        let all = text(&source) + &text(&target);
        assert!(source.status.success() && target.status.success(), "{all}");
        assert!(all.contains("connected by RDMA"), "{all}");
        for (rank, size) in sizes.iter().enumerate() {
            assert!(all.contains(&format!("rank {rank}: {size} bytes")), "{all}");
        }
    }
    Ok(())
}

#[snaprig::test(hcas = 2, exe = SNAPRIG)]
fn who_dies_in_mid_stream_is_noticed(fabric: Fabric) -> Outcome {
    let pair = Pair::new(&fabric)?;
    for mode in MODES {
        for dies in 0..2 {
            let sizes = [mode, &[ENDLESS, ENDLESS]].concat();
            let mut both = pair.both(&["--streams", "2"], &sizes)?;
            pair.chunks_move();
            both[dies].kill()?;
            let start = Instant::now();
            let [target, source] = both;
            let (dead, left) = match dies {
                0 => (target, source),
                _ => (source, target),
            };
            // Which of the two is noticed first is not known.
            assert_fails(left, &[LOST, TRANSFER]);
            assert!(start.elapsed() < SOON);
            output(dead);
        }
    }
    Ok(())
}

#[snaprig::test(hcas = 2, exe = SNAPRIG)]
fn a_link_that_goes_down_in_mid_stream_is_noticed(fabric: Fabric) -> Outcome {
    let pair = Pair::new(&fabric)?;
    for (mode, mover) in MODES.iter().zip([0, 1]) {
        for hca in 0..2 {
            let both = pair.both(&["--streams", "1"], &[mode, &[ENDLESS][..]].concat())?;
            pair.chunks_move();
            fabric.link_down(hca, 1)?;
            let start = Instant::now();
            for (which, child) in both.into_iter().enumerate() {
                assert_fails(child, &[if which == mover { TRANSFER } else { LOST }]);
            }
            assert!(start.elapsed() < SOON);
            fabric.link_up(hca, 1)?;
        }
    }
    Ok(())
}

#[snaprig::test(hcas = 2, exe = SNAPRIG)]
fn who_is_not_reached_by_rdma_is_by_tcp_unless_that_is_not_wanted(fabric: Fabric) -> Outcome {
    let pair = Pair::new(&fabric)?;
    let nothing_comes = PathFaults {
        loss: 1000,
        ..PathFaults::default()
    };
    fabric.fault_path((0, 1), (1, 1), nothing_comes)?;
    for mode in MODES {
        let [target, source] = pair.both(&[], &[mode, &["5000000"]].concat())?;
        let source = output(source);
        let text = text(&source);
        assert!(source.status.success(), "{text}");
        assert!(text.contains("connected by TCP"), "{text}");
        assert!(output(target).status.success());
        let source = [mode, &["--transport", "rdma", "1"]].concat();
        let [mut target, source] = pair.both(&[], &source)?;
        assert_fails(source, &["chunks cannot go by RDMA"]);
        target.kill()?;
        output(target);
    }
    fabric.link_down(0, 1)?;
    let target = pair.start("target", "snaprig_0", &["--transport", "rdma"])?;
    assert_fails(target, &["chunks cannot go by RDMA"]);
    Ok(())
}
