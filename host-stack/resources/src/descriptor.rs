//! What /proc says of a descriptor: all of it can be seen while the process runs.

use std::{
    fs::{self, Metadata},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::PathBuf,
};

use libc::pid_t;

use crate::error::{Error, Result};

/// What /proc/PID/fdinfo/FD says.
pub struct Info {
    /// Where reading and writing go on.
    pub offset: u64,
    /// F_GETFL, and O_CLOEXEC.
    pub flags: i32,
    fields: Vec<(String, String)>,
}

impl Info {
    fn read(pid: pid_t, fd: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/fdinfo/{fd}");
        let text = fs::read_to_string(&path).map_err(|source| Error::io(path, source))?;
        // Some lines have no colon behind their key: "inotify wd:1 ino:..."
        let divided = |line: &str| match line.strip_prefix("inotify ") {
            Some(rest) => Some(("inotify".to_owned(), rest.to_owned())),
            None => line
                .split_once(':')
                .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())),
        };
        let mut info = Self {
            offset: 0,
            flags: 0,
            fields: text.lines().filter_map(divided).collect(),
        };
        info.offset = info.number("pos").unwrap_or(0);
        let flags = info.get("flags");
        info.flags = flags
            .and_then(|text| i32::from_str_radix(text, 8).ok())
            .unwrap_or(0);
        Ok(info)
    }

    /// The first line with a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| &**value)
    }

    /// All lines with a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let found = self.fields.iter().filter(move |(name, _)| name == key);
        found.map(|(_, value)| &**value)
    }

    /// A line that is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }
}

/// A descriptor.
pub struct FoundDescriptor {
    /// Who has it.
    pub pid: pid_t,
    /// Its number.
    pub fd: i32,
    /// What it is called.
    pub name: PathBuf,
    /// What stat(2) says of it.
    pub metadata: Metadata,
    /// More of it.
    pub info: Info,
}

impl FoundDescriptor {
    /// Looks at a descriptor.
    pub fn look(pid: pid_t, fd: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let failed = |source| Error::io(path.clone(), source);
        Ok(Self {
            pid,
            fd,
            name: fs::read_link(&path).map_err(failed)?,
            metadata: fs::metadata(&path).map_err(failed)?,
            info: Info::read(pid, fd)?,
        })
    }

    /// Where its file can be opened, whatever has become of its name.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.pid, self.fd))
    }

    /// It cannot be saved.
    pub fn refused(&self, why: &str) -> Error {
        let (name, fd) = (self.name.display(), self.fd);
        let what = format!("it has {name} open as descriptor {fd}: {why}");
        Error::refused(self.pid, what)
    }

    /// It stands for a name alone (O_PATH).
    pub fn is_name(&self) -> bool {
        self.info.flags & libc::O_PATH != 0
    }

    /// Its name, if it has lost it.
    pub fn lost_name(&self) -> Option<&[u8]> {
        let name = self.name.as_os_str().as_bytes();
        name.strip_suffix(b" (deleted)")
            .filter(|_| self.metadata.nlink() == 0)
    }

    /// What kind of object without a name it is, as the kernel calls it.
    pub fn anonymous(&self) -> Option<&[u8]> {
        self.name
            .as_os_str()
            .as_bytes()
            .strip_prefix(b"anon_inode:")
    }

    /// Whether its file can be found by a name, or could be once.
    pub fn has_path(&self) -> bool {
        self.name.as_os_str().as_bytes().starts_with(b"/")
    }
}
