//! The interrupts of a device: MSI-X if it has that, else MSI, else its interrupt line.

use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};

use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_INTX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_ioctls::VfioDevice;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{refused, vfio};
use crate::host::DeviceError;

const WHAT: &str = "set an interrupt vector";

pub(super) struct Vectors {
    /// Which of VFIO's kinds of interrupts, and how many it has.
    index: u32,
    count: u32,
    /// Of the vectors that are enabled: all up to the highest that was asked for.
    events: Vec<EventFd>,
}

impl Vectors {
    pub(super) fn of(device: &VfioDevice) -> Self {
        let count = |index| device.get_irq_info(index).map_or(0, |irq| irq.count);
        let kinds = [VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX];
        let index = kinds.into_iter().find(|index| count(*index) > 0);
        let index = index.unwrap_or(VFIO_PCI_INTX_IRQ_INDEX);
        Self {
            index,
            count: count(index),
            events: Vec::new(),
        }
    }

    /// Linux before 6.5 cannot add a vector to those that are enabled: they are all disabled for a
    /// moment. What would have been signalled in it is made up for.
    pub(super) fn set(
        &mut self,
        device: &VfioDevice,
        vector: u32,
        event: BorrowedFd<'_>,
    ) -> Result<(), DeviceError> {
        if vector >= self.count {
            return Err(refused(WHAT)(Errno::INVAL));
        }
        let io = |source| DeviceError::Io { what: WHAT, source };
        let event = event.try_clone_to_owned().map_err(io)?.into_raw_fd();
        // SAFETY: the descriptor is new, and nobody else owns it.
        let event = unsafe { EventFd::from_raw_fd(event) };
        let (vector, enabled) = (vector as usize, self.events.len());
        if vector < enabled {
            self.events[vector] = event;
            return self.enable(device);
        }
        // Nobody reads those in between.
        let unread = (enabled..vector).map(|_| EventFd::new(EFD_NONBLOCK));
        let unread = unread.collect::<Result<Vec<_>, _>>().map_err(io)?;
        if enabled > 0 {
            device.disable_irq(self.index).map_err(vfio(WHAT))?;
        }
        self.events.extend(unread);
        self.events.push(event);
        let done = self.enable(device);
        if done.is_err() {
            self.events.truncate(enabled);
            if enabled > 0 {
                self.enable(device)?;
            }
        }
        for event in &self.events[..enabled] {
            // Fails only if it is signalled already.
            let _ = event.write(1);
        }
        done
    }

    fn enable(&self, device: &VfioDevice) -> Result<(), DeviceError> {
        let enabled = device.enable_irq(self.index, self.events.iter().collect());
        enabled.map_err(vfio(WHAT))
    }

    /// The line is masked by the kernel when it interrupts; messages are not.
    pub(super) fn unmask(&self, device: &VfioDevice) -> Result<(), DeviceError> {
        if self.index != VFIO_PCI_INTX_IRQ_INDEX || self.events.is_empty() {
            return Ok(());
        }
        device
            .unmask_irq(self.index)
            .map_err(vfio("unmask the interrupt line"))
    }

    pub(super) fn disable(&mut self, device: &VfioDevice) {
        if !self.events.is_empty() {
            // Fails only if they are not enabled.
            let _ = device.disable_irq(self.index);
            self.events.clear();
        }
    }
}
