//! A small device, served over vfio-user by a thread of this process.

use std::{
    any::Any,
    collections::BTreeMap,
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use snaprig_pci::{
    host::Mapping,
    server::{Errnum, Function, Listener, serve},
    vfio_user_client::VfioUserClient,
};
use snaprig_wire::pci;

use crate::{
    PAGE, event, memory,
    subject::{Interrupts, Kind, Register, Subject},
};

const MEMORY_PAGES: u64 = 16;

/// Registers of BAR4.
const SCRATCH: u64 = 0x100;
const RAISE: u64 = 0x104;
const FROM: u64 = 0x108;
const TO: u64 = 0x10c;
/// Starts a copy of so many bytes.
const LEN: u64 = 0x110;
const REGISTERS: usize = 5;

static SERVED: Kind = Kind {
    name: "a device over vfio-user",
    id: pci::VENDOR_ID as u32 | (pci::DEVICE_ID as u32) << 16,
    bar: pci::BAR_MMIO,
    register: Some(Register {
        bar: pci::BAR_MMIO,
        offset: SCRATCH,
        reads_as: |value| value,
        after_reset: Some(0),
    }),
    memory: Some(pci::BAR_APERTURE),
    interrupts: Some(Interrupts {
        vectors: pci::MSIX_VECTORS,
        raise: |device, vector| device.write32(pci::BAR_MMIO, RAISE, vector).unwrap(),
        clear: |_| {},
    }),
    msix_table: None,
    copy: Some(|device, from, to, len| {
        for (register, value) in [(FROM, from), (TO, to), (LEN, len)] {
            device
                .write32(pci::BAR_MMIO, register, value as u32)
                .unwrap();
        }
        // Comes after the writes.
        device.read32(pci::BAR_MMIO, LEN).unwrap();
    }),
};

struct Device {
    aperture: File,
    registers: Mutex<[u32; REGISTERS]>,
    vectors: Mutex<BTreeMap<u32, OwnedFd>>,
    mapped: Mutex<BTreeMap<u64, Mapping>>,
}

impl Device {
    /// Only if both ranges are mapped.
    fn copy(&self, from: u64, to: u64, len: u64) {
        let mapped = self.mapped.lock().unwrap();
        let find = |iova: u64| {
            let (start, memory) = mapped.range(..=iova).next_back()?;
            memory.pointer(iova - start, len)
        };
        if let (Some(from), Some(to)) = (find(from), find(to)) {
            // SAFETY: both ranges are mapped while the lock is held; they may be the same memory.
            unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), len as usize) };
        }
    }
}

fn index(bar: u32, offset: u64) -> Result<usize, Errnum> {
    let index = offset.wrapping_sub(SCRATCH) as usize / 4;
    let is_register = bar == pci::BAR_MMIO && index < REGISTERS;
    is_register.then_some(index).ok_or(libc::EINVAL)
}

impl Function for Device {
    fn attach(&self) {}
    fn mask_vectors(&self, _is_masked: bool) {}
    fn detach(&self) {
        self.dma_unmap_all();
        self.vectors.lock().unwrap().clear();
    }
    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), Errnum> {
        if bar == pci::BAR_APERTURE {
            let read = self.aperture.read_exact_at(to, offset);
            return read.map_err(|_| libc::EINVAL);
        }
        let value = self.registers.lock().unwrap()[index(bar, offset)?];
        to.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), Errnum> {
        if bar == pci::BAR_APERTURE {
            let written = self.aperture.write_all_at(from, offset);
            return written.map_err(|_| libc::EINVAL);
        }
        let value = u32::from_le_bytes(from.try_into().map_err(|_| libc::EINVAL)?);
        let mut registers = self.registers.lock().unwrap();
        registers[index(bar, offset)?] = value;
        let register = |offset| u64::from(registers[index(bar, offset).unwrap()]);
        match offset {
            RAISE => {
                if let Some(event) = self.vectors.lock().unwrap().get(&value) {
                    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
                }
            }
            LEN => self.copy(register(FROM), register(TO), value.into()),
            _ => {}
        }
        Ok(())
    }
    fn dma_map(&self, iova: u64, len: u64, fd: OwnedFd, offset: u64) -> Result<(), Errnum> {
        let last = iova.checked_add(len.wrapping_sub(1)).ok_or(libc::EINVAL)?;
        let mut mapped = self.mapped.lock().unwrap();
        let below = mapped.range(..=last).next_back();
        if below.is_some_and(|(start, memory)| start + memory.bytes() > iova) {
            return Err(libc::EEXIST);
        }
        if !(iova | len | offset).is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        let memory = Mapping::of_memfd(fd.as_fd(), offset, len).map_err(|_| libc::EINVAL)?;
        mapped.insert(iova, memory);
        Ok(())
    }
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Errnum> {
        let mut mapped = self.mapped.lock().unwrap();
        let is_it = mapped
            .get(&iova)
            .is_some_and(|memory| memory.bytes() == len);
        is_it
            .then(|| mapped.remove(&iova))
            .map(drop)
            .ok_or(libc::ENOENT)
    }
    fn dma_unmap_all(&self) {
        self.mapped.lock().unwrap().clear();
    }
    fn set_vector(&self, vector: u32, event: Option<OwnedFd>) {
        let mut vectors = self.vectors.lock().unwrap();
        match event {
            Some(event) => vectors.insert(vector, event),
            None => vectors.remove(&vector),
        };
    }
    fn reset(&self) {
        *self.registers.lock().unwrap() = [0; REGISTERS];
    }
}

/// Ends the server when dropped.
struct Server {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Server {
    fn stop(&self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub fn subject() -> Subject {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("device");
    let aperture = memory(MEMORY_PAGES);
    let device = Device {
        aperture: aperture.try_clone().unwrap(),
        registers: Mutex::default(),
        vectors: Mutex::default(),
        mapped: Mutex::default(),
    };
    let aperture = (aperture.into(), MEMORY_PAGES * PAGE);
    let stop = event();
    let thread = serve(
        Listener::bind(&socket).unwrap(),
        aperture,
        Arc::new(device),
        stop.try_clone().unwrap(),
    )
    .unwrap();
    let client = VfioUserClient::connect(&socket).unwrap();
    let server = Server {
        stop,
        thread: Some(thread),
        _directory: directory,
    };
    Subject {
        kind: &SERVED,
        device: Arc::new(client),
        remove: Box::new(move || -> Box<dyn Any> {
            server.stop();
            Box::new(())
        }),
    }
}
