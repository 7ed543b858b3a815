//! Reads an image from bytes as they come.
//!
//! The decoder says how many bytes it needs next ([`Decoder::wants`]) and takes exactly those, wherever they are; it
//! copies nothing but the heads of records.
//!
//! ```text
//! Begun --> Header --> Head --> Record --(body)--> Head --> Record --> ... --> Head --> End
//! ```
//! A [`Part::Head`] comes before the payload of its record so that the kind of image can refuse an impossible length
//! before anybody makes room for it.

use crate::{
    END, End, Format, HEAD_BYTES, Head, ImageId, PartError,
    format::{checksum, long, stored_sum, word},
    id::Digest,
};

/// What a decoder has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The front of the header. It is of this format and version.
    Begun,
    /// All of the header.
    Header {
        /// The image that this one builds on; none: this one has everything.
        parent: Option<ImageId>,
        /// What its kind of image has put there.
        payload: &'a [u8],
    },
    /// The head of the next record, or of the end. Its lengths are the image's word, to be checked now.
    Head(Head),
    /// A record. Its body, if it has one, comes next.
    Record(Head, &'a [u8]),
    /// Bytes of the body, which are not checked yet.
    Body(&'a [u8]),
    /// The image is complete, and is what its end says but for the totals.
    End(End),
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Front,
    Header,
    Head,
    Payload(Head),
    Body { left: u64 },
    Complete,
}

/// Checks the parts of an image, in order.
#[derive(Clone)]
pub struct Decoder {
    format: &'static Format,
    stage: Stage,
    /// Bytes of the image before what is wanted next.
    offset: u64,
    /// Where the part at hand starts: what errors are about.
    part_at: u64,
    index: u64,
    digest: Digest,
    /// The header's or record's first bytes, while the rest of it is awaited.
    head: [u8; HEAD_BYTES],
}

impl Decoder {
    /// At the beginning of an image.
    pub fn new(format: &'static Format) -> Self {
        Self {
            format,
            stage: Stage::Front,
            offset: 0,
            part_at: 0,
            index: 0,
            digest: Digest::default(),
            head: [0; HEAD_BYTES],
        }
    }

    /// How many bytes the next part has. A part that needs no more bytes than the one before it has none of its own. A
    /// body may be taken in pieces: it wants all that is left of it.
    pub fn wants(&self) -> u64 {
        match self.stage {
            Stage::Front | Stage::Head => HEAD_BYTES as u64,
            Stage::Header => self.rest_of(word(&self.head, 12) as usize),
            Stage::Payload(head) => self.rest_of(head.payload),
            Stage::Body { left } => left,
            Stage::Complete => 0,
        }
    }

    /// How many bytes of the image are certain to follow: at least those that are wanted. Who reads from a stream that
    /// goes on after the image may read so many at once.
    pub fn certain(&self) -> u64 {
        let end = self.format.end_bytes() as u64;
        match self.stage {
            Stage::Front => end,
            Stage::Header | Stage::Body { .. } => self.wants().saturating_add(end),
            Stage::Payload(head) if head.kind == END => self.wants(),
            Stage::Payload(head) => self.wants().saturating_add(head.body).saturating_add(end),
            Stage::Head => end,
            Stage::Complete => 0,
        }
    }

    /// Takes the bytes of the next part: as many as [`Decoder::wants`] says, or, of a body, some of them.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<Part<'a>, PartError> {
        let is_body = matches!(self.stage, Stage::Body { .. });
        assert!(
            bytes.len() as u64 == self.wants() || is_body && bytes.len() as u64 <= self.wants()
        );
        match self.stage {
            Stage::Front => self.front(bytes),
            Stage::Header => self.header(bytes),
            Stage::Head => self.head(bytes),
            Stage::Payload(head) => self.payload(head, bytes),
            Stage::Body { .. } => {
                self.pass_body(bytes.len() as u64);
                Ok(Part::Body(bytes))
            }
            Stage::Complete => Err(PartError::Damaged("something behind the end")),
        }
    }

    /// So many bytes of the body at hand are left out here: somebody else reads them.
    pub fn pass_body(&mut self, bytes: u64) {
        let Stage::Body { left } = self.stage else {
            assert_eq!(bytes, 0, "there is no body to pass");
            return;
        };
        assert!(bytes <= left, "a body is as long as its record says");
        self.offset += bytes;
        self.stage = match left - bytes {
            0 => Stage::Head,
            left => Stage::Body { left },
        };
    }

    /// Whether the end has been taken.
    pub fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Complete)
    }

    /// Bytes of the image that have been taken.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where in the image the header or record starts that was taken last: what an error of [`Decoder::take`] is about.
    pub fn part_at(&self) -> u64 {
        self.part_at
    }

    /// The id of the image as far as it has been taken: when all of it has, its id.
    pub fn id(&self) -> ImageId {
        self.digest.id()
    }

    fn rest_of(&self, payload: usize) -> u64 {
        (self.format.framed_bytes(payload) - HEAD_BYTES) as u64
    }

    /// The next stage, which begins behind these bytes.
    fn goes_on(&mut self, taken: usize, stage: Stage) {
        self.offset += taken as u64;
        self.stage = stage;
    }

    fn front<'a>(&mut self, bytes: &[u8]) -> Result<Part<'a>, PartError> {
        if bytes[..8] != self.format.magic {
            return Err(PartError::Magic);
        }
        let (found, read) = (word(bytes, 8), self.format.version);
        if found != read {
            return Err(PartError::Version { found, read });
        }
        if word(bytes, 12) as usize > self.format.header_max {
            return Err(PartError::Damaged("a header of an impossible length"));
        }
        self.head.copy_from_slice(bytes);
        self.goes_on(bytes.len(), Stage::Header);
        Ok(Part::Begun)
    }

    fn header<'a>(&mut self, bytes: &'a [u8]) -> Result<Part<'a>, PartError> {
        let payload = self.checked(
            word(&self.head, 12) as usize,
            bytes,
            "the header's checksum differs",
        )?;
        self.digest.add(stored_sum(&self.head));
        let parent = ImageId::new(long(&self.head, 16));
        self.goes_on(bytes.len(), Stage::Head);
        Ok(Part::Header { parent, payload })
    }

    fn head<'a>(&mut self, bytes: &[u8]) -> Result<Part<'a>, PartError> {
        self.part_at = self.offset;
        self.head.copy_from_slice(bytes);
        let head = Head::decode(&self.head);
        if head.index != self.index && head.kind != END {
            return Err(PartError::Damaged("a record that does not belong here"));
        }
        let is_end = head.payload == self.format.end_payload() && head.body == 0;
        let is_whole = head.body.is_multiple_of(self.format.block as u64);
        if head.kind == END && !is_end || !is_whole {
            return Err(PartError::Damaged("a record of an impossible length"));
        }
        self.goes_on(bytes.len(), Stage::Payload(head));
        Ok(Part::Head(head))
    }

    fn payload<'a>(&mut self, head: Head, bytes: &'a [u8]) -> Result<Part<'a>, PartError> {
        let payload = self.checked(head.payload, bytes, "the checksum of a record differs")?;
        if head.kind == END {
            let end = End::of(payload, self.index)?;
            if (head.index, end.id) != (self.index, self.digest.id()) {
                return Err(PartError::Damaged("the image is not what its end says"));
            }
            self.goes_on(bytes.len(), Stage::Complete);
            return Ok(Part::End(end));
        }
        self.digest.add(head.sum);
        self.index += 1;
        let next = match head.body {
            0 => Stage::Head,
            left => Stage::Body { left },
        };
        self.goes_on(bytes.len(), next);
        Ok(Part::Record(head, payload))
    }

    /// The payload at the front of `bytes`: its checksum is the one in the head, and the rest is zero.
    fn checked<'a>(
        &self,
        payload: usize,
        bytes: &'a [u8],
        differs: &'static str,
    ) -> Result<&'a [u8], PartError> {
        if checksum(&self.head, bytes) != stored_sum(&self.head) {
            return Err(PartError::Damaged(differs));
        }
        let (payload, padding) = bytes.split_at(payload);
        match padding.iter().all(|byte| *byte == 0) {
            true => Ok(payload),
            false => Err(PartError::Damaged("padding that is not zero")),
        }
    }
}

