//! What processes tell each other in a phase: values of any length on the board, whose own have a limit.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};
use snaprig_ckpt_plugin::{
    Event,
    message::{Entry, VALUE_MAX},
};

/// Publishes a value of a kind; `id` is whose it is, and who publishes it. Others have it in this phase.
pub fn publish<T: Serialize>(
    event: &Event<'_>,
    kind: &str,
    id: u64,
    value: &T,
) -> Result<(), String> {
    event.publish_all(&entries(kind, id, value)?)
}

/// The same, for the phases behind this one.
pub fn publish_last<T: Serialize>(
    event: &mut Event<'_>,
    kind: &str,
    id: u64,
    value: &T,
) -> Result<(), String> {
    let mut entries = entries(kind, id, value)?.into_iter();
    entries.try_for_each(|(key, chunk)| event.publish_last(&key, &chunk))
}

fn entries<T: Serialize>(kind: &str, id: u64, value: &T) -> Result<Vec<Entry>, String> {
    let bytes = postcard::to_stdvec(value).map_err(|error| error.to_string())?;
    let mut chunks: Vec<&[u8]> = bytes.chunks(VALUE_MAX).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let entry = |(number, chunk): (usize, &&[u8])| {
        let key = format!("{kind}/{id:016x}/{number:08x}");
        (key.into_bytes(), chunk.to_vec())
    };
    Ok(chunks.iter().enumerate().map(entry).collect())
}

/// All values of a kind that were published in an earlier phase.
pub fn collect<T: DeserializeOwned>(event: &Event<'_>, kind: &str) -> Result<Vec<T>, String> {
    let prefix = format!("{kind}/");
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (key, chunk) in event.collect(prefix.as_bytes())? {
        // KIND/ID/NUMBER: numbers are in order, as keys are.
        let whose = key.rsplitn(2, |byte| *byte == b'/').nth(1);
        all.entry(whose.unwrap_or_default().to_vec())
            .or_default()
            .extend(chunk);
    }
    let read = |bytes: Vec<u8>| {
        postcard::from_bytes(&bytes)
            .map_err(|error| format!("what another process says cannot be read: {error}"))
    };
    all.into_values().map(read).collect()
}
