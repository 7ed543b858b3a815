//! What is known of a card: objects, and what is in them.

use std::ffi::{c_char, c_int};

use snaprig_coi::EngineInfo;
use snaprig_mpss::{KERNEL, PROCESSOR};
use snaprig_wire::pci;

use crate::{
    call::{Done, Failure, api, code, give, give_text, hand_out, of, take_back},
    device::Device,
};

/// What a card says of itself while it is online: `struct mic_device_mem`, `mic_cores_info`, `mic_memory_util_info` and
/// `mic_version_info`.
pub struct Facts(EngineInfo);
/// `struct mic_core_util`: nothing until it is updated.
#[derive(Default)]
pub struct Load {
    cores: u16,
    threads_per_core: u16,
}
/// What all cards have alike: `struct mic_pci_config`, `mic_processor_info` and `mic_thermal_info`.
pub struct Common;

fn facts(device: &Device) -> Done<Facts> {
    let card = device.card()?;
    let info = card.info().cloned().map(Facts);
    info.ok_or_else(|| Failure::new(code::SCIF_ERROR, format!("{} is not online", card.name())))
}

/// Functions that make an object for a device, and those that take it back.
macro_rules! objects {
    ($($get:ident $free:ident: $Object:ty = $make:expr;)*) => {$(
        pub unsafe extern "C" fn $get(device: *const Device, object: *mut *mut $Object) -> c_int {
            crate::call::call(|| {
                let make: fn(&Device) -> Done<$Object> = $make;
                // SAFETY: the header has the program pass null or a device, and null or a place for a pointer.
                unsafe { hand_out(object, make(of(device)?)?) }
            })
        }

        pub unsafe extern "C" fn $free(object: *mut $Object) -> c_int {
            // SAFETY: the header has the program pass null or such an object, once.
            crate::call::call(|| unsafe { take_back(object) })
        }
    )*};
}

/// Functions that say one thing of an object.
macro_rules! values {
    ($Object:ty: $($name:ident: $Value:ty = $get:expr;)*) => {$(
        pub unsafe extern "C" fn $name(object: *const $Object, place: *mut $Value) -> c_int {
            crate::call::call(|| {
                let get: fn(&$Object) -> $Value = $get;
                // SAFETY: the header has the program pass null or such an object, and null or a place for the value.
                unsafe { give(place, get(of(object)?)) }
            })
        }
    )*};
}

objects! {
    mic_get_memory_info mic_free_memory_info: Facts = facts;
    mic_get_cores_info mic_free_cores_info: Facts = facts;
    mic_get_memory_utilization_info mic_free_memory_utilization_info: Facts = facts;
    mic_get_version_info mic_free_version_info: Facts = facts;
    mic_get_pci_config mic_free_pci_config: Common = |_| Ok(Common);
    mic_get_processor_info mic_free_processor_info: Common = |_| Ok(Common);
    mic_get_thermal_info mic_free_thermal_info: Common = |_| Ok(Common);
}

/// In KiB, as everywhere in the header.
fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX)
}

values! { Facts:
    mic_get_memory_size: u32 = |facts| kib(facts.0.memory_bytes);
    mic_get_ecc_mode: u16 = |_| 0;
    mic_get_cores_count: u32 = |facts| facts.0.cores;
    mic_get_total_memory_size: u32 = |facts| kib(facts.0.memory_bytes);
    mic_get_available_memory_size: u32 = |facts| kib(facts.0.free_bytes);
}

values! { Common:
    mic_get_vendor_id: u16 = |_| pci::VENDOR_ID;
    mic_get_device_id: u16 = |_| pci::DEVICE_ID;
    mic_get_subsystem_id: u16 = |_| pci::DEVICE_ID;
    mic_get_revision_id: u8 = |_| 0;
    mic_get_processor_type: u16 = |_| PROCESSOR.kind;
    mic_get_processor_steppingid: u32 = |_| PROCESSOR.stepping_id;
    // There are no sensors.
    mic_is_smc_boot_loader_ver_supported: c_int = |_| 0;
    mic_is_die_temp_valid: c_int = |_| 0;
    mic_is_gddr_temp_valid: c_int = |_| 0;
    mic_is_fanin_temp_valid: c_int = |_| 0;
    mic_is_fanout_temp_valid: c_int = |_| 0;
    mic_is_vccp_temp_valid: c_int = |_| 0;
    mic_is_vddg_temp_valid: c_int = |_| 0;
    mic_is_vddq_temp_valid: c_int = |_| 0;
}

values! { Load:
    mic_get_num_cores: u16 = |load| load.cores;
    mic_get_threads_core: u16 = |load| load.threads_per_core;
}

api! {
    fn mic_get_processor_model(object: *const Common, model: *mut u16, extended: *mut u16) {
        // SAFETY: the header has the program pass null or such an object, and null or places for the values.
        unsafe {
            of(object)?;
            give(model, PROCESSOR.model)?;
            give(extended, PROCESSOR.model_extended)
        }
    }

    fn mic_get_processor_family(object: *const Common, family: *mut u16, extended: *mut u16) {
        // SAFETY: the header has the program pass null or such an object, and null or places for the values.
        unsafe {
            of(object)?;
            give(family, PROCESSOR.family)?;
            give(extended, PROCESSOR.family_extended)
        }
    }

    fn mic_get_processor_stepping(object: *const Common, text: *mut c_char, size: *mut usize) {
        // SAFETY: the header has the program pass null or such an object, and what `give_text` asks for.
        unsafe { of(object).and_then(|_| give_text(text, size, PROCESSOR.stepping)) }
    }

    fn mic_get_uos_version(object: *const Facts, text: *mut c_char, size: *mut usize) {
        // SAFETY: the header has the program pass null or such an object, and what `give_text` asks for.
        unsafe { of(object).and_then(|_| give_text(text, size, KERNEL)) }
    }

    fn mic_alloc_core_util(object: *mut *mut Load) {
        // SAFETY: the header has the program pass null or a place for a pointer.
        unsafe { hand_out(object, Load::default()) }
    }

    fn mic_update_core_util(device: *const Device, object: *mut Load) {
        // SAFETY: the header has the program pass null or such objects.
        let info = unsafe { of(object).and_then(|_| facts(of(device)?)) }?.0;
        let count = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let load = Load {
            cores: count(info.cores),
            threads_per_core: count(info.threads.checked_div(info.cores).unwrap_or(0)),
        };
        // SAFETY: as above; nobody else has it meanwhile, as the header says.
        unsafe { give(object, load) }
    }

    fn mic_free_core_util(object: *mut Load) {
        // SAFETY: the header has the program pass null or such an object, once.
        unsafe { take_back(object) }
    }
}
