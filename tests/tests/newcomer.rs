//! What goes wrong for somebody new, made to happen: snaprig works all the same, or says what to do.

mod alone;
mod fabric;

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io,
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

use rustix::net::SocketFlags;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use alone::{Scene, succeeded};
use fabric::free_port;

/// The last line of a demo that is as it should be.
const IDENTICAL: &str = "identical: the restored run equals the undisturbed one, bit for bit";

/// What it says when it fails.
fn refused(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it succeeds: {said}");
    said
}

fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

/// What a shell in namespaces of its own prints, where `$S` is the program: `setup` may mount something.
fn script(scene: &Scene, setup: &str, script: &str) -> Output {
    let mut command = scene.script(&format!("{setup}\nS=$SNAPRIG\ncd $SCENE\n{script}"));
    command.output().unwrap()
}

/// System calls that fail with an error for the command and all that it starts, as of a container's filter.
fn refuse(command: &mut Command, calls: &[i64]) {
    let rules: BTreeMap<_, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let (refused, else_) = (
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
    );
    let filter: BpfProgram = SeccompFilter::new(rules, else_, refused, arch)
        .unwrap()
        .try_into()
        .unwrap();
    // SAFETY: between fork and exec it makes two system calls, prctl(2) and seccomp(2), with a program that was made before.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&filter).map_err(|_| io::Error::last_os_error())
        });
    }
}

/// What becomes of the program where these calls are refused.
fn run_without(scene: &Scene, calls: &[i64], arguments: &[&str]) -> Output {
    let mut command = scene.snaprig(arguments);
    refuse(&mut command, calls);
    command.output().unwrap()
}

#[test]
fn without_a_program_the_library_says_how_to_have_one() {
    let scene = Scene::new();
    let library = alone::root(&mut scene.snaprig(&["sdk"])).join("verbs/libibverbs.so.1");
    let there = scene.path("libibverbs.so.1");
    fs::copy(library, there).unwrap();
    let mut devices = scene.command(Path::new("ibv_devices"));
    devices.env("LD_LIBRARY_PATH", scene.path(""));
    assert_says(
        &refused(devices.output().unwrap()),
        &["no `snaprig` on PATH", "SNAPRIG_EXE=FILE"],
    );
    // What SNAPRIG_EXE names is not there.
    devices.env("SNAPRIG_EXE", "/nowhere/snaprig");
    assert_says(
        &refused(devices.output().unwrap()),
        &["/nowhere/snaprig: No such file"],
    );
}

