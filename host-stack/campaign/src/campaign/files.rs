//! A campaign's report: its directory, and those of shards as one.

use super::*;

/// What a directory is the report of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    version: u32,
    runner: String,
    plans: u64,
}

/// Why a campaign cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The report's directory.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It belongs to another campaign.
    #[error("{path} is the report of another campaign; choose another directory")]
    Another {
        /// The directory.
        path: PathBuf,
    },
    /// It makes no sense.
    #[error("{path} is no report: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no such shard.
    #[error("shard {index}/{count}: shards are 0/{count} to {last}/{count}", last = count.saturating_sub(1))]
    Shard {
        /// Which.
        index: u64,
        /// Of how many.
        count: u64,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> CampaignError + '_ {
    move |source| CampaignError::Io {
        path: path.to_owned(),
        source,
    }
}
/// The reports of shards as one.
pub fn merge(directories: &[PathBuf]) -> Result<Results, CampaignError> {
    let mut chunks = BTreeMap::new();
    let mut first: Option<Identity> = None;
    for directory in directories {
        let identity = read_json::<Identity>(&directory.join(IDENTITY))?;
        if *first.get_or_insert_with(|| identity.clone()) != identity {
            return Err(CampaignError::Another {
                path: directory.clone(),
            });
        }
        let folder = directory.join("chunks");
        for entry in fs::read_dir(&folder).map_err(io_error(&folder))? {
            let path = entry.map_err(io_error(&folder))?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let name = path.file_name().map(ToOwned::to_owned);
                chunks.insert(name, read_json::<Results>(&path)?);
            }
        }
    }
    let mut all = Results::default();
    chunks.into_values().for_each(|chunk| all.add(chunk));
    Ok(all)
}

/// A report's directory.
pub struct Report(PathBuf);

impl Report {
    pub fn open(
        path: &Path,
        runner: &dyn Runner,
        options: &Options,
    ) -> Result<Self, CampaignError> {
        let identity = Identity {
            version: 1,
            runner: runner.name(),
            plans: options.plans.identity(),
        };
        for folder in [path.join("chunks"), path.join("failures")] {
            fs::create_dir_all(&folder).map_err(io_error(&folder))?;
        }
        let file = path.join(IDENTITY);
        match file.exists() {
            true if read_json::<Identity>(&file)? != identity => {
                return Err(CampaignError::Another {
                    path: path.to_owned(),
                });
            }
            true => {}
            false => write_json(&file, &identity)?,
        }
        Ok(Self(path.to_owned()))
    }

    fn chunk_path(&self, seeds: &Range<u64>) -> PathBuf {
        let name = format!("{}-{}.json", seeds.start, seeds.end);
        self.0.join("chunks").join(name)
    }

    /// What an earlier run of the campaign has done. What it has done badly is done again.
    pub fn chunk(&self, seeds: &Range<u64>) -> Option<Results> {
        read_json(&self.chunk_path(seeds)).ok()
    }

    pub fn save(&self, seeds: &Range<u64>, results: &Results) -> Result<(), CampaignError> {
        write_json(&self.chunk_path(seeds), results)
    }

    pub fn failure(&self, runner: &dyn Runner, found: &Found) -> Result<(), CampaignError> {
        let folder = self.0.join("failures").join(found.number.to_string());
        runner.report(&folder, found).map_err(io_error(&folder))
    }
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, CampaignError> {
    let text = fs::read_to_string(path).map_err(io_error(path))?;
    serde_json::from_str(&text).map_err(|error| CampaignError::Damaged {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

/// Under its name only when it is whole.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), CampaignError> {
    let text = serde_json::to_vec_pretty(value).map_err(|error| CampaignError::Damaged {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    report::write_file(path, &text).map_err(io_error(path))
}
