//! The server and somebody else's client: the `vfio_user` crate's, on the ordinary path. (Not the
//! other way round, and not a refusal: `lib.rs` says what that crate does then.)

use std::{
    fs::File,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{Arc, Mutex},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
};
use snaprig_pci::server::{Errnum, Function, Listener, serve};
use snaprig_wire::pci;
use vfio_user::Client;

const MEMORY_BYTES: u64 = 1 << 20;
/// `linux/vfio.h`.
const REGION_CONFIG: u32 = 7;
const IRQ_MSIX: u32 = 2;
const IRQ_SET_EVENTFD_TRIGGER: u32 = 4 | 32;

fn memfd() -> OwnedFd {
    let fd = memfd_create("card", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, MEMORY_BYTES).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

/// BAR0 is memory, the other BARs 8 bytes that keep what is written; the rest is noted down.
#[derive(Default)]
struct Recorder {
    register: Mutex<[u8; 8]>,
    calls: Mutex<Vec<String>>,
    mapped: Mutex<Option<File>>,
}

impl Recorder {
    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Function for Recorder {
    fn attach(&self) {
        self.note("attach".into());
    }
    fn detach(&self) {
        self.note("detach".into());
    }
    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), Errnum> {
        assert_eq!((bar, offset), (pci::BAR_MMIO, 0x100));
        to.copy_from_slice(&self.register.lock().unwrap()[..to.len()]);
        Ok(())
    }
    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), Errnum> {
        assert_eq!((bar, offset), (pci::BAR_MMIO, 0x100));
        self.register.lock().unwrap()[..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn dma_map(&self, iova: u64, len: u64, fd: OwnedFd, offset: u64) -> Result<(), Errnum> {
        self.note(format!("map {iova:#x} {len:#x} {offset:#x}"));
        *self.mapped.lock().unwrap() = Some(fd.into());
        Ok(())
    }
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Errnum> {
        self.note(format!("unmap {iova:#x} {len:#x}"));
        Ok(())
    }
    fn dma_unmap_all(&self) {}
    fn set_vector(&self, vector: u32, event: Option<OwnedFd>) {
        self.note(format!("vector {vector}"));
        rustix::io::write(event.unwrap(), &7u64.to_ne_bytes()).unwrap();
    }
    fn mask_vectors(&self, _is_masked: bool) {}
    fn reset(&self) {
        self.note("reset".into());
    }
}

#[test]
fn the_vfio_user_crates_client_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("card");
    let function = Arc::new(Recorder::default());
    let aperture = File::from(memfd());
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let served = (aperture.try_clone().unwrap().into(), MEMORY_BYTES);
    let server = serve(
        Listener::bind(&socket).unwrap(),
        served,
        function.clone(),
        stop.try_clone().unwrap(),
    )
    .unwrap();

    // Negotiates, and asks for the device and all of its regions.
    let mut client = Client::new(&socket).unwrap();
    let size = |client: &Client, index| client.region(index).unwrap().size;
    assert_eq!(size(&client, pci::BAR_MMIO), pci::BAR_MMIO_SIZE);
    assert_eq!(size(&client, REGION_CONFIG), 256);
    assert_eq!([1, 2, 3, 5, 6, 8].map(|index| size(&client, index)), [0; 6]);
    let bar0 = client.region(pci::BAR_APERTURE).unwrap();
    assert_eq!(bar0.size, MEMORY_BYTES);
    let mapped = bar0.file_offset.as_ref().unwrap();
    mapped.file().write_all_at(b"by the client", 4096).unwrap();
    let mut bytes = [0; 13];
    let at = 4096 + mapped.start();
    aperture.read_exact_at(&mut bytes, at).unwrap();
    assert_eq!(&bytes, b"by the client");

    let mut id = [0; 4];
    client.region_read(REGION_CONFIG, 0, &mut id).unwrap();
    assert_eq!(id, [0x86, 0x80, 0x50, 0x22]);
    for value in [&[1u8, 2, 3, 4][..], &[5, 6, 7, 8, 9, 10, 11, 12]] {
        client.region_write(pci::BAR_MMIO, 0x100, value).unwrap();
        let mut back = vec![0; value.len()];
        client.region_read(pci::BAR_MMIO, 0x100, &mut back).unwrap();
        assert_eq!(back, value);
    }

    let msix = client.get_irq_info(IRQ_MSIX).unwrap();
    assert_eq!((msix.count, msix.flags & 1), (pci::MSIX_VECTORS, 1));
    assert_eq!(client.get_irq_info(0).unwrap().count, 0);
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    client
        .set_irqs(
            IRQ_MSIX,
            IRQ_SET_EVENTFD_TRIGGER,
            0,
            1,
            &[event.as_raw_fd()],
        )
        .unwrap();
    let mut count = [0; 8];
    rustix::io::read(&event, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 7);

    let host = File::from(memfd());
    host.write_all_at(b"of the host", 8192).unwrap();
    client
        .dma_map(8192, 0x10_0000, 65536, host.as_raw_fd())
        .unwrap();
    let mut bytes = [0; 11];
    let mapped = function.mapped.lock().unwrap().take().unwrap();
    mapped.read_exact_at(&mut bytes, 8192).unwrap();
    assert_eq!(&bytes, b"of the host");
    client.dma_unmap(0x10_0000, 65536).unwrap();
    client.reset().unwrap();
    client.shutdown().unwrap();

    // A second client comes after the first, which has left.
    drop(Client::new(&socket).unwrap());
    rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
    server.join().unwrap();
    let calls = function.calls.lock().unwrap();
    let expected = [
        "attach",
        "vector 0",
        "map 0x100000 0x10000 0x2000",
        "unmap 0x100000 0x10000",
        "reset",
        "detach",
        "attach",
        "detach",
    ];
    assert_eq!(*calls, expected);
}
