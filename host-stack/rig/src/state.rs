//! `/dev/card/state`: where the COI daemon says that it listens. The host sees it in the card's
//! state scratchpad, so that nobody connects too early and nobody has to poll.

use std::{any::Any, sync::Arc};

use snaprig_card_device::Device;
use snaprig_card_driver::{
    device::CharDevice,
    errno::Errno,
    file::{Cx, Description, File},
    wait::SysResult,
};
use snaprig_wire::bar4::spad;

/// Path of the device.
pub const PATH: &str = "/dev/card/state";

/// The device, and an open descriptor of it: it has no state of its own.
#[derive(Clone)]
pub struct StateDevice {
    device: Arc<Device>,
}

impl StateDevice {
    /// The device that sets `device`'s state scratchpad.
    pub fn new(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device })
    }
}

impl CharDevice for StateDevice {
    fn open(&self, _cx: &mut Cx, _flags: i32) -> SysResult<Arc<dyn File>> {
        Ok(Arc::new(self.clone()))
    }

    fn open_disconnected(&self, _flags: i32) -> Arc<dyn File> {
        Arc::new(self.clone())
    }
}

impl File for StateDevice {
    fn write(&self, _cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        match data.trim_ascii() {
            b"online" => self.device.set_state(spad::STATE_ONLINE),
            _ => return Err(Errno::EINVAL.into()),
        }
        Ok(data.len())
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: PATH.into(),
            flags: libc::O_WRONLY,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
