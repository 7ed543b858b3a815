//! Commands of a program: read from the bytes that it writes to the connection manager's device.
//!
//! What must stay true: any bytes are read without a panic, and a request that is too short for its command is refused
//! (EINVAL). Bytes behind a request that a later librdmacm may add are not looked at; the fields that an earlier one does
//! not send are zero.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{
    Accept, Bind, BindIp, Connect, CreateId, Disconnect, Ece, GetEvent, Header, InitQpAttr,
    JoinIpMcast, JoinMcast, Listen, Notify, OfId, Query, Reject, ResolveAddr, ResolveIp,
    ResolveRoute, SetOption,
};

/// A request of a program, and where in the program's memory its answer goes.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What is asked for.
    pub command: Command,
    /// The address for the answer.
    pub answer_address: u64,
    /// How much of the answer there is room for.
    pub answer_bytes_max: usize,
}

/// What a program asks for: a structure of the kernel's header for each command.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the manual pages of librdmacm explain the commands
#[allow(clippy::large_enum_variant)] // it lives as long as one call
pub enum Command {
    CreateId(CreateId),
    DestroyId(OfId),
    BindIp(BindIp),
    ResolveIp(ResolveIp),
    ResolveRoute(ResolveRoute),
    QueryRoute(OfId),
    Connect(Connect),
    Listen(Listen),
    Accept(Accept),
    Reject(Reject),
    Disconnect(Disconnect),
    InitQpAttr(InitQpAttr),
    GetEvent(GetEvent),
    SetOption(SetOption),
    Notify(Notify),
    JoinIpMcast(JoinIpMcast),
    LeaveMcast(OfId),
    MigrateId(OfId),
    Query(Query),
    Bind(Bind),
    ResolveAddr(ResolveAddr),
    JoinMcast(JoinMcast),
}

/// A structure of which earlier versions of librdmacm send a beginning.
trait Versioned: FromBytes + IntoBytes + Sized {
    /// Bytes of the shortest version.
    const BYTES_MIN: usize = size_of::<Self>();
}

macro_rules! versioned {
    ($($type:ty $(: $later:ty)?;)*) => {
        $(impl Versioned for $type {
            $(const BYTES_MIN: usize = size_of::<Self>() - size_of::<$later>();)?
        })*
    };
}

versioned! {
    CreateId; OfId; BindIp; ResolveIp; ResolveRoute; Listen; Reject; Disconnect; InitQpAttr; GetEvent; SetOption;
    Notify; JoinIpMcast; Query; Bind; ResolveAddr; JoinMcast;
    Connect: Ece;
    Accept: Ece;
}

/// Reads a structure; the fields that an earlier version lacks are zero.
fn read<T: Versioned>(request: &[u8]) -> Result<T, Errno> {
    if request.len() < T::BYTES_MIN {
        return Err(Errno::INVAL);
    }
    let mut it = T::new_zeroed();
    let into = it.as_mut_bytes();
    let bytes = request.len().min(into.len());
    into[..bytes].copy_from_slice(&request[..bytes]);
    Ok(it)
}

impl Call {
    /// Reads what a program has written: a header and a request. ENOSYS: there is no such command.
    pub fn read(bytes: &[u8]) -> Result<Self, Errno> {
        let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let request = rest
            .get(..header.request_bytes.into())
            .ok_or(Errno::INVAL)?;
        let command = Command::read(header.command, request)?;
        Ok(Self {
            answer_address: command.answer_address(),
            command,
            answer_bytes_max: header.answer_bytes.into(),
        })
    }
}

impl Command {
    fn read(number: u32, request: &[u8]) -> Result<Self, Errno> {
        Ok(match number {
            0 => Self::CreateId(read(request)?),
            1 => Self::DestroyId(read(request)?),
            2 => Self::BindIp(read(request)?),
            3 => Self::ResolveIp(read(request)?),
            4 => Self::ResolveRoute(read(request)?),
            5 => Self::QueryRoute(read(request)?),
            6 => Self::Connect(read(request)?),
            7 => Self::Listen(read(request)?),
            8 => Self::Accept(read(request)?),
            9 => Self::Reject(read(request)?),
            10 => Self::Disconnect(read(request)?),
            11 => Self::InitQpAttr(read(request)?),
            12 => Self::GetEvent(read(request)?),
            // 13, GET_OPTION, is in no kernel.
            14 => Self::SetOption(read(request)?),
            15 => Self::Notify(read(request)?),
            16 => Self::JoinIpMcast(read(request)?),
            17 => Self::LeaveMcast(read(request)?),
            18 => Self::MigrateId(read(request)?),
            19 => Self::Query(read(request)?),
            20 => Self::Bind(read(request)?),
            21 => Self::ResolveAddr(read(request)?),
            22 => Self::JoinMcast(read(request)?),
            _ => return Err(Errno::NOSYS),
        })
    }

