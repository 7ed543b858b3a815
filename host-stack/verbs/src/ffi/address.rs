//! Address handles and multicast.

use std::{ffi::c_int, mem::zeroed};

use snaprig_hca::{
    control::{Address, Request, destination_lid, find_port},
    port::GIDS_MAX,
    queue::Destination,
};
use snaprig_verbs_abi::*;

use super::{Context, device, done, memory::use_pd, minus_one, null, qp::Qp};

#[repr(C)]
pub(crate) struct Ah {
    ah: ibv_ah,
    pub to: Destination,
}

/// An address as the HCA has it.
pub(super) fn address(attr: &ibv_ah_attr) -> Address {
    Address {
        lid: attr.dlid,
        service_level: attr.sl,
        path_bits: attr.src_path_bits,
        port_number: attr.port_num,
        // SAFETY: both members of the union are 16 plain bytes, which are initialised and valid
        // whichever member the program wrote.
        global: (attr.is_global != 0)
            .then_some((attr.grh.sgid_index, unsafe { attr.grh.dgid.raw })),
    }
}

pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: ibv_create_ah(3) has the program pass a domain that `ibv_alloc_pd` returned, whose
    // context is still open, and an attribute that it can read; both are only read, within this
    // call.
    unsafe {
        let context = Context::of((*pd).context);
        let address = address(&*attr);
        let memory = &context.fabric.memory;
        let port = find_port(memory, context.hca, address.port_number);
        let far = address
            .global
            .is_some_and(|(index, _)| usize::from(index) >= GIDS_MAX);
        if port.is_none() || address.service_level > 15 || far {
            return null(libc::EINVAL);
        }
        let to = Destination {
            lid: destination_lid(memory, &address),
            service_level: address.service_level,
            path_bits: address.path_bits,
            global: address.global.map(|(index, _)| index),
            gid: address.global.map_or([0; 16], |(_, gid)| gid),
            qp: 0,
            qkey: 0,
        };
        use_pd(pd, 1);
        let ah = ibv_ah {
            context: (*pd).context,
            pd,
            handle: 0,
        };
        Box::into_raw(Box::new(Ah { ah, to })).cast()
    }
}

pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: ibv_destroy_ah(3) has the program pass what `ibv_create_ah` returned, a box of an
    // `Ah`, and give it up: the box is freed once. Its domain outlives it, for a domain with
    // handles answers EBUSY.
    unsafe {
        use_pd((*ah).pd, -1);
        drop(Box::from_raw(ah.cast::<Ah>()));
    }
    0
}

pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: ibv_init_ah_from_wc(3) has the program pass an open context, a completion that it
    // polled and a place for the attribute. `grh` is read only if the completion says that one
    // arrived. The attribute is of integers and bytes, so that zeroes are a value of it.
    unsafe {
        let mut new: ibv_ah_attr = zeroed();
        new.dlid = (*wc).slid;
        new.sl = (*wc).sl;
        new.src_path_bits = (*wc).dlid_path_bits;
        new.port_num = port;
        if (*wc).wc_flags & IBV_WC_GRH != 0 {
            new.is_global = 1;
            new.grh.dgid = (*grh).sgid;
            let ours = Context::of(context);
            let Some((_, entry)) = find_port(&ours.fabric.memory, ours.hca, port) else {
                return minus_one(libc::EINVAL);
            };
            let mine = (*grh).dgid.raw;
            let index = (0..GIDS_MAX).find(|index| entry.gid(*index) == Some(mine));
            // A multicast packet is not to one's own GID: any does for the answer.
            let multicast = mine[0] == 0xff;
            match index {
                Some(index) => new.grh.sgid_index = index as u8,
                None if multicast => {}
                None => return minus_one(libc::EINVAL),
            }
            let class = u32::from_be((*grh).version_tclass_flow);
            new.grh.flow_label = class & 0xf_ffff;
            new.grh.hop_limit = 0xff;
            new.grh.traffic_class = (class >> 20) as u8;
        }
        *attr = new;
    }
    0
}

pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: ibv_create_ah_from_wc(3) has the program pass a domain of `ibv_alloc_pd`, whose
    // context is open, and what ibv_init_ah_from_wc(3) asks for. The attribute is on this stack,
    // and of integers, so that zeroes are a value of it.
    unsafe {
        let mut attr: ibv_ah_attr = zeroed();
        if ibv_init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(pd, &mut attr)
    }
}

pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: ibv_attach_mcast(3) has the program pass a queue pair that `ibv_create_qp` returned
    // and that was not destroyed, whose context is thus open, and a GID that it can read; both are
    // only read.
    unsafe {
        let context = Context::of((*qp).context);
        let request = Request::AttachMulticast {
            qp: Qp::of(qp).place,
            gid: (*gid).raw,
            lid,
        };
        done(context.fabric.request(context.number, request))
    }
}

pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: ibv_detach_mcast(3) has the program pass a queue pair that `ibv_create_qp` returned
    // and that was not destroyed, whose context is thus open, and a GID that it can read; both are
    // only read.
    unsafe {
        let context = Context::of((*qp).context);
        let request = Request::DetachMulticast {
            qp: Qp::of(qp).place,
            gid: (*gid).raw,
            lid,
        };
        done(context.fabric.request(context.number, request))
    }
}

pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    // SAFETY: the program passes a context that `ibv_open_device` returned and that it has not
    // closed. Its links are InfiniBand's, which have no such addresses.
    let _ = device::model(unsafe { Context::of(context) });
    minus_one(libc::EOPNOTSUPP)
}
