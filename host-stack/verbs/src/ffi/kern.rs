//! Attributes and path records between the kernel's layout and the library's.

use snaprig_verbs_abi::{ibv_ah_attr, ibv_gid, ibv_qp_attr};
use snaprig_verbs_cm::abi::{AhAttr, PathRecord, QpAttr};

/// `struct ibv_sa_path_rec` (infiniband/sa.h).
#[repr(C)]
pub struct ibv_sa_path_rec {
    dgid: ibv_gid,
    sgid: ibv_gid,
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

fn copy_ah(to: &mut ibv_ah_attr, from: &AhAttr) {
    to.grh.dgid.raw = from.dgid;
    to.grh.flow_label = from.flow_label;
    to.grh.sgid_index = from.sgid_index;
    to.grh.hop_limit = from.hop_limit;
    to.grh.traffic_class = from.traffic_class;
    to.dlid = from.dlid;
    to.sl = from.sl;
    to.src_path_bits = from.src_path_bits;
    to.static_rate = from.static_rate;
    to.is_global = from.is_global;
    to.port_num = from.port_num;
}

pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const std::ffi::c_void,
) {
    // SAFETY: librdmacm passes a place for an `ibv_ah_attr`, and a `struct ib_uverbs_ah_attr` that
    // it read from the kernel's interface, as which `AhAttr` is laid out; they are two objects of
    // its own, used by this call alone.
    unsafe { copy_ah(&mut *to, &*from.cast()) };
}

/// Leaves `qp_state` alone: the caller has said which one it wants.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const std::ffi::c_void,
) {
    // SAFETY: librdmacm passes a place for an `ibv_qp_attr`, and a `struct ib_uverbs_qp_attr`, as
    // which `QpAttr` is laid out. Programs of old have a shorter place, without `rate_limit`:
    // members are written one by one, and that one is not.
    unsafe {
        let from = &*from.cast::<QpAttr>();
        (*to).cur_qp_state = from.cur_qp_state;
        (*to).path_mtu = from.path_mtu;
        (*to).path_mig_state = from.path_mig_state;
        (*to).qkey = from.qkey;
        (*to).rq_psn = from.rq_psn;
        (*to).sq_psn = from.sq_psn;
        (*to).dest_qp_num = from.dest_qp_num;
        (*to).qp_access_flags = from.qp_access_flags;
        (*to).cap.max_send_wr = from.max_send_wr;
        (*to).cap.max_recv_wr = from.max_recv_wr;
        (*to).cap.max_send_sge = from.max_send_sge;
        (*to).cap.max_recv_sge = from.max_recv_sge;
        (*to).cap.max_inline_data = from.max_inline_data;
        copy_ah(&mut (*to).ah_attr, &from.ah_attr);
        copy_ah(&mut (*to).alt_ah_attr, &from.alt_ah_attr);
        (*to).pkey_index = from.pkey_index;
        (*to).alt_pkey_index = from.alt_pkey_index;
        (*to).en_sqd_async_notify = from.en_sqd_async_notify;
        (*to).sq_draining = from.sq_draining;
        (*to).max_rd_atomic = from.max_rd_atomic;
        (*to).max_dest_rd_atomic = from.max_dest_rd_atomic;
        (*to).min_rnr_timer = from.min_rnr_timer;
        (*to).port_num = from.port_num;
        (*to).timeout = from.timeout;
        (*to).retry_cnt = from.retry_cnt;
        (*to).rnr_retry = from.rnr_retry;
        (*to).alt_port_num = from.alt_port_num;
        (*to).alt_timeout = from.alt_timeout;
    }
}

pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const std::ffi::c_void,
) {
    // SAFETY: librdmacm passes a place for an `ibv_sa_path_rec`, which is written whole, and a
    // `struct ib_user_path_rec`, as which `PathRecord` is laid out and which is only read.
    unsafe {
        let from = &*from.cast::<PathRecord>();
        *to = ibv_sa_path_rec {
            dgid: ibv_gid { raw: from.dgid },
            sgid: ibv_gid { raw: from.sgid },
            dlid: from.dlid.get().to_be(),
            slid: from.slid.get().to_be(),
            raw_traffic: from.raw_traffic as i32,
            flow_label: from.flow_label.get().to_be(),
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible as i32,
            numb_path: from.numb_path,
            pkey: from.pkey.get().to_be(),
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    }
}

pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut std::ffi::c_void,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: librdmacm passes a place for a `struct ib_user_path_rec`, as which `PathRecord` is laid
    // out and which is written whole, and an `ibv_sa_path_rec`, which is only read.
    unsafe {
        let from = &*from;
        *to.cast::<PathRecord>() = PathRecord {
            dgid: from.dgid.raw,
            sgid: from.sgid.raw,
            dlid: u16::from_be(from.dlid).into(),
            slid: u16::from_be(from.slid).into(),
            raw_traffic: from.raw_traffic as u32,
            flow_label: u32::from_be(from.flow_label).into(),
            reversible: from.reversible as u32,
            mtu: from.mtu.into(),
            pkey: u16::from_be(from.pkey).into(),
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    }
}
