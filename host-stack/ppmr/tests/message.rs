//! Control messages: what goes in comes out, however the stream is cut, and what is hostile is refused.

use proptest::prelude::*;
use snaprig_ppmr::{
    Failure, Mode, Nonsense, Refusal,
    message::{
        MESSAGE_BYTES_MAX, Messages, Open, RANKS_MAX, Remote, ToSource, ToTarget, VERSION, decode,
        encode, encode_framed,
    },
};

fn remotes() -> impl Strategy<Value = Remote> {
    (any::<u64>(), any::<u32>()).prop_map(|(address, rkey)| Remote { address, rkey })
}

fn failures() -> impl Strategy<Value = Failure> {
    prop_oneof![
        Just(Failure::Reader),
        Just(Failure::Checksum),
        Just(Failure::Nonsense(Nonsense::Total)),
        any::<u32>().prop_map(|streams| Refusal::Memory { streams }.into()),
    ]
}

fn to_target() -> impl Strategy<Value = ToTarget> {
    let ranks = prop::collection::vec(any::<u32>(), 0..=RANKS_MAX);
    let mode = prop_oneof![Just(Mode::Pull), Just(Mode::Push)];
    let open = (any::<u32>(), mode, any::<u32>(), any::<u32>(), ranks);
    let full = (any::<u32>(), any::<u64>(), any::<u32>(), remotes());
    prop_oneof![
        open.prop_map(|(version, mode, chunk_bytes, chunks, ranks)| {
            ToTarget::Open(Open {
                version,
                mode,
                chunk_bytes,
                chunks,
                ranks,
            })
        }),
        full.prop_map(|(rank, offset, bytes, remote)| ToTarget::Full {
            rank,
            offset,
            bytes,
            remote,
        }),
        any::<(u32, u64)>().prop_map(|(rank, offset)| ToTarget::Written { rank, offset }),
        any::<(u32, u64, u64)>().prop_map(|(rank, bytes, checksum)| ToTarget::End {
            rank,
            bytes,
            checksum,
        }),
        (any::<u32>(), failures()).prop_map(|(rank, failure)| ToTarget::Fail { rank, failure }),
        Just(ToTarget::Alive),
    ]
}

fn to_source() -> impl Strategy<Value = ToSource> {
    prop_oneof![
        Just(ToSource::Opened),
        any::<u32>().prop_map(|version| ToSource::Refused(Refusal::Version { version })),
        any::<(u32, u64)>().prop_map(|(rank, offset)| ToSource::Done { rank, offset }),
        (any::<u32>(), any::<u64>(), remotes()).prop_map(|(rank, offset, remote)| {
            ToSource::Place {
                rank,
                offset,
                remote,
            }
        }),
        any::<u32>().prop_map(|rank| ToSource::Whole { rank }),
        (any::<u32>(), failures()).prop_map(|(rank, failure)| ToSource::Fail { rank, failure }),
        Just(ToSource::Alive),
    ]
}

proptest! {
    #[test]
    fn messages_come_as_they_were_sent_however_the_stream_is_cut(
        messages in prop::collection::vec(to_target(), 0..6), part in 1..5000usize
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(encode_framed).collect();
        let (mut cut, mut came) = (Messages::default(), Vec::new());
        for part in stream.chunks(part) {
            cut.push(part);
            while let Some(message) = cut.next_message::<ToTarget>().expect("they are messages") {
                came.push(message);
            }
        }
        prop_assert_eq!(came, messages);
    }

    #[test]
    fn each_is_short_and_decoded_to_the_same(one in to_target(), other in to_source()) {
        let (one_bytes, other_bytes) = (encode(&one), encode(&other));
        prop_assert!(one_bytes.len().max(other_bytes.len()) <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(decode(&one_bytes), Ok(one));
        prop_assert_eq!(decode(&other_bytes), Ok(other));
    }

    #[test]
    fn whatever_comes_is_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (one, other) = (decode::<ToTarget>(&bytes), decode::<ToSource>(&bytes));
        prop_assert!(one.is_err() || decode::<ToTarget>(&encode(&one.unwrap())).is_ok());
        prop_assert!(other.is_err() || decode::<ToSource>(&encode(&other.unwrap())).is_ok());
        let mut messages = Messages::default();
        messages.push(&bytes);
        while let Ok(Some(_)) = messages.next_message::<ToSource>() {}
    }
}

#[test]
fn what_is_longer_than_it_may_be_is_refused_before_it_comes() {
    let mut messages = Messages::default();
    messages.push(&u32::MAX.to_le_bytes());
    assert_eq!(messages.next_message::<ToTarget>(), Err(Nonsense::Message));
    assert_eq!(
        decode::<ToSource>(&vec![0; MESSAGE_BYTES_MAX + 1]),
        Err(Nonsense::Message)
    );
}

#[test]
fn the_longest_open_is_no_longer_than_a_message_may_be() {
    let open = ToTarget::Open(Open {
        version: VERSION,
        mode: Mode::Push,
        chunk_bytes: u32::MAX,
        chunks: u32::MAX,
        ranks: vec![u32::MAX; RANKS_MAX],
    });
    assert!(encode(&open).len() <= MESSAGE_BYTES_MAX);
}
