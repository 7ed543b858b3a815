//! Devices that are bound to vfio-pci: those that QEMU emulates and of which these tests know how to
//! make them do something.

use std::{any::Any, fs, sync::Arc, thread};

use snaprig_pci::{
    host::HostDevice,
    vfio::{Address, VfioClient},
};

use crate::subject::{Interrupts, Kind, Register, Subject};

/// Names the devices, by address.
const ADDRESSES: &str = "SNAPRIG_TEST_VFIO";

const KINDS: [&Kind; 4] = [&EDU, &ROCKER, &E1000, &DISPLAY];

/// QEMU's educational device (its docs/specs/edu): one MSI, and DMA through a buffer of a page.
static EDU: Kind = Kind {
    name: "edu over VFIO",
    id: 0x11e8_1234,
    bar: 0,
    register: Some(Register {
        bar: 0,
        offset: 4,
        reads_as: |value| !value,
        after_reset: None,
    }),
    memory: None,
    interrupts: Some(Interrupts {
        vectors: 1,
        raise: |device, _| device.write32(0, 0x60, 1).unwrap(),
        clear: |device| {
            let status = device.read32(0, 0x24).unwrap();
            device.write32(0, 0x64, status).unwrap();
        },
    }),
    msix_table: None,
    copy: Some(|device, from, to, len| {
        const BUFFER: u64 = 0x4_0000;
        const COMMAND: u64 = 0x98;
        const RUN: u32 = 1;
        const FROM_BUFFER: u32 = 2;
        for (source, target, command) in [(from, BUFFER, RUN), (BUFFER, to, RUN | FROM_BUFFER)] {
            device.write32(0, 0x80, source as u32).unwrap();
            device.write32(0, 0x88, target as u32).unwrap();
            device.write32(0, 0x90, len as u32).unwrap();
            device.write32(0, COMMAND, command).unwrap();
            while device.read32(0, COMMAND).unwrap() & RUN != 0 {}
        }
    }),
};

/// QEMU's rocker, a switch (its docs/specs/rocker, "Test registers"): four MSI-X vectors.
static ROCKER: Kind = Kind {
    name: "rocker over VFIO",
    id: 0x0006_1b36,
    bar: 0,
    register: Some(Register {
        bar: 0,
        offset: 0x10,
        reads_as: |value| value.wrapping_mul(2),
        after_reset: Some(0),
    }),
    memory: None,
    interrupts: Some(Interrupts {
        vectors: 4,
        raise: |device, vector| device.write32(0, 0x20, vector).unwrap(),
        clear: |_| {},
    }),
    msix_table: Some(1),
    copy: None,
};

/// An Intel 82540EM: an interrupt line and no messages. The register is half of a ring's address.
static E1000: Kind = Kind {
    name: "e1000 over VFIO",
    id: 0x100e_8086,
    bar: 0,
    register: Some(Register {
        bar: 0,
        offset: 0x2804,
        reads_as: |value| value,
        after_reset: Some(0),
    }),
    memory: None,
    interrupts: Some(Interrupts {
        vectors: 1,
        raise: |device, _| {
            const LINK_STATUS_CHANGE: u32 = 4;
            for mask_or_cause_set in [0xd0, 0xc8] {
                device
                    .write32(0, mask_or_cause_set, LINK_STATUS_CHANGE)
                    .unwrap();
            }
        },
        // Causes are cleared by being read.
        clear: |device| {
            device.read32(0, 0xc0).unwrap();
        },
    }),
    msix_table: None,
    copy: None,
};

/// QEMU's bochs-display: its frame buffer is memory.
static DISPLAY: Kind = Kind {
    name: "bochs-display over VFIO",
    id: 0x1111_1234,
    bar: 0,
    register: None,
    memory: Some(0),
    interrupts: None,
    msix_table: None,
    copy: None,
};

/// The devices to test.
pub fn addresses() -> Vec<Address> {
    let named = std::env::var(ADDRESSES);
    let text = named.unwrap_or_else(|_| panic!("{ADDRESSES} names no device (ci/vfio)"));
    let words = text.split_whitespace();
    words.map(|one| one.parse().unwrap()).collect()
}

pub fn subject(address: Address) -> Subject {
    let device = VfioClient::open(address).unwrap_or_else(|error| panic!("{error}"));
    let mut id = [0; 4];
    device.config_read(0, &mut id).unwrap();
    let id = u32::from_le_bytes(id);
    let kind = KINDS.into_iter().find(|kind| kind.id == id);
    Subject {
        kind: kind.unwrap_or_else(|| panic!("{address}: no description of a {id:#010x}")),
        device: Arc::new(device),
        remove: Box::new(move || -> Box<dyn Any> { Box::new(Removal::begin(address)) }),
    }
}

/// The device is removed, as by a slot from which it is unplugged, which waits for its users; it is
/// found and bound again on drop.
struct Removal {
    address: Address,
    thread: Option<thread::JoinHandle<()>>,
}

impl Removal {
    fn begin(address: Address) -> Self {
        let remove = format!("/sys/bus/pci/devices/{address}/remove");
        let thread = thread::spawn(move || fs::write(remove, "1").unwrap());
        Self {
            address,
            thread: Some(thread),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.thread.take().unwrap().join().unwrap();
        let address = self.address.to_string();
        let driver = format!("/sys/bus/pci/devices/{address}/driver_override");
        fs::write("/sys/bus/pci/rescan", "1").unwrap();
        fs::write(driver, "vfio-pci").unwrap();
        fs::write("/sys/bus/pci/drivers_probe", &address).unwrap();
    }
}
