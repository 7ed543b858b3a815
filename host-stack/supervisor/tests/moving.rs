//! A member of a job moves to another supervisor while the others stay: with its connections, or not at all, whoever dies.

mod common;

use std::{
    fs,
    io::Write,
    os::unix::fs::FileExt,
    sync::mpsc::{TryRecvError, channel},
    thread,
    time::{Duration, Instant},
};

use common::{Trees, compiled, draw, number, program, rounds, wait_until};

const PYTHON: &str = "/usr/bin/python3";

/// A server and a client, whose supervisors kill themselves at a step of the second thing that they do, after a checkpoint.
fn streams(trees: &mut Trees, at: [Option<&str>; 2]) {
    let [server, client] = at.map(|step| step.map(|step| format!("{step}:2")));
    let program_of = |name: &str| program(&format!("stream_{name}.py"));
    let words = [PYTHON, &program_of("server")];
    trees.launch_to_die("server", server.as_deref(), &words);
    let words = [PYTHON, &program_of("client"), "client", "3"];
    trees.launch_to_die("client", client.as_deref(), &words);
    trees.wait_for("server ready");
    trees.wait_for("client client ready");
}

fn are_right(trees: &mut Trees) {
    trees.tell("stop");
    let ended = trees.ended();
    let output = trees.output();
    assert!(
        ended.iter().all(|status| *status == 0),
        "{ended:?}: {output}"
    );
    assert!(
        output.contains("server right") && output.contains("client client right"),
        "{output}"
    );
}

/// So many processes run this program.
fn runs(trees: &Trees, name: &str) -> usize {
    let marker = format!("{}/", trees.directory.path().display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_it = |path: std::path::PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let cwd = fs::read_link(path.join("cwd")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.starts_with(PYTHON)
            && line.contains(name)
            && format!("{}/", cwd.display()).starts_with(&marker)
    };
    processes.filter(|entry| is_it(entry.path())).count()
}

#[test]
fn a_member_moves_with_its_connections_again_and_again() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    for (times, member) in [(1, "server"), (1, "client"), (2, "server")] {
        trees.begin_move(member, None);
        trees.wait_for_times(times, &format!("{member} has moved"));
        // Whoever asks for it finds it, and there is one of it.
        trees.dump(false).unwrap();
        assert_eq!(runs(&trees, &format!("stream_{member}")), 1);
    }
    are_right(&mut trees);
}

#[test]
fn a_member_that_has_moved_is_restarted_from_a_checkpoint_by_its_name() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    trees.begin_move("client", None);
    trees.wait_for("client has moved");
    trees.dump(true).unwrap();
    trees.ended();
    fs::write(trees.directory.path().join("out"), "").unwrap();
    trees.begin_restart(None);
    are_right(&mut trees);
}

/// Memory that others have is the same before and after; and one that does not move in the end is as it was.
#[test]
fn shared_memory_goes_along_as_it_is() {
    for dies in [None, Some("move.restored")] {
        let (_directory, along) = compiled("along.c", &[]);
        let mut trees = Trees::new();
        trees.launch("one", &[&along]);
        trees.wait_for("ready");
        let memory = memory_of(&along);
        let file = fs::File::open(&memory).unwrap();
        trees.begin_move("one", dies);
        match dies {
            None => trees.wait_for("one has moved"),
            Some(_) => assert_ne!(trees.last_ended(), 0),
        }
        trees.tell("go");
        let (ended, output) = (trees.ended(), trees.output());
        assert!(output.contains("right"), "{ended:?}: {output}");
        let mut first = [0; 13];
        file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(&first, b"written later");
    }
}

