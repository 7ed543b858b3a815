//! From a PCI address to a device that can be opened, or what to do about it.

use std::{fmt, fs, io, path::Path, str::FromStr, sync::Arc};

use vfio_ioctls::{VfioContainer, VfioError};

use crate::host::DeviceError;

const CONTAINER: &str = "/dev/vfio/vfio";
const DRIVER: &str = "/sys/bus/pci/drivers/vfio-pci";
const DEVICES: &str = "/sys/bus/pci/devices";

/// Where a function is on the machine's PCI buses: `0000:00:04.0`, or `00:04.0` in domain 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    domain: u16,
    bus: u8,
    device: u8,
    function: u8,
}

/// A device that is bound to vfio-pci.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Where it is.
    pub address: Address,
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
}

/// Why a device cannot be opened, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not an address.
    #[error("{0:?} is not a PCI address; they look like 0000:00:04.0 (lspci -D)")]
    Address(String),
    /// No such device.
    #[error("there is no PCI device {0}; look for it with lspci -D")]
    NoDevice(Address),
    /// The kernel has no VFIO, or has not loaded it.
    #[error("no {CONTAINER}: the kernel's VFIO is not loaded; modprobe vfio-pci")]
    NoVfio,
    /// Nothing translates the device's addresses.
    #[error(
        "{0} is behind no IOMMU; enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on"
    )]
    NoIommu(Address),
    /// VFIO without an IOMMU.
    #[error(
        "{0} is in VFIO's no-IOMMU mode, where it could write to all memory; enable the IOMMU \
         (firmware; intel_iommu=on) and set enable_unsafe_noiommu_mode of the module vfio to 0"
    )]
    NoIommuMode(Address),
    /// The type 1 IOMMU interface is missing.
    #[error("VFIO has no type 1 (v2) IOMMU here; modprobe vfio_iommu_type1")]
    NoType1,
    /// Interrupts are not remapped, so a device could raise any.
    #[error(
        "the IOMMU does not remap {0}'s interrupts; enable that in the firmware, or, if you trust \
         the device, load vfio_iommu_type1 with allow_unsafe_interrupts=1"
    )]
    UnsafeInterrupts(Address),
    /// Another driver, or none, has it.
    #[error("{}", how_to_bind(*address, driver.as_deref()))]
    NotBound {
        /// The device.
        address: Address,
        /// Its driver.
        driver: Option<String>,
    },
    /// Drivers of the host have devices that the IOMMU cannot tell from this one.
    #[error(
        "{address} shares IOMMU group {group} with {}, which the host uses; bind all of the group \
         to vfio-pci, or to no driver", others.join(", ")
    )]
    NotViable {
        /// The device.
        address: Address,
        /// Its group.
        group: u32,
        /// The others of the group, and their drivers.
        others: Vec<String>,
    },
    /// Permission denied.
    #[error("{path}: permission denied; as root: chown $USER {path}, or a udev rule that does")]
    Permission {
        /// The file.
        path: String,
    },
    /// Somebody has it.
    #[error("{address} (IOMMU group {group}) is in use by another process; end that first")]
    Busy {
        /// The device.
        address: Address,
        /// Its group.
        group: u32,
    },
    /// VFIO refused.
    #[error("opening {address}: {source}")]
    Vfio {
        /// The device.
        address: Address,
        /// Why.
        source: VfioError,
    },
    /// The container could not be opened.
    #[error("opening {CONTAINER}: {0}")]
    Container(VfioError),
    /// The device was opened, but could not be made ready.
    #[error("setting up {address}: {source}")]
    SetUp {
        /// The device.
        address: Address,
        /// Why.
        source: DeviceError,
    },
}

impl FromStr for Address {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let parse = || {
            // Digits alone: `from_str_radix` would take a sign, too.
            let number = |text: &str, digits: usize| {
                let is_hex = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
                is_hex.then(|| u16::from_str_radix(text, 16).ok())?
            };
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
            Some(Self {
                domain: number(domain, 4)?,
                bus: number(bus, 2)? as u8,
                device: number(device, 2).filter(|device| *device < 32)? as u8,
                function: number(function, 1).filter(|function| *function < 8)? as u8,
            })
        };
        parse().ok_or_else(|| OpenError::Address(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            vendor,
            device,
        } = self;
        write!(f, "{address} ({vendor:04x}:{device:04x})")
    }
}

impl Address {
    pub(super) fn sysfs(self) -> String {
        format!("{DEVICES}/{self}")
    }

    fn link(self, name: &str) -> Option<String> {
        last_part(&Path::new(&self.sysfs()).join(name))
    }
}

/// Whether this host has VFIO, and the devices that are bound to vfio-pci.
pub fn probe() -> Result<Vec<Bound>, OpenError> {
    container()?;
    let entries = fs::read_dir(DRIVER).into_iter().flatten().flatten();
    let addresses = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut bound: Vec<_> = addresses.filter_map(bound).collect();
    bound.sort_by_key(|bound| bound.address);
    Ok(bound)
}

