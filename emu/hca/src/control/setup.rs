//! A fabric as it is switched on: HCAs, ports, and the addresses the subnet manager gives.

use super::{Control, Heap, Table};
use crate::{
    Memory,
    memory::MAGIC,
    model::{Model, ModelName},
    port::PORTS_MAX,
};

/// The subnet's prefix: the default one (InfiniBand Architecture 1, 4.1.1).
const PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// The first LID that is given out.
pub const FIRST_LID: u16 = 1;
/// The partition that everybody is a full member of.
const DEFAULT_PKEY: u16 = 0xffff;

/// An HCA to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HcaSetup {
    /// Its model.
    pub model: ModelName,
}

/// A fabric to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// Its HCAs, 1 to 64.
    pub hcas: Vec<HcaSetup>,
    /// The P_Key table of every port, at most [`PKEYS_MAX`](crate::port::PKEYS_MAX) entries; none: the default partition.
    pub pkeys: Vec<u16>,
}

/// The GUID of an HCA; ports count on from it.
pub fn guid(hca: u32) -> u64 {
    0x5a52_0300_0000_0000 | u64::from(hca + 1) << 8
}

impl Control {
    /// Switches a fabric on, in device memory that is all zeroes.
    pub fn new(memory: &Memory, fabric: &Fabric) -> Self {
        let header = memory.header();
        let models: Vec<_> = fabric.hcas.iter().map(|hca| Model::of(hca.model)).collect();
        let ports = models
            .iter()
            .enumerate()
            .flat_map(|(hca, model)| (1..=model.ports).map(move |number| (hca as u32, number)));
        let mut count = 0;
        for ((hca, number), index) in ports.zip(0..PORTS_MAX) {
            let port = &header.ports[index as usize];
            let lid = FIRST_LID + index as u16;
            port.hca.set(hca);
            port.number.set(number);
            port.lid.set(lid.into());
            port.up.set(1);
            port.pkeys[0].set(DEFAULT_PKEY.into());
            for (entry, pkey) in port.pkeys.iter().zip(&fabric.pkeys) {
                entry.set((*pkey).into());
            }
            let mut gid = [0; 16];
            gid[..8].copy_from_slice(&PREFIX);
            gid[8..].copy_from_slice(&(guid(hca) + u64::from(number)).to_be_bytes());
            port.set_gid(0, gid);
            header.lids[lid as usize].set(index + 1);
            count = index + 1;
        }
        header.port_count.set(count);
        header.alive.set(1);
        header.magic.release(MAGIC);
        Self {
            models,
            heap: Heap::new(),
            pds: Default::default(),
            next_pd: 0,
            xrcds: Default::default(),
            next_xrcd: 0,
            keys: Table {
                next: 1,
                ..Table::default()
            },
            qps: Table {
                next: 2,
                ..Table::default()
            },
            cqs: Table::default(),
            srqs: Table::default(),
            cq_serial: 0,
            cq_users: Default::default(),
            srq_users: Default::default(),
            rings: Default::default(),
            memberships: Default::default(),
            processes: Default::default(),
        }
    }
}
