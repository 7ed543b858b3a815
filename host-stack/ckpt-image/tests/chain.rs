//! Chains: for each page the newest counts, before and after they are collapsed.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use snaprig_ckpt_image::{
    chain::{Chain, ChainError, Place, collapse},
    image::{Header, ImageError, ImageId, PAGE, Summary},
};
use support::{Op, Page, Registers, Told, image, op, read};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Writes an image on top of `parent`, with a state that names it.
fn write(path: &Path, parent: Option<ImageId>, round: u64, ops: &[Op]) -> Summary {
    let header = Header {
        parent,
        round,
        ..Header::default()
    };
    let name = format!("round {round}");
    let words = vec![round; 3];
    let mut all = vec![Op::State(Registers { name, words })];
    all.extend_from_slice(ops);
    let (bytes, summary) = image(&header, round.is_multiple_of(2).then_some(1), &all);
    fs::write(path, bytes).unwrap();
    summary
}

/// Writes a chain of an image each; what it says together.
fn chain(dir: &Path, rounds: &[Vec<Op>]) -> (Vec<PathBuf>, Summary, BTreeMap<(u32, u64), Page>) {
    let (mut paths, mut last, mut told) = (Vec::new(), None::<Summary>, Told::default());
    for (round, ops) in rounds.iter().enumerate() {
        let path = dir.join(format!("{round}.img"));
        last = Some(write(&path, last.map(|it| it.id), round as u64, ops));
        ops.iter().for_each(|op| told.tell(op));
        paths.push(path);
    }
    told.pages.retain(|_, page| *page != Page::Gone);
    (paths, last.unwrap(), told.pages)
}

/// What a chain says.
fn pages(chain: &Chain) -> BTreeMap<(u32, u64), Page> {
    let (mut told, mut loader) = (Told::default(), chain.loader());
    for part in chain.parts() {
        let run = part.run;
        if part.place == Place::Zeroes {
            told.tell(&Op::Zeroes(run.space, run.address / PAGE, run.bytes / PAGE));
            continue;
        }
        let mut bytes = Vec::new();
        loader
            .load(&part, |at, pages| -> Result<(), ImageError> {
                assert_eq!(at, bytes.len() as u64);
                bytes.extend_from_slice(pages);
                Ok(())
            })
            .unwrap();
        let first = bytes.iter().step_by(PAGE as usize).copied().collect();
        told.tell(&Op::Pages(run.space, run.address / PAGE, first));
    }
    told.pages
}

fn memory_op() -> impl Strategy<Value = Op> {
    op().prop_filter("memory", |op| !matches!(op, Op::State(_)))
}

fn rounds() -> impl Strategy<Value = Vec<Vec<Op>>> {
    // What is gone may have been said by the same image.
    let first = prop::collection::vec(memory_op(), 1..6);
    let later = prop::collection::vec(prop::collection::vec(memory_op(), 0..6), 0..4);
    (first, later).prop_map(|(first, mut later)| {
        later.insert(0, first);
        later
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn for_each_page_the_newest_counts(rounds in rounds()) {
        let dir = dir();
        let (paths, newest, expected) = chain(dir.path(), &rounds);
        prop_assert_eq!(&pages(&Chain::open(&paths).unwrap()), &expected);

        let to = dir.path().join("one.img");
        let one = collapse(&paths, &to, None).unwrap();
        let (told, summary) = read(fs::File::open(&to).unwrap()).unwrap();
        prop_assert_eq!(&told.pages, &expected);
        prop_assert_eq!(told.states.len(), 1);
        prop_assert_eq!(told.states[0].words[0], rounds.len() as u64 - 1);
        prop_assert_eq!(summary, one);

        // What was taken on top of the chain's last goes on top of the one, too.
        for (name, parent) in [("x.img", newest.id), ("y.img", one.id)] {
            let next = dir.path().join(name);
            write(&next, Some(parent), 9, &[]);
            let chain = Chain::open(&[to.clone(), next]).unwrap();
            prop_assert_eq!(&pages(&chain), &expected);
        }
    }
}

fn three(dir: &Path) -> Vec<PathBuf> {
    let rounds: Vec<Vec<Op>> = (0..3u8)
        .map(|round| vec![Op::Pages(1, u64::from(round), vec![round + 1; 4])])
        .collect();
    chain(dir, &rounds).0
}

#[test]
fn what_is_no_chain_is_refused() {
    let dir = dir();
    let paths = three(dir.path());
    assert!(matches!(Chain::open(&[]), Err(ChainError::Empty)));
    let error = Chain::open(&paths[1..]).err().unwrap();
    assert!(
        matches!(&error, ChainError::NotWhole { name } if name.ends_with("1.img")),
        "{error}"
    );
    let skipped = [paths[0].clone(), paths[2].clone()];
    assert!(matches!(
        Chain::open(&skipped),
        Err(ChainError::Broken { .. })
    ));
    let twice = [paths[0].clone(), paths[0].clone()];
    assert!(matches!(
        Chain::open(&twice),
        Err(ChainError::Broken { .. })
    ));
}

#[test]
fn a_chain_that_is_too_long_says_so() {
    let dir = dir();
    let rounds = vec![Vec::new(); 65];
    let (paths, ..) = chain(dir.path(), &rounds);
    Chain::open(&paths[..64]).unwrap();
    assert!(matches!(
        Chain::open(&paths),
        Err(ChainError::TooLong { .. })
    ));
}

#[test]
fn whatever_fails_the_old_images_survive_and_nothing_new_appears() {
    let dir = dir();
    let paths = three(dir.path());
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = names();
    let to = dir.path().join("one.img");
    for path in &paths {
        let good = fs::read(path).unwrap();
        for at in (0..good.len()).step_by(1201) {
            let mut bad = good.clone();
            bad[at] ^= 2;
            fs::write(path, &bad).unwrap();
            match collapse(&paths, &to, None) {
                // What a newer image replaces is not read.
                Ok(_) => fs::remove_file(&to).unwrap(),
                Err(error) => {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    assert!(matches!(
                        error,
                        ChainError::Image(_) | ChainError::Broken { .. }
                    ));
                    assert!(error.to_string().contains(name), "{at}: {error}");
                }
            }
            assert_eq!(names(), before);
        }
        fs::write(path, &good).unwrap();
    }
    let nowhere = dir.path().join("no/one.img");
    assert!(matches!(
        collapse(&paths, &nowhere, None),
        Err(ChainError::Io { .. })
    ));
    collapse(&paths, &to, None).unwrap();
}
