//! Puts the checksums of an image right, which no mutation would. `snaprig_image` draws what is where.

use snaprig_image::{END, HEAD_BYTES};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Where the checksum is in a header or record.
const SUM_AT: usize = 24;

/// Puts right all checksums of an image whose parts fill blocks of so many bytes, and its id. `bodies` puts right, in a
/// payload, the checksums of its body. None: the image ends before its end.
pub fn seal(image: &mut [u8], block: usize, bodies: impl Fn(&mut [u8], &[u8])) -> Option<()> {
    let framed = |payload: usize| (HEAD_BYTES + payload).next_multiple_of(block);
    let header = framed(word(image, 12)?);
    let mut sums = sum(image.get_mut(..header)?).to_le_bytes().to_vec();
    let mut at = header;
    loop {
        let (payload, body) = (word(image, at + 4)?, long(image, at + 16)?);
        let data = at.checked_add(framed(payload))?;
        let end = data.checked_add(usize::try_from(body).ok()?)?;
        let is_end = word(image, at)? == END as usize;
        let (record, body) = image.get_mut(at..end)?.split_at_mut(data - at);
        if is_end {
            let id = xxh3_64(&sums).max(1);
            record
                .get_mut(HEAD_BYTES..HEAD_BYTES + 8)?
                .copy_from_slice(&id.to_le_bytes());
            sum(record);
            return Some(());
        }
        bodies(&mut record[HEAD_BYTES..HEAD_BYTES + payload], body);
        sums.extend_from_slice(&sum(record).to_le_bytes());
        at = end;
    }
}

/// Puts the checksum into a header or record.
fn sum(record: &mut [u8]) -> u64 {
    let (head, payload) = record.split_at_mut(HEAD_BYTES);
    let sum = xxh3_64_with_seed(payload, xxh3_64(&head[..SUM_AT]));
    head[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    sum
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word) as usize)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u64::from_le_bytes(*word))
}
