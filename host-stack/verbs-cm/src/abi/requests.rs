//! Requests, as a program writes them behind the header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{ConnParam, Ece, PRIVATE_DATA_BYTES, Sockaddr, SockaddrStorage};

/// Gives a structure of C the traits that reading it from bytes needs. Fields that nothing here reads are documented by
/// the kernel's header alone.
macro_rules! request {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs)] // the kernel's header names and explains the fields
            pub struct $name { $(pub $field: $type,)* }
        )*
    };
}

request! {
    /// `struct rdma_ucm_create_id`.
    struct CreateId {
        uid: u64,
        response: u64,
        port_space: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }

    /// `struct rdma_ucm_destroy_id`, and `struct rdma_ucm_migrate_id`, whose last field is a descriptor that is not looked
    /// at: the id goes to the channel that the command is written to.
    struct OfId {
        response: u64,
        id: u32,
        reserved: u32,
    }

    /// `struct rdma_ucm_bind_ip`.
    struct BindIp {
        response: u64,
        address: Sockaddr,
        id: u32,
    }

    /// `struct rdma_ucm_bind`.
    struct Bind {
        id: u32,
        address_bytes: u16,
        reserved: u16,
        address: SockaddrStorage,
    }

    /// `struct rdma_ucm_resolve_ip`.
    struct ResolveIp {
        source: Sockaddr,
        target: Sockaddr,
        id: u32,
        timeout_ms: u32,
    }

    /// `struct rdma_ucm_resolve_addr`.
    struct ResolveAddr {
        id: u32,
        timeout_ms: u32,
        source_bytes: u16,
        target_bytes: u16,
        reserved: u32,
        source: SockaddrStorage,
        target: SockaddrStorage,
    }

    /// `struct rdma_ucm_resolve_route`.
    struct ResolveRoute {
        id: u32,
        timeout_ms: u32,
    }

    /// `struct rdma_ucm_query`.
    struct Query {
        response: u64,
        id: u32,
        option: u32,
    }

    /// `struct rdma_ucm_connect`. Before there was enhanced connection establishment it ended before `ece`.
    struct Connect {
        param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }

    /// `struct rdma_ucm_listen`.
    struct Listen {
        id: u32,
        backlog: u32,
    }

    /// `struct rdma_ucm_accept`. Before there was enhanced connection establishment it ended before `ece`.
    struct Accept {
        uid: u64,
        param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }

    /// `struct rdma_ucm_reject`.
    struct Reject {
        id: u32,
        private_data_bytes: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; PRIVATE_DATA_BYTES],
    }

    /// `struct rdma_ucm_disconnect`.
    struct Disconnect {
        id: u32,
    }

    /// `struct rdma_ucm_init_qp_attr`.
    struct InitQpAttr {
        response: u64,
        id: u32,
        qp_state: u32,
    }

    /// `struct rdma_ucm_notify`.
    struct Notify {
        id: u32,
        event: u32,
    }

    /// `struct rdma_ucm_join_ip_mcast`.
    struct JoinIpMcast {
        response: u64,
        uid: u64,
        address: Sockaddr,
        id: u32,
    }

    /// `struct rdma_ucm_join_mcast`.
    struct JoinMcast {
        response: u64,
        uid: u64,
        id: u32,
        address_bytes: u16,
        join_flags: u16,
        address: SockaddrStorage,
    }

    /// `struct rdma_ucm_get_event`.
    struct GetEvent {
        response: u64,
    }

    /// `struct rdma_ucm_set_option`.
    struct SetOption {
        value: u64,
        id: u32,
        level: u32,
        name: u32,
        value_bytes: u32,
    }
}
