//! What holds over VFIO alone. Every device that `SNAPRIG_TEST_VFIO` names is asked; of others,
//! `SNAPRIG_TEST_VFIO_HOST` is one that a driver of the host has, and `SNAPRIG_TEST_VFIO_SHARED` is
//! bound to vfio-pci, but such a driver has another device of its IOMMU group.

use std::{os::fd::AsFd, thread};

use rustix::{
    process::{Resource, Rlimit, Uid, setrlimit},
    thread::set_thread_uid,
};
use snaprig_pci::{
    host::{DeviceError, DmaRefusal, Mapping},
    vfio::{Address, OpenError, VfioClient, probe},
};

use crate::{
    IOVA, PAGE, map, memory, refusal,
    subject::{Subject, one_at_a_time},
    vfio::{self, addresses},
};

fn each(test: impl Fn(Address, &Subject)) {
    let _one = one_at_a_time();
    for address in addresses() {
        test(address, &vfio::subject(address));
    }
}

/// The device that a variable names.
fn named(variable: &str) -> Address {
    let named = std::env::var(variable);
    let named = named.unwrap_or_else(|_| panic!("{variable} names no device (ci/vfio)"));
    named.parse().unwrap()
}

fn refused(address: Address) -> OpenError {
    match VfioClient::open(address) {
        Ok(_) => panic!("{address} was opened"),
        Err(error) => error,
    }
}

/// Runs it on a thread that has no privileges.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let unprivileged = || {
        set_thread_uid(Uid::from_raw(65534)).unwrap();
        act()
    };
    thread::scope(|scope| scope.spawn(unprivileged).join().unwrap())
}

fn read32(mapping: &Mapping, offset: u64) -> u32 {
    let register = mapping.pointer(offset, 4).unwrap().cast::<u32>();
    // SAFETY: an aligned register inside the mapping, which lives.
    unsafe { register.read_volatile() }
}

fn write32(mapping: &Mapping, offset: u64, value: u32) {
    let register = mapping.pointer(offset, 4).unwrap().cast::<u32>();
    // SAFETY: an aligned register inside the mapping, which lives as long as the borrow.
    unsafe { register.write_volatile(value) }
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn a_mapped_register_is_the_register() {
    each(|_, subject| {
        let Some(register) = &subject.kind.register else {
            return;
        };
        let device = &*subject.device;
        let mapping = device.map_bar(register.bar).unwrap();
        for value in [7, 0xcafe_f00d] {
            write32(&mapping, register.offset, value);
            let read = device.read32(register.bar, register.offset).unwrap();
            assert_eq!(read, (register.reads_as)(value));
            assert_eq!(read32(&mapping, register.offset), read);
        }
        // The kernel takes mappings away for the time of a reset.
        device.reset().unwrap();
        write32(&mapping, register.offset, 11);
        assert_eq!(read32(&mapping, register.offset), (register.reads_as)(11));
    });
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn the_msix_table_is_not_mapped() {
    each(|_, subject| {
        let Some(bar) = subject.kind.msix_table else {
            return;
        };
        let mapping = subject.device.map_bar(bar).unwrap();
        assert!(mapping.pointer(0, 4).is_none() && mapping.pointer(PAGE - 4, 8).is_none());
        assert!(mapping.pointer(PAGE, mapping.bytes() - PAGE).is_some());
    });
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn memory_is_mapped_only_where_the_iommu_translates() {
    each(|_, subject| {
        // Where messages of interrupts go (Intel SDM 3, 10.11.1).
        const INTERRUPTS: u64 = 0xfee0_0000;
        let device = &*subject.device;
        let allowed = device.dma_ranges();
        assert!(allowed.iter().any(|range| range.contains(&IOVA)));
        assert!(!allowed.iter().any(|range| range.contains(&INTERRUPTS)));
        let (memory, above) = (memory(2), allowed.last().unwrap().end() - (PAGE - 1));
        for iova in [INTERRUPTS, INTERRUPTS - PAGE, above] {
            let error = refusal(device.dma_map(iova, 2 * PAGE, memory.as_fd(), 0));
            let DeviceError::Dma {
                why: DmaRefusal::OutOfRange { ranges },
                ..
            } = error
            else {
                panic!("{iova:#x}: {error}");
            };
            assert_eq!(ranges, allowed);
        }
        map(device, above, &memory, 0, 1);
    });
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn no_more_memory_is_mapped_than_may_be_locked() {
    each(|_, subject| {
        let limit = |bytes| {
            let (current, maximum) = (Some(bytes), None);
            setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
        };
        limit(4 * PAGE);
        let (device, memory) = (&*subject.device, memory(64));
        let error = as_nobody(|| refusal(device.dma_map(IOVA, 64 * PAGE, memory.as_fd(), 0)));
        let DeviceError::Dma {
            why: DmaRefusal::MemoryLimit { limit_bytes },
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(limit_bytes, 4 * PAGE);
        as_nobody(|| map(device, IOVA, &memory, 0, 2));
        map(device, 2 * IOVA, &memory, 0, 64);
    });
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn a_device_has_one_user_and_is_free_when_the_last_mapping_is_gone() {
    each(|address, subject| {
        assert!(matches!(refused(address), OpenError::Busy { .. }));
        let mapping = subject.device.map_bar(subject.kind.bar).unwrap();
        subject.device.close();
        assert!(matches!(refused(address), OpenError::Busy { .. }));
        drop(mapping);
        VfioClient::open(address).unwrap();
    });
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn bound_devices_are_listed() {
    let _one = one_at_a_time();
    let listed = probe();
    for address in addresses() {
        let found = listed
            .as_ref()
            .unwrap()
            .iter()
            .find(|bound| bound.address == address);
        let (id, found) = (vfio::subject(address).kind.id, found.unwrap());
        assert_eq!(u32::from(found.vendor) | u32::from(found.device) << 16, id);
    }
}

#[test]
#[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
fn who_may_not_open_a_device_is_told_which_file() {
    let _one = one_at_a_time();
    for address in addresses() {
        let error = as_nobody(|| refused(address));
        let OpenError::Permission { path } = &error else {
            panic!("{error}");
        };
        assert!(path.starts_with("/dev/vfio/"), "{path}");
    }
}

#[test]
#[ignore = "ci/vfio runs it, on a device that SNAPRIG_TEST_VFIO_HOST names"]
fn a_device_of_the_host_is_refused_with_the_commands_that_bind_it() {
    let _one = one_at_a_time();
    let address = named("SNAPRIG_TEST_VFIO_HOST");
    let error = refused(address);
    let OpenError::NotBound {
        driver: Some(driver),
        ..
    } = &error
    else {
        panic!("{error}");
    };
    let text = error.to_string();
    assert!(
        text.contains(driver) && text.contains("/driver_override"),
        "{text}"
    );
}

#[test]
#[ignore = "ci/vfio runs it, on a device that SNAPRIG_TEST_VFIO_SHARED names"]
fn a_group_that_the_host_uses_is_refused_with_the_device_that_is_in_the_way() {
    let _one = one_at_a_time();
    let address = named("SNAPRIG_TEST_VFIO_SHARED");
    let error = refused(address);
    let OpenError::NotViable { others, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(others.len(), 1, "{error}");
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let address: Address = "ffff:ff:1f.7".parse().unwrap();
    assert!(matches!(refused(address), OpenError::NoDevice(_)));
}
