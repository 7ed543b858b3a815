//! A simulated disk: files that are there at once for whoever reads, and for good only when they
//! are synced; that tear, fill up and fail (write(2), fsync(2), rename(2)).

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

/// No space left on device.
pub const ENOSPC: i32 = 28;
/// No such file or directory.
pub const ENOENT: i32 = 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct File {
    bytes: Vec<u8>,
    /// How much of it survives a crash of the machine.
    synced: usize,
}

/// The disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: BTreeMap<String, File>,
    /// Names that a crash of the machine would bring back: what they were before each rename or
    /// removal that is not synced.
    before: Vec<(String, Option<File>)>,
    full: bool,
}

impl Disk {
    /// Nothing can be written any more.
    pub fn fill(&mut self) {
        self.full = true;
    }

    /// Room is made again.
    pub fn make_room(&mut self) {
        self.full = false;
    }

    /// A new file, or an old one without its bytes.
    pub fn create(&mut self, name: &str) -> Result<(), i32> {
        if self.full {
            return Err(ENOSPC);
        }
        self.remember(name);
        self.files.insert(name.into(), File::default());
        Ok(())
    }

    /// Writes to the end of a file; at most `most` bytes of it if the write is torn.
    pub fn append(&mut self, name: &str, bytes: &[u8], most: usize) -> Result<(), i32> {
        if self.full {
            return Err(ENOSPC);
        }
        let file = self.files.get_mut(name).ok_or(ENOENT)?;
        file.bytes
            .extend_from_slice(&bytes[..bytes.len().min(most)]);
        Ok(())
    }

    /// fsync(2) of a file.
    pub fn sync(&mut self, name: &str) -> Result<(), i32> {
        let file = self.files.get_mut(name).ok_or(ENOENT)?;
        file.synced = file.bytes.len();
        Ok(())
    }

    /// fsync(2) of the directory: names are for good now.
    pub fn sync_names(&mut self) {
        self.before.clear();
    }

    /// rename(2): all files whose names begin with `from` move to `to`, at once.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), i32> {
        let names: Vec<_> = self.names(from);
        if names.is_empty() {
            return Err(ENOENT);
        }
        self.remove(to);
        for name in names {
            let target = format!("{to}{}", &name[from.len()..]);
            self.remember(&name);
            self.remember(&target);
            if let Some(file) = self.files.remove(&name) {
                self.files.insert(target, file);
            }
        }
        Ok(())
    }

    /// rename(2) of one file.
    pub fn rename_one(&mut self, from: &str, to: &str) -> Result<(), i32> {
        self.remember(from);
        self.remember(to);
        let file = self.files.remove(from).ok_or(ENOENT)?;
        self.files.insert(to.into(), file);
        Ok(())
    }

    /// Removes all files whose names begin with this.
    pub fn remove(&mut self, prefix: &str) {
        for name in self.names(prefix) {
            self.remember(&name);
            self.files.remove(&name);
        }
    }

    /// The names that begin with this.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let names = self.files.keys().filter(|name| name.starts_with(prefix));
        names.cloned().collect()
    }

    /// Takes the names of all files into a hash.
    pub fn hash_names(&self, hash: &mut impl Hasher) {
        self.files.keys().for_each(|name| name.hash(hash));
        self.full.hash(hash);
    }

    /// The bytes of a file.
    pub fn read(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(|file| &file.bytes[..])
    }

    /// Flips a bit of a file, modulo its length.
    pub fn corrupt(&mut self, name: &str, bit: u64) {
        if let Some(file) = self.files.get_mut(name)
            && !file.bytes.is_empty()
        {
            let bit = bit % (file.bytes.len() as u64 * 8);
            file.bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    /// The machine crashes: names and bytes that were not synced are gone.
    pub fn crash(&mut self) {
        for (name, file) in std::mem::take(&mut self.before).into_iter().rev() {
            match file {
                Some(file) => self.files.insert(name, file),
                None => self.files.remove(&name),
            };
        }
        for file in self.files.values_mut() {
            file.bytes.truncate(file.synced);
        }
    }

    fn remember(&mut self, name: &str) {
        self.before
            .push((name.into(), self.files.get(name).cloned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_synced_does_not_survive() {
        let mut disk = Disk::default();
        disk.create("old").unwrap();
        disk.append("old", b"first", usize::MAX).unwrap();
        disk.sync("old").unwrap();
        disk.sync_names();
        disk.create("new").unwrap();
        disk.append("new", b"second", usize::MAX).unwrap();
        let mut renamed = disk.clone();
        disk.sync("new").unwrap();
        disk.rename("new", "old").unwrap();
        disk.sync_names();
        disk.crash();
        assert_eq!(disk.read("old"), Some(&b"second"[..]));
        // Renamed before it was synced, and the name is for good: the bytes are gone.
        renamed.rename("new", "old").unwrap();
        renamed.sync_names();
        renamed.crash();
        assert_eq!(renamed.read("old"), Some(&b""[..]));
    }

    #[test]
    fn a_full_disk_keeps_what_it_has_and_a_torn_write_a_part() {
        let mut disk = Disk::default();
        disk.create("a").unwrap();
        disk.append("a", b"12345", 2).unwrap();
        disk.fill();
        assert_eq!(disk.append("a", b"678", usize::MAX), Err(ENOSPC));
        assert_eq!(disk.create("b"), Err(ENOSPC));
        assert_eq!(disk.read("a"), Some(&b"12"[..]));
        disk.corrupt("a", 17);
        assert_eq!(disk.read("a"), Some(&b"32"[..]));
    }
}
