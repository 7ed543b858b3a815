//! Interfaces of a card, as netdevice(7), rtnetlink(7), /proc/net and /sys/class/net tell of them: `lo`, and the one to its
//! network, if it has one.

use std::net::Ipv4Addr;

use snaprig_card_driver::network::Interface;

/// What an interface is.
pub struct Link {
    /// Its number.
    pub index: i32,
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Bits of the address that are the network's.
    pub prefix: u8,
    /// IFF_*.
    pub flags: i32,
    /// ARPHRD_*.
    pub kind: u16,
    /// Most bytes of a packet.
    pub mtu: u32,
    /// Its hardware address.
    pub hardware: [u8; 6],
}

impl Link {
    /// Which bits of the address are the network's.
    pub fn mask(&self) -> Ipv4Addr {
        let host_bits = 32_u32.saturating_sub(self.prefix.into());
        Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    /// The address of the network itself.
    pub fn network(&self) -> Ipv4Addr {
        self.address & self.mask()
    }

    /// That of all on it.
    pub fn broadcast(&self) -> Ipv4Addr {
        self.address | !self.mask()
    }

    /// Its hardware address, as people write it.
    pub fn hardware_text(&self) -> String {
        self.hardware.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// Those of a card with this interface, or with none beside `lo`, by their numbers.
pub fn links(interface: Option<&Interface>) -> Vec<Link> {
    let is_up = libc::IFF_UP | libc::IFF_RUNNING;
    let mut links = vec![Link {
        index: 1,
        name: "lo".into(),
        address: Ipv4Addr::LOCALHOST,
        prefix: 8,
        flags: is_up | libc::IFF_LOOPBACK,
        kind: libc::ARPHRD_LOOPBACK,
        mtu: 65536,
        hardware: [0; 6],
    }];
    links.extend(interface.map(|interface| {
        let [a, b, c, d] = interface.address.octets();
        Link {
            index: 2,
            name: interface.name.clone(),
            address: interface.address,
            prefix: interface.prefix,
            flags: is_up | libc::IFF_BROADCAST | libc::IFF_MULTICAST,
            kind: libc::ARPHRD_ETHER,
            mtu: 1500,
            // Of local administration: nobody has been given it.
            hardware: [0x02, 0x4d, a, b, c, d],
        }
    }));
    links
}
