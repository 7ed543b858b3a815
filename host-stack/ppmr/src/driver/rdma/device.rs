//! The port of a device, and a pool as a region that the device knows.

use std::{fmt, sync::Arc};

use sideway::ibverbs::{
    AccessFlags,
    address::GidType,
    device::{DeviceInfo, DeviceList},
    device_context::{DeviceContext, LinkLayer, Mtu, PortAttr, PortState},
    memory_region::MemoryRegion,
    protection_domain::ProtectionDomain,
};

use super::raw;
use crate::{
    Mode,
    driver::{agree::Side, memory::Memory, transport::Port},
};

/// A node's device, its pool known to it.
#[derive(Debug)]
pub struct Device {
    // Before the memory: a field is dropped before those after it.
    pub region: Arc<MemoryRegion>,
    pub memory: Arc<Memory>,
    pub domain: Arc<ProtectionDomain>,
    pub context: Arc<DeviceContext>,
    pub port: LocalPort,
    /// How many RDMA reads a queue pair may have under way, and how many it may answer.
    pub reads: [u8; 2],
    /// Most work requests of a queue pair.
    pub requests_max: u32,
}

/// What of a port matters to a connection.
#[derive(Clone, Copy, Debug)]
pub struct LocalPort {
    pub number: u8,
    pub lid: u16,
    pub mtu: Mtu,
    /// Its index and value, if packets have one.
    pub gid: Option<(u8, [u8; 16])>,
}

impl Device {
    /// Opens the one that is meant, and has it know the pool.
    pub fn open(port: &Port, memory: &Arc<Memory>, sides: &[Side]) -> Result<Arc<Self>, String> {
        let (context, number, attributes) = find(port)?;
        let port = LocalPort {
            number,
            lid: attributes.lid(),
            mtu: attributes.active_mtu(),
            gid: gid(&context, number, &attributes, port.gid_index)?,
        };
        let limits = context.query_device().map_err(text)?;
        // No device has more than 255; one with none cannot.
        let reads = [limits.max_qp_init_rd_atom(), limits.max_qp_rd_atom()];
        let domain = context.alloc_pd().map_err(text)?;
        let all = sides.iter().map(|side| access(*side));
        let all = all.fold(AccessFlags::none(), |all, one| all | one);
        let region = raw::register(&domain, memory, all).map_err(text)?;
        Ok(Arc::new(Self {
            region,
            memory: memory.clone(),
            domain,
            port,
            reads: reads.map(|count| count.clamp(0, 255) as u8),
            requests_max: limits.max_qp_wr().max(0) as u32,
            context,
        }))
    }
}

/// What is done to a pool over a connection.
pub fn access(side: Side) -> AccessFlags {
    match side {
        Side::Source(Mode::Pull) => AccessFlags::RemoteRead,
        Side::Source(Mode::Push) => AccessFlags::none(),
        Side::Target(Mode::Pull) => AccessFlags::LocalWrite,
        Side::Target(Mode::Push) => AccessFlags::LocalWrite | AccessFlags::RemoteWrite,
    }
}

/// The first device, and its first port, that is active and meant.
fn find(port: &Port) -> Result<(Arc<DeviceContext>, u8, PortAttr), String> {
    let devices = DeviceList::new().map_err(|error| format!("no libibverbs: {}", text(error)))?;
    let is_meant = |name: String| port.device.as_ref().is_none_or(|device| *device == name);
    for device in devices.iter().filter(|device| is_meant(device.name())) {
        let Ok(context) = device.open() else { continue };
        let count = context.query_device().map_err(text)?.phys_port_cnt();
        for number in 1..=count {
            let is_meant = port.number.is_none_or(|meant| meant == number);
            let attributes = context.query_port(number).map_err(text)?;
            if is_meant && attributes.port_state() == PortState::Active {
                return Ok((context, number, attributes));
            }
        }
    }
    let device = port.device.as_deref().unwrap_or("any device");
    let number = port
        .number
        .map_or("no port".into(), |number| format!("port {number}: not"));
    Err(format!("{device}: {number} active"))
}

/// What packets are addressed with where LIDs are not enough.
fn gid(
    context: &DeviceContext,
    port: u8,
    attributes: &PortAttr,
    index: Option<u8>,
) -> Result<Option<(u8, [u8; 16])>, String> {
    if let Some(index) = index {
        let gid = context.query_gid(port, index.into()).map_err(text)?;
        return Ok(Some((index, gid.raw)));
    }
    if attributes.link_layer() != LinkLayer::Ethernet {
        return Ok(None);
    }
    let all = context.query_gid_table().map_err(text)?;
    let usable = all
        .iter()
        .filter(|entry| entry.port_num() == u32::from(port) && entry.gid_type() == GidType::RoceV2);
    // One that routers know, if there is one.
    let best = usable.min_by_key(|entry| entry.gid().is_unicast_link_local());
    let best = best.ok_or("the port has no GID of RoCE v2")?;
    let index = best.gid_index().try_into().map_err(text)?;
    Ok(Some((index, best.gid().raw)))
}

/// What it says, with all of its causes.
pub fn text(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        fmt::Write::write_fmt(&mut text, format_args!(": {error}")).expect("a String grows");
        cause = error.source();
    }
    text
}
