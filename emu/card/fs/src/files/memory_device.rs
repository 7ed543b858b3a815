//! /dev/null, zero, full, random, urandom; /dev/tty, which nobody has.

use std::{any::Any, sync::Arc};

use snaprig_card_driver::{
    device::CharDevice,
    errno::Errno,
    file::{Cx, Description, File},
    random,
    wait::SysResult,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Null,
    Zero,
    Full,
    Random,
    Terminal,
}

const DEVICES: [(&str, Memory); 6] = [
    ("/dev/null", Memory::Null),
    ("/dev/zero", Memory::Zero),
    ("/dev/full", Memory::Full),
    ("/dev/random", Memory::Random),
    ("/dev/urandom", Memory::Random),
    ("/dev/tty", Memory::Terminal),
];

/// The devices, and where they are.
pub fn all() -> impl Iterator<Item = (&'static str, Arc<dyn CharDevice>)> {
    DEVICES.into_iter().map(|(path, device)| {
        (
            path,
            Arc::new(MemoryDevice { path, device }) as Arc<dyn CharDevice>,
        )
    })
}

/// Whether mapping this file gives zero pages.
pub fn is_zero_device(file: &dyn File) -> bool {
    file.as_any()
        .downcast_ref::<MemoryDevice>()
        .is_some_and(|d| d.device == Memory::Zero)
}

#[derive(Clone, Copy)]
struct MemoryDevice {
    path: &'static str,
    device: Memory,
}

impl CharDevice for MemoryDevice {
    fn open(&self, _cx: &mut Cx, flags: i32) -> SysResult<Arc<dyn File>> {
        // No process has a controlling terminal (tty(4)).
        if self.device == Memory::Terminal {
            return Err(Errno::ENXIO.into());
        }
        Ok(self.open_disconnected(flags))
    }

    fn open_disconnected(&self, _flags: i32) -> Arc<dyn File> {
        Arc::new(*self)
    }

    fn number(&self) -> u64 {
        match self.device {
            Memory::Null => 0x103,
            Memory::Zero => 0x105,
            Memory::Full => 0x107,
            Memory::Random if self.path == "/dev/random" => 0x108,
            Memory::Random => 0x109,
            Memory::Terminal => 0x500,
        }
    }
}

impl File for MemoryDevice {
    fn read(&self, _cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        match self.device {
            Memory::Null | Memory::Terminal => Ok(Vec::new()),
            Memory::Zero | Memory::Full => Ok(vec![0; max]),
            Memory::Random => {
                let mut bytes = vec![0; max];
                random::fill(&mut bytes);
                Ok(bytes)
            }
        }
    }

    fn write(&self, _cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        match self.device {
            Memory::Full => Err(Errno::ENOSPC.into()),
            _ => Ok(data.len()),
        }
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: self.path.into(),
            flags: libc::O_RDWR,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
