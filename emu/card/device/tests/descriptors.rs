//! A card's process and its limit of descriptors. The limit is the process's: this is the only test
//! in it.

use std::{os::fd::AsRawFd, sync::Arc};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use snaprig_card_device::{self as device, Device};
use snaprig_card_memory::CardMemory;
use snaprig_pci::{
    host::{DeviceError, HostDevice},
    vfio_user_client::VfioUserClient,
};

const LIMIT: u64 = 256;
const PAGE: u64 = 4096;

/// Maps windows until one is refused: how many there were, and why it was.
fn fill(host: &VfioUserClient, memory: &CardMemory) -> (u64, i32) {
    for window in 0.. {
        match host.dma_map(window * PAGE, PAGE, memory.memfd(), 0) {
            Ok(()) => {}
            Err(DeviceError::Refused { errno, .. }) => return (window, errno),
            Err(error) => panic!("after {window} windows: {error}"),
        }
    }
    unreachable!("the device has limits")
}

#[test]
fn windows_leave_descriptors_for_everything_else() {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(LIMIT),
        ..before
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("card");
    let memory = Arc::new(CardMemory::new(16 << 20).unwrap());
    let card = Device::new(memory, 1, 4).unwrap();
    let server = card.serve(&socket).unwrap();
    let host_memory = CardMemory::new(1 << 20).unwrap();
    for _ in 0..2 {
        let host = VfioUserClient::connect(&socket).unwrap();
        let (windows, errno) = fill(&host, &host_memory);
        assert_eq!(errno, libc::EMFILE);
        assert!(windows > LIMIT / 2, "{windows}");
        let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        assert!((free as u64) < LIMIT - LIMIT / 4 + 8, "{free}");
        // One goes, one may come.
        host.dma_unmap(0, PAGE).unwrap();
        host.dma_map(0, PAGE, host_memory.memfd(), 0).unwrap();
    }
    device::raise_descriptor_limit().unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    card.stop();
    server.join().unwrap();
}