#[test]
fn programs_that_are_not_installed_are_named_with_their_packages() {
    let scene = Scene::new();
    let said = |arguments: &[&str]| {
        let mut command = scene.snaprig(arguments);
        refused(command.env("PATH", scene.path("bin")).output().unwrap())
    };
    for (arguments, package) in [
        (&["verbs", "--", "ibv_rc_pingpong"][..], "ibverbs-utils"),
        (&["verbs", "--", "ib_write_bw"], "perftest"),
        (
            &["build-sink", "sink.c", "-o", "sink"],
            "package gcc has it",
        ),
    ] {
        assert_says(&said(arguments), &["on PATH; Debian's package", package]);
    }
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn without_kvm_cards_run_on_ptrace() {
    let scene = Scene::new();
    let hide = "[ ! -e /dev/kvm ] || mount --bind /dev/null /dev/kvm";
    let demo = succeeded(script(&scene, hide, "$S demo"));
    assert_says(&demo, &[IDENTICAL]);
    let doctor = succeeded(script(&scene, hide, "$S doctor --for cards"));
    assert_says(
        &doctor,
        &["kvm           NO", "without it: ptrace", "join group kvm"],
    );
    let insists = script(&scene, hide, "$S demo --platform kvm");
    assert_says(&refused(insists), &["snaprig doctor --for cards"]);
}

#[test]
fn who_may_not_trace_is_told_which_setting_says_so() {
    // As kernel.yama.ptrace_scope of 2 or 3 for who is not root, and SELinux's deny_ptrace.
    let scene = Scene::new();
    let traceless = |arguments: &[&str]| run_without(&scene, &[libc::SYS_ptrace], arguments);
    let doctor = traceless(&["doctor", "--for", "ckpt"]);
    assert_eq!(doctor.status.code(), Some(1));
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert_says(&doctor, &["checkpoint    NO", "kernel.yama.ptrace_scope"]);
    let mut dump = scene.command(Path::new("sh"));
    let script = "
        \"$S\" ckpt launch --dir \"$HOME/c\" -- sh -c 'touch \"$HOME/begun\"; while [ ! -e \"$HOME/go\" ]; do :; done' &
        while [ ! -e \"$HOME/begun\" ]; do :; done
        \"$S\" ckpt dump --dir \"$HOME/c\" && exit 0
        touch \"$HOME/go\"; wait $!; exit 1";
    dump.args(["-c", script]).env("S", scene.program());
    refuse(&mut dump, &[libc::SYS_ptrace]);
    assert_says(
        &refused(dump.output().unwrap()),
        &["the program runs on", "snaprig doctor --for ckpt"],
    );
    // What needs none of it.
    let campaign = traceless(&["campaign", "--seeds", "0..20"]);
    assert_says(&succeeded(campaign), &["0 violations"]);
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn without_user_namespaces_a_restart_says_what_gives_them() {
    let scene = Scene::new();
    // A limit of the namespace's own, and root without rights: as another user where there are no namespaces.
    let none = "echo 0 > /proc/sys/user/max_user_namespaces";
    let drop = "exec setpriv --bounding-set -all --inh-caps -all sh -ec";
    let output = script(
        &scene,
        none,
        &format!(
            "{drop} '
             \"$SNAPRIG\" ckpt launch --dir c -- sh -c \"touch begun; sleep 60\" & \
             while [ ! -e begun ]; do :; done
             \"$SNAPRIG\" ckpt dump --dir c --kill > dumped
             \"$SNAPRIG\" doctor --for ckpt > doctor && exit 3
             exec \"$SNAPRIG\" ckpt restart c'"
        ),
    );
    assert_says(
        &refused(output),
        &["cannot make a user namespace", "snaprig doctor --for ckpt"],
    );
    let doctor = fs::read_to_string(scene.path("doctor")).unwrap();
    assert_says(
        &doctor,
        &[
            "restart       NO",
            "kernel.unprivileged_userns_clone=1",
            "CANNOT",
        ],
    );
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_devinfo"),
    ignore = "ibv_devinfo is not installed"
)]
fn in_a_container_verbs_cards_and_simulations_work() {
    // What Docker's filter refuses of what snaprig would use.
    const REFUSED: [i64; 10] = [
        libc::SYS_userfaultfd,
        libc::SYS_pidfd_getfd,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_io_uring_setup,
        libc::SYS_process_madvise,
        libc::SYS_kcmp,
        libc::SYS_keyctl,
        libc::SYS_bpf,
    ];
    let scene = Scene::new();
    let contained = |arguments: &[&str]| run_without(&scene, &REFUSED, arguments);
    for purpose in ["verbs", "cards", "sim"] {
        succeeded(contained(&["doctor", "--for", purpose]));
    }
    let demo = succeeded(contained(&["demo", "--platform", "ptrace"]));
    assert_says(&demo, &[IDENTICAL]);
    let devices = succeeded(contained(&["verbs", "--", "ibv_devinfo", "-l"]));
    assert_says(&devices, &["snaprig_0"]);
    let doctor = contained(&["doctor", "--for", "ckpt"]);
    assert_eq!(doctor.status.code(), Some(1));
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert_says(
        &doctor,
        &["checkpoint    NO", "pidfd_getfd", "a container:"],
    );
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn places_for_files_may_be_small_or_noexec_or_have_long_names() {
    let long = "n".repeat(120);
    for (place, setup) in [
        ("shm", "mount -t tmpfs -o size=64m none /dev/shm".into()),
        (
            "noexec",
            "mount -t tmpfs -o noexec,mode=1777 none \"$HOME\"; export TMPDIR=$HOME".into(),
        ),
        (
            "long",
            format!(
                "mkdir \"$HOME/{long}\"; export TMPDIR=$HOME/{long} SNAPRIG_FABRICS=$HOME/{long}"
            ),
        ),
    ] {
        let scene = Scene::new();
        let works = "
            $S demo --platform ptrace | tail -n 1
            $S verbs -- ibv_devices
            $S ckpt launch --dir \"${TMPDIR:-$SCENE}/checkpoints\" -- echo checkpointed";
        let said = succeeded(script(&scene, &setup, works));
        for part in [IDENTICAL, "snaprig_0", "checkpointed"] {
            assert!(said.contains(part), "{place}: {part:?} is not in {said}");
        }
    }
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn where_nothing_can_be_written_it_says_where_it_tried() {
    let scene = Scene::new();
    // The scene is in one of these.
    let setup = "mount --bind \"$SCENE/bin\" /mnt
        for place in \"$HOME\" /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro none \"$place\"; done
        cd /; S=/mnt/snaprig";
    let mut command = scene.script(&format!("{setup}\n$S verbs -- ibv_devices"));
    let said = refused(command.env_remove("SNAPRIG_FABRICS").output().unwrap());
    assert_says(
        &said,
        &[
            "there is no place for libraries",
            "/var/tmp",
            "Read-only",
            "XDG_CACHE_HOME",
        ],
    );
    assert!(!said.contains("cargo build"), "it carries them: {said}");
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn a_full_disk_costs_one_checkpoint_and_nothing_else() {
    let scene = Scene::new();
    let setup = "mkdir \"$SCENE/small\"; mount -t tmpfs -o size=1m none \"$SCENE/small\"";
    let program = "x=$(head -c 4000000 /dev/urandom | base64); touch $SCENE/begun
        while [ ! -e $SCENE/go ]; do :; done; echo goes on";
    fs::write(scene.path("program"), program).unwrap();
    let output = script(
        &scene,
        setup,
        "$S ckpt launch --dir small/c -- bash program & launched=$!
         while [ ! -e begun ]; do :; done
         $S ckpt dump --dir small/c 2> why && exit 3
         touch go; wait $launched",
    );
    assert_says(&succeeded(output), &["goes on"]);
    let why = fs::read_to_string(scene.path("why")).unwrap();
    assert_says(&why, &["the program runs on", "no room", "--dir"]);
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed"
)]
fn little_memory_may_be_locked_and_few_files_opened() {
    let scene = Scene::new();
    let limited = |limits: &str, script: &str| {
        let mut command = scene.command(Path::new("sh"));
        let script = format!("{limits}\nS='{}'\n{script}", scene.program().display());
        succeeded(command.args(["-ec", &script]).output().unwrap())
    };
    let doctor = limited("ulimit -l 8192", "$S doctor --for verbs");
    assert_says(
        &doctor,
        &["locked mem    NO    limit 8192 KiB", "ulimit -l unlimited"],
    );
    let port = free_port();
    let transfer = format!(
        "$S verbs -- ib_write_bw -p {port} -d snaprig_0 -s 16777216 -n 5 > \"$HOME/server\" & server=$!
         until $S verbs -- ib_write_bw -p {port} -d snaprig_0 -s 16777216 -n 5 localhost; do
           kill -0 $server
         done
         wait $server"
    );
    assert_says(&limited("ulimit -l 8192", &transfer), &["16777216"]);
    let demo = limited("ulimit -n 64", "$S demo --platform ptrace");
    assert_says(&demo, &[IDENTICAL]);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let scene = Scene::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let job = scene.path("job");
    for arguments in [
        &["serve", "--listen", &address][..],
        &[
            "ckpt",
            "coordinator",
            "--job",
            job.to_str().unwrap(),
            "--listen",
            &address,
        ],
    ] {
        let said = refused(scene.snaprig(arguments).output().unwrap());
        assert_says(
            &said,
            &[&address, "another process listens there", "port 0"],
        );
    }
}

#[test]
fn a_fabric_of_another_version_is_told_apart() {
    let scene = Scene::new();
    let directory = scene.path("fabrics/default");
    fs::create_dir_all(&directory).unwrap();
    for made in [scene.path("fabrics"), directory.clone()] {
        fs::set_permissions(made, Permissions::from_mode(0o700)).unwrap();
    }
    // One that hangs up on what it does not understand.
    let (socket, flags) = (directory.join("socket"), SocketFlags::empty());
    let listener = snaprig_peers::packets::listen(&socket, 1, flags).unwrap();
    let mut devices = scene.snaprig(&["verbs", "--", "ibv_devices"]);
    let devices = std::thread::spawn(move || devices.output().unwrap());
    drop(rustix::net::accept(&listener).unwrap());
    assert_says(
        &refused(devices.join().unwrap()),
        &["another version of snaprig runs it", "take another name"],
    );
}

#[test]
fn users_who_do_not_say_where_are_told_what_runs_where() {
    let scene = Scene::new();
    let nowhere = scene.path("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    for (arguments, says) in [
        (
            &["ckpt", "dump", "--dir", nowhere][..],
            "snaprig ckpt launch",
        ),
        (&["ckpt", "restart", nowhere], "no complete checkpoint"),
        (&["fabric", "list"], "`snaprig verbs` starts it"),
        (
            &["snapshot", "verify", nowhere],
            "there is no such directory",
        ),
    ] {
        let said = refused(scene.snaprig(arguments).output().unwrap());
        assert_says(&said, &[says]);
    }
}
