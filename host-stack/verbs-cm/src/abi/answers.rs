//! Answers, as they are written into the program's memory.

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    byteorder::big_endian::{U16, U32, U64},
};

use super::{AhAttr, PRIVATE_DATA_BYTES, Sockaddr, SockaddrStorage};

/// Gives a structure of C the traits that writing it as bytes needs, and zero as what it is by default.
macro_rules! answer {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs)] // the kernel's headers name and explain the fields
            pub struct $name { $(pub $field: $type,)* }

            impl Default for $name {
                fn default() -> Self {
                    Self::new_zeroed()
                }
            }
        )*
    };
}

answer! {
    /// `struct rdma_ucm_create_id_resp`.
    struct IdAnswer {
        id: u32,
    }

    /// `struct rdma_ucm_destroy_id_resp` and `struct rdma_ucm_migrate_resp`.
    struct EventsReportedAnswer {
        events_reported: u32,
    }

    /// `struct rdma_ucm_conn_param`; `valid` says whether the program gave any.
    struct ConnParam {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; PRIVATE_DATA_BYTES],
        private_data_bytes: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }

    /// `struct rdma_ucm_ud_param`.
    struct UdParam {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: [u8; PRIVATE_DATA_BYTES],
        private_data_bytes: u8,
        reserved: [u8; 7],
    }

    /// `struct rdma_ucm_ece`.
    struct Ece {
        vendor_id: u32,
        attr_mod: u32,
    }

    /// `struct rdma_ucm_event_resp`; `param` is a union in C.
    struct EventAnswer {
        uid: u64,
        id: u32,
        event: u32,
        status: i32,
        param: EventParam,
        reserved: u32,
        ece: Ece,
    }

    /// `struct rdma_ucm_query_route_resp`, whose `ib_route` has a second path that is never used.
    struct QueryRouteAnswer {
        node_guid: U64,
        path: PathRecord,
        alternate_path: PathRecord,
        source: Sockaddr,
        target: Sockaddr,
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        device_index: u32,
        reserved1: u32,
    }

    /// `struct rdma_ucm_query_addr_resp`.
    struct QueryAddrAnswer {
        node_guid: U64,
        port_num: u8,
        reserved: u8,
        pkey: U16,
        source_bytes: u16,
        target_bytes: u16,
        source: SockaddrStorage,
        target: SockaddrStorage,
        device_index: u32,
        reserved1: u32,
    }

    /// `struct rdma_ucm_query_path_resp` with one `struct ib_path_rec_data`.
    struct QueryPathAnswer {
        num_paths: u32,
        reserved: u32,
        flags: u32,
        path_reserved: u32,
        path: SaPathRecord,
    }

    /// `struct ib_user_path_rec`.
    struct PathRecord {
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: U16,
        slid: U16,
        raw_traffic: u32,
        flow_label: U32,
        reversible: u32,
        mtu: u32,
        pkey: U16,
        hop_limit: u8,
        traffic_class: u8,
        numb_path: u8,
        sl: u8,
        mtu_selector: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    /// A path record as subnet administration sends it (IBTA 15.2.5.16, `struct ibv_path_record`).
    struct SaPathRecord {
        service_id: U64,
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: U16,
        slid: U16,
        flow_label_hop_limit: U32,
        traffic_class: u8,
        reversible_numb_path: u8,
        pkey: U16,
        qos_class_sl: U16,
        mtu: u8,
        rate: u8,
        packet_life_time: u8,
        preference: u8,
        reserved: [u8; 6],
    }
}

/// What an event says beside its kind: a [`ConnParam`] and nothing behind it, or a [`UdParam`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventParam([u32; size_of::<UdParam>() / 4]);

impl From<ConnParam> for EventParam {
    fn from(conn: ConnParam) -> Self {
        let mut it = Self::new_zeroed();
        it.as_mut_bytes()[..size_of::<ConnParam>()].copy_from_slice(conn.as_bytes());
        it
    }
}

impl From<UdParam> for EventParam {
    fn from(ud: UdParam) -> Self {
        zerocopy::transmute!(ud)
    }
}
