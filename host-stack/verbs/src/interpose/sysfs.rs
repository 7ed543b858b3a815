//! What programs find below /sys and /dev about HCAs and the connection manager: a table of our own.
//!
//! ```text
//! /dev/infiniband/rdma_cm, uverbsN
//! /sys/
//! class/misc/rdma_cm/abi_version           class/infiniband/NAME/node_guid, fw_ver, hca_type, ...
//! class/infiniband_verbs/abi_version       class/infiniband/NAME/ports/N/lid, state, gids/I, ...
//! class/infiniband_verbs/uverbsN/ibdev     class/infiniband/NAME/device/numa_node
//! ```

use snaprig_hca::control::{FIRST_LID, find_port, guid};

use crate::ffi;

/// Numbers of the connection manager's device; the kernel gives misc devices any minor number.
pub(crate) const RDMA_CM_DEVICE: (u32, u32) = (10, 58);
/// Numbers of the first HCA's device (`IB_UVERBS_MAJOR`, `IB_UVERBS_BASE_MINOR`).
const UVERBS_DEVICE: (u32, u32) = (231, 192);

/// What is at a path.
pub(crate) enum Kind {
    Directory,
    /// With this content.
    File(String),
    /// A character device with these numbers.
    Device(u32, u32),
}

/// What is at a path, if it is one of ours.
pub(crate) fn kind(path: &str) -> Option<Kind> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts[..] {
        ["dev", "infiniband", "rdma_cm"] => Some(Kind::Device(RDMA_CM_DEVICE.0, RDMA_CM_DEVICE.1)),
        ["dev", "infiniband", uverbs] => {
            let hca = known(uverbs.strip_prefix("uverbs")?)?;
            Some(Kind::Device(UVERBS_DEVICE.0, UVERBS_DEVICE.1 + hca))
        }
        ["dev", "infiniband"]
        | ["sys", "class", "infiniband" | "infiniband_verbs"]
        | ["sys", "class", "misc", "rdma_cm"] => Some(Kind::Directory),
        ["sys", "class", "infiniband_verbs", uverbs] if uverbs != "abi_version" => {
            known(uverbs.strip_prefix("uverbs")?).map(|_| Kind::Directory)
        }
        ["sys", "class", "infiniband", name, ref rest @ ..] if is_directory(rest) => {
            let hca = known(name.strip_prefix("snaprig_")?)?;
            if let ["ports", port, ..] = rest {
                find_port(&ffi::fabric().ok()?.memory, hca, port.parse().ok()?)?;
            }
            Some(Kind::Directory)
        }
        ["sys", ref rest @ ..] => read(rest).map(Kind::File),
        _ => None,
    }
}

/// Is that a directory, below an HCA's?
fn is_directory(rest: &[&str]) -> bool {
    matches!(
        rest,
        [] | ["device" | "ports"]
            | ["ports", _]
            | ["ports", _, "gids" | "pkeys" | "gid_attrs"]
            | ["ports", _, "gid_attrs", "types"]
    )
}

/// The content of a file below /sys, if it is one of ours.
fn read(parts: &[&str]) -> Option<String> {
    let text = match *parts {
        ["class", "misc", "rdma_cm", "abi_version"] => "4".into(),
        ["class", "infiniband_verbs", "abi_version"] => "6".into(),
        ["class", "infiniband_verbs", uverbs, ref rest @ ..] => {
            let hca = known(uverbs.strip_prefix("uverbs")?)?;
            match rest {
                ["ibdev"] => ffi::device_name(hca),
                ["abi_version"] => "1".into(),
                ["dev"] => format!("{}:{}", UVERBS_DEVICE.0, UVERBS_DEVICE.1 + hca),
                ["device", "numa_node"] => "-1".into(),
                _ => return None,
            }
        }
        ["class", "infiniband", name, ref rest @ ..] => {
            of_hca(known(name.strip_prefix("snaprig_")?)?, rest)?
        }
        _ => return None,
    };
    Some(text + "\n")
}

/// The number of an HCA that this program sees.
fn known(number: &str) -> Option<u32> {
    let hca = number.parse().ok()?;
    ffi::fabric().ok()?.visible().contains(&hca).then_some(hca)
}

fn of_hca(hca: u32, rest: &[&str]) -> Option<String> {
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
        ["node_desc"] => ffi::device_name(hca),
        ["device", "numa_node"] => "-1".into(),
        ["ports", port, rest @ ..] => {
            let fabric = ffi::fabric().ok()?;
            let (_, port) = find_port(&fabric.memory, hca, port.parse().ok()?)?;
            let up = port.up.get() != 0;
            match rest {
                ["link_layer"] => "InfiniBand".into(),
                ["lid"] => format!("{:#x}", port.lid.get()),
                ["sm_lid"] => format!("{FIRST_LID:#x}"),
                ["lid_mask_count" | "sm_sl"] => "0".into(),
                ["state"] => if up { "4: ACTIVE" } else { "1: DOWN" }.into(),
                ["phys_state"] => if up { "5: LinkUp" } else { "3: Disabled" }.into(),
                ["rate"] => "100 Gb/sec (4X EDR)".into(),
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
