//! What programs find below /sys and /dev about HCAs and the connection manager.
//!
//! ```text
//! /dev/infiniband/rdma_cm, uverbsN
//! /sys/
//! class/misc/rdma_cm/abi_version           class/infiniband/NAME/node_guid, fw_ver, hca_type, ...
//! class/infiniband_verbs/abi_version       class/infiniband/NAME/ports/N/lid, state, gids/I, ...
//! class/infiniband_verbs/uverbsN/ibdev     class/infiniband/NAME/device/numa_node
//! ```

use std::{ffi::CStr, sync::Arc};

use snaprig_hca::{
    control::{FIRST_LID, find_port, guid},
    port::RATE,
};

use crate::{DEVICE_NAME, Fabric, Join, device_name};

/// Numbers of the connection manager's device; the kernel gives misc devices any minor number.
pub const RDMA_CM_DEVICE: (u32, u32) = (10, 58);
/// Numbers of the first HCA's device (`IB_UVERBS_MAJOR`, `IB_UVERBS_BASE_MINOR`).
const UVERBS_DEVICE: (u32, u32) = (231, 192);

/// What is at a path.
#[derive(Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file with this content.
    File(String),
    /// A character device with these numbers.
    Device(u32, u32),
}

/// All paths that may be one of these begin so.
const BEGINNINGS: [&[u8]; 3] = [
    b"/sys/class/infiniband",
    b"/sys/class/misc/rdma_cm",
    b"/dev/infiniband",
];
/// The device of the connection manager.
pub const RDMA_CM: &CStr = c"/dev/infiniband/rdma_cm";

/// Whether there may be something of these at a path: `byte(N)` is the path's byte number N, and is asked for from the
/// first on, no further than it is like one of these.
pub fn is_candidate(byte: impl Fn(usize) -> u8) -> bool {
    let begins = |with: &[u8]| (0..).zip(with).all(|(at, expected)| byte(at) == *expected);
    BEGINNINGS.iter().any(|beginning| begins(beginning))
}

/// What is at a path, if it is one of these. Joins the fabric if that needs be known.
pub fn kind(path: &str, join: Join) -> Option<Kind> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    Paths { join }.kind(&parts)
}

/// The paths of a fabric that is joined when something about it is asked for.
struct Paths {
    join: Join,
}

impl Paths {
    fn kind(&self, parts: &[&str]) -> Option<Kind> {
        match *parts {
            ["dev", "infiniband", "rdma_cm"] => {
                Some(Kind::Device(RDMA_CM_DEVICE.0, RDMA_CM_DEVICE.1))
            }
            ["dev", "infiniband", uverbs] => {
                let hca = self.visible(uverbs.strip_prefix("uverbs")?)?;
                Some(Kind::Device(UVERBS_DEVICE.0, UVERBS_DEVICE.1 + hca))
            }
            ["dev", "infiniband"]
            | ["sys", "class", "infiniband" | "infiniband_verbs"]
            | ["sys", "class", "misc", "rdma_cm"] => Some(Kind::Directory),
            ["sys", "class", "infiniband_verbs", uverbs] if uverbs != "abi_version" => self
                .visible(uverbs.strip_prefix("uverbs")?)
                .map(|_| Kind::Directory),
            ["sys", "class", "infiniband", name, ref rest @ ..] if is_directory(rest) => {
                let hca = self.visible(name.strip_prefix(DEVICE_NAME)?)?;
                if let ["ports", port, ..] = rest {
                    find_port(self.fabric()?.memory(), hca, port.parse().ok()?)?;
                }
                Some(Kind::Directory)
            }
            ["sys", ref rest @ ..] => self.read(rest).map(Kind::File),
            _ => None,
        }
    }

    /// The content of a file below /sys, if it is one of ours.
    fn read(&self, parts: &[&str]) -> Option<String> {
        let text = match *parts {
            ["class", "misc", "rdma_cm", "abi_version"] => "4".into(),
            ["class", "infiniband_verbs", "abi_version"] => "6".into(),
            ["class", "infiniband_verbs", uverbs, ref rest @ ..] => {
                let hca = self.visible(uverbs.strip_prefix("uverbs")?)?;
                match rest {
                    ["ibdev"] => device_name(hca),
                    ["abi_version"] => "1".into(),
                    ["dev"] => format!("{}:{}", UVERBS_DEVICE.0, UVERBS_DEVICE.1 + hca),
                    ["device", "numa_node"] => "-1".into(),
                    _ => return None,
                }
            }
            ["class", "infiniband", name, ref rest @ ..] => {
                self.of_hca(self.visible(name.strip_prefix(DEVICE_NAME)?)?, rest)?
            }
            _ => return None,
        };
        Some(text + "\n")
    }

