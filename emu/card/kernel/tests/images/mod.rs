//! Programs on a card that capture themselves into images of the test's.

use std::{
    any::Any,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use snaprig_card_driver::{
    device::CharDevice,
    file::{Cx, Description, File},
    wait::SysResult,
};
use snaprig_card_fs::{
    Topology,
    console::{Input, Output},
};
use snaprig_card_kernel::{Config, ExitStatus, Kernel, Spawn, checkpoint::CheckpointDevice};
use snaprig_card_memory::CardMemory;
use snaprig_card_platform::{self as platform, Kind};

/// A static program of C.
pub fn compile(dir: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let (input, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&input, source).unwrap();
    let status = Command::new("gcc")
        .args(["-O2", "-w", "-D_GNU_SOURCE", "-static", "-o"])
        .args([&program, &input])
        .args(flags)
        .status();
    assert!(status.expect("gcc is there").success());
    program
}

/// Runs a program on a new card: how it ends, and what it prints.
pub fn run(kind: Kind, program: &Path, args: &[String], images: &Images) -> (ExitStatus, String) {
    run_on(kind, 256 << 20, program, args, images)
}

/// The same on a card with so many bytes of memory.
pub fn run_on(
    kind: Kind,
    bytes: u64,
    program: &Path,
    args: &[String],
    images: &Images,
) -> (ExitStatus, String) {
    run_with(kind, bytes, program, args, images, |_, _| {})
}

/// The same on a card that has more devices.
pub fn run_with(
    kind: Kind,
    bytes: u64,
    program: &Path,
    args: &[String],
    images: &Images,
    equip: impl FnOnce(&Kernel, &Arc<CardMemory>),
) -> (ExitStatus, String) {
    let memory = Arc::new(CardMemory::new(bytes).unwrap());
    let kernel = Kernel::new(Config {
        platform: platform::choose(Some(kind), &memory).unwrap(),
        memory: memory.clone(),
        topology: Topology::of_cores(4),
        node: 1,
    })
    .unwrap();
    kernel.register_device("/dev/card/checkpoint", Arc::new(CheckpointDevice));
    kernel.register_device("/dev/image", Arc::new(images.clone()));
    equip(&kernel, &memory);
    let bytes = std::fs::read(program).unwrap();
    kernel.write_file("/bin/program", &bytes, 0o755).unwrap();
    let out = Arc::new(Mutex::new(Vec::new()));
    let sink = || {
        let out = out.clone();
        Output::new(move |bytes: &[u8]| out.lock().unwrap().extend_from_slice(bytes))
    };
    let name = "program".to_owned();
    let pid = kernel
        .spawn(Spawn {
            path: "/bin/program".into(),
            argv: std::iter::once(name).chain(args.iter().cloned()).collect(),
            env: vec!["OMP_NUM_THREADS=8".into()],
            stdio: [Input::closed(), sink(), sink()],
        })
        .unwrap();
    let status = kernel.wait_exit(pid);
    kernel.shutdown();
    let out = String::from_utf8(out.lock().unwrap().clone()).unwrap();
    (status, out)
}

/// Images of the host as /dev/image: an open for writing makes one, one for reading has the last.
#[derive(Clone, Default)]
pub struct Images(pub Arc<Mutex<Vec<Vec<u8>>>>);

struct Image {
    images: Images,
    read: Mutex<usize>,
}

impl CharDevice for Images {
    fn open(&self, _cx: &mut Cx, flags: i32) -> SysResult<Arc<dyn File>> {
        if flags & libc::O_WRONLY != 0 {
            self.0.lock().unwrap().push(Vec::new());
        }
        Ok(self.open_disconnected(flags))
    }

    fn open_disconnected(&self, _flags: i32) -> Arc<dyn File> {
        Arc::new(Image {
            images: self.clone(),
            read: Mutex::default(),
        })
    }
}

impl File for Image {
    fn read(&self, _cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        let (images, mut at) = (self.images.0.lock().unwrap(), self.read.lock().unwrap());
        let rest = &images.last().unwrap()[*at..];
        *at += rest.len().min(max);
        Ok(rest[..rest.len().min(max)].to_vec())
    }

    fn write(&self, _cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        let mut images = self.images.0.lock().unwrap();
        images.last_mut().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: "/dev/image".into(),
            flags: libc::O_RDONLY,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
