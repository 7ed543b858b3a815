//! What a card has of the host's files from its start: directories, tar images, single files.
//!
//! An image may be anybody's. Nothing of it reaches the host: its paths, links included, are paths
//! of the card; `..` is refused, devices are left out, and the card's memory bounds its size.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_card_fs::Entry;
use snaprig_card_kernel::Kernel;
use tar::{Archive, EntryType};

/// A directory, a tar image (`*.tar`) or a file of the host, and where it is to be on the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFiles {
    /// Path on the host.
    pub host: PathBuf,
    /// Absolute path on the card.
    pub card: String,
}

/// What is wrong with files for a card.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}{}", hint(source))]
pub struct FilesError {
    path: String,
    source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; give the card more memory",
        _ => "",
    }
}

impl FromStr for CardFiles {
    type Err = String;

    /// `HOST[:CARD]`. Without `CARD` an image starts at the card's root, and everything else is
    /// where it is on the host.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((host, card)) = text.rsplit_once(":/") {
            return Ok(Self {
                host: host.into(),
                card: format!("/{card}"),
            });
        }
        let host = PathBuf::from(text);
        if is_image(&host) {
            let card = "/".into();
            return Ok(Self { host, card });
        }
        let absolute = std::path::absolute(&host).map_err(|error| error.to_string())?;
        let card = absolute
            .to_str()
            .ok_or("paths on a card are UTF-8")?
            .to_owned();
        Ok(Self { host, card })
    }
}

impl std::fmt::Display for CardFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host.display(), self.card)
    }
}

fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tar") && !path.is_dir()
}

impl CardFiles {
    /// Puts them onto a card.
    pub fn install(&self, kernel: &Kernel) -> Result<(), FilesError> {
        let failed = |source| FilesError {
            path: self.host.display().to_string(),
            source,
        };
        if is_image(&self.host) {
            let image = File::open(&self.host).map_err(failed)?;
            return unpack(kernel, BufReader::new(image), &self.card).map_err(failed);
        }
        // The path itself may be a link; links in a directory are links on the card.
        let host = self.host.canonicalize().map_err(failed)?;
        copy(kernel, host, &self.card)
    }
}

/// Copies a file, or a directory with all that is in it.
fn copy(kernel: &Kernel, host: PathBuf, card: &str) -> Result<(), FilesError> {
    let mut waiting = vec![(host, card.to_owned())];
    while let Some((host, card)) = waiting.pop() {
        let failed = |source| FilesError {
            path: host.display().to_string(),
            source,
        };
        let about = fs::symlink_metadata(&host).map_err(failed)?;
        let kind = about.file_type();
        if kind.is_dir() {
            kernel.install(&card, Entry::Directory).map_err(failed)?;
            for entry in fs::read_dir(&host).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = utf8(entry.file_name().into()).map_err(failed)?;
                waiting.push((entry.path(), join(&card, &name)));
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(&host).and_then(utf8).map_err(failed)?;
            kernel.install(&card, Entry::Link(target)).map_err(failed)?;
        } else if kind.is_file() {
            let mut contents = File::open(&host).map_err(failed)?;
            let entry = Entry::File {
                mode: about.mode(),
                mtime: Duration::from_secs(about.mtime().try_into().unwrap_or(0)),
                contents: &mut contents,
            };
            kernel.install(&card, entry).map_err(failed)?;
        } else {
            tracing::debug!(host = %host.display(), "left out: no file, directory or link");
        }
    }
    Ok(())
}

/// Unpacks a tar image below a directory of the card.
fn unpack(kernel: &Kernel, image: impl io::Read, below: &str) -> io::Result<()> {
    for entry in Archive::new(image).entries()? {
        let mut entry = entry?;
        let header = entry.header();
        let (kind, mode) = (header.entry_type(), header.mode()?);
        let mtime = Duration::from_secs(header.mtime()?);
        let name = entry.path()?.into_owned();
        let path = inside(below, &name)?;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
        let target = entry.link_name()?.map(|target| target.into_owned());
        let entry = match kind {
            EntryType::Directory => Entry::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Entry::File {
                mode,
                mtime,
                contents: &mut entry,
            },
            EntryType::Symlink => Entry::Link(utf8(target.unwrap_or_default())?),
            EntryType::Link => Entry::Same(inside(below, &target.unwrap_or_default())?),
            _ => {
                tracing::debug!(path, ?kind, "left out");
                continue;
            }
        };
        kernel.install(&path, entry).map_err(named)?;
    }
    Ok(())
}