    /// The number of an HCA that this program sees.
    fn visible(&self, number: &str) -> Option<u32> {
        let hca = number.parse().ok()?;
        self.fabric()?.visible().contains(&hca).then_some(hca)
    }

    fn of_hca(&self, hca: u32, rest: &[&str]) -> Option<String> {
        let number = |number: u64| {
            let word = |shift: u32| (number >> shift) as u16;
            format!(
                "{:04x}:{:04x}:{:04x}:{:04x}",
                word(48),
                word(32),
                word(16),
                word(0)
            )
        };
        Some(match rest {
            ["node_guid" | "sys_image_guid"] => number(guid(hca)),
            ["node_type"] => "1: CA".into(),
            ["node_desc"] => device_name(hca),
            ["device", "numa_node"] => "-1".into(),
            ["ports", port, rest @ ..] => {
                let fabric = self.fabric()?;
                let (index, port) = find_port(fabric.memory(), hca, port.parse().ok()?)?;
                let up = port.up.get() != 0;
                match rest {
                    ["link_layer"] => "InfiniBand".into(),
                    ["lid"] => format!("{:#x}", port.lid.get()),
                    ["sm_lid"] => format!("{FIRST_LID:#x}"),
                    ["lid_mask_count" | "sm_sl"] => "0".into(),
                    ["state"] => if up { "4: ACTIVE" } else { "1: DOWN" }.into(),
                    ["phys_state"] => if up { "5: LinkUp" } else { "3: Disabled" }.into(),
                    ["rate"] => RATE.into(),
                    ["counters", name] => counted(&fabric.memory().counters(index), name)?,
                    ["hw_counters", name] => counted(&port.hw_counters(), name)?,
                    ["gids", index] => {
                        let gid = port.gid(index.parse().ok()?)?;
                        let words = gid.chunks(2).map(|w| format!("{:02x}{:02x}", w[0], w[1]));
                        words.collect::<Vec<_>>().join(":")
                    }
                    ["gid_attrs", "types", index] => {
                        let gid = port.gid(index.parse().ok()?)?;
                        (gid != [0; 16]).then(|| "IB/RoCE v1".into())?
                    }
                    ["pkeys", index] => format!("{:#06x}", port.pkey(index.parse().ok()?)?),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    fn fabric(&self) -> Option<Arc<dyn Fabric>> {
        (self.join)().ok()
    }
}

/// The value of a counter.
fn counted(counters: &[(&str, u64)], name: &str) -> Option<String> {
    let (_, value) = counters.iter().find(|(counter, _)| *counter == name)?;
    Some(value.to_string())
}

/// Is that a directory, below an HCA's?
fn is_directory(rest: &[&str]) -> bool {
    matches!(
        rest,
        [] | ["device" | "ports"]
            | ["ports", _]
            | [
                "ports",
                _,
                "gids" | "pkeys" | "gid_attrs" | "counters" | "hw_counters"
            ]
            | ["ports", _, "gid_attrs", "types"]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Result<Arc<dyn Fabric>, rustix::io::Errno> {
        Err(rustix::io::Errno::NODEV)
    }

    #[test]
    fn no_byte_behind_the_end_of_another_path_is_asked_for() {
        for (path, is_one) in [
            ("/dev/infiniband/rdma_cm", true),
            ("/sys/class/infiniband", true),
            ("/sys/class/misc/rdma_cm/abi_version", true),
            ("/sys/class/infini", false),
            ("/etc/hosts", false),
            ("", false),
        ] {
            let bytes = [path.as_bytes(), &[0]].concat();
            assert_eq!(is_candidate(|at| bytes[at]), is_one, "{path}");
        }
    }

    #[test]
    fn what_needs_no_fabric_is_there_without_one() {
        let device = kind("/dev/infiniband/rdma_cm", nowhere);
        assert!(matches!(device, Some(Kind::Device(10, 58))));
        let version = kind("/sys/class/misc/rdma_cm/abi_version", nowhere);
        assert!(matches!(version, Some(Kind::File(text)) if text == "4\n"));
        let directory = kind("/sys/class/infiniband", nowhere);
        assert!(matches!(directory, Some(Kind::Directory)));
        assert!(kind("/sys/class/infiniband/snaprig_0/node_guid", nowhere).is_none());
        assert!(kind("/dev/infiniband/uverbs0", nowhere).is_none());
    }
}
