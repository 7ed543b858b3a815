//! Where files of ours are for a user: a directory that is theirs alone, can be written, and from which libraries can be
//! loaded.

use std::{
    env,
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::{Tree, tree};

/// Roots of versions that were not used for so long are removed by who adds one.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// So are those that somebody was killed while making.
const MAKING_MAX: Duration = Duration::from_secs(3600);
const MAKING: &str = ".new-";
/// S_ISVTX of inode(7): everybody may make files, and removes only their own.
const STICKY: u32 = 0o1000;

/// The first that will do: in the user's cache; for users without a home, where all may write.
pub fn directory() -> io::Result<PathBuf> {
    let mut why = String::from("there is no place for libraries that programs are given:");
    for candidate in candidates() {
        match usable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) => why += &format!("\n  {}: {error}", candidate.display()),
        }
    }
    why += "\nset XDG_CACHE_HOME to a directory that is yours and is not mounted noexec";
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    let named = |name| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let home = named("HOME").map(|home| home.join(".cache"));
    let cache = [named("XDG_CACHE_HOME").or(home), named("XDG_RUNTIME_DIR")];
    let users = cache
        .into_iter()
        .flatten()
        .map(|directory| directory.join("snaprig"));
    let own = format!("snaprig-{}", rustix::process::geteuid().as_raw());
    let shared = [
        PathBuf::from("/var/tmp"),
        env::temp_dir(),
        PathBuf::from("/dev/shm"),
    ];
    users
        .chain(shared.map(move |directory| directory.join(&own)))
        .map(|ours| ours.join("sdk"))
}

