//! Choices out of a fuzzer's bytes. When they run out, every choice is the first.

pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (now, later) = self.0.split_at(N.min(self.0.len()));
        bytes[..now.len()].copy_from_slice(now);
        self.0 = later;
        bytes
    }

    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `n`, which is at most 65536.
    pub fn below(&mut self, n: u64) -> u64 {
        match n {
            0..=256 => u64::from(self.u8()) % n.max(1),
            _ => u64::from(self.u16()) % n,
        }
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    pub fn some(&mut self, len: usize) -> Vec<u8> {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        let mut bytes = now.to_vec();
        bytes.resize(len, 0);
        bytes
    }
}
