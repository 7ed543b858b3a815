//! /proc/self/fd: a symbolic link for each descriptor of the process that looks (proc(5)).
//!
//! The tree is everybody's, so the links are made anew for each look.

use std::sync::Arc;

use snaprig_card_driver::{errno::Errno, file::Description, wait::SysResult};

use crate::{
    call::FsCall, calls::open::NOT_KEPT, files::regular::RegularFile, proc::DESCRIPTORS,
    table::Open, tree::Node,
};

/// Names that lead there or, with a number, beyond.
const DIRECTORIES: [&str; 2] = [DESCRIPTORS, "/dev/fd"];
const STDIO: [&str; 3] = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];

impl FsCall<'_> {
    /// Makes the links for the caller if `path` leads there.
    pub fn refresh_fd_names(&mut self, path: &str) -> Result<(), Errno> {
        let mut leads = DIRECTORIES.iter().chain(&STDIO);
        if !leads.any(|prefix| path.starts_with(prefix)) {
            return Ok(());
        }
        let Ok(node) = self.vfs.lookup(self.vfs.root(), DESCRIPTORS, false) else {
            return Ok(());
        };
        let Ok(names) = self.vfs.directory(node) else {
            return Ok(());
        };
        let old: Vec<_> = names
            .after(0)
            .filter(|(.., node)| matches!(self.vfs.node(*node), Some(Node::Link(_))))
            .map(|(_, name, node)| (name.to_owned(), node))
            .collect();
        for (name, link) in old {
            self.vfs.unlink_node(node, &name, link);
        }
        for (fd, open, _) in self.files.iter() {
            let target = Node::Link(target(&open.file.describe()));
            // A card that is full of names has none for descriptors.
            if self.vfs.add(node, &fd.to_string(), target).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// What open(2) of the name of a descriptor gives: of a regular file another description, of a
    /// stream the same one. `None`: `path` is no such name, or as good as what it leads to.
    pub fn open_fd_name(&mut self, path: &str, flags: i32) -> SysResult<Option<Arc<Open>>> {
        let Some(fd) = fd_of(path) else {
            return Ok(None);
        };
        let open = self.files.get_any(fd).map_err(|_| Errno::ENOENT)?;
        if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
            if flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
                file.inode().truncate(0)?;
            }
            let again = RegularFile::new(file.inode().clone(), file.path().into(), flags);
            return Ok(Some(Open::new(again, flags & !NOT_KEPT)));
        }
        match open.file.describe() {
            Description::Pipe { .. } | Description::Console => Ok(Some(open)),
            Description::Path { .. } | Description::Device { .. } => Ok(None),
            _ => Err(Errno::ENXIO.into()),
        }
    }
}

fn fd_of(path: &str) -> Option<i32> {
    if let Some(fd) = STDIO.iter().position(|name| *name == path) {
        return Some(fd as i32);
    }
    let name = DIRECTORIES
        .iter()
        .find_map(|prefix| path.strip_prefix(prefix));
    name?.strip_prefix('/')?.parse().ok()
}

fn target(description: &Description) -> String {
    match description {
        Description::Path { path, .. } | Description::Device { path, .. } => path.clone(),
        Description::Pipe { id } => format!("pipe:[{id}]"),
        Description::Event { .. } => "anon_inode:[eventfd]".into(),
        Description::Epoll => "anon_inode:[eventpoll]".into(),
        Description::Timer { .. } => "anon_inode:[timerfd]".into(),
        Description::Signals { .. } => "anon_inode:[signalfd]".into(),
        Description::Process => "anon_inode:[pidfd]".into(),
        Description::Socket => "socket:[1]".into(),
        Description::Console => "/dev/console".into(),
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::errno::Errno;

    use crate::test_kit::{Kit, error};

    #[test]
    fn descriptors_have_names() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"12345");
        let fd = kit.open("/tmp/a", libc::O_RDONLY).unwrap();
        let (_, write) = kit.pipe(0);
        let link = kit.path(&format!("/proc/self/fd/{fd}"));
        assert_eq!(kit.call(libc::SYS_readlink, &[link, 0x2000, 100]), Ok(6));
        assert_eq!(kit.bytes(0x2000, 6), b"/tmp/a");
        // Another description: its position is its own.
        kit.call(libc::SYS_read, &[fd, 0x2000, 3]).unwrap();
        let again = kit.open(&format!("/dev/fd/{fd}"), libc::O_RDONLY).unwrap();
        assert_eq!(kit.call(libc::SYS_read, &[again, 0x2000, 9]), Ok(5));
        let stream = kit
            .open(&format!("/dev/fd/{write}"), libc::O_WRONLY)
            .unwrap();
        assert_eq!(kit.call(libc::SYS_write, &[stream, 0x2000, 5]), Ok(5));
        assert_eq!(kit.open("/dev/fd/99", libc::O_RDONLY), error(Errno::ENOENT));
        kit.open("/dev/stdout", libc::O_WRONLY).unwrap();
    }

    #[test]
    fn the_directory_lists_what_is_open_now() {
        let mut kit = Kit::new();
        let listed = |kit: &mut Kit| {
            let fd = kit.open("/proc/self/fd", libc::O_DIRECTORY).unwrap();
            let len = kit
                .call(libc::SYS_getdents64, &[fd, 0x10000, 32768])
                .unwrap();
            kit.call(libc::SYS_close, &[fd]).unwrap();
            // Two of 24 bytes are `.` and `..`, and one is the directory itself.
            len / 24 - 3
        };
        assert_eq!(listed(&mut kit), 3);
        kit.pipe(0);
        assert_eq!(listed(&mut kit), 5);
        kit.call(libc::SYS_close, &[3]).unwrap();
        assert_eq!(listed(&mut kit), 4);
    }

    #[test]
    fn small_files_that_programs_ask_for() {
        let mut kit = Kit::new();
        assert_eq!(kit.open("/dev/tty", libc::O_RDWR), error(Errno::ENXIO));
        let fd = kit.open("/proc/uptime", libc::O_RDONLY).unwrap();
        let len = kit.call(libc::SYS_read, &[fd, 0x2000, 100]).unwrap();
        let text = std::str::from_utf8(kit.bytes(0x2000, len as usize)).unwrap();
        let numbers: Vec<f64> = text
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        assert!(numbers.len() == 2 && numbers[0] > 0.0);
        let (read, write) = kit.pipe(0);
        kit.call(libc::SYS_write, &[write, 0x2000, 3]).unwrap();
        assert_eq!(
            kit.call(libc::SYS_ioctl, &[read, libc::FIONREAD, 0x500]),
            Ok(0)
        );
        assert_eq!(kit.bytes(0x500, 4), &3_u32.to_le_bytes());
        let event = kit.call(libc::SYS_eventfd2, &[0, 0]).unwrap();
        let refused = kit.call(libc::SYS_ioctl, &[event, libc::FIONREAD, 0x500]);
        assert_eq!(refused, error(Errno::ENOTTY));
    }
}