/// What others write to files while a tree moves stays, as does what it has open of them.
#[test]
fn files_go_along_whoever_writes_to_them() {
    for strategy in ["", "ppmr"] {
        let mut trees = Trees::new();
        let path = |name: &str| trees.directory.path().join(name);
        fs::write(path("shared"), [0; 4096]).unwrap();
        fs::write(path("read"), "read by all").unwrap();
        let (log, shared, read) = (path("log"), path("shared"), path("read"));
        // On a file system that has another mount in each supervisor's namespace.
        let elsewhere = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let name = elsewhere.path().to_str().unwrap();
        trees.launch("one", &[PYTHON, &program("written.py"), name]);
        trees.wait_for("ready");
        let (stop, stopped) = channel::<()>();
        let others = thread::spawn(move || {
            let open = |path| fs::File::options().append(true).open(path).unwrap();
            let in_place = |path| fs::File::options().write(true).open(path).unwrap();
            let (mut log, shared, read) = (open(log), in_place(shared), in_place(read));
            let lines = (0u32..).take_while(|_| stopped.try_recv() == Err(TryRecvError::Empty));
            lines.fold(String::new(), |all, number| {
                let line = format!("{number}\n");
                log.write_all(line.as_bytes()).unwrap();
                shared.write_all_at(&number.to_le_bytes(), 0).unwrap();
                read.write_all_at(b"read by all", 0).unwrap();
                all + &line
            })
        });
        for times in 1..=4 {
            trees.begin_move_by("one", strategy, None);
            trees.wait_for_times(times, "one has moved");
        }
        drop(stop);
        let written = others.join().unwrap();
        trees.tell("go");
        let (ended, output) = (trees.ended(), trees.output());
        assert!(output.contains("right"), "{ended:?}: {output}");
        let path = |name: &str| trees.directory.path().join(name);
        let log = fs::read_to_string(path("log")).unwrap();
        assert!(log == written + "done\n", "{output}");
        let last = written_last(&log);
        assert_eq!(
            fs::read(path("shared")).unwrap()[..8],
            [&last.to_le_bytes()[..], b"mine"].concat()
        );
    }
}

/// The last number of a log whose last line is another one.
fn written_last(log: &str) -> u32 {
    log.lines().rev().nth(1).unwrap().parse().unwrap()
}

/// The memfd of a program, as one of its processes has it.
fn memory_of(program: &str) -> std::path::PathBuf {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of_program = processes.filter(|entry| {
        let exe = fs::read_link(entry.path().join("exe"));
        exe.is_ok_and(|exe| exe.as_os_str() == program)
    });
    let files = of_program.filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok());
    let mut files = files.flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.as_os_str() == "/memfd:along (deleted)")
    };
    files.find(is_it).expect("it is open")
}

#[test]
fn who_cannot_move_stays() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    trees.begin_move("nobody", None);
    assert_ne!(trees.last_ended(), 0);
    trees.wait_for("no member \"nobody\"");
    are_right(&mut trees);
}

/// Who dies at a step of a move: the one whose tree it is, another one, or the one to whom it goes.
type Deaths = [Option<&'static str>; 3];

const DEATHS: [Deaths; 11] = [
    [Some("move.begun"), None, None],
    [Some("move.saved"), None, None],
    [Some("move.sent"), None, None],
    [Some("move.leaves"), None, None],
    [Some("move.left"), None, None],
    [None, Some("move.begun"), None],
    [None, Some("move.connected"), None],
    [None, Some("move.follows"), None],
    [None, None, Some("move.arrived")],
    [None, None, Some("move.restored")],
    [None, None, Some("move.decided")],
];

/// While an image is on its way from one to the other.
const DEATHS_ON_THE_WAY: [Deaths; 4] = [
    [Some("move.sending"), None, None],
    [Some("move.saved"), None, None],
    [None, None, Some("move.coming")],
    [None, None, Some("move.arrived")],
];

fn dies(strategy: &str, whoever: Deaths) {
    let [source, other, heir] = whoever;
    let mut trees = Trees::new();
    streams(&mut trees, [source, other]);
    trees.dump(false).unwrap();
    trees.begin_move_by("server", strategy, heir);
    if heir.is_some() {
        assert_ne!(trees.last_ended(), 0, "{strategy}: {whoever:?}");
    }
    wait_until(
        &format!("{strategy}: {whoever:?}: the move is over"),
        || trees.has_said(&OVER),
    );
    for (which, step) in [source, other].iter().enumerate() {
        if let Some(step) = step {
            wait_until(&format!("{strategy}: {step} is reached"), || {
                !trees.live()[which]
            });
        }
    }
    let servers = runs(&trees, "stream_server");
    assert!(servers <= 1, "{strategy}: {whoever:?}: {servers}");
    // Who dies before it is decided to go there is not missed.
    if matches!(heir, Some("move.coming" | "move.arrived" | "move.restored")) {
        trees.dump(false).unwrap();
        return are_right(&mut trees);
    }
    trees.kill_all();
    fs::write(trees.directory.path().join("out"), "").unwrap();
    trees.begin_restart(None);
    are_right(&mut trees);
}

#[test]
fn whoever_dies_at_a_step_there_is_one_of_the_tree_or_a_checkpoint_of_all() {
    for whoever in DEATHS {
        dies("", whoever);
    }
}

#[test]
fn whoever_dies_while_an_image_is_on_its_way_there_is_one_of_the_tree() {
    for strategy in PIPELINES {
        for whoever in DEATHS_ON_THE_WAY {
            dies(strategy, whoever);
        }
    }
}

#[test]
fn whoever_dies_while_memory_follows_there_is_one_of_the_tree_or_a_checkpoint_of_all() {
    for whoever in [
        [Some("move.following"), None, None],
        [None, None, Some("move.filled")],
        [None, None, Some("move.runs")],
    ] {
        dies("post-copy", whoever);
    }
}

#[test]
fn whoever_dies_while_a_file_is_copied_there_is_one_of_the_tree() {
    for whoever in [
        [Some("move.sending"), None, None],
        [None, None, Some("move.arrived")],
    ] {
        dies("shared", whoever);
    }
}

#[test]
fn a_member_moves_by_each_way_that_its_image_may_take() {
    let mut trees = Trees::new();
    streams(&mut trees, [None, None]);
    for (times, strategy) in (1..).zip(["ppmr", "pre-copy", "post-copy", "rdma-local", "shared"]) {
        trees.begin_move_by("server", strategy, None);
        trees.wait_for_times(times, "server has moved");
        assert_eq!(runs(&trees, "stream_server"), 1);
    }
    trees.dump(false).unwrap();
    are_right(&mut trees);
}

#[test]
fn the_coordinator_dies_at_any_moment_of_a_move() {
    for round in 0..rounds(12) {
        let mut trees = Trees::new();
        streams(&mut trees, [None, None]);
        trees.begin_move("server", None);
        thread::sleep(Duration::from_micros(round * 9_973 % 150_000));
        trees.kill_coordinator();
        // It has moved, or it has not.
        are_right_but_for_who_moved(&mut trees, round);
    }
}

fn are_right_but_for_who_moved(trees: &mut Trees, round: u64) {
    trees.tell("stop");
    let ended = trees.ended();
    let output = trees.output();
    assert_eq!(ended[..2], [0, 0], "round {round}, {ended:?}: {output}");
    assert!(
        output.contains("server right") && output.contains("client client right"),
        "round {round}: {output}"
    );
    assert_eq!(output.matches("server right").count(), 1, "{output}");
}

/// Who is ended at a moment, or ends itself at a step, of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The supervisor whose tree it is.
    Source,
    /// That of another tree.
    Other,
    /// The one to whom it goes.
    Heir,
    /// A process of that one's: who takes the image, who has ordered the move, or who restores the tree.
    OfHeir,
    Coordinator,
}