/// Makes it, and sees that nobody else can put anything there, and that libraries can be loaded from it.
fn usable(directory: &Path) -> io::Result<()> {
    let no = |why: &str| Err(io::Error::other(why));
    if !can_be_preloaded_from(directory) {
        return no("its name has a blank or a colon, which LD_PRELOAD cannot have");
    }
    // Root with another one's HOME, as of sudo(8), leaves nothing there that its owner could not remove.
    let parent = directory.parent().unwrap_or(directory);
    let above = parent
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(parent);
    let (euid, above) = (rustix::process::geteuid().as_raw(), fs::metadata(above)?);
    let is_shared = above.uid() == 0 && above.mode() & STICKY != 0;
    if above.uid() != euid && !is_shared {
        return no("it is in a directory of another user");
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let made = fs::symlink_metadata(directory)?;
    if !made.is_dir() || made.uid() != euid || made.mode() & 0o022 != 0 {
        return no("it is not a directory that only this user can write to");
    }
    if statvfs(directory)?
        .f_flag
        .contains(StatVfsMountFlags::NOEXEC)
    {
        return no("it is mounted noexec: libraries cannot be loaded from it");
    }
    tempfile::tempfile_in(directory).map(drop)
}

/// Whether LD_PRELOAD can name what is in it.
pub fn can_be_preloaded_from(directory: &Path) -> bool {
    // ld.so(8) ends a name there.
    let ends_a_name = |byte: &u8| b": \t\n".contains(byte);
    let bytes = directory.as_os_str().as_encoded_bytes();
    !bytes.iter().any(ends_a_name)
}

/// Makes the tree's root below `directory`, if it is not there. It appears whole, by rename; of any number who make it at
/// once, one is first, and the others take what it has made.
pub fn lay_out(directory: &Path, tree: &Tree) -> io::Result<PathBuf> {
    let root = directory.join(tree.id());
    if tree.is_in(&root) {
        touch(&root);
        return Ok(root);
    }
    remove_old(directory);
    let new = tempfile::Builder::new()
        .prefix(MAKING)
        .tempdir_in(directory)?;
    tree.put(new.path())?;
    tree::sync(new.path())?;
    fs::set_permissions(new.path(), Permissions::from_mode(0o755))?;
    loop {
        match fs::rename(new.path(), &root) {
            Ok(()) => {
                // It has another name now, and stays.
                let _ = new.keep();
                return Ok(root);
            }
            Err(_) if tree.is_in(&root) => return Ok(root),
            // Somebody has taken files out of it, as those who clean /tmp do (tmpfiles.d(5)): it goes aside, whole.
            Err(error) if is_there(&error) => {
                let aside = tempfile::Builder::new()
                    .prefix(MAKING)
                    .tempdir_in(directory)?;
                match fs::rename(&root, aside.path().join("old")) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Either is said of a directory that is not empty (rename(2)).
fn is_there(error: &io::Error) -> bool {
    [
        io::ErrorKind::DirectoryNotEmpty,
        io::ErrorKind::AlreadyExists,
    ]
    .contains(&error.kind())
}

/// It was used now. If that cannot be noted, it may be made anew one day.
fn touch(root: &Path) {
    if let Ok(directory) = fs::File::open(root) {
        let _ = directory.set_modified(SystemTime::now());
    }
}

/// What cannot be removed is left to the next one.
fn remove_old(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|there| there.modified());
        let age = age
            .ok()
            .and_then(|time| time.elapsed().ok())
            .unwrap_or_default();
        let is_making = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(MAKING.as_bytes());
        if age > if is_making { MAKING_MAX } else { UNUSED_MAX } {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Contents;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.add("include/one.h", Contents::Text(b"#define ONE 1\n".into()));
        tree.add_linkable("lib", "libone.so.0", Contents::Library(&[7; 100_000]));
        tree
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_hundred_at_once_make_one_root_and_leave_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join(tree().id());
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    assert_eq!(lay_out(directory.path(), &tree()).unwrap(), root);
                    // Whoever has it has all of it.
                    assert_eq!(fs::read(root.join("lib/libone.so")).unwrap().len(), 100_000);
                });
            }
        });
        assert_eq!(names(directory.path()), [tree().id()]);
    }

    #[test]
    fn two_versions_are_side_by_side() {
        let directory = tempfile::tempdir().unwrap();
        let mut newer = tree();
        newer.add("include/two.h", Contents::Text(b"".into()));
        let roots = [tree(), newer].map(|tree| lay_out(directory.path(), &tree).unwrap());
        assert_ne!(roots[0], roots[1]);
        assert_eq!(names(directory.path()).len(), 2);
    }

    #[test]
    fn a_root_that_lost_a_file_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let root = lay_out(directory.path(), &tree()).unwrap();
        for lost in ["lib/libone.so.0", "lib/libone.so", "include/one.h"] {
            fs::remove_file(root.join(lost)).unwrap();
            assert_eq!(lay_out(directory.path(), &tree()).unwrap(), root);
            assert!(tree().is_in(&root), "{lost}");
        }
        fs::write(root.join("include/one.h"), "").unwrap();
        lay_out(directory.path(), &tree()).unwrap();
        assert!(tree().is_in(&root));
        assert_eq!(names(directory.path()), [tree().id()]);
    }

    #[test]
    fn what_was_left_long_ago_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for (name, age) in [
            (".new-1", MAKING_MAX),
            (".new-2", Duration::ZERO),
            ("0.0.1", UNUSED_MAX),
            ("0.0.2", MAKING_MAX),
        ] {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            let time = SystemTime::now() - age - Duration::from_secs(1);
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        }
        lay_out(directory.path(), &tree()).unwrap();
        let mut left = names(directory.path());
        left.sort();
        assert_eq!(left, [".new-2".to_owned(), "0.0.2".to_owned(), tree().id()]);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let scene = tempfile::tempdir().unwrap();
        let directory = scene.path().join("snaprig");
        usable(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert!(usable(&directory).is_err());
        assert!(usable(&scene.path().join("with a blank")).is_err());
        let link = scene.path().join("link");
        std::os::unix::fs::symlink(scene.path(), &link).unwrap();
        assert!(
            usable(&link).is_err(),
            "a link, which its owner can point elsewhere"
        );
    }
}
