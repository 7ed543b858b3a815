//! Which cards there are, and one of them.

use std::ffi::{CString, c_char, c_int};

use snaprig_mpss::{self as mpss, Card};
use snaprig_scif::client::rig_from_environment;

use crate::call::{Done, Failure, api, code, give, give_text, hand_out, of, take_back};

/// KNC_ID.
const KNC: u32 = 1;

/// `struct mic_devices_list`.
pub struct Devices(Vec<c_int>);

/// `struct mic_device`.
pub struct Device {
    number: u16,
    name: CString,
}

impl Device {
    /// The card as it is now.
    pub fn card(&self) -> Done<Card> {
        card(self.number.into())
    }
}

fn cards() -> Done<Vec<Card>> {
    let failed = |why: String| Failure::new(code::DRIVER_NOT_LOADED, why);
    let rig = rig_from_environment().ok_or_else(|| {
        failed("no rig: SNAPRIG_RIG is not set; `snaprig run -- PROGRAM` starts one".into())
    })?;
    mpss::cards(&rig).map_err(|error| failed(format!("no rig in {}: {error}", rig.display())))
}

fn card(number: u32) -> Done<Card> {
    let mut cards = cards()?.into_iter();
    let found = cards.find(|card| u32::from(card.number()) == number);
    found.ok_or_else(|| Failure::new(code::NOENT, format!("there is no card mic{number}")))
}

api! {
    fn mic_get_devices(devices: *mut *mut Devices) {
        let numbers = cards()?.iter().map(|card| card.number().into()).collect();
        // SAFETY: the header has the program pass null or a place for a pointer.
        unsafe { hand_out(devices, Devices(numbers)) }
    }

    fn mic_free_devices(devices: *mut Devices) {
        // SAFETY: the header has the program pass null or a list of `mic_get_devices`, once.
        unsafe { take_back(devices) }
    }

    fn mic_get_ndevices(devices: *const Devices, count: *mut c_int) {
        // SAFETY: the header has the program pass null or a list, and null or a place for a number.
        unsafe { give(count, of(devices)?.0.len() as c_int) }
    }

    fn mic_get_device_at_index(devices: *const Devices, index: c_int, device: *mut c_int) {
        // SAFETY: the header has the program pass null or a list.
        let numbers = &unsafe { of(devices) }?.0;
        let number = usize::try_from(index).ok().and_then(|index| numbers.get(index));
        let failed = || Failure::new(code::RANGE, format!("there are {} cards", numbers.len()));
        // SAFETY: the header has the program pass null or a place for a number.
        unsafe { give(device, *number.ok_or_else(failed)?) }
    }

    fn mic_open_device(device: *mut *mut Device, number: u32) {
        let card = card(number)?;
        let name = CString::new(card.name().to_string()).unwrap_or_default();
        // SAFETY: the header has the program pass null or a place for a pointer.
        unsafe { hand_out(device, Device { number: card.number(), name }) }
    }

    fn mic_close_device(device: *mut Device) {
        // SAFETY: the header has the program pass null or a device of `mic_open_device`, once.
        unsafe { take_back(device) }
    }

    fn mic_get_device_type(device: *const Device, kind: *mut u32) {
        // SAFETY: the header has the program pass null or a device, and null or a place for a number.
        unsafe { of(device).and_then(|_| give(kind, KNC)) }
    }

    fn mic_in_maint_mode(device: *const Device, is: *mut c_int) {
        // SAFETY: the header has the program pass null or a device, and null or a place for a number.
        unsafe { of(device).and_then(|_| give(is, 0)) }
    }

    fn mic_in_ready_state(device: *const Device, is: *mut c_int) {
        // SAFETY: the header has the program pass null or a device.
        let card = unsafe { of(device) }?.card()?;
        let is_ready = mpss::state(card.state()) == "ready";
        // SAFETY: the header has the program pass null or a place for a number.
        unsafe { give(is, is_ready.into()) }
    }

    fn mic_is_ras_avail(device: *const Device, is: *mut c_int) {
        // SAFETY: the header has the program pass null or a device.
        let card = unsafe { of(device) }?.card()?;
        // SAFETY: the header has the program pass null or a place for a number.
        unsafe { give(is, card.info().is_some().into()) }
    }

    fn mic_get_post_code(device: *const Device, text: *mut c_char, size: *mut usize) {
        // SAFETY: the header has the program pass what the function asks for.
        unsafe { attribute(device, "post_code", text, size) }
    }

    fn mic_get_sysfs_attribute(
        device: *const Device,
        name: *const c_char,
        text: *mut c_char,
        size: *mut usize
    ) {
        // SAFETY: the header has the program pass null or a string.
        let name = unsafe { of(name).map(|name| std::ffi::CStr::from_ptr(name)) }?;
        // SAFETY: the header has the program pass what the function asks for.
        unsafe { attribute(device, &name.to_string_lossy(), text, size) }
    }
}

/// # Safety
/// The device is null or one of ours; for the others see [`give_text`].
unsafe fn attribute(
    device: *const Device,
    name: &str,
    text: *mut c_char,
    size: *mut usize,
) -> Done {
    // SAFETY: the caller says what this asks for.
    let card = unsafe { of(device) }?.card()?;
    let mut attributes = card.attributes().into_iter();
    let found = attributes.find(|(known, _)| *known == name);
    let failed = || Failure::new(code::NOENT, format!("a card has no attribute {name:?}"));
    // SAFETY: the caller says what this asks for.
    unsafe { give_text(text, size, &found.ok_or_else(failed)?.1) }
}

/// NULL for a device that is none.
pub unsafe extern "C" fn mic_get_device_name(device: *const Device) -> *const c_char {
    // SAFETY: the header has the program pass null or a device, which stays until it is closed.
    unsafe { device.as_ref() }.map_or(std::ptr::null(), |device| device.name.as_ptr())
}
