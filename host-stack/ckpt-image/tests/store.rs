//! The store: whole or not there, whatever happens.

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use snaprig_ckpt_image::{
    chain::Chain,
    image::{Header, ImageId, Options, WriteError},
    store::{Checkpoint, Joined, Manifest, Member, Round, Store, StoreError},
};
use support::{Op, Page, read, write_op};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn image(to: &Joined, member: &str, parent: Option<ImageId>, page: u64, byte: u8) -> Member {
    let header = Header {
        parent,
        ..Header::default()
    };
    let mut writer = to.image(member, &header, Options::new("")).unwrap();
    write_op(&mut writer, &Op::Pages(1, page, vec![byte; 3]));
    Member::new(member, &writer.finish().unwrap().1)
}

fn begin(store: &Store, round: u64) -> Round {
    store.begin(round, 0).unwrap()
}

/// A checkpoint of member `a`, on top of another.
fn take(store: &Store, round: u64, parent: Option<&Checkpoint>) -> Checkpoint {
    let making = begin(store, round);
    let id = parent.map(|parent| parent.manifest().members[0].id);
    let member = image(making.joined(), "a", id, round, round as u8);
    let parent = parent.map(|parent| parent.manifest().round);
    let manifest = Manifest::now(vec!["sleep".into(), "1".into()], parent, vec![member]);
    making.commit(manifest).unwrap()
}

fn latest(store: &Store) -> Option<u64> {
    let latest = store.latest().unwrap();
    latest.checkpoint.map(|it| it.manifest().round)
}

fn names(dir: &Path) -> Vec<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_round_is_offered_when_it_is_published_and_not_before() {
    let dir = dir();
    let store = Store::open(dir.path().join("new/store")).unwrap();
    assert_eq!(latest(&store), None);
    let making = begin(&store, 1);
    let a = image(making.joined(), "a", None, 1, 1);
    let b = image(&store.join(1).unwrap(), "b", None, 2, 2);
    assert_eq!(latest(&store), None);
    let prepared = making
        .prepare(Manifest::now(vec![], None, vec![a, b]))
        .unwrap();
    assert_eq!(latest(&store), None);
    assert_eq!(store.prepared().unwrap(), [1]);
    let published = prepared.publish().unwrap();
    assert_eq!(latest(&store), Some(1));
    assert!(store.prepared().unwrap().is_empty());
    published.verify().unwrap();
    assert_eq!(names(published.path()), ["a.img", "b.img", "manifest.json"]);
    assert_eq!(
        published.chain("b").unwrap(),
        [published.path().join("b.img")]
    );
    assert!(matches!(
        published.chain("c"),
        Err(StoreError::NoMember { .. })
    ));
    assert!(matches!(store.begin(1, 0), Err(StoreError::Exists { .. })));
}

#[test]
fn a_round_that_is_given_up_leaves_nothing() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    take(&store, 1, None);
    let making = begin(&store, 2);
    image(making.joined(), "a", None, 1, 1);
    assert!(matches!(store.begin(2, 0), Err(StoreError::Busy { .. })));
    drop(making);
    let making = begin(&store, 2);
    let member = image(making.joined(), "a", None, 1, 1);
    let absent = Member {
        name: "b".into(),
        image: "b.img".into(),
        ..member.clone()
    };
    assert!(
        making
            .commit(Manifest::now(vec![], None, vec![absent]))
            .is_err()
    );
    let making = begin(&store, 2);
    image(making.joined(), "a", None, 1, 2);
    let other = making.commit(Manifest::now(vec![], None, vec![member.clone()]));
    assert!(matches!(other, Err(StoreError::Foreign { .. })));
    let making = begin(&store, 2);
    image(making.joined(), "a", None, 1, 1);
    drop(
        making
            .prepare(Manifest::now(vec![], None, vec![member]))
            .unwrap(),
    );
    assert_eq!(names(dir.path()), ["0001"]);
    assert_eq!(latest(&store), Some(1));
}

/// Runs in a process of its own, which is killed in the midst of round 2.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("SNAPRIG_STORE") else {
        return;
    };
    let store = Store::open(dir).unwrap();
    let making = begin(&store, 2);
    let member = image(making.joined(), "a", None, 1, 1);
    let _prepared;
    let _making;
    match std::env::var_os("SNAPRIG_PREPARE") {
        Some(_) => {
            _prepared = making
                .prepare(Manifest::now(vec![], None, vec![member]))
                .unwrap()
        }
        None => _making = making,
    }
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}

#[test]
fn what_a_dead_leader_leaves_is_never_offered_and_goes() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    take(&store, 1, None);
    for prepare in [false, true] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["child", "--exact"])
            .env("SNAPRIG_STORE", dir.path());
        if prepare {
            child.env("SNAPRIG_PREPARE", "1");
        }
        assert!(!child.output().unwrap().status.success());
        assert_eq!(names(dir.path()), ["0001", "0002.tmp"]);
        assert_eq!(latest(&store), Some(1));
        assert_eq!(store.prepared().unwrap().len(), usize::from(prepare));
        if prepare {
            store.publish(2).unwrap();
            assert_eq!(latest(&store), Some(2));
        } else {
            assert!(store.publish(2).is_err());
            drop(begin(&store, 3));
            assert_eq!(names(dir.path()), ["0001"]);
        }
    }
}

