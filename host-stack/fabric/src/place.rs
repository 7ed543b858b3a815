//! Where a fabric's socket and files are, and how it is made: names, directories, environment.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use snaprig_hca::{
    control::{Fabric, HcaSetup},
    model::ModelName,
    port::PKEYS_MAX,
};

use crate::{faults::PathFaults, node::Node};

/// Names the fabric; without it, [`DEFAULT_FABRIC`].
pub const FABRIC_ENV: &str = "SNAPRIG_FABRIC";
/// How many HCAs a fabric gets when it starts; without it, 1.
pub const HCAS_ENV: &str = "SNAPRIG_HCAS";
/// Their model, `A` or `B`, or one letter for each.
pub const MODEL_ENV: &str = "SNAPRIG_MODEL";
/// The P_Key table of every port, as [`parse_pkeys`] reads it; without it, the default partition.
pub const PKEYS_ENV: &str = "SNAPRIG_PKEYS";
/// What is wrong with all paths of a fabric when it starts; see [`PathFaults`].
pub const FAULTS_ENV: &str = "SNAPRIG_FAULTS";
/// A fault plan that a fabric carries out from its start.
pub const PLAN_ENV: &str = "SNAPRIG_PLAN";
/// A file for every packet of a fabric, from its start.
pub const CAPTURE_ENV: &str = "SNAPRIG_CAPTURE";
/// Where fabrics have their directories.
pub const DIRECTORY_ENV: &str = "SNAPRIG_FABRICS";
/// The fabric of those who name none.
pub const DEFAULT_FABRIC: &str = "default";
/// Most HCAs of a fabric.
pub const HCAS_MAX: usize = 64;
/// Longest name of a fabric.
const NAME_MAX: usize = 64;

/// A fabric's place in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Its directory; others of the same user are beside it.
    pub directory: PathBuf,
}

impl Place {
    /// Of the fabric with this name.
    pub fn named(name: &str) -> io::Result<Self> {
        Self::named_in(&fabrics_directory(), name)
    }

    /// Of the fabric with this name, among those in a directory.
    pub fn named_in(fabrics: &Path, name: &str) -> io::Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty()
            || name.len() > NAME_MAX
            || !name.chars().all(plain)
            || name.starts_with('.')
        {
            let why =
                format!("fabric name {name:?}: 1 to {NAME_MAX} letters, digits, '-', '_' and '.'");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self {
            name: name.into(),
            directory: fabrics.join(name),
        })
    }

    /// Of the fabric that the environment names.
    pub fn from_env() -> io::Result<Self> {
        Self::named(&env::var(FABRIC_ENV).unwrap_or_else(|_| DEFAULT_FABRIC.into()))
    }

    /// Makes its directory, for this user alone.
    pub fn create(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        if let Some(fabrics) = self.directory.parent() {
            builder.recursive(true).create(fabrics)?;
        }
        match builder.recursive(false).create(&self.directory) {
            // An ending daemon may be taking it away: who finds it gone makes it again.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// The daemon's socket for what is asked while locks are held.
    pub fn lookup(&self) -> PathBuf {
        self.directory.join("lookup")
    }

    /// Held by who starts, joins or ends the fabric.
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// Removes what listeners of connection managers have left behind.
    pub fn remove_listeners(&self) {
        for file in fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            if file.file_name().as_encoded_bytes().starts_with(b"cm-") {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    /// Removes the nodes' places with all files in them, and the fabric's directory if nothing else is there.
    pub fn remove_nodes(&self) {
        let files = fs::read_dir(&self.directory).into_iter().flatten();
        for file in files.flatten() {
            if file
                .file_name()
                .to_str()
                .and_then(Node::number_of)
                .is_some()
            {
                let _ = fs::remove_dir_all(file.path());
            }
        }
        let _ = fs::remove_dir(&self.directory);
    }

    /// What the daemon has to say.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }
}

/// Where fabrics of this user have their directories.
pub fn fabrics_directory() -> PathBuf {
    if let Some(directory) = env::var_os(DIRECTORY_ENV) {
        return directory.into();
    }
    let uid = rustix::process::getuid().as_raw();
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("snaprig"),
        _ => env::temp_dir().join(format!("snaprig-{uid}")),
    }
    .join("fabrics")
}

/// The fabric that the environment describes.
pub fn setup_from_env() -> io::Result<Fabric> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let hcas = match env::var(HCAS_ENV) {
        Err(_) => 1,
        Ok(text) => text
            .parse()
            .ok()
            .filter(|n| (1..=HCAS_MAX).contains(n))
            .ok_or_else(|| invalid(format!("{HCAS_ENV}={text}: a number from 1 to {HCAS_MAX}")))?,
    };
    let models = env::var(MODEL_ENV).unwrap_or_else(|_| "A".into());
    let models =
        parse_models(&models).ok_or_else(|| invalid(format!("{MODEL_ENV}={models}: {MODELS}")))?;
    let pkeys = env::var(PKEYS_ENV).unwrap_or_default();
    let pkeys = match &pkeys[..] {
        "" => Vec::new(),
        text => parse_pkeys(text).ok_or_else(|| invalid(format!("{PKEYS_ENV}={text}: {PKEYS}")))?,
    };
    Ok(Fabric {
        pkeys,
        ..setup(hcas, &models)
    })
}

/// What a table of P_Keys is written as.
pub const PKEYS: &str = "1 to 16 hexadecimal numbers, with commas";

/// A P_Key table as it is written. The highest bit makes a full member.
pub fn parse_pkeys(text: &str) -> Option<Vec<u16>> {
    let number = |word: &str| u16::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok();
    let table: Vec<_> = text.split(',').map(number).collect::<Option<_>>()?;
    (table.len() <= PKEYS_MAX).then_some(table)
}

/// A P_Key table as [`parse_pkeys`] reads it.
pub fn pkeys_text(pkeys: &[u16]) -> String {
    let words: Vec<_> = pkeys.iter().map(|pkey| format!("{pkey:#06x}")).collect();
    words.join(",")
}

/// What the environment says is wrong with all paths.
pub fn faults_from_env() -> io::Result<PathFaults> {
    let Ok(text) = env::var(FAULTS_ENV) else {
        return Ok(PathFaults::default());
    };
    text.parse().map_err(|why| {
        let why = format!("{FAULTS_ENV}={text}: {why}");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// How models are written.
pub const MODELS: &str = "A or B, or a letter for each HCA";

/// The models that these letters stand for; there is one at least.
pub fn parse_models(letters: &str) -> Option<Vec<ModelName>> {
    let models = letters.chars().map(|letter| match letter {
        'A' | 'a' => Some(ModelName::A),
        'B' | 'b' => Some(ModelName::B),
        _ => None,
    });
    let models: Vec<_> = models.collect::<Option<_>>()?;
    (!models.is_empty()).then_some(models)
}

/// The letters that these models are written with.
pub fn model_letters(setup: &Fabric) -> String {
    let letter = |hca: &HcaSetup| match hca.model {
        ModelName::A => 'A',
        ModelName::B => 'B',
    };
    setup.hcas.iter().map(letter).collect()
}

/// A fabric of so many HCAs; one of `models` for each, the last one for all the rest.
pub fn setup(hcas: usize, models: &[ModelName]) -> Fabric {
    let last = models.last().copied().unwrap_or_default();
    let hcas = (0..hcas).map(|index| HcaSetup {
        model: models.get(index).copied().unwrap_or(last),
    });
    Fabric {
        hcas: hcas.collect(),
        pkeys: Vec::new(),
    }
}
