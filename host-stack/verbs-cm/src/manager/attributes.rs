//! What the queue pair of an id needs to get from state to state.

use rustix::io::Errno;
use snaprig_verbs_abi as abi;

use crate::{
    abi::QpAttr,
    id::{Id, PORT, State},
};

/// What a connection manager makes of the time on a path and of an HCA's acknowledgement delay.
const ACK_TIMEOUT: u8 = 16;

/// What a queue pair of this id needs to get into a state, as the kernel's ib_cm says it.
pub(super) fn qp_attr(id: &Id, state: u32, mtu: u8) -> Result<QpAttr, Errno> {
    id.port.ok_or(Errno::INVAL)?;
    let mut attr = QpAttr {
        qp_state: state,
        ..QpAttr::default()
    };
    let mut mask = abi::IBV_QP_STATE;
    match state {
        abi::IBV_QPS_INIT => {
            mask |= abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT;
            attr.port_num = PORT;
            if id.is_ud() {
                mask |= abi::IBV_QP_QKEY;
                attr.qkey = id.qkey;
            } else {
                mask |= abi::IBV_QP_ACCESS_FLAGS;
                let access = match id.state {
                    State::Idle
                    | State::Bound
                    | State::AddrResolved
                    | State::RouteResolved
                    | State::Listening => 0,
                    _ if id.responder_resources > 0 => {
                        abi::IBV_ACCESS_REMOTE_WRITE
                            | abi::IBV_ACCESS_REMOTE_READ
                            | abi::IBV_ACCESS_REMOTE_ATOMIC
                    }
                    _ => abi::IBV_ACCESS_REMOTE_WRITE,
                };
                attr.qp_access_flags = access;
            }
        }
        abi::IBV_QPS_RTR if !id.is_ud() => {
            mask |= abi::IBV_QP_AV
                | abi::IBV_QP_PATH_MTU
                | abi::IBV_QP_DEST_QPN
                | abi::IBV_QP_RQ_PSN
                | abi::IBV_QP_MAX_DEST_RD_ATOMIC
                | abi::IBV_QP_MIN_RNR_TIMER;
            attr.ah_attr = id.path_to_peer();
            attr.path_mtu = mtu.into();
            attr.dest_qp_num = id.peer_params.qpn;
            attr.rq_psn = id.psn;
            attr.max_dest_rd_atomic = id.responder_resources;
        }
        abi::IBV_QPS_RTS if !id.is_ud() => {
            mask |= abi::IBV_QP_SQ_PSN
                | abi::IBV_QP_TIMEOUT
                | abi::IBV_QP_RETRY_CNT
                | abi::IBV_QP_RNR_RETRY
                | abi::IBV_QP_MAX_QP_RD_ATOMIC;
            attr.sq_psn = id.peer_params.psn;
            attr.timeout = ACK_TIMEOUT;
            attr.retry_cnt = id.retry_count;
            attr.rnr_retry = id.rnr_retry;
            attr.max_rd_atomic = id.initiator_depth;
        }
        _ if id.is_ud() => {}
        _ => return Err(Errno::INVAL),
    }
    attr.qp_attr_mask = mask as u32;
    Ok(attr)
}
