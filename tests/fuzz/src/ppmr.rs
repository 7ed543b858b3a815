//! The target `ppmr`: what a peer of a buffer manager says, and the manager that hears it.

use serde::{Serialize, de::DeserializeOwned};
use snaprig_ppmr::{
    Buffers, Mode, Source, Target, Times,
    message::{Messages, Remote, ToSource, ToTarget, decode, encode},
    source, target,
};

/// A stream of messages to a source, in the mode that the first byte says, and to a target.
pub fn ppmr(bytes: &[u8]) {
    let Some((mode, stream)) = bytes.split_first() else {
        return;
    };
    to_target(stream);
    to_source([Mode::Pull, Mode::Push][usize::from(mode % 2)], stream);
}

fn to_target(stream: &[u8]) {
    let config = target::Config::default();
    let mut target = Target::new(config, 0).expect("the defaults are possible");
    let connection = 1;
    target.handle(target::Input::Connected { connection }, 0);
    each::<ToTarget>(stream, |message| {
        let input = target::Input::Message {
            connection,
            message,
        };
        for output in target.handle(input, 0) {
            if let target::Output::Pull { slot, .. } = output {
                let is_done = true;
                target.handle(target::Input::Pulled { slot, is_done }, 0);
            }
        }
        assert!(target.used_chunks() <= 64);
    });
    target.handle(target::Input::Closed { connection }, 0);
    assert_eq!(target.used_chunks(), 0);
}

fn to_source(mode: Mode, stream: &[u8]) {
    let config = source::Config {
        buffers: Buffers::default(),
        pool: Remote::default(),
        mode,
        times: Times::default(),
        ranks: vec![0, 1],
    };
    let mut source = Source::new(config, 0).expect("the defaults are possible");
    let bytes = Buffers::default().chunk_bytes;
    each::<ToSource>(stream, |message| {
        for rank in [0, 1] {
            source.handle(source::Input::Want { rank }, 0);
            source.handle(source::Input::Wrote { rank, bytes }, 0);
            source.handle(source::Input::Flush { rank }, 0);
        }
        for output in source.handle(source::Input::Message(message), 0) {
            if let source::Output::Put { slot, .. } = output {
                let is_done = true;
                source.handle(source::Input::Put { slot, is_done }, 0);
            }
        }
        assert!(source.used_chunks() <= 64);
    });
    source.handle(source::Input::Closed, 0);
    assert_eq!(source.deadline(), None);
}

/// Every message of a stream, which is the same again.
fn each<T: Serialize + DeserializeOwned + PartialEq>(stream: &[u8], mut hear: impl FnMut(T)) {
    let mut messages = Messages::default();
    messages.push(stream);
    while let Ok(Some(message)) = messages.next_message::<T>() {
        assert!(decode(&encode(&message)).as_ref() == Ok(&message));
        hear(message);
    }
}
