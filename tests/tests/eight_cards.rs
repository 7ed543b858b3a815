//! Eight cards of one host, of different sizes and on both platforms: all work at once and with one
//! another, none sees anything of another, and what happens to one is its own affair.

mod scene;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{PipeWriter, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::Duration,
};

use scene::{SNAPRIG, TIMEOUT, quiet};
use snaprig_coi::{Engine, Process, native};
use snaprig_fixtures::kmeans::{self, Workload};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::{CardState, Rig, files::CardFiles};
use snaprig_snapify::Snapify;

const MIB: u64 = 1 << 20;
/// The smallest and the largest that there is, and between.
const SIZES: [u64; 8] = [64, 128, 256, 512, 1024, 2048, 4096, 16384];
const CARDS: u16 = SIZES.len() as u16;
const BOUND: Duration = Duration::from_secs(120);

fn compile(dir: &Path) -> CardFiles {
    let (source, program) = (
        concat!(env!("CARGO_MANIFEST_DIR"), "/card/mesh.c"),
        dir.join("mesh"),
    );
    let output = Command::new("gcc")
        .args([
            "-D_GNU_SOURCE",
            "-O1",
            "-static",
            "-Wall",
            "-Wextra",
            "-Werror",
            source,
            "-o",
        ])
        .arg(&program)
        .output()
        .expect("ci/setup installs gcc");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let card = "/bin/mesh".into();
    CardFiles {
        host: program,
        card,
    }
}

/// A program on a card, its lines as they come.
struct Running {
    lines: Receiver<String>,
    stdin: PipeWriter,
    exit: JoinHandle<Option<Exit>>,
}

impl Running {
    fn start(rig: &Rig, node: u16, arguments: &[&str]) -> Self {
        let engine = Engine::get(rig.dir(), node - 1).expect("a card");
        let words = ["mesh"].iter().chain(arguments);
        let argv = words.map(|word| (*word).to_owned()).collect();
        let (read, stdin) = std::io::pipe().expect("a pipe");
        let (send, lines) = channel();
        let exit = std::thread::spawn(move || {
            let mut rest = String::new();
            let output = |_, bytes: &[u8]| {
                rest += &String::from_utf8_lossy(bytes);
                while let Some((line, after)) = rest.split_once('\n') {
                    // Nobody may be listening any more.
                    let _ = send.send(line.to_owned());
                    rest = after.to_owned();
                }
            };
            // A card that dies takes its programs along.
            native::run_with(&engine, "/bin/mesh", argv, vec![], read, output).ok()
        });
        Self { lines, stdin, exit }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(BOUND).expect("it says something")
    }

    fn order(&mut self) {
        self.stdin.write_all(b"\n").expect("it listens");
    }

    fn end(self) -> Option<Exit> {
        drop(self.stdin);
        self.exit.join().expect("no panic")
    }
}

fn run(rig: &Rig, node: u16, arguments: &[&str]) -> Option<Exit> {
    Running::start(rig, node, arguments).end()
}

type Work = JoinHandle<Result<kmeans::Outcome, kmeans::OffloadError>>;

fn offload(rig: &Rig, node: u16) -> (Process, Work) {
    let engine = Engine::get(rig.dir(), node - 1).expect("a card");
    let sink = kmeans::SINK.to_vec();
    let process = Process::create(&engine, "kmeans", sink, vec![], vec![]).expect("a process");
    let own = process.clone();
    (
        process,
        std::thread::spawn(move || kmeans::run(&own, &Workload::shipped())),
    )
}

fn is_golden(work: Work) {
    let outcome = work.join().expect("no panic").expect("it finishes");
    let golden = kmeans::golden(&Workload::shipped());
    assert_eq!(outcome.to_text(), golden.to_text());
}

/// What a card's process has open: names, and the identities of files and memory.
fn descriptors(pid: u32) -> (Vec<String>, BTreeSet<(u64, u64)>) {
    let (mut names, mut identities) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs") {
        let path = entry.expect("an entry").path();
        // Some come and go.
        let Ok(name) = fs::read_link(&path) else {
            continue;
        };
        let name = name.to_string_lossy().into_owned();
        if let Ok(about) = fs::metadata(&path)
            && name.starts_with("/memfd:")
        {
            identities.insert((about.dev(), about.ino()));
        }
        names.push(name);
    }
    (names, identities)
}

#[test]
fn eight_cards_work_at_once_and_none_is_anothers_affair() {
    let dir = tempfile::tempdir().expect("a directory");
    let platforms: Vec<_> = (0..SIZES.len())
        .map(|card| match card % 2 {
            0 if cfg!(has_kvm) => "kvm",
            _ => "ptrace",
        })
        .map(|name| name.parse().expect("a platform"))
        .collect();
    // A descriptor of the host's that any child inherits.
    let (secret_path, secret) = inheritable(dir.path());
    let rig = Rig::builder()
        .exe(SNAPRIG)
        .cards(SIZES.len())
        .memory_bytes_each(&SIZES.map(|size| size * MIB))
        .platform_each(&platforms)
        .files(vec![compile(dir.path())])
        .start()
        .expect("a rig");
    assert!(
        rig.cards()
            .iter()
            .all(|card| card.state() == CardState::Online)
    );
    for (card, size) in rig.cards().iter().zip(SIZES) {
        assert_eq!(card.memory_bytes(), size * MIB);
    }

    every_pair_talks(&rig);
    nothing_of_one_is_in_another(&rig, &secret_path);
    memory_pressure_stays_where_it_is(&rig);
    a_process_moves_between_sizes(&rig);
    the_death_of_two_is_told_and_harms_nobody_else(&rig);
    drop(secret);
}

