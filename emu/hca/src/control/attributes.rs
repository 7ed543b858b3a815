//! Which attributes each change of state needs and takes: the tables of ibv_modify_qp(3)
//! (InfiniBand Architecture 1, 11.2.5.2).

use crate::types::{State, Transport};

/// Bits of an attribute mask (`enum ibv_qp_attr_mask`).
#[allow(missing_docs)] // ibv_modify_qp(3) documents them
pub mod mask {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
}

use mask::*;

/// Attributes that every change within or back to a sending state takes.
fn live(transport: Transport) -> u32 {
    match transport {
        Transport::Ud => QKEY,
        Transport::Uc | Transport::XrcSend => ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE,
        Transport::Rc | Transport::XrcReceive => {
            ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER
        }
    }
}

/// The attributes that a change needs, and those it takes beside; none if there is no such change.
fn table(transport: Transport, from: State, to: State) -> Option<(u32, u32)> {
    use State::*;
    let datagram = transport == Transport::Ud;
    let start = PKEY_INDEX | PORT | if datagram { QKEY } else { ACCESS_FLAGS };
    Some(match (from, to) {
        (Reset, Error) => return None,
        (_, Reset | Error) => (0, 0),
        (Reset, Init) => (start, 0),
        (Init, Init) => (0, start),
        (Init, Rtr) => {
            let connected = AV | PATH_MTU | DEST_QPN | RQ_PSN;
            let responder = MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
            match transport {
                Transport::Ud => (0, PKEY_INDEX | QKEY),
                Transport::Uc | Transport::XrcSend => {
                    (connected, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX)
                }
                _ => (connected | responder, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
            }
        }
        (Rtr, Rts) => {
            let requester = TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
            let needs = match transport {
                Transport::Ud | Transport::Uc => SQ_PSN,
                Transport::Rc | Transport::XrcSend => SQ_PSN | requester,
                Transport::XrcReceive => SQ_PSN | TIMEOUT,
            };
            (needs, CUR_STATE | live(transport))
        }
        (Rts, Rts) | (Sqd, Rts) => (0, CUR_STATE | live(transport)),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let reliable =
                PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC;
            let takes = match transport {
                Transport::Ud => PKEY_INDEX | QKEY,
                Transport::Uc => PKEY_INDEX | live(transport),
                _ => AV | PKEY_INDEX | live(transport) | reliable,
            };
            (0, takes)
        }
        (Sqe, Rts) if datagram => (0, CUR_STATE | QKEY),
        (Sqe, Rts) if transport == Transport::Uc => (0, CUR_STATE | ACCESS_FLAGS),
        _ => return None,
    })
}

/// Attributes that count: an end of XRC is asked for none of the other end's, but may be given them, as Linux has it
/// (`modify_qp_mask`, drivers/infiniband/core/uverbs_cmd.c).
pub fn counted(transport: Transport, given: u32) -> u32 {
    match transport {
        Transport::XrcSend => given & !(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
        Transport::XrcReceive => given & !(MAX_QP_RD_ATOMIC | RETRY_CNT | RNR_RETRY),
        _ => given,
    }
}

/// Whether a queue pair may change so, with these attributes.
pub fn allowed(transport: Transport, from: State, to: State, given: u32) -> bool {
    let Some((needs, takes)) = table(transport, from, to) else {
        return false;
    };
    given & needs == needs && given & !(needs | takes | STATE) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reliable_connection_is_made_in_three_steps() {
        let init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
        let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        let rts = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
        let ok = |from, to, given| allowed(Transport::Rc, from, to, given);
        assert!(ok(State::Reset, State::Init, init));
        assert!(ok(State::Init, State::Rtr, rtr));
        assert!(ok(State::Rtr, State::Rts, rts));
        assert!(
            !ok(State::Reset, State::Init, init & !PORT),
            "one is missing"
        );
        assert!(!ok(State::Reset, State::Init, init | QKEY), "one too many");
        assert!(!ok(State::Reset, State::Rtr, rtr), "a step is missing");
        assert!(!ok(State::Error, State::Rts, STATE));
    }

    #[test]
    fn an_end_of_xrc_may_be_given_what_is_the_others() {
        let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
        let ok =
            |transport, from, to, given| allowed(transport, from, to, counted(transport, given));
        let given = rtr | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        assert!(ok(Transport::XrcSend, State::Init, State::Rtr, given));
        let given = STATE | SQ_PSN | TIMEOUT | MAX_QP_RD_ATOMIC | RETRY_CNT | RNR_RETRY;
        assert!(ok(Transport::XrcReceive, State::Rtr, State::Rts, given));
        assert!(!ok(Transport::XrcSend, State::Init, State::Rtr, rtr | QKEY));
    }
}
