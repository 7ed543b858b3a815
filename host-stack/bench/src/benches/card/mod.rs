//! `snaprig bench card`: a card beside the host that it runs on.
//!
//! Programs on a card are measured against the very same binary on the host, one after the other
//! and pinned alike; captures against what copying and writing so many bytes costs here.

use std::{
    any::Any,
    fs::{self, File as HostFile, OpenOptions},
    io::{Read, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use rustix::event::{EventfdFlags, eventfd};
use snaprig_card_device::Device;
use snaprig_card_driver::{
    device::CharDevice,
    errno::Errno,
    file::{Cx, Description, File},
    wait::SysResult,
};
use snaprig_card_fs::{
    Topology,
    console::{Input, Output},
};
use snaprig_card_kernel::{Config, ExitStatus, Kernel, Spawn, checkpoint::CheckpointDevice};
use snaprig_card_memory::CardMemory;
use snaprig_card_platform::{self as platform, Kind, choose};
use snaprig_coi::{Engine, Process};
use snaprig_fixtures::programs::{BENCH_CALLS, BENCH_CAPTURE, BENCH_COMPUTE, FAULTY_SINK};
use snaprig_pci::{host::HostDevice, vfio_user_client::VfioUserClient};
use snaprig_rig::Rig;
use snaprig_wire::{
    bar4::{self, cause},
    checkpoint,
    pci::BAR_MMIO,
};

use crate::{
    AnyError, BenchWith,
    baselines::{Baseline, pin_to},
    host::{await_event, eventfd_round_trip, numbers, on_the_host, one},
    options::Chosen,
    table::{Aim, Row, Unit, print},
};

/// A card beside the host.
pub static BENCH: BenchWith<Chosen> = BenchWith::new(
    "card",
    "A card beside the host: its programs, its system calls, its boot, its captures",
    run,
);

/// Memory of a card, beside what a measure says.
const MEMORY_BYTES: u64 = 256 << 20;
/// Where a card has the images that it writes.
const IMAGES: [&str; 2] = ["/dev/image", "/dev/increment"];
const MIB: u64 = 1 << 20;
/// What Firecracker says of itself (NSDI 2020): from the call that starts it to the guest's init.
const FIRECRACKER_MS: f64 = 125.0;

/// Something to measure, and the rows that its samples go to.
struct Measure {
    kind: Measured,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
enum Measured {
    /// A program that prints one number, with its first argument; pinned or not.
    Program(Kind, &'static [u8], &'static str, bool),
    Boot(Kind),
    Doorbell,
    /// Capture, restore and incremental capture of a process of so many bytes.
    Capture(Kind, u64),
}

fn measures(kinds: &[Kind], scale: f64) -> Vec<Measure> {
    let mut all = Vec::new();
    for &kind in kinds {
        let on_kvm = |aim| (kind == Kind::Kvm).then_some(aim);
        let mut add = |measured, rows| {
            all.push(Measure {
                kind: measured,
                rows,
            });
        };
        for (what, unit, aim) in [
            ("sgemm", Unit::Arithmetic, Aim::AtLeast(0.97)),
            ("triad", Unit::Rate, Aim::AtLeast(0.97)),
            ("chase", Unit::Nanoseconds, Aim::AtMost(1.03)),
        ] {
            let program = Measured::Program(kind, BENCH_COMPUTE, what, true);
            let name = format!("{what}, {kind}");
            add(program, vec![Row::new(name, unit, "the host", on_kvm(aim))]);
        }
        for (what, pin) in [
            ("null", true),
            ("clock", true),
            ("fault", true),
            ("futex", false),
        ] {
            let program = Measured::Program(kind, BENCH_CALLS, what, pin);
            let name = format!("{what}, {kind}");
            add(
                program,
                vec![Row::new(name, Unit::Microseconds, "the host", None)],
            );
        }
        let (name, aim) = (format!("boot, {kind}"), Aim::AtMost(60.0 / FIRECRACKER_MS));
        let boot = Row::new(name, Unit::Milliseconds, "Firecracker", on_kvm(aim));
        add(Measured::Boot(kind), vec![boot]);
        for (size, mib) in [("64M", 64), ("512M", 512), ("2G", 2048)] {
            let bytes = ((mib * MIB) as f64 * scale) as u64 & !(MIB - 1);
            let mut rows = Vec::new();
            for what in ["capture", "restore"] {
                let name = format!("{what} {size} {kind}");
                let aim = Some(Aim::AtLeast(0.7));
                rows.push(Row::new(name.clone(), Unit::Rate, "memcpy", None));
                rows.push(Row::new(name, Unit::Rate, "memcpy | file", aim));
            }
            let (name, aim) = (format!("5% of {size} {kind}"), Some(Aim::AtMost(0.1)));
            rows.push(Row::new(name, Unit::Milliseconds, "whole capture", aim));
            add(Measured::Capture(kind, bytes.max(MIB)), rows);
        }
    }
    let doorbell = Row::new("doorbell".into(), Unit::Microseconds, "eventfd", None);
    all.push(Measure {
        kind: Measured::Doorbell,
        rows: vec![doorbell],
    });
    all
}

/// Runs the benchmark.
fn run(options: &Chosen) -> Result<ExitCode, AnyError> {
    let kinds = [Kind::Kvm, Kind::Ptrace];
    let (here, missing): (Vec<_>, Vec<_>) = kinds
        .into_iter()
        .partition(|kind| platform::probe(*kind).is_ok());
    for kind in missing {
        eprintln!("{kind} does not work here and is not measured; see `snaprig doctor`");
    }
    let scene = Scene {
        pin: std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2),
        scale: options.common.scale,
        directory: tempfile::tempdir()?,
    };
    let mut measures = measures(&here, options.common.scale);
    measures.retain(|measure| measure.rows.iter().any(|row| row.is_named(&options.only)));
    for _ in 0..options.common.runs {
        for measure in &mut measures {
            let samples = scene.measure(measure.kind)?;
            for (row, (ours, theirs)) in measure.rows.iter_mut().zip(samples) {
                row.ours.push(ours);
                row.samples.get_or_insert_default().push(Some(theirs));
            }
        }
    }
    let rows = measures.into_iter().flat_map(|measure| measure.rows);
    print(
        rows.collect(),
        options.common.runs,
        scene.pin,
        options.common.json,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What all measures share.
struct Scene {
    pin: bool,
    scale: f64,
    directory: tempfile::TempDir,
}

impl Scene {
    /// One sample for each of the measure's rows: ours and the baseline's.
    fn measure(&self, what: Measured) -> Result<Vec<(f64, f64)>, AnyError> {
        match what {
            Measured::Program(kind, program, first, pin) => {
                let arguments = [first.to_owned(), self.scale.to_string()];
                let pin = pin && self.pin;
                let here = self.directory.path();
                let theirs = on_the_host(here, program, &arguments, &[], pin)?;
                let ours = run_on_card(kind, MEMORY_BYTES, program, &arguments, pin, None)?;
                Ok(vec![(one(&ours)?, theirs)])
            }
            Measured::Boot(kind) => Ok(vec![(boot(kind)?, FIRECRACKER_MS)]),
            Measured::Doorbell => Ok(vec![(self.doorbell()?, eventfd_round_trip()?)]),
            Measured::Capture(kind, bytes) => self.capture(kind, bytes),
        }
    }

    /// Samples of capture and restore, each against memory and against the slower of memory and
    /// file, and of an incremental capture against the whole one.
    fn capture(&self, kind: Kind, bytes: u64) -> Result<Vec<(f64, f64)>, AnyError> {
        let image = self.directory.path().join("image");
        let copy = Baseline::Memcpy(MIB as usize, true).measure(self.pin, self.scale);
        let copy = copy.ok_or("memcpy cannot be measured")?;
        self.settle()?;
        let write = timed(bytes, || write_file(&image, bytes))?;
        let read = timed(bytes, || read_file(&image, bytes))?;
        let memory = bytes + MEMORY_BYTES;
        let run = |arguments: &[String]| {
            let images = Some(self.directory.path());
            run_on_card(kind, memory, BENCH_CAPTURE, arguments, self.pin, images)
        };
        let [image, increment] = IMAGES.map(str::to_owned);
        self.settle()?;
        let seconds = run(&[image.clone(), bytes.to_string(), increment])?;
        let [whole, increment] = seconds[..] else {
            return Err("a process was not captured".into());
        };
        let restore = one(&run(&[image])?)?;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let (capture, restore) = (rate(whole), rate(restore));
        Ok(vec![
            (capture, copy),
            (capture, copy.min(write)),
            (restore, copy),
            (restore, copy.min(read)),
            (increment * 1e3, whole * 1e3),
        ])
    }

    /// Until what was written is on the disk: else the kernel has whoever writes next wait for it, which would be the
    /// increment, for what the whole capture wrote.
    fn settle(&self) -> Result<(), AnyError> {
        Ok(rustix::fs::syncfs(fs::File::open(self.directory.path())?)?)
    }

    /// Microseconds from a write to a doorbell register to the interrupt that the card raises.
    fn doorbell(&self) -> Result<f64, AnyError> {
        // A socket's name stays when its server ends: each run has its own.
        let directory = tempfile::tempdir_in(self.directory.path())?;
        let socket = directory.path().join("card");
        let memory = Arc::new(CardMemory::new(16 << 20)?);
        let device = Device::new(memory, 1, 1)?;
        let card = Arc::downgrade(&device);
        let answer = move || {
            if let Some(card) = card.upgrade() {
                card.raise(cause::SCIF);
            }
        };
        device.on_doorbell(bar4::DOORBELL_SCIF, Box::new(answer));
        let server = device.serve(&socket)?;
        let host = VfioUserClient::connect(&socket)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        host.set_vector(0, event.as_fd())?;
        host.write32(BAR_MMIO, bar4::SICE0, cause::SCIF)?;
        let count = self.times(2000);
        let begun = Instant::now();
        for _ in 0..count {
            host.write32(BAR_MMIO, bar4::SDBIC0 + 4 * bar4::DOORBELL_SCIF, 1)?;
            await_event(event.as_fd())?;
            host.write32(BAR_MMIO, bar4::SICC0, cause::SCIF)?;
        }
        let took = begun.elapsed();
        drop(host);
        device.stop();
        server.join().map_err(|_| "the card's device panicked")?;
        Ok(took.as_secs_f64() / f64::from(count) * 1e6)
    }

    fn times(&self, usual: u32) -> u32 {
        ((f64::from(usual) * self.scale) as u32).max(10)
    }
}

/// Milliseconds from the start of a card's process to the return of a first run function on it.
fn boot(kind: Kind) -> Result<f64, AnyError> {
    let begun = Instant::now();
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(Some(kind))
        .start()?;
    let engine = Engine::get(rig.dir(), 0)?;
    let process = Process::create(&engine, "first", FAULTY_SINK.to_vec(), vec![], vec![])?;
    let function = process.function("faulty_echo")?;
    let answer = process.pipeline()?.run(function, &[], b"first", 5)?;
    if answer.wait(None)? != b"first" {
        return Err("the first run function returned something else".into());
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Runs a program on a card in this process; the numbers that it prints. `images` is the directory
/// of the files behind [`IMAGES`].
fn run_on_card(
    kind: Kind,
    memory_bytes: u64,
    program: &[u8],
    arguments: &[String],
    pin: bool,
    images: Option<&Path>,
) -> Result<Vec<f64>, AnyError> {
    let work = move || -> Result<Vec<f64>, AnyError> {
        if pin {
            // A card's threads are children of this one.
            pin_to(&[0])?;
        }
        let memory = Arc::new(CardMemory::new(memory_bytes)?);
        let kernel = Kernel::new(Config {
            platform: choose(Some(kind), &memory)?,
            memory,
            topology: Topology::of_cores(4),
            node: 1,
        })
        .map_err(|errno| format!("a card kernel: errno {}", errno.0))?;
        let (out, stdio) = printed();
        let ended = (|| {
            kernel.register_device(checkpoint::PATH, Arc::new(CheckpointDevice));
            for (path, file) in IMAGES.iter().zip(["image", "increment"]) {
                if let Some(directory) = images {
                    let device = ImageDevice(directory.join(file));
                    kernel.register_device(path, Arc::new(device));
                }
            }
            kernel.write_file("/bin/program", program, 0o755)?;
            let argv = std::iter::once("program".to_owned());
            let pid = kernel.spawn(Spawn {
                path: "/bin/program".into(),
                argv: argv.chain(arguments.iter().cloned()).collect(),
                env: Vec::new(),
                stdio,
            })?;
            Ok(kernel.wait_exit(pid))
        })();
        kernel.shutdown();
        let out = out.lock().unwrap_or_else(PoisonError::into_inner);
        match ended {
            Ok(ExitStatus::Exited(0)) => numbers(&out),
            Ok(status) => Err(format!("{status:?}: {}", String::from_utf8_lossy(&out)).into()),
            Err(Errno(errno)) => Err(format!("the program does not start: errno {errno}").into()),
        }
    };
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| work().map_err(|error| error.to_string()));
        Ok(ended.join().map_err(|_| "a card panicked")??)
    })
}

/// Output of a program, as it comes.
type Printed = Arc<Mutex<Vec<u8>>>;

/// Standard descriptors whose output is collected.
fn printed() -> (Printed, [Arc<dyn File>; 3]) {
    let out = Arc::new(Mutex::new(Vec::new()));
    let sink = || {
        let out = out.clone();
        Output::new(move |bytes: &[u8]| {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            out.extend_from_slice(bytes);
        })
    };
    let stdio: [Arc<dyn File>; 3] = [Input::closed(), sink(), sink()];
    (out, stdio)
}

/// GB/s of work on so many bytes.
fn timed(bytes: u64, work: impl FnOnce() -> std::io::Result<()>) -> Result<f64, AnyError> {
    let begun = Instant::now();
    work()?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn write_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = HostFile::create(path)?;
    let part = vec![1; MIB as usize];
    (0..bytes / MIB).try_for_each(|_| file.write_all(&part))
}

/// Reads a file into memory that is new, as that of a restored process is.
fn read_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = HostFile::open(path)?;
    let mut room = vec![0; bytes as usize];
    room.chunks_mut(MIB as usize)
        .try_for_each(|part| file.read_exact(part))?;
    std::hint::black_box(room);
    Ok(())
}

/// A file of the host, as a character device of a card.
struct ImageDevice(PathBuf);

struct ImageFile(HostFile);

impl CharDevice for ImageDevice {
    fn open(&self, _cx: &mut Cx, flags: i32) -> SysResult<Arc<dyn File>> {
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let file = OpenOptions::new()
            .read(!write)
            .write(write)
            .create(write)
            .truncate(write)
            .mode(0o600)
            .open(&self.0);
        Ok(Arc::new(ImageFile(file.map_err(errno)?)))
    }

    fn open_disconnected(&self, _flags: i32) -> Arc<dyn File> {
        Output::new(|_| {})
    }
}

impl File for ImageFile {
    fn read_into(&self, _cx: &mut Cx, to: &mut [u8]) -> SysResult<usize> {
        Ok((&self.0).read(to).map_err(errno)?)
    }

    fn write(&self, _cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        Ok((&self.0).write(data).map_err(errno)?)
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: IMAGES[0].into(),
            flags: libc::O_RDONLY,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_table() {
        for measure in measures(&[Kind::Kvm, Kind::Ptrace], 1.0) {
            for row in measure.rows {
                assert!(row.measure.len() <= 19, "{}", row.measure);
            }
        }
    }
}