    /// The request's `response`; 0 for a command that has no answer.
    fn answer_address(&self) -> u64 {
        match self {
            Self::CreateId(request) => request.response,
            Self::DestroyId(request)
            | Self::QueryRoute(request)
            | Self::LeaveMcast(request)
            | Self::MigrateId(request) => request.response,
            Self::InitQpAttr(request) => request.response,
            Self::GetEvent(request) => request.response,
            Self::JoinIpMcast(request) => request.response,
            Self::JoinMcast(request) => request.response,
            Self::Query(request) => request.response,
            Self::BindIp(_)
            | Self::ResolveIp(_)
            | Self::ResolveRoute(_)
            | Self::Connect(_)
            | Self::Listen(_)
            | Self::Accept(_)
            | Self::Reject(_)
            | Self::Disconnect(_)
            | Self::SetOption(_)
            | Self::Notify(_)
            | Self::Bind(_)
            | Self::ResolveAddr(_) => 0,
        }
    }

    /// The address of an option's value that is an `int`, if this command sets such an option.
    pub fn option_address(&self) -> Option<u64> {
        match self {
            Self::SetOption(option) => option.flag_address(),
            _ => None,
        }
    }
}

impl SetOption {
    /// Is it `RDMA_OPTION_ID_AFONLY`, the only option whose value is heeded?
    pub(crate) fn is_ipv6_only(&self) -> bool {
        (self.level, self.name) == (0, 2)
    }

    fn flag_address(&self) -> Option<u64> {
        let has_int = self.value != 0 && self.value_bytes == 4;
        (self.is_ipv6_only() && has_int).then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    use super::*;

    /// Bytes that each command's request has at least, by its number.
    const BYTES_MIN: [Option<usize>; 24] = [
        Some(24),
        Some(16),
        Some(40),
        Some(64),
        Some(8),
        Some(16),
        Some(280),
        Some(8),
        Some(288),
        Some(264),
        Some(4),
        Some(16),
        Some(8),
        None,
        Some(24),
        Some(8),
        Some(48),
        Some(16),
        Some(16),
        Some(16),
        Some(136),
        Some(272),
        Some(152),
        None,
    ];

    fn written(command: u32, request: &[u8]) -> Vec<u8> {
        let header = Header {
            command,
            request_bytes: request.len() as u16,
            answer_bytes: 512,
        };
        [header.as_bytes(), request].concat()
    }

    #[test]
    fn a_librdmacm_of_old_sends_no_ece() {
        let mut connect = Connect::new_zeroed();
        connect.id = 7;
        connect.ece.vendor_id = 9;
        let bytes = connect.as_bytes();
        for (length, vendor_id) in [(280, 0), (288, 9)] {
            let call = Call::read(&written(6, &bytes[..length])).expect("long enough");
            let Command::Connect(read) = call.command else {
                panic!("{call:?}");
            };
            assert_eq!((read.id, read.ece.vendor_id), (7, vendor_id));
        }
    }

    #[test]
    fn an_answer_goes_where_the_request_says() {
        let mut query = Query::new_zeroed();
        query.response = 0x1000;
        let call = Call::read(&written(19, query.as_bytes())).expect("long enough");
        assert_eq!((call.answer_address, call.answer_bytes_max), (0x1000, 512));
        let call = Call::read(&written(10, &[0; 4])).expect("long enough");
        assert_eq!(call.answer_address, 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            if let Ok(call) = Call::read(&bytes) {
                prop_assert!(call.answer_bytes_max <= usize::from(u16::MAX));
            }
        }

        #[test]
        fn a_request_is_refused_exactly_if_it_is_short(
            command in 0u32..24,
            request in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let expected = match BYTES_MIN[command as usize] {
                None => Err(Errno::NOSYS),
                Some(least) if request.len() < least => Err(Errno::INVAL),
                Some(_) => Ok(()),
            };
            let bytes = written(command, &request);
            prop_assert_eq!(Call::read(&bytes).map(|_| ()), expected);
            // A header that promises more than was written.
            prop_assert!(request.is_empty() || Call::read(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn structures_are_read_as_they_were_written(
            request in prop::collection::vec(any::<u8>(), size_of::<Accept>()),
            more in prop::collection::vec(any::<u8>(), 0..16),
        ) {
            let bytes = written(8, &[&request[..], &more].concat());
            match Call::read(&bytes).map(|call| call.command) {
                Ok(Command::Accept(accept)) => prop_assert_eq!(accept.as_bytes(), &request[..]),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
