//! Names of sockets in the file system, however long: an address has room for 108 bytes (unix(7)), and the directories of tests
//! and of CI have longer names than that.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

/// Without the zero at its end.
const ADDRESS_BYTES_MAX: usize = 107;

/// A name that fits, for as long as this is there.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Name {
    /// The path itself; or, if that is too long, one by way of a descriptor of its directory (proc_pid_fd(5)).
    pub fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
            return Ok(Self {
                path: path.to_owned(),
                _directory: None,
            });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(directory, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        Ok(Self {
            path: Path::new(&path).join(name),
            _directory: Some(directory),
        })
    }

    /// What fits an address.
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use rustix::net::SocketFlags;

    use crate::{Address, Listener, packets};

    #[test]
    fn sockets_in_directories_with_long_names_are_found() {
        let scene = tempfile::tempdir().unwrap();
        let directory = scene.path().join("d".repeat(200));
        fs::create_dir(&directory).unwrap();
        let address = Address::Unix(directory.join("stream"));
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(listener.address().unwrap(), address);
        address.connect(Duration::from_secs(1)).unwrap();
        let path = directory.join("packets");
        let _listening = packets::listen(&path, 1, SocketFlags::empty()).unwrap();
        packets::connect(&path, SocketFlags::empty()).unwrap();
        assert!(packets::is_nobody(
            &packets::connect(&directory.join("nobody"), SocketFlags::empty()).unwrap_err()
        ));
    }
}
