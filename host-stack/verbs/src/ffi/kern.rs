//! Between the kernel's structures and the library's (marshall.h), for librdmacm.

use snaprig_verbs_abi::*;

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelAddress {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reserved: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
    pub reserved_end: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelQpAttributes {
    pub qp_attr_mask: u32,
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub ah_attr: KernelAddress,
    pub alt_ah_attr: KernelAddress,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelPath {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: u32,
    pub flow_label: u32,
    pub reversible: u32,
    pub mtu: u32,
    pub pkey: u16,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub numb_path: u8,
    pub sl: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// `struct ibv_sa_path_rec` (infiniband/sa.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: i32,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: i32,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const KernelAddress,
) {
    // SAFETY: two structures of these kinds.
    unsafe {
        let from = &*from;
        (*to).grh.dgid.raw = from.dgid;
        (*to).grh.flow_label = from.flow_label;
        (*to).grh.sgid_index = from.sgid_index;
        (*to).grh.hop_limit = from.hop_limit;
        (*to).grh.traffic_class = from.traffic_class;
        (*to).dlid = from.dlid;
        (*to).sl = from.sl;
        (*to).src_path_bits = from.src_path_bits;
        (*to).static_rate = from.static_rate;
        (*to).is_global = from.is_global;
        (*to).port_num = from.port_num;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const KernelQpAttributes,
) {
    // SAFETY: two structures of these kinds.
    unsafe {
        let from = &*from;
        let to = &mut *to;
        to.qp_state = from.qp_state;
        to.cur_qp_state = from.cur_qp_state;
        to.path_mtu = from.path_mtu;
        to.path_mig_state = from.path_mig_state;
        to.qkey = from.qkey;
        to.rq_psn = from.rq_psn;
        to.sq_psn = from.sq_psn;
        to.dest_qp_num = from.dest_qp_num;
        to.qp_access_flags = from.qp_access_flags;
        to.cap = ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        };
        ibv_copy_ah_attr_from_kern(&mut to.ah_attr, &from.ah_attr);
        ibv_copy_ah_attr_from_kern(&mut to.alt_ah_attr, &from.alt_ah_attr);
        to.pkey_index = from.pkey_index;
        to.alt_pkey_index = from.alt_pkey_index;
        to.en_sqd_async_notify = from.en_sqd_async_notify;
        to.sq_draining = from.sq_draining;
        to.max_rd_atomic = from.max_rd_atomic;
        to.max_dest_rd_atomic = from.max_dest_rd_atomic;
        to.min_rnr_timer = from.min_rnr_timer;
        to.port_num = from.port_num;
        to.timeout = from.timeout;
        to.retry_cnt = from.retry_cnt;
        to.rnr_retry = from.rnr_retry;
        to.alt_port_num = from.alt_port_num;
        to.alt_timeout = from.alt_timeout;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut Path, from: *const KernelPath) {
    // SAFETY: two structures of these kinds.
    unsafe {
        let from = &*from;
        *to = Path {
            dgid: from.dgid,
            sgid: from.sgid,
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as i32,
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible as i32,
            numb_path: from.numb_path,
            pkey: from.pkey,
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const Path) {
    // SAFETY: two structures of these kinds.
    unsafe {
        let from = &*from;
        *to = KernelPath {
            dgid: from.dgid,
            sgid: from.sgid,
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as u32,
            flow_label: from.flow_label,
            reversible: from.reversible as u32,
            mtu: from.mtu.into(),
            pkey: from.pkey,
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
