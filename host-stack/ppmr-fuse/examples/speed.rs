//! What the file systems cost: MB/s through both mounts, beside the same pipeline with `Write` and `Read` alone.
//!
//! `cargo run --release -p snaprig-ppmr-fuse --example speed`

use std::{
    fs::File,
    io::{self, Read, Write},
    thread,
    time::{Duration, Instant},
};

use snaprig_peers::{Address, Token};
use snaprig_ppmr::{
    Buffers, Mode, Times,
    driver::{
        source::{Moves, SourceNode},
        target::{Takes, TargetNode},
    },
};
use snaprig_ppmr_fuse::{Options, mount_source, mount_target};

/// All files together.
const BYTES: usize = 1 << 30;
/// What is written and read at once.
const AT_ONCE: usize = 1 << 20;
/// The best one counts.
const RUNS: usize = 3;

fn nodes(files: u32, mode: Mode) -> io::Result<(SourceNode, TargetNode)> {
    let (any, token) = (Address::Tcp("127.0.0.1:0".into()), Token::new([7; 32]));
    let (buffers, times) = (Buffers::default(), Times::default());
    let takes = Takes {
        buffers,
        streams_max: files,
        times,
        ..Takes::default()
    };
    let target = TargetNode::listen(&any, &token, takes)?;
    let moves = Moves {
        buffers,
        mode,
        times,
        ranks: (0..files).collect(),
        ..Moves::default()
    };
    let source = SourceNode::connect(&target.address(), &token, moves)?;
    Ok((source, target))
}

fn write(to: &mut impl Write, bytes: usize) -> io::Result<()> {
    let image = vec![7; AT_ONCE];
    (0..bytes / AT_ONCE).try_for_each(|_| to.write_all(&image))
}

fn read(from: &mut impl Read) -> io::Result<usize> {
    let (mut buffer, mut all) = (vec![0; AT_ONCE], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(all),
            count => all += count,
        }
    }
}

fn plain(files: u32, mode: Mode) -> io::Result<Duration> {
    let (source, target) = nodes(files, mode)?;
    let (begun, each) = (Instant::now(), BYTES / files as usize);
    thread::scope(|scope| {
        for rank in 0..files {
            let mut writer = source.writer(rank);
            scope.spawn(move || {
                write(&mut writer, each).expect("the target is there");
                writer.end();
            });
        }
        for _ in 0..files {
            let mut reader = target.next_reader().expect("nobody stops it");
            scope.spawn(move || assert_eq!(read(&mut reader).expect("it is whole"), each));
        }
    });
    Ok(begun.elapsed())
}

fn mounted(files: u32, mode: Mode) -> io::Result<Duration> {
    let [from, to] = [tempfile::tempdir()?, tempfile::tempdir()?];
    let (source, target) = nodes(files, mode)?;
    let options = Options {
        wait: Duration::from_secs(10),
        files: Some(files as usize),
    };
    // They go before their directories do.
    let _source = mount_source(source, (0..files).collect(), from.path())?;
    let _target = mount_target(target, to.path(), options)?;
    let (begun, each) = (Instant::now(), BYTES / files as usize);
    thread::scope(|scope| {
        for file in 0..files {
            let [from, to] = [&from, &to].map(|dir| dir.path().join(file.to_string()));
            scope.spawn(move || {
                let mut file = File::create(from).expect("a rank is free");
                write(&mut file, each).expect("the target is there");
            });
            scope.spawn(move || {
                let mut file = File::open(to).expect("it comes");
                assert_eq!(read(&mut file).expect("it is whole"), each);
            });
        }
    });
    Ok(begun.elapsed())
}

fn best(run: &dyn Fn() -> io::Result<Duration>) -> io::Result<f64> {
    let runs: io::Result<Vec<_>> = (0..RUNS).map(|_| run()).collect();
    let best = runs?.into_iter().min().unwrap_or_default();
    Ok(BYTES as f64 / 1e6 / best.as_secs_f64())
}

fn main() -> io::Result<()> {
    println!("files  mode   Write, Read        mounts  ratio");
    for files in [1, 8] {
        for mode in [Mode::Pull, Mode::Push] {
            let plain = best(&|| plain(files, mode))?;
            let mounted = best(&|| mounted(files, mode))?;
            let (mode, ratio) = (format!("{mode:?}"), mounted / plain);
            println!("{files:>5}  {mode:<5} {plain:>7.0} MB/s  {mounted:>7.0} MB/s  {ratio:>5.2}");
        }
    }
    Ok(())
}
