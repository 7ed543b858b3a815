//! A `snaprig` that was installed alone, as one file: it carries what programs are given, and puts that where it can.

mod alone;

use std::{fs, path::Path, process::Stdio};

use alone::{Scene, root, succeeded};

/// All of it, each file once.
fn assert_whole(root: &Path) {
    for file in [
        "verbs/libibverbs.so.1",
        "lib/libscif.so.0",
        "lib/libscif.so",
        "lib/libcoi_host.so.0",
        "lib/libcoi_device.so.0",
        "lib/libsnapify.so.0",
        "lib/libmicmgmt.so.0",
        "lib/libsnaprig_ckpt_plugin.so.0",
        "include/scif.h",
        "include/snapify.h",
        "include/miclib.h",
        "include/snapifyio.h",
        "include/intel-coi/source/COIProcess_source.h",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_devinfo"),
    ignore = "ibv_devinfo is not installed"
)]
fn a_program_alone_has_hcas_and_says_where_headers_are() {
    let scene = Scene::new();
    let devices = scene
        .snaprig(&["verbs", "--hcas", "2", "--", "ibv_devinfo", "-l"])
        .output()
        .unwrap();
    let devices = succeeded(devices);
    assert!(devices.contains("snaprig_1"), "{devices}");
    let flags = succeeded(scene.snaprig(&["include", "--host"]).output().unwrap());
    assert!(flags.contains(scene.cache().to_str().unwrap()), "{flags}");
    assert_whole(&root(&mut scene.snaprig(&["sdk"])));
}

#[test]
fn a_hundred_starts_at_once_share_one_root() {
    let scene = Scene::new();
    let started: Vec<_> = (0..100)
        .map(|_| {
            scene
                .snaprig(&["sdk"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let roots = started
        .into_iter()
        .map(|child| succeeded(child.wait_with_output().unwrap()));
    let mut roots: Vec<_> = roots.collect();
    roots.dedup();
    assert_eq!(roots.len(), 1, "{roots:?}");
    assert_whole(Path::new(roots[0].trim_end()));
    assert_eq!(fs::read_dir(scene.cache()).unwrap().count(), 1);
}

#[test]
fn what_was_damaged_is_whole_again() {
    let scene = Scene::new();
    let there = root(&mut scene.snaprig(&["sdk"]));
    fs::remove_file(there.join("verbs/libibverbs.so.1")).unwrap();
    fs::write(there.join("lib/libscif.so.0"), "short").unwrap();
    assert_eq!(root(&mut scene.snaprig(&["sdk"])), there);
    assert_whole(&there);
    assert!(
        fs::read(there.join("lib/libscif.so.0"))
            .unwrap()
            .starts_with(b"\x7fELF")
    );
}

#[test]
fn a_package_has_them_beside_the_program_and_another_version_does_not_use_those() {
    let scene = Scene::new();
    let packaged = scene.path("lib/snaprig");
    root(&mut scene.snaprig(&["sdk", "--to", packaged.to_str().unwrap()]));
    assert_whole(&packaged);
    assert_eq!(
        root(&mut scene.snaprig(&["sdk"])),
        packaged.canonicalize().unwrap()
    );
    assert!(!scene.cache().exists());
    fs::write(packaged.join("ID"), "0.0.1-0123456789abcdef").unwrap();
    assert!(root(&mut scene.snaprig(&["sdk"])).starts_with(scene.cache()));
}

#[test]
fn users_without_a_home_have_them_too() {
    let scene = Scene::new();
    let mut command = scene.snaprig(&["sdk"]);
    command
        .env_remove("HOME")
        .env("XDG_RUNTIME_DIR", scene.path("home"));
    let there = root(&mut command);
    assert!(
        there.starts_with(scene.path("home/snaprig/sdk")),
        "{}",
        there.display()
    );
    assert_whole(&there);
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn a_home_that_is_read_only_or_noexec_is_passed_over() {
    for options in ["ro", "noexec"] {
        let scene = Scene::new();
        let mut script = scene.script(&format!(
            "mount -t tmpfs -o {options},mode=755 none \"$HOME\"
             XDG_RUNTIME_DIR=$SCENE/run \"$SNAPRIG\" sdk"
        ));
        fs::create_dir(scene.path("run")).unwrap();
        let there = root(&mut script);
        assert!(
            there.starts_with(scene.path("run/snaprig/sdk")),
            "{options}: {}",
            there.display()
        );
    }
}

#[test]
#[cfg_attr(not(has_user_namespaces), ignore = "no user namespaces")]
fn where_there_is_no_place_each_that_was_tried_is_named_with_why() {
    let scene = Scene::new();
    let mut script = scene.script(
        "for directory in \"$HOME\" /var/tmp /dev/shm; do mount -t tmpfs -o noexec none $directory; done
         TMPDIR=$HOME \"$SNAPRIG\" sdk",
    );
    let output = script.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.matches("noexec").count() >= 4 && err.contains("XDG_CACHE_HOME"),
        "{err}"
    );
}
