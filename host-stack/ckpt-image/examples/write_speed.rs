//! How fast an image is written, beside plain write(2) of a hot buffer and fsync(2) to the same file system.
//!
//!     cargo run --release -p snaprig-ckpt-image --example write_speed -- DIRECTORY MIB RUNS [sink|write]

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::Instant,
};

use snaprig_ckpt_image::image::{CHUNK_MAX, FileSink, Header, Options, Run, Sink, Writer};

fn main() {
    let args: Vec<_> = std::env::args().collect();
    let dir = Path::new(&args[1]);
    let mib: usize = args[2].parse().expect("MiB");
    let runs: usize = args[3].parse().expect("runs");
    let how = args.get(4).map_or("sink", String::as_str);
    let memory = random(mib << 20);
    let mut ratios = Vec::new();
    for run in 0..=runs {
        let plain = timed(&dir.join("speed.plain"), mib, |file| plain(file, mib << 20));
        let ours = timed(&dir.join("speed.image"), mib, |file| match how {
            "write" => ours(file, &memory),
            _ => ours(FileSink::new(file).expect("sink"), &memory),
        });
        println!(
            "{run}: plain {plain:.2} GB/s, ours {ours:.2}, ratio {:.2}",
            ours / plain
        );
        if run > 0 {
            ratios.push(ours / plain);
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ratios.len() / 2]);
}

fn timed(path: &Path, mib: usize, body: impl FnOnce(File)) -> f64 {
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path);
    let file = file.expect("a file");
    let start = Instant::now();
    body(file);
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(path).expect("remove");
    rustix::fs::sync();
    (mib << 20) as f64 / 1e9 / seconds
}

fn plain(mut file: File, len: usize) {
    let buffer = vec![7; CHUNK_MAX];
    for _ in 0..len / CHUNK_MAX {
        file.write_all(&buffer).expect("write");
    }
    file.sync_all().expect("fsync");
}

fn ours<S: Sink>(to: S, memory: &[u8]) {
    let mut writer = Writer::new(to, &Header::default(), Options::new("image")).expect("writer");
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    for (index, chunk) in memory.chunks(CHUNK_MAX).enumerate() {
        let mut buffer = writer.buffer().expect("buffer");
        read_memory(pid, chunk, &mut buffer);
        let run = Run {
            space: 1,
            address: (index * CHUNK_MAX) as u64,
            bytes: chunk.len() as u64,
        };
        writer.submit(buffer, &[run]).expect("submit");
    }
    writer.finish().expect("finish");
}

/// As an engine reads from the process that it checkpoints.
fn read_memory(pid: i32, from: &[u8], to: &mut [u8]) {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: from.len(),
    };
    let remote = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    };
    // SAFETY: `local` is within `to`, which is ours to write; the kernel checks `remote`.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    assert_eq!(read, from.len() as isize);
}

fn random(len: usize) -> Vec<u8> {
    let mut word = 1u64;
    let mut bytes = vec![0; len];
    for to in bytes.chunks_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