fn inheritable(dir: &Path) -> (String, File) {
    let path = dir.join("secret");
    let file = File::create(&path).expect("a file");
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("no close-on-exec");
    (path.to_string_lossy().into_owned(), file)
}

/// 28 pairs, both ways, all at once, and an offload process on each card meanwhile.
fn every_pair_talks(rig: &Rig) {
    let nodes: Vec<_> = (1..=CARDS).map(|node| node.to_string()).collect();
    let mut running: Vec<_> = (1..=CARDS)
        .map(|node| {
            let own = node.to_string();
            let others = nodes.iter().filter(|other| **other != own);
            let mut arguments = vec!["mesh", &own];
            arguments.extend(others.map(String::as_str));
            Running::start(rig, node, &arguments)
        })
        .collect();
    for program in &running {
        assert_eq!(program.line(), "ready");
    }
    let works: Vec<_> = (1..=CARDS).map(|node| offload(rig, node).1).collect();
    running.iter_mut().for_each(Running::order);
    for program in running {
        assert_eq!(program.line(), "exact");
        assert_eq!(program.end(), Some(Exit::Code(0)));
    }
    works.into_iter().for_each(is_golden);
}

fn nothing_of_one_is_in_another(rig: &Rig, secret: &str) {
    for node in 1..=CARDS {
        let own = format!("/tmp/of-{node}");
        assert_eq!(run(rig, node, &["write", &own]), Some(Exit::Code(0)));
    }
    for node in [1, 2, CARDS] {
        for other in 1..=CARDS {
            let path = format!("/tmp/of-{other}");
            let missing = i32::from(node != other);
            assert_eq!(
                run(rig, node, &["exists", &path]),
                Some(Exit::Code(missing))
            );
        }
    }
    let mut seen = BTreeSet::new();
    for card in rig.cards() {
        let (names, memory) = descriptors(card.pid().expect("it is powered"));
        assert!(!memory.is_empty() && names.len() < 200, "{names:?}");
        assert!(memory.is_disjoint(&seen), "memory of another card");
        seen.extend(memory);
        assert!(names.iter().all(|name| name != secret), "{names:?}");
        let others = (1..=CARDS).filter(|node| *node != card.node());
        for socket in others.map(|node| format!("card{node}.sock")) {
            assert!(!names.iter().any(|name| name.contains(&socket)));
        }
    }
}

fn memory_pressure_stays_where_it_is(rig: &Rig) {
    let mut hog = Running::start(rig, 1, &["hog"]);
    assert_eq!(hog.line(), "full");
    let works: Vec<_> = (2..=CARDS).map(|node| offload(rig, node).1).collect();
    works.into_iter().for_each(is_golden);
    assert_eq!(rig.card(0).state(), CardState::Online);
    hog.order();
    assert_eq!(hog.end(), Some(Exit::Code(0)));
    is_golden(offload(rig, 1).1);
}

fn a_process_moves_between_sizes(rig: &Rig) {
    let (process, work) = offload(rig, 4);
    let dir = tempfile::tempdir().expect("a directory");
    let snapify = Snapify::new(&process, quiet());
    for (stop, node) in [(6, 8), (12, 2), (18, 7)] {
        process.break_at(stop, TIMEOUT).expect("it goes on");
        let card = Engine::get(rig.dir(), node - 1).expect("a card");
        snapify
            .migrate(&dir.path().join("s"), &card)
            .expect("it moves");
        assert_eq!(process.status().node, node);
    }
    is_golden(work);
}

fn the_death_of_two_is_told_and_harms_nobody_else(rig: &Rig) {
    let held: Vec<_> = [2, 5]
        .map(|node| Running::start(rig, node, &["hold"]))
        .into();
    for program in &held {
        assert_eq!(program.line(), "ready");
    }
    let watching: Vec<_> = [(1, "2"), (3, "2"), (4, "5"), (8, "5"), (5, "2")]
        .map(|(node, peer)| Running::start(rig, node, &["watch", peer]))
        .into();
    for program in &watching {
        assert_eq!(program.line(), "connected");
    }
    let living = [1, 3, 4, 6, 7, 8];
    let works: Vec<_> = living.map(|node| offload(rig, node).1).into();
    rig.card(1).kill().expect("killed");
    rig.card(4).unplug().expect("unplugged");
    for program in watching.into_iter().take(4) {
        assert_eq!(program.line(), "ECONNRESET");
        assert_eq!(program.end(), Some(Exit::Code(0)));
    }
    works.into_iter().for_each(is_golden);
    for node in living {
        assert_eq!(rig.card(usize::from(node) - 1).state(), CardState::Online);
    }
    rig.card(1).reset().expect("it comes back");
    rig.card(4).plug().expect("a new card");
    for node in [2, 5] {
        let path = format!("/tmp/of-{node}");
        assert_eq!(
            run(rig, node, &["exists", &path]),
            Some(Exit::Code(1)),
            "a new card"
        );
        is_golden(offload(rig, node).1);
    }
}