/// What the last [`Format::end_bytes`] of an image say; how far that is true is known when all of it has been decoded.
/// None: they are not the end of one, so the image is cut off.
pub fn end_of(format: &'static Format, bytes: &[u8]) -> Option<Result<End, PartError>> {
    let front: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
    let head = Head::decode(front);
    if head.kind != END || bytes.len() != format.end_bytes() {
        return None;
    }
    let decoder = Decoder {
        head: *front,
        index: head.index,
        ..Decoder::new(format)
    };
    if head.payload != format.end_payload() || head.body != 0 {
        return Some(Err(PartError::Damaged("an end of an impossible length")));
    }
    let payload = decoder.checked(
        head.payload,
        &bytes[HEAD_BYTES..],
        "the checksum of the end differs",
    );
    Some(payload.and_then(|payload| End::of(payload, head.index)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Encoder, hash};

    const KIND: u32 = 1;

    fn format(block: usize) -> &'static Format {
        const fn of(block: usize) -> Format {
            Format {
                magic: *b"AN IMAGE",
                version: 3,
                block,
                header_max: 100,
                totals: 1,
            }
        }
        static PACKED: Format = of(1);
        static BLOCKS: Format = of(64);
        if block == 1 { &PACKED } else { &BLOCKS }
    }

    /// An image of records, each with its payload and a body.
    fn image(
        format: &'static Format,
        parent: Option<ImageId>,
        records: &[(Vec<u8>, Vec<u8>)],
    ) -> Vec<u8> {
        let (mut encoder, mut image) = Encoder::start(format, parent, b"front").unwrap();
        for (payload, body) in records {
            let mut framed = vec![0xff; format.framed_bytes(payload.len())];
            framed[HEAD_BYTES..HEAD_BYTES + payload.len()].copy_from_slice(payload);
            let mut body = body.clone();
            body.resize(body.len().next_multiple_of(format.block), 0);
            encoder.record(KIND, payload.len(), body.len() as u64, &mut framed);
            image.extend(framed);
            image.extend(body);
        }
        let mut end = vec![0xff; format.end_bytes()];
        encoder.end(None, &[records.len() as u64], &mut end);
        image.extend(end);
        image
    }

    /// The parts of an image, in words; bodies by their hash.
    fn read(format: &'static Format, mut image: &[u8]) -> Result<Vec<String>, String> {
        let (mut decoder, mut parts) = (Decoder::new(format), Vec::new());
        while !decoder.is_complete() {
            assert!(decoder.certain() >= decoder.wants());
            let wants = decoder.wants() as usize;
            let Some((now, later)) = image.split_at_checked(wants) else {
                return Err(format!(
                    "cut off at {}",
                    decoder.offset() + image.len() as u64
                ));
            };
            match decoder.take(now).map_err(|wrong| wrong.to_string())? {
                // What a kind of image has to do.
                Part::Head(head) if head.payload > 1000 || head.body > 1000 => {
                    return Err("too long".into());
                }
                Part::Begun | Part::Head(_) => {}
                Part::Body(bytes) => parts.push(format!("body {:x}", hash(bytes))),
                part => parts.push(format!("{part:?}")),
            }
            image = later;
        }
        Ok(parts)
    }

    fn records() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..200);
        prop::collection::vec((bytes(), bytes()), 0..4)
    }

    #[test]
    fn another_version_is_refused_and_both_are_named() {
        let mut image = image(format(1), None, &[]);
        image[8] = 2;
        let refused = PartError::Version { found: 2, read: 3 };
        assert_eq!(read(format(1), &image), Err(refused.to_string()));
        assert!(refused.to_string().contains('2') && refused.to_string().contains('3'));
        image[0] = 0;
        assert_eq!(read(format(1), &image), Err(PartError::Magic.to_string()));
    }

    #[test]
    fn records_that_are_moved_repeated_or_left_out_are_noticed() {
        let record = |byte| (vec![byte; 16], Vec::new());
        let whole = image(format(1), None, &[record(1), record(2)]);
        let (start, len) = (HEAD_BYTES + 5, HEAD_BYTES + 16);
        let (front, rest) = whole.split_at(start);
        let (one, rest) = rest.split_at(len);
        let (two, end) = rest.split_at(len);
        assert!(read(format(1), &[front, one, two, end].concat()).is_ok());
        for parts in [
            &[front, two, one, end][..],
            &[front, one, one, end],
            &[front, two, end],
        ] {
            assert!(read(format(1), &parts.concat()).is_err());
        }
        // Another image's record, good in itself and in its place.
        let other = image(format(1), None, &[record(3), record(2)]);
        let foreign = [front, &other[start..start + len], two, end].concat();
        let said = read(format(1), &foreign).unwrap_err();
        assert_eq!(said, "the image is not what its end says");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(records in records(), block in prop_oneof![Just(1), Just(64)], parent: u64) {
            let (format, parent) = (format(block), ImageId::new(parent));
            let image = image(format, parent, &records);
            prop_assert!(image.len().is_multiple_of(block));
            let parts = read(format, &image).unwrap();
            let bodies = records.iter().filter(|(_, body)| !body.is_empty()).count();
            prop_assert_eq!(parts.len(), 2 + records.len() + bodies);
            let header = Part::Header { parent, payload: b"front" };
            prop_assert_eq!(&parts[0], &format!("{header:?}"));
            let end = end_of(format, &image[image.len() - format.end_bytes()..]);
            let end = end.unwrap().unwrap();
            prop_assert_eq!(end.records, records.len() as u64);
            prop_assert_eq!(parts.last().unwrap(), &format!("{:?}", Part::End(end)));
        }

        #[test]
        fn every_cut_and_every_flipped_bit_outside_of_a_body_is_noticed(records in records(), block in prop_oneof![Just(1), Just(64)], at: prop::sample::Index, bit in 0..8u8) {
            let format = format(block);
            let records: Vec<_> = records.into_iter().map(|(payload, _)| (payload, Vec::new())).collect();
            let mut image = image(format, None, &records);
            let at = at.index(image.len());
            prop_assert_eq!(read(format, &image[..at]), Err(format!("cut off at {at}")));
            image[at] ^= 1 << bit;
            prop_assert!(read(format, &image).is_err());
        }

        #[test]
        fn any_bytes_are_taken_without_panic(bytes: Vec<u8>) {
            let mut image = b"AN IMAGE\x03\0\0\0".to_vec();
            image.extend(bytes);
            prop_assert!(read(format(1), &image).is_err());
        }
    }
}
