//! What a program on a card and the card's SCIF driver say to each other: ioctl(2) on [`DEVICE`], with the numbers
//! and structures of Linux's former uapi `scif_ioctl.h`.
//!
//! Both sides have the same structures: programs as they are in C, the driver, which is given bytes of a
//! program, by `decode`.

/// Path of the device.
pub const DEVICE: &str = "/dev/mic/scif";

/// Waits: SCIF_SEND_BLOCK, SCIF_RECV_BLOCK, SCIF_ACCEPT_SYNC.
pub const BLOCK: i32 = 1;
/// SCIF_MAP_FIXED.
pub const MAP_FIXED: i32 = 0x10;
/// SCIF_PROT_READ | SCIF_PROT_WRITE.
pub const PROT: i32 = 3;
/// `SCIF_RMA_*`: USECPU, USECACHE, SYNC, ORDERED.
pub const RMA_FLAGS: i32 = 0xf;
/// SCIF_RMA_SYNC.
pub const RMA_SYNC: i32 = 4;
/// SCIF_RMA_ORDERED.
pub const RMA_ORDERED: i32 = 8;
/// SCIF_FENCE_INIT_SELF.
pub const FENCE_INIT_SELF: i32 = 1;
/// SCIF_FENCE_INIT_PEER.
pub const FENCE_INIT_PEER: i32 = 2;
/// SCIF_SIGNAL_LOCAL.
pub const SIGNAL_LOCAL: i32 = 0x10;
/// SCIF_SIGNAL_REMOTE.
pub const SIGNAL_REMOTE: i32 = 0x20;

/// `_IOWR('s', number, T)`.
const fn iowr<T>(number: u32) -> u32 {
    3 << 30 | (size_of::<T>() as u32) << 16 | (b's' as u32) << 8 | number
}

/// `_IO('s', number)`.
const fn io(number: u32) -> u32 {
    (b's' as u32) << 8 | number
}

/// scif_bind(3); the argument is the port, of 64 bits.
pub const BIND: u32 = iowr::<u64>(1);
/// scif_listen(3); the backlog is the argument itself.
pub const LISTEN: u32 = 0x4004_7302;
/// scif_accept(3), its second half: the file that it is made on becomes [`Accept::endpoint`].
pub const ACCEPT_CLAIM: u32 = iowr::<u64>(5);
/// Not of `scif_ioctl.h`: the program takes lanes, on connections that are made or accepted through this file.
pub const WILLING: u32 = io(32);
/// Not of `scif_ioctl.h`: who waits for lanes is to look again: one of these.
pub const RING: u32 = io(33);
/// The peer, for bytes.
pub const RING_READABLE: i32 = 0;
/// The peer, for room.
pub const RING_WRITABLE: i32 = 1;
/// Who waits for this endpoint.
pub const RING_OWN: i32 = 2;
/// Not of `scif_ioctl.h`: waits until its lanes have bytes for this memory (POLLIN as the flags), or room for what is in it
/// (POLLOUT), or end. A [`Message`].
pub const WAIT: u32 = iowr::<Message>(34);
/// The offset at which mmap(2) maps the lanes of a connection, of which nothing else can be there; ENXIO: it has none.
pub const LANES: u64 = 1 << 63;
/// scif_fence_wait(3); the mark is the argument itself.
pub const FENCE_WAIT: u32 = iowr::<u32>(16);