impl Victim {
    const ALL: [Self; 5] = [
        Self::Source,
        Self::Other,
        Self::Heir,
        Self::OfHeir,
        Self::Coordinator,
    ];

    /// Steps at which it can end itself, where the image goes this way.
    fn steps(self, way: &str) -> &'static [&'static str] {
        match self {
            Self::Source if way == "post-copy" => &["move.following", "move.leaves"],
            Self::Source => &[
                "move.begun",
                "move.sending",
                "move.saved",
                "move.sent",
                "move.leaves",
                "move.left",
            ],
            Self::Other => &["move.begun", "move.connected", "move.follows"],
            Self::Heir => &["move.arrived", "move.restored", "move.decided", "move.runs"],
            Self::OfHeir if way == "post-copy" => &["move.coming", "move.filled"],
            Self::OfHeir if PIPELINES.contains(&way) => &["move.coming"],
            Self::OfHeir | Self::Coordinator => &[],
        }
    }
}

/// Ways that an image takes, as the driver is told.
const WAYS: [&str; 7] = [
    "",
    "ppmr",
    "pre-copy",
    "post-copy",
    "rdma-local",
    "local",
    "shared",
];
/// Those by which a process beside the heir takes it.
const PIPELINES: [&str; 4] = ["ppmr", "pre-copy", "post-copy", "rdma-local"];
/// What is said of a move that is over.
const OVER: [&str; 3] = ["has moved", "does not move", "is not reachable"];
/// A move is over after less than that.
const MOMENTS_US: u64 = 600_000;

/// What has become of a tree that was to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    GoesOn,
    /// It went with a supervisor of its own: there is a checkpoint of all.
    Restarted,
}

