//! Where a repository is and what opens it: arguments of a command, or an entry of `/etc/unstun/repositories.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Error, Result};
use api::name::RepositoryName;
use jiff::Timestamp;
use repo::{Objects, Repository, Secret};
use serde::Deserialize;

use crate::cli::{KeyArgs, RepoArgs};
use crate::etc;

/// Repositories by name.
pub(crate) const REPOSITORIES: &str = "/etc/unstun/repositories.toml";
/// Names another file with repositories.
pub(crate) const REPOSITORIES_VARIABLE: &str = "UNSTUN_REPOSITORIES";
/// Name the key file and the passphrase file of a command.
pub(crate) const KEY_FILE_VARIABLE: &str = "UNSTUN_REPO_KEY_FILE";
pub(crate) const PASSPHRASE_FILE_VARIABLE: &str = "UNSTUN_REPO_PASSPHRASE_FILE";
const PASSPHRASE_BYTES_MIN: usize = 8;

/// An entry of the file of repositories.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Named {
    place: String,
    key_file: Option<PathBuf>,
    passphrase_file: Option<PathBuf>,
    /// File of lines NAME=VALUE with the credentials.
    environment_file: Option<PathBuf>,
}

/// A repository that is not open yet.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Place or name, as the user stated it.
    pub stated: String,
    place: String,
    key_file: Option<PathBuf>,
    passphrase_file: Option<PathBuf>,
    environment_file: Option<PathBuf>,
}

impl Place {
    /// Resolves the arguments of a command. A place has a slash or is a URI; what has neither is a name.
    pub(crate) fn resolve(args: &RepoArgs) -> Result<Place> {
        let KeyArgs { key_file, passphrase_file } = args.key.clone();
        let Some(stated) = args.repo.clone() else {
            return Err(Error::invalid(
                "which repository? expected --repo PLACE or the variable UNSTUN_REPO",
            ));
        };
        if !stated.contains('/') {
            let named = named(&stated)?;
            let (key_file, passphrase_file) = match (key_file, passphrase_file) {
                (None, None) => (named.key_file, named.passphrase_file),
                stated => stated,
            };
            let (place, environment_file) = (named.place, named.environment_file);
            return Ok(Place { stated, place, key_file, passphrase_file, environment_file });
        }
        let place = match stated.contains("://") {
            true => stated.clone(),
            false => std::path::absolute(&stated)
                .map_err(|e| Error::invalid(format!("--repo {stated}: {e}")))?
                .to_string_lossy()
                .into_owned(),
        };
        Ok(Place { stated: place.clone(), place, key_file, passphrase_file, environment_file: None })
    }

    /// Connects to the store of objects; `make` makes the folder.
    pub(crate) fn objects(&self, make: bool) -> Result<Arc<dyn Objects>> {
        let mut environment: BTreeMap<String, String> = std::env::vars().collect();
        if let Some(path) = &self.environment_file {
            environment.extend(read_environment(path)?);
        }
        Ok(repo::connect(&self.place, make, environment)?)
    }

    /// Reads what opens the repository.
    pub(crate) fn secret(&self) -> Result<Secret> {
        match (&self.key_file, &self.passphrase_file) {
            (Some(path), _) => Ok(Secret::key_file(&path.display().to_string(), &read(path)?)?),
            (None, Some(path)) => passphrase(path),
            (None, None) => {
                let expected = "expected --key-file FILE or --passphrase-file FILE, or their variables UNSTUN_REPO_KEY_FILE and \
                                UNSTUN_REPO_PASSPHRASE_FILE";
                Err(Error::invalid(format!("{}: nothing opens the repository: {expected}", self.stated)))
            }
        }
    }

    pub(crate) async fn open(&self) -> Result<Repository> {
        Ok(Repository::open(self.objects(false)?, &self.secret()?, &writer()).await?)
    }