#[test]
fn damage_is_named_and_the_one_before_is_offered() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    take(&store, 1, None);
    let second = take(&store, 2, None);
    for (name, step) in [("manifest.json", 1), ("a.img", 61)] {
        let path = second.path().join(name);
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let found = store.latest().unwrap();
            match found.checkpoint.unwrap() {
                // A blank that became another, or pages, which only verify() reads.
                it if it.manifest().round == 2 => {
                    let blank = name == "manifest.json" && good[at].is_ascii_whitespace();
                    assert!(
                        blank || it.verify().unwrap_err().to_string().contains(name),
                        "{at}"
                    );
                }
                it => {
                    assert_eq!(it.manifest().round, 1);
                    assert!(
                        found.damaged[0].to_string().contains("0002/"),
                        "{}",
                        found.damaged[0]
                    );
                }
            }
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(latest(&store), Some(1));
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(latest(&store), Some(2));
    let manifest = second.path().join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 7")).unwrap();
    assert!(matches!(
        store.checkpoint(2),
        Err(StoreError::Version { found: 7, .. })
    ));
}

#[test]
fn what_others_build_on_is_not_pruned() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    let first = take(&store, 1, None);
    let second = take(&store, 2, Some(&first));
    take(&store, 3, None);
    let fourth = take(&store, 4, Some(&second));
    assert_eq!(fourth.chain("a").unwrap().len(), 3);
    assert_eq!(store.prune(1).unwrap(), [3]);
    assert_eq!(store.rounds().unwrap(), [1, 2, 4]);
    // Without what it builds on, it is not offered.
    let away = dir.path().join("away");
    fs::rename(second.path(), &away).unwrap();
    assert_eq!(latest(&store), Some(1));
    fs::rename(&away, second.path()).unwrap();
    assert_eq!(latest(&store), Some(4));
}

#[test]
fn a_collapsed_round_builds_on_nothing_and_is_built_on() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    let first = take(&store, 1, None);
    let second = take(&store, 2, Some(&first));
    let third = take(&store, 3, Some(&second));
    let collapsed = store.collapse(2, None).unwrap();
    assert_eq!(collapsed.manifest().parent, None);
    assert_eq!(names(dir.path()), ["0001", "0002", "0003"]);
    assert_eq!(third.chain("a").unwrap().len(), 2);
    assert_eq!(store.prune(1).unwrap(), [1]);
    let one = store.collapse(3, Some(1)).unwrap();
    assert_eq!(store.prune(1).unwrap(), [2]);
    let file = fs::File::open(one.path().join("a.img")).unwrap();
    let pages = read(file).unwrap().0.pages;
    let expected = [(1, 1), (2, 2), (3, 3), (4, 3), (5, 3)];
    assert!(
        pages
            .into_iter()
            .eq(expected.map(|(page, byte)| ((1, page), Page::Full(byte))))
    );
    Chain::open(&one.chain("a").unwrap()).unwrap();
}

#[test]
fn a_collapse_that_fails_changes_nothing() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    let first = take(&store, 1, None);
    let second = take(&store, 2, Some(&first));
    let image = first.path().join("a.img");
    let mut bytes = fs::read(&image).unwrap();
    bytes[9000] ^= 1;
    fs::write(&image, bytes).unwrap();
    let error = store.collapse(2, None).unwrap_err();
    assert!(matches!(error, StoreError::Chain(_)), "{error}");
    assert_eq!(names(dir.path()), ["0001", "0002"]);
    assert_eq!(store.checkpoint(2).unwrap().manifest(), second.manifest());
}

#[test]
fn no_room_is_said_before_and_after() {
    let dir = dir();
    let store = Store::open(dir.path()).unwrap();
    let full = store.begin(1, u64::MAX).err().unwrap();
    assert!(
        matches!(
            &full,
            StoreError::Full {
                needed: u64::MAX,
                ..
            }
        ),
        "{full}"
    );
    let making = begin(&store, 1);
    for name in ["", "../x", ".x", "a/b", "é"] {
        let refused = making
            .joined()
            .image(name, &Header::default(), Options::new(""));
        assert!(matches!(refused, Err(StoreError::Name { .. })), "{name}");
    }
    drop(making);
    assert!(names(dir.path()).is_empty());
    let full = fs::File::options()
        .write(true)
        .open(PathBuf::from("/dev/full"))
        .unwrap();
    let sink = snaprig_ckpt_image::image::FileSink::new(full).unwrap();
    let options = Options {
        expected: 1 << 30,
        ..Options::new("/ckpt/0001.tmp/a.img")
    };
    let writer = snaprig_ckpt_image::image::Writer::new(sink, &Header::default(), options);
    let error = writer.and_then(|writer| writer.finish()).err().unwrap();
    assert!(
        matches!(error, WriteError::Full { written: 0, needed, .. } if needed == 1 << 30),
        "{error}"
    );
}