/// A kill of a move; what came of it.
fn is_killed(seed: u64, round: u64) -> (String, Fate) {
    let victim = Victim::ALL[round as usize % Victim::ALL.len()];
    let way = WAYS[round as usize / Victim::ALL.len() % WAYS.len()];
    let drawn = draw(seed, round);
    // Every other time at a step, if there is one.
    let steps = victim.steps(way);
    let step = (drawn >> 63 == 0 && !steps.is_empty()).then(|| steps[drawn as usize % steps.len()]);
    let moment = Duration::from_micros(drawn % MOMENTS_US);
    let what = format!("round {round}: {victim:?} at {step:?}, or after {moment:?}, by {way:?}");
    let of = |one: Victim| step.filter(|_| one == victim);
    let mut trees = Trees::new();
    streams(&mut trees, [of(Victim::Source), of(Victim::Other)]);
    trees.dump(false).unwrap();
    let of_heir = of(Victim::Heir).or(of(Victim::OfHeir));
    trees.begin_move_by("server", way, of_heir);
    // Who kills itself is the supervisor of the tree, if there is one.
    let mut is_between = victim == Victim::Heir && step.is_some();
    if step.is_none() {
        // The moment is what is random: nothing is waited for.
        thread::sleep(moment);
        is_between = kill(&mut trees, victim, drawn);
    }
    let mut goes_on = false;
    wait_until(&format!("{what}: it is over"), || {
        let [source, other, heir] = trees.live();
        let is_over = match victim {
            Victim::Source => !source && (!heir || trees.has_said(&OVER)),
            Victim::Other => !other && (!heir || trees.has_said(&OVER)),
            // It has gone there, and was lost there.
            _ => !source && (!heir || is_between),
        };
        // Who kills itself there has done so before anything else is asked for.
        let is_killed = step.is_none() || !heir;
        let is_lost = matches!(victim, Victim::Source | Victim::Other);
        let is_one = || runs(&trees, "stream_server") == 1;
        goes_on = !is_lost && is_killed && trees.dump(false).is_ok() && is_one();
        goes_on || is_over
    });
    wait_until(&format!("{what}: there is one of it at most"), || {
        runs(&trees, "stream_server") <= 1
    });
    if !goes_on {
        trees.kill_all();
        // Programs outlive their supervisor.
        trees.kill_orphans();
        fs::write(trees.directory.path().join("out"), "").unwrap();
        trees.begin_restart(None);
    }
    trees.tell("stop");
    let ended = trees.ended();
    // Nobody else waits for a program that has outlived its supervisor.
    wait_until(&format!("{what}: {ended:?}: both are right"), || {
        trees.has_said(&["server right"]) && trees.has_said(&["client client right"])
    });
    let output = trees.output();
    let count = |said: &str| output.matches(said).count();
    assert_eq!(
        (count("server right"), count("client client right")),
        (1, 1),
        "{what}: {ended:?}: {output}"
    );
    let fate = match goes_on {
        true => Fate::GoesOn,
        false => Fate::Restarted,
    };
    (what, fate)
}

/// SIGKILL of a victim; of one that has ended already, of nobody. Whether it may have been the supervisor of the tree where that
/// has gone, from whom programs live on.
fn kill(trees: &mut Trees, victim: Victim, drawn: u64) -> bool {
    match victim {
        Victim::Source => trees.kill_supervisor(0),
        Victim::Other => trees.kill_supervisor(1),
        Victim::Heir => trees.kill_supervisor(2),
        Victim::OfHeir => return trees.kill_helper(2, drawn as usize),
        Victim::Coordinator => trees.kill_coordinator(),
    }
    false
}

#[test]
fn whoever_is_killed_at_any_moment_there_is_one_of_the_tree() {
    let (kills, seed) = (number("SNAPRIG_KILLS", 5), number("SNAPRIG_SEED", 1));
    eprintln!("SNAPRIG_KILLS={kills} SNAPRIG_SEED={seed}");
    let mut fates = std::collections::BTreeMap::new();
    for round in number("SNAPRIG_FIRST", 0)..kills {
        let begun = Instant::now();
        let (what, fate) = is_killed(seed, round);
        eprintln!("{what}: {fate:?}, {:.1?}", begun.elapsed());
        *fates.entry(fate).or_insert(0) += 1;
    }
    eprintln!("{fates:?}");
}

#[test]
fn private_memory_that_changes_goes_along() {
    changes_by("");
}

#[test]
fn private_memory_that_changes_is_never_missed_before_it_has_followed() {
    changes_by("post-copy");
}

/// Programs whose memory comes, goes, moves and is inherited while they move by a strategy.
fn changes_by(strategy: &str) {
    let grown = ["grown", "grown-child"];
    for (program, at_last) in [("growing.c", &grown[..]), ("churn.c", &[])] {
        let (_directory, changing) = compiled(program, &[]);
        let mut trees = Trees::new();
        trees.launch("one", &[&changing]);
        trees.wait_for("ready");
        for times in 1..=5 {
            if times == 5 {
                wait_until("it does not grow any more", || {
                    at_last.iter().all(|name| trees.has(name))
                });
            }
            trees.begin_move_by("one", strategy, None);
            trees.wait_for_times(times, "one has moved");
        }
        trees.tell("go");
        let (ended, output) = (trees.ended(), trees.output());
        assert!(output.contains("right"), "{ended:?}: {output}");
    }
}