fn bound(address: Address) -> Option<Bound> {
    let id = |name: &str| {
        let text = fs::read_to_string(Path::new(&address.sysfs()).join(name)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    Some(Bound {
        address,
        vendor: id("vendor")?,
        device: id("device")?,
    })
}

/// Sees that the device can be opened; its group.
pub(super) fn check(address: Address) -> Result<u32, OpenError> {
    if !Path::new(&address.sysfs()).exists() {
        return Err(OpenError::NoDevice(address));
    }
    if !Path::new(CONTAINER).exists() {
        return Err(OpenError::NoVfio);
    }
    // Drivers that know more of one kind of device than vfio-pci end like this.
    let driver = address.link("driver");
    let is_vfio = |name: &String| name.replace('_', "-").ends_with("vfio-pci");
    if !driver.as_ref().is_some_and(is_vfio) {
        return match address.link("iommu_group") {
            None => Err(OpenError::NoIommu(address)),
            Some(_) => Err(OpenError::NotBound { address, driver }),
        };
    }
    let group = address
        .link("iommu_group")
        .and_then(|group| group.parse().ok());
    let group: u32 = group.ok_or(OpenError::NoIommu(address))?;
    match Path::new(&format!("/dev/vfio/noiommu-{group}")).exists() {
        true => Err(OpenError::NoIommuMode(address)),
        false => Ok(group),
    }
}

pub(super) fn container() -> Result<Arc<VfioContainer>, OpenError> {
    let opened = VfioContainer::new(None);
    opened.map(Arc::new).map_err(|error| match &error {
        VfioError::OpenContainer(e) => match e.kind() {
            io::ErrorKind::NotFound => OpenError::NoVfio,
            io::ErrorKind::PermissionDenied => OpenError::Permission {
                path: CONTAINER.into(),
            },
            _ => OpenError::Container(error),
        },
        VfioError::VfioExtension => OpenError::NoType1,
        _ => OpenError::Container(error),
    })
}

/// Why a device that passed [`check`] could not be opened.
pub(super) fn explain(address: Address, group: u32, error: VfioError) -> OpenError {
    let busy = OpenError::Busy { address, group };
    match &error {
        VfioError::OpenGroup(e, _) => match e.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => OpenError::Permission {
                path: format!("/dev/vfio/{group}"),
            },
            Some(libc::EBUSY) => busy,
            _ => OpenError::Vfio {
                address,
                source: error,
            },
        },
        VfioError::GroupViable => OpenError::NotViable {
            address,
            group,
            others: others(address, group),
        },
        VfioError::ContainerSetIOMMU(errno) if errno.errno() == libc::EPERM => {
            OpenError::UnsafeInterrupts(address)
        }
        VfioError::GroupGetDeviceFD(errno) if errno.errno() == libc::EBUSY => busy,
        _ => OpenError::Vfio {
            address,
            source: error,
        },
    }
}

/// Devices of the group that a driver of the host's has.
fn others(address: Address, group: u32) -> Vec<String> {
    let devices = fs::read_dir(format!("/sys/kernel/iommu_groups/{group}/devices"));
    let devices = devices.into_iter().flatten().flatten();
    let other = |device: fs::DirEntry| {
        let name = device.file_name().into_string().ok()?;
        let driver = last_part(&device.path().join("driver"))?;
        let is_other = name != address.to_string() && driver != "vfio-pci" && driver != "pcieport";
        is_other.then(|| format!("{name} ({driver})"))
    };
    devices.filter_map(other).collect()
}

fn last_part(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

fn how_to_bind(address: Address, driver: Option<&str>) -> String {
    let sysfs = address.sysfs();
    let (has, unbind) = match driver {
        Some(driver) => (
            format!("driver {driver}"),
            format!("\n  echo {address} > {sysfs}/driver/unbind"),
        ),
        None => ("no driver".into(), String::new()),
    };
    format!(
        "{address} has {has}, not vfio-pci; as root, if the host can do without it:\n  \
         modprobe vfio-pci\n  echo vfio-pci > {sysfs}/driver_override{unbind}\n  \
         echo {address} > /sys/bus/pci/drivers_probe"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, full) in [
            ("0000:00:04.0", "0000:00:04.0"),
            ("00:1f.7", "0000:00:1f.7"),
            ("fffF:Ab:00.3", "ffff:ab:00.3"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), full);
        }
        for text in [
            "",
            "04.0",
            "0000:00:04",
            "0:00:04.0",
            "00:20.0",
            "00:04.8",
            "00:+4.0",
            "00:04.00",
            "../:00:04.0",
        ] {
            let refused = text.parse::<Address>().unwrap_err().to_string();
            assert!(refused.contains("0000:00:04.0"), "{refused}");
        }
    }

    #[test]
    fn who_has_a_device_is_told_how_to_bind_it() {
        let address = "0000:00:04.0".parse().unwrap();
        let text = |driver: Option<&str>| {
            let driver = driver.map(str::to_owned);
            OpenError::NotBound { address, driver }.to_string()
        };
        assert!(text(Some("e1000e")).contains("0000:00:04.0/driver/unbind"));
        assert!(text(Some("e1000e")).starts_with("0000:00:04.0 has driver e1000e,"));
        assert!(text(None).contains("has no driver") && !text(None).contains("unbind"));
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let address = "ffff:ff:1f.7".parse().unwrap();
        assert!(matches!(check(address), Err(OpenError::NoDevice(_))));
    }
}
