//! What the device below says of HCAs and addresses, with the names that the program has for them.

use snaprig_verbs_cm::{
    Call, Command,
    abi::{QueryAddrAnswer, QueryPathAnswer, QueryRouteAnswer, SockaddrIb, SockaddrStorage},
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{real::real, state::Things};

/// `enum rdma_ucm_query_option` (rdma/rdma_user_cm.h).
const ADDRESS: u32 = 0;
const PATH: u32 = 1;
const GID: u32 = 2;

impl Things {
    /// Puts the program's names into the answer that a command has come to.
    pub fn call_answer(&self, call: &Call) {
        match call.command {
            Command::QueryRoute(_) => change(call, |answer: &mut QueryRouteAnswer| {
                let path = &mut answer.path;
                self.call_path(
                    (&mut path.dgid, &mut path.sgid),
                    (&mut path.dlid, &mut path.slid),
                );
                self.call_device(&mut answer.node_guid, &mut answer.device_index);
            }),
            Command::Query(request) if request.option == PATH => {
                change(call, |answer: &mut QueryPathAnswer| {
                    let path = &mut answer.path;
                    self.call_path(
                        (&mut path.dgid, &mut path.sgid),
                        (&mut path.dlid, &mut path.slid),
                    );
                });
            }
            Command::Query(request) if matches!(request.option, ADDRESS | GID) => {
                change(call, |answer: &mut QueryAddrAnswer| {
                    self.call_device(&mut answer.node_guid, &mut answer.device_index);
                    if request.option == GID {
                        self.call_storage(&mut answer.source);
                        self.call_storage(&mut answer.target);
                    }
                });
            }
            _ => {}
        }
    }

    /// An HCA that is there now: librdmacm looks for it among those that it has listed, by number or by GUID.
    fn call_device<G>(&self, guid: &mut G, index: &mut u32)
    where
        G: Copy + From<u64> + Into<u64>,
    {
        let Some(real) = real() else { return };
        let is_it = |device: &&*mut crate::objects::Device| {
            // SAFETY: devices are never freed; one below that is not null is in the list of the libibverbs.
            unsafe {
                let below = (***device).real;
                !below.is_null()
                    && u64::from_be((real.ibv_get_device_guid)(below)) == (*guid).into()
            }
        };
        if let Some(device) = self.devices.iter().find(is_it) {
            // SAFETY: devices are never freed.
            let device = unsafe { &**device };
            *guid = u64::from_be(device.guid).into();
            *index = device.index as u32;
        }
    }

    fn call_path<L>(&self, gids: (&mut [u8; 16], &mut [u8; 16]), lids: (&mut L, &mut L))
    where
        L: Copy + From<u16> + Into<u16>,
    {
        for gid in [gids.0, gids.1] {
            *gid = self.names.called_gid(*gid);
        }
        for lid in [lids.0, lids.1] {
            *lid = self.names.called_lid((*lid).into()).into();
        }
    }

    fn call_storage(&self, storage: &mut SockaddrStorage) {
        if let Ok((address, _)) = SockaddrIb::mut_from_prefix(storage.as_mut_bytes()) {
            address.gid = self.names.called_gid(address.gid);
        }
    }
}

/// Changes as much of an answer as the program has room for.
fn change<T: FromBytes + IntoBytes + Immutable>(call: &Call, work: impl FnOnce(&mut T)) {
    let bytes = call.answer_bytes_max.min(size_of::<T>());
    let at = std::ptr::with_exposed_provenance_mut::<u8>(call.answer_address as usize);
    let mut answer = T::new_zeroed();
    // SAFETY: the device below has written the answer there, or as much of it as the program says that there is room for.
    unsafe {
        at.copy_to_nonoverlapping(answer.as_mut_bytes().as_mut_ptr(), bytes);
        work(&mut answer);
        at.copy_from_nonoverlapping(answer.as_bytes().as_ptr(), bytes);
    }
}
