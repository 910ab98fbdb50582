//! `unstun repo`.

use api::error::{Error, Result};
use api::output::{Output, fields};
use api::units::format_bytes;
use api::{RepositoryKey, RepositoryShown};
use repo::{KeySummary, Repository};

use crate::cli::RepoCommand;
use crate::repository::{Place, host, make_key_file, now_us, passphrase, time, writer};

pub(super) async fn run(command: &RepoCommand, output: Output) -> Result<()> {
    match command {
        RepoCommand::Init { repo, new_key, chunk } => {
            let place = Place::resolve(repo)?;
            // The store is reached first: a key file for nothing is avoided.
            let objects = place.objects(true)?;
            let secret = match (new_key, place.key_path()) {
                (true, Some(path)) => make_key_file(path)?,
                _ => place.secret()?,
            };
            let chunk = u32::try_from(*chunk).unwrap_or(u32::MAX);
            let label = format!("made on {}", host());
            let repository =
                Repository::init(objects, (&secret, &label), chunk, (&writer(), now_us())).await?;
            show(&repository, output).await
        }
        RepoCommand::Show { repo } => show(&Place::resolve(repo)?.open().await?, output).await,
        RepoCommand::AddKey { repo, new_key_file, new_passphrase_file, label } => {
            let repository = Place::resolve(repo)?.open().await?;
            let secret = match (new_key_file, new_passphrase_file) {
                (Some(path), _) => make_key_file(path)?,
                (None, Some(path)) => passphrase(path)?,
                (None, None) => {
                    return Err(Error::invalid("expected --new-key-file or --new-passphrase-file"));
                }
            };
            repository.add_key(&secret, label, now_us()).await?;
            show(&repository, output).await
        }
        RepoCommand::RemoveKey { repo, id } => {
            let repository = Place::resolve(repo)?.open().await?;
            repository.remove_key(id).await?;
            show(&repository, output).await
        }
    }
}

async fn show(repository: &Repository, output: Output) -> Result<()> {
    let (info, state) = (repository.info(), repository.state());
    let key = |key: KeySummary| RepositoryKey {
        id: key.id,
        passphrase: key.is_passphrase,
        label: key.label,
        created: time(key.made_us),
        in_use: key.is_in_use,
    };
    let shown = RepositoryShown {
        repo: repository.place().to_owned(),
        id: info.id.clone(),
        chunk_bytes: info.chunk_bytes.into(),
        created: time(info.made_us),
        backups: state.backups.len() as u64,
        removed: state.forgotten.len() as u64,
        keys: repository.list_keys().await?.into_iter().map(key).collect(),
    };
    output.result(&shown, describe)
}

fn describe(shown: &RepositoryShown) -> String {
    let key = |key: &RepositoryKey| {
        let kind = if key.passphrase { "passphrase" } else { "key file" };
        let (label, in_use) = (&key.label, if key.in_use { ", used now" } else { "" });
        format!("{} ({kind}, {label}{in_use})", key.id)
    };
    let keys: Vec<_> = shown.keys.iter().map(key).collect();
    fields(&[
        ("repository", shown.repo.clone()),
        ("id", shown.id.clone()),
        ("created", format!("{:.0}", shown.created)),
        ("chunks", format_bytes(shown.chunk_bytes)),
        ("backups", format!("{} ({} removed)", shown.backups, shown.removed)),
        ("keys", keys.join(", ")),
    ])
}