/// A path of an image, below a directory of the card.
fn inside(below: &str, path: &Path) -> io::Result<String> {
    let mut inside = below.to_owned();
    for component in path.components() {
        match component {
            Component::Normal(name) => inside = join(&inside, &utf8(PathBuf::from(name))?),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                let why = format!("{}: `..` in an image", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
    Ok(inside)
}

fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

fn utf8(path: PathBuf) -> io::Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        let why = format!("{}: paths on a card are UTF-8", path.display());
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use snaprig_card_fs::Topology;
    use snaprig_card_kernel::Config;
    use snaprig_card_memory::CardMemory;
    use snaprig_card_platform::{self as platform, Kind};
    use tar::{Builder, Header};

    use super::*;

    fn kernel() -> Arc<Kernel> {
        let memory = Arc::new(CardMemory::new(64 << 20).unwrap());
        let platform = platform::choose(Some(Kind::Ptrace), &memory).unwrap();
        let config = Config {
            memory,
            platform,
            topology: Topology::of_cores(1),
            node: 1,
        };
        Kernel::new(config).unwrap()
    }

    fn header(kind: EntryType, path: &str, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_mtime(0);
        header.set_size(size);
        // As a hostile one has it: `Header::set_path` would refuse some.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header
    }

    fn image(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut image = Builder::new(Vec::new());
        for (kind, path, contents) in entries {
            let is_file = *kind == EntryType::Regular;
            let size = if is_file { contents.len() as u64 } else { 0 };
            let mut header = header(*kind, path, size);
            if !is_file {
                header.set_link_name_literal(contents).unwrap();
            }
            header.set_cksum();
            image
                .append(&header, &contents.as_bytes()[..size as usize])
                .unwrap();
        }
        image.into_inner().unwrap()
    }

    #[test]
    fn files_links_and_directories_are_unpacked() {
        let image = image(&[
            (EntryType::Directory, "./usr/bin/", ""),
            (EntryType::Symlink, "bin", "usr/bin"),
            (EntryType::Regular, "bin/tool", "#!/bin/sh\n"),
            (EntryType::Link, "etc/same", "usr/bin/tool"),
            (EntryType::Symlink, "out", "/../../etc/passwd"),
            (EntryType::Char, "dev/null", ""),
        ]);
        let kernel = kernel();
        unpack(&kernel, &*image, "/").unwrap();
        for path in ["/usr/bin/tool", "/bin/tool", "/etc/same"] {
            assert_eq!(kernel.read_file(path).unwrap(), b"#!/bin/sh\n", "{path}");
        }
        // A link that wants out of the card leads to the card's own root.
        assert!(kernel.read_file("/out").is_ok());
    }

    #[test]
    fn hostile_images_are_refused() {
        let regular = EntryType::Regular;
        for entries in [
            vec![(regular, "../../tmp/out", "x")],
            vec![(EntryType::Link, "a", "../../etc/shadow")],
            vec![(EntryType::Link, "a", "nothing")],
            vec![(regular, "a", "x"), (regular, "a/b", "x")],
            vec![(regular, "dev", "x")],
            vec![(EntryType::Symlink, "a", "a"), (regular, "a/b", "x")],
        ] {
            unpack(&kernel(), &*image(&entries), "/").unwrap_err();
        }
        let mut huge = header(regular, "a", 1 << 40);
        huge.set_cksum();
        let mut bytes = huge.as_bytes().to_vec();
        bytes.resize(4096, 0);
        unpack(&kernel(), &*bytes, "/").unwrap_err();
        // More than the card holds.
        let endless = io::Read::chain(huge.as_bytes().as_slice(), io::repeat(7));
        unpack(&kernel(), endless, "/").unwrap_err();
        unpack(&kernel(), &b"this is no image"[..], "/").unwrap_err();
    }

    #[test]
    fn where_files_go() {
        let parsed = |text: &str| text.parse::<CardFiles>().unwrap();
        assert_eq!(parsed("/a/root.tar").card, "/");
        assert_eq!(parsed("/a/root.tar:/opt").card, "/opt");
        assert_eq!(parsed("/usr/lib").card, "/usr/lib");
        assert_eq!(parsed(&parsed("/a:/b").to_string()), parsed("/a:/b"));
    }
}
