//! Address handles, multicast groups, and what ports are called.

use std::{
    ffi::c_int,
    mem::{size_of, zeroed},
    ptr,
};

use snaprig_ckpt_ib::names::{Gid, interface_of};
use snaprig_verbs_abi::*;

use crate::{
    objects::{Ah, Context, Known, KnownPort, Pd, Qp, Shadow, is_ours},
    real::{null, real},
    state::{Things, lock},
};

/// Most entries of a device's tables of GIDs that are looked at: what a kernel is asked for has less than 64 KiB (`struct ib_uverbs_attr`).
const GIDS_MAX: usize = u16::MAX as usize / size_of::<ibv_gid_entry>();

/// What a program knows of a device: as it is below, before the first restart.
///
/// # Safety
/// The context is open below.
pub unsafe fn known_of(context: &Context) -> Known {
    let Some(real) = real() else {
        return Known::default();
    };
    let (mut known, mut gids) = (Known::default(), 0);
    // SAFETY: the context is open; attributes are of numbers, and have values of zeroes; tables are as long as is said.
    unsafe {
        for port in 1..=context.attr.phys_port_cnt {
            let mut attr: _compat_ibv_port_attr = zeroed();
            (real.ibv_query_port)(context.real, port, &mut attr);
            gids += attr.gid_tbl_len.max(0) as usize;
            known.ports.push(KnownPort {
                lid: attr.lid,
                sm_lid: attr.sm_lid,
                gids: Vec::new(),
            });
        }
        let gids = gids.min(GIDS_MAX);
        let mut entries = vec![zeroed::<ibv_gid_entry>(); gids];
        let bytes = size_of::<ibv_gid_entry>();
        let count = (real._ibv_query_gid_table)(context.real, entries.as_mut_ptr(), gids, 0, bytes);
        for entry in entries.iter().take(count.max(0) as usize) {
            if let Some(port) = known
                .ports
                .get_mut((entry.port_num as usize).wrapping_sub(1))
            {
                port.gids.push((entry.gid_index, entry.gid.raw));
            }
        }
    }
    known
}

impl KnownPort {
    /// What addresses name it by.
    pub fn aliases(&self) -> impl Iterator<Item = u64> + '_ {
        let gids = self.gids.iter().map(|(_, gid)| interface_of(*gid));
        let lid = (self.lid != 0).then_some(u64::from(self.lid));
        gids.chain(lid)
    }
}

fn known_port<'a>(things: &Things, context: &'a Context, port: u8) -> Option<&'a KnownPort> {
    if things.restarts == 0 {
        return None;
    }
    // SAFETY: devices are never freed.
    let known = unsafe { (*context.device).known.as_ref() }?;
    known.ports.get(usize::from(port).checked_sub(1)?)
}

/// What the program calls a port, and its subnet manager's, if it knew before it was restarted.
pub fn known_lids(things: &Things, context: &Context, port: u8) -> Option<(u16, u16)> {
    known_port(things, context, port).map(|port| (port.lid, port.sm_lid))
}

/// What the program calls an entry of a port's table.
pub fn known_gid(things: &Things, context: &Context, port: u8, index: u32) -> Option<Gid> {
    let gids = &known_port(things, context, port)?.gids;
    gids.iter()
        .find(|(at, _)| *at == index)
        .map(|(_, gid)| *gid)
}

/// What names the port that an address leads to.
pub fn port_of(attr: &ibv_ah_attr) -> u64 {
    match attr.dlid {
        // SAFETY: both members of the union are 16 plain bytes.
        0 => interface_of(unsafe { attr.grh.dgid.raw }),
        lid => lid.into(),
    }
}

/// What a program calls the port that is below another name, in a header that came with a message.
unsafe fn virtual_grh(things: &Things, grh: *mut ibv_grh) -> Option<ibv_grh> {
    if grh.is_null() {
        return None;
    }
    // SAFETY: the program passes a header that it can read; GIDs are 16 plain bytes.
    unsafe {
        let mut header = ptr::read_unaligned(grh);
        header.sgid.raw = things.names.called_gid(header.sgid.raw);
        Some(header)
    }
}

exported! {
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
        let Some(real) = real() else {
            return null(libc::ENOSYS);
        };
        if !is_ours((*pd).context) {
            return (real.ibv_create_ah)(pd, attr);
        }
        let state = &mut *lock();
        let context = (*pd).context;
        let mut below = state.things.real_address(Context::of(context), &*attr);
        let below = (real.ibv_create_ah)(Pd::of(pd).real, &mut below);
        if below.is_null() {
            return ptr::null_mut();
        }
        let ah = ibv_ah {
            context,
            pd,
            handle: (*below).handle,
        };
        let ah = Box::into_raw(Box::new(Ah {
            ah,
            real: below,
            attr: *attr,
        }));
        state.things.ahs.insert(ah);
        (*ah).pointer()
    }

    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*ah).context) {
            return (real.ibv_destroy_ah)(ah);
        }
        let state = &mut *lock();
        let ours: *mut Ah = Ah::of(ah);
        let done = match (*ours).real.is_null() {
            true => 0,
            false => (real.ibv_destroy_ah)((*ours).real),
        };
        if done == 0 {
            state.things.ahs.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }

    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        attr: *mut ibv_ah_attr,
    ) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours(context) {
            return (real.ibv_init_ah_from_wc)(context, port, wc, grh, attr);
        }
        let state = lock();
        let ours = Context::of(context);
        let done = (real.ibv_init_ah_from_wc)(ours.real, ours.real_port(port), wc, grh, attr);
        if done == 0 {
            (*attr).port_num = port;
            if let (true, Some(header)) = ((*attr).is_global != 0, virtual_grh(&state.things, grh)) {
                (*attr).grh.dgid = header.sgid;
            }
        }
        done
    }

    fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port: u8,
    ) -> *mut ibv_ah {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| (real.ibv_create_ah_from_wc)(pd, wc, grh, port));
        }
        let mut attr: ibv_ah_attr = zeroed();
        if ibv_init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return ptr::null_mut();
        }
        ibv_create_ah(pd, &mut attr)
    }

    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*qp).context) {
            return (real.ibv_attach_mcast)(qp, gid, lid);
        }
        let _state = lock();
        let ours = Qp::of(qp);
        let done = (real.ibv_attach_mcast)(ours.real, gid, lid);
        if done == 0 {
            ours.groups.push(((*gid).raw, lid));
        }
        done
    }

    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*qp).context) {
            return (real.ibv_detach_mcast)(qp, gid, lid);
        }
        let _state = lock();
        let ours = Qp::of(qp);
        let done = (real.ibv_detach_mcast)(ours.real, gid, lid);
        let group = ((*gid).raw, lid);
        if let (0, Some(at)) = (done, ours.groups.iter().position(|of| *of == group)) {
            ours.groups.remove(at);
        }
        done
    }
}