    /// Returns the file of the key.
    pub(crate) fn key_path(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    /// Returns the files of the key and of the passphrase, as another process finds them.
    pub(crate) fn key_paths(&self) -> (Option<PathBuf>, Option<PathBuf>) {
        let absolute = |path: &Option<PathBuf>| {
            path.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()))
        };
        (absolute(&self.key_file), absolute(&self.passphrase_file))
    }
}

/// Fails if this host has no repository of this name.
pub(crate) fn refuse_unknown(name: &RepositoryName) -> Result<()> {
    named(name.as_str()).map(drop)
}

fn named(name: &str) -> Result<Named> {
    let path = std::env::var_os(REPOSITORIES_VARIABLE).map_or_else(|| REPOSITORIES.into(), PathBuf::from);
    let shown = path.display();
    let failed = |cause: String| Error::invalid(format!("{shown}: {cause}"));
    if !path.exists() {
        let expected = "expected a folder with a slash (./backups), a URI such as s3://BUCKET/PREFIX, or a name in that file";
        return Err(Error::not_found(format!("repository {name}: {shown} does not exist; {expected}")));
    }
    let (text, _) = etc::read(&path).map_err(failed)?;
    let mut all: BTreeMap<String, Named> = toml::from_str(&text).map_err(|e| failed(e.to_string()))?;
    let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
    all.remove(name)
        .ok_or_else(|| Error::not_found(format!("{shown}: no repository {name}; it has: {known}")))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|e| Error::from(blk::Errno::from(e).at(path.display().to_string(), "reading")))
}

/// Reads a file of lines `NAME=VALUE`, as systemd does.
fn read_environment(path: &Path) -> Result<Vec<(String, String)>> {
    let (text, _) = etc::read(path).map_err(|e| Error::refused(format!("{}: {e}", path.display())))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, value) = line.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
    };
    // The line may have a secret, so an error does not repeat it.
    let wrong = || Error::invalid(format!("{}: expected lines of the form NAME=VALUE", path.display()));
    lines.map(|line| pair(line).ok_or_else(wrong)).collect()
}

pub(crate) fn passphrase(path: &Path) -> Result<Secret> {
    let text = read(path)?.trim_end_matches(['\n', '\r']).to_owned();
    match text.len() >= PASSPHRASE_BYTES_MIN {
        true => Ok(Secret::Passphrase(text)),
        false => {
            let found =
                format!("a passphrase of {} bytes, expected at least {PASSPHRASE_BYTES_MIN}", text.len());
            Err(Error::invalid(format!("{}: {found}", path.display())))
        }
    }
}

/// Writes a new key file, which must not exist.
pub(crate) fn make_key_file(path: &Path) -> Result<Secret> {
    let failed = |e: std::io::Error| {
        Error::from(blk::Errno::from(e).at(path.display().to_string(), "making the key file"))
    };
    let text = repo::new_key_file()?;
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(Secret::key_file(&path.display().to_string(), &text)?)
}

/// Returns the time, as a repository records it.
pub(crate) fn now_us() -> u64 {
    us(Timestamp::now())
}

/// Returns a time in microseconds since 1970; 0 for one before.
pub(crate) fn us(time: Timestamp) -> u64 {
    u64::try_from(time.as_microsecond()).unwrap_or_default()
}

/// Returns the time of a record.
pub(crate) fn time(us: u64) -> Timestamp {
    i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok()).unwrap_or_default()
}

/// Returns who writes, for the log of the repository.
pub(crate) fn writer() -> String {
    format!("{}, process {}", host(), std::process::id())
}

pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the file of what is known of a repository's chunks. Without a folder for caches there is none.
pub(crate) fn cache(repository: &Repository) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let base = variable("XDG_CACHE_HOME")
        // systemd sets it for `CacheDirectory=`.
        .or_else(|| variable("CACHE_DIRECTORY"))
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
    let folder = base.join("unstun").join(&repository.info().id);
    // Only what the user may read of the repository is in it: hashes and places.
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(&folder).ok()?;
    Some(folder.join("chunks.redb"))
}
