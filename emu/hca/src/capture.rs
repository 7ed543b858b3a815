//! Files of packets, for Wireshark and its like: pcapng with LINKTYPE_ERF, which is what capture
//! cards for InfiniBand write: a header of 16 bytes, then the packet from its LRH to its VCRC.
//! (There is LINKTYPE_INFINIBAND, without that header, but Wireshark 4.0 does not read it.)

use std::{
    io::{self, Write},
    time::Duration,
};

use pcap_file::{
    DataLink, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};

use crate::{Packet, wire};

/// `if_tsresol`: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Type of an ERF record: InfiniBand.
const ERF_INFINIBAND: u8 = 21;
/// Flags of an ERF record: its length is that of the packet.
const ERF_VARYING_LENGTH: u8 = 1 << 2;
const ERF_BYTES: usize = 16;

/// A file being written. All packets are of one interface, the fabric; their LIDs tell the ports.
pub struct Capture<W: Write> {
    file: PcapNgWriter<W>,
    record: Vec<u8>,
}

impl<W: Write> Capture<W> {
    /// Begins one.
    pub fn new(file: W) -> io::Result<Self> {
        let mut file = PcapNgWriter::new(file).map_err(io_error)?;
        let options = vec![
            InterfaceDescriptionOption::IfName("fabric".into()),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ERF,
            snaplen: 0,
            options,
        };
        file.write_pcapng_block(interface).map_err(io_error)?;
        let record = Vec::new();
        Ok(Self { file, record })
    }

    /// Adds a packet, which [`wire::encode`] must take, with its time in nanoseconds (since 1970,
    /// for who reads it).
    pub fn record(&mut self, time_ns: u64, packet: &Packet<'_>) -> io::Result<()> {
        self.record.clear();
        self.record.resize(ERF_BYTES, 0);
        wire::encode(packet, &mut self.record)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let length = self.record.len();
        let head = erf_header(time_ns, (length - ERF_BYTES) as u16);
        self.record[..ERF_BYTES].copy_from_slice(&head);
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(time_ns),
            original_len: length as u32,
            data: self.record.as_slice().into(),
            options: Vec::new(),
        };
        self.file.write_pcapng_block(block).map_err(io_error)?;
        Ok(())
    }

    /// Flushes what it is written to.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.get_mut().flush()
    }
}

/// The header of an ERF record of a packet with so many bytes.
fn erf_header(time_ns: u64, length: u16) -> [u8; ERF_BYTES] {
    let mut head = [0; ERF_BYTES];
    // In units of 2^-32 s.
    let time = (u128::from(time_ns) << 32) / 1_000_000_000;
    head[..8].copy_from_slice(&(time as u64).to_le_bytes());
    head[8] = ERF_INFINIBAND;
    head[9] = ERF_VARYING_LENGTH;
    head[10..12].copy_from_slice(&(ERF_BYTES as u16 + length).to_be_bytes());
    head[14..].copy_from_slice(&length.to_be_bytes());
    head
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
