//! The functions that name or convert values, with the answers of Debian's library.

use std::ffi::{CStr, c_int};

use crate::*;

fn name(names: &[&'static CStr], value: impl TryInto<usize>) -> &'static CStr {
    let known = value.try_into().ok().and_then(|value| names.get(value));
    known.copied().unwrap_or(c"unknown")
}

/// What a node of this type is, in words.
pub fn ibv_node_type_str(node_type: ibv_node_type) -> &'static CStr {
    name(&NODE_TYPES, node_type)
}

/// What a port in this state is, in words.
pub fn ibv_port_state_str(port_state: ibv_port_state) -> &'static CStr {
    name(&PORT_STATES, port_state)
}

/// What an event of this type is, in words.
pub fn ibv_event_type_str(event: ibv_event_type) -> &'static CStr {
    name(&EVENT_TYPES, event)
}

/// What this status of a completion is, in words.
pub fn ibv_wc_status_str(status: ibv_wc_status) -> &'static CStr {
    name(&WC_STATUSES, status)
}

/// `rate` in multiples of 2.5 Gbit/s, or -1.
pub fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES
        .iter()
        .find(|row| row.0 == rate)
        .and_then(|row| row.1)
        .unwrap_or(-1)
}

/// The rate that is exactly `mult` times 2.5 Gbit/s, or [`IBV_RATE_MAX`].
pub fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES
        .iter()
        .find(|row| row.1 == Some(mult))
        .map_or(IBV_RATE_MAX, |row| row.0)
}

/// `rate` in Mbit/s, or -1.
pub fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES
        .iter()
        .find(|row| row.0 == rate)
        .map_or(-1, |row| row.2)
}

/// The rate that is exactly `mbps` Mbit/s, or [`IBV_RATE_MAX`].
pub fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES
        .iter()
        .find(|row| row.2 == mbps)
        .map_or(IBV_RATE_MAX, |row| row.0)
}

static NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

static PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

static EVENT_TYPES: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

static WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Rate, multiple of 2.5 Gbit/s as the library has it, Mbit/s.
static RATES: [(ibv_rate, Option<c_int>, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, Some(1), 2500),
    (IBV_RATE_5_GBPS, Some(2), 5000),
    (IBV_RATE_10_GBPS, Some(4), 10000),
    (IBV_RATE_20_GBPS, Some(8), 20000),
    (IBV_RATE_30_GBPS, Some(12), 30000),
    (IBV_RATE_40_GBPS, Some(16), 40000),
    (IBV_RATE_60_GBPS, Some(24), 60000),
    (IBV_RATE_80_GBPS, Some(32), 80000),
    (IBV_RATE_120_GBPS, Some(48), 120000),
    (IBV_RATE_14_GBPS, None, 14062),
    (IBV_RATE_56_GBPS, None, 56250),
    (IBV_RATE_112_GBPS, None, 112500),
    (IBV_RATE_168_GBPS, None, 168750),
    (IBV_RATE_25_GBPS, None, 25781),
    (IBV_RATE_100_GBPS, None, 103125),
    (IBV_RATE_200_GBPS, None, 206250),
    (IBV_RATE_300_GBPS, None, 309375),
    (IBV_RATE_28_GBPS, Some(11), 28125),
    (IBV_RATE_50_GBPS, Some(20), 53125),
    (IBV_RATE_400_GBPS, Some(160), 425000),
    (IBV_RATE_600_GBPS, Some(240), 637500),
    (IBV_RATE_800_GBPS, Some(320), 850000),
    (IBV_RATE_1200_GBPS, Some(480), 1275000),
];