/// Structures, all of whose fields are integers, and the numbers of the calls that pass them by address.
macro_rules! arguments {
    ($(
        $(#[$of_struct:meta])* $name:ident {
            $($(#[$of_field:meta])* $field:ident: $kind:ty,)*
        } [
            $($(#[$of_number:meta])* $number:ident = $value:literal;)*
        ]
    )*) => {$(
        $(#[$of_struct])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$of_field])* pub $field: $kind,)*
        }

        impl $name {
            /// Its size.
            pub const BYTES: usize = size_of::<Self>();

            /// As a program has it in its memory.
            #[must_use]
            pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
                Self {$(
                    $field: {
                        let mut field = [0; size_of::<$kind>()];
                        let at = core::mem::offset_of!(Self, $field);
                        field.copy_from_slice(&bytes[at..at + size_of::<$kind>()]);
                        <$kind>::from_le_bytes(field)
                    },
                )*}
            }
        }

        $($(#[$of_number])* pub const $number: u32 = iowr::<$name>($value);)*
    )*};
}

arguments! {
    /// `struct scifioctl_connect`.
    Connect {
        /// Out: the own node.
        own_node: u16,
        /// Out: the own port.
        own_port: u16,
        /// Where to.
        peer_node: u16,
        /// Where to.
        peer_port: u16,
    } [
        /// scif_connect(3).
        CONNECT = 3;
    ]

    /// `struct scifioctl_accept`.
    Accept {
        /// [`BLOCK`], or 0.
        flags: i32,
        /// Out: who has connected.
        peer_node: u16,
        /// Out: who has connected.
        peer_port: u16,
        /// Out: what to claim ([`ACCEPT_CLAIM`]).
        endpoint: u64,
    } [
        /// scif_accept(3), its first half.
        ACCEPT = 4;
    ]

    /// `struct scifioctl_msg`.
    Message {
        /// Of the bytes.
        address: u64,
        /// How many.
        len: i32,
        /// [`BLOCK`], or 0.
        flags: i32,
        /// Out: how many have been moved.
        out_len: i32,
    } [
        /// scif_send(3).
        SEND = 6;
        /// scif_recv(3).
        RECV = 7;
    ]

    /// `struct scifioctl_reg`.
    Register {
        /// Of the pages.
        address: u64,
        /// Bytes.
        len: u64,
        /// Where, with [`MAP_FIXED`].
        offset: i64,
        /// Of [`PROT`].
        prot: i32,
        /// [`MAP_FIXED`], or 0.
        flags: i32,
        /// Out: where.
        out_offset: i64,
    } [
        /// scif_register(3).
        REGISTER = 8;
    ]

    /// `struct scifioctl_unreg`.
    Unregister {
        /// Start of the windows.
        offset: i64,
        /// Bytes.
        len: u64,
    } [
        /// scif_unregister(3).
        UNREGISTER = 9;
    ]

    /// `struct scifioctl_copy`.
    Copy {
        /// In the own windows.
        local: i64,
        /// Bytes.
        len: u64,
        /// In the peer's windows.
        remote: i64,
        /// Of other memory, in place of `local`.
        address: u64,
        /// Of [`RMA_FLAGS`].
        flags: i32,
    } [
        /// scif_readfrom(3).
        READ_FROM = 10;
        /// scif_writeto(3).
        WRITE_TO = 11;
        /// scif_vreadfrom(3).
        VREAD_FROM = 12;
        /// scif_vwriteto(3).
        VWRITE_TO = 13;
    ]

    /// `struct scifioctl_node_ids`.
    NodeIds {
        /// Where the list goes: 16 bits each.
        nodes: u64,
        /// Where the own node goes: 16 bits.
        own: u64,
        /// Room in the list; out: how many nodes there are.
        len: i32,
    } [
        /// scif_get_nodeIDs(3).
        NODE_IDS = 14;
    ]

    /// `struct scifioctl_fence_mark`.
    FenceMark {
        /// [`FENCE_INIT_SELF`] or [`FENCE_INIT_PEER`].
        flags: i32,
        /// Where the mark goes: 32 bits.
        mark: u64,
    } [
        /// scif_fence_mark(3).
        FENCE_MARK = 15;
    ]

    /// `struct scifioctl_fence_signal`.
    FenceSignal {
        /// In the own windows.
        local: i64,
        /// What is written there.
        local_value: u64,
        /// In the peer's windows.
        remote: i64,
        /// What is written there.
        remote_value: u64,
        /// As of a mark, and [`SIGNAL_LOCAL`], [`SIGNAL_REMOTE`] or both.
        flags: i32,
    } [
        /// scif_fence_signal(3).
        FENCE_SIGNAL = 17;
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header_and_fields_are_where_c_has_them() {
        assert_eq!(
            [BIND, CONNECT, ACCEPT],
            [0xc008_7301, 0xc008_7303, 0xc010_7304]
        );
        assert_eq!(
            [ACCEPT_CLAIM, SEND, RECV],
            [0xc008_7305, 0xc018_7306, 0xc018_7307]
        );
        assert_eq!([REGISTER, UNREGISTER], [0xc028_7308, 0xc010_7309]);
        assert_eq!([READ_FROM, VWRITE_TO], [0xc028_730a, 0xc028_730d]);
        assert_eq!([NODE_IDS, FENCE_MARK], [0xc018_730e, 0xc010_730f]);
        assert_eq!([FENCE_WAIT, FENCE_SIGNAL], [0xc004_7310, 0xc028_7311]);
        let mut bytes = [0; FenceMark::BYTES];
        (bytes[0], bytes[8]) = (1, 7);
        assert_eq!(FenceMark::decode(&bytes), FenceMark { flags: 1, mark: 7 });
        let mut bytes = [0xff; Message::BYTES];
        bytes[..8].copy_from_slice(&5u64.to_le_bytes());
        let message = Message {
            address: 5,
            len: -1,
            flags: -1,
            out_len: -1,
        };
        assert_eq!(Message::decode(&bytes), message);
    }
}
