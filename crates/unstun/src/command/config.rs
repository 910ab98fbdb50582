//! `unstun config`.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use api::client::Client;
use api::error::{Error, Result};
use api::output::Output;
use api::{CONFIG_VERSION, Config, ConfigImported, Policy};

use super::consent;
use crate::cli::{ConfigCommand, ConfigImportArgs};

/// Maximum size of the file: the most policies and tokens that there can be, at 16 KiB each.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Number of policies, tokens or thresholds of one request: a policy has at most 15 KiB, and a body 256.
const PART: usize = 10;

pub(super) async fn run(command: &ConfigCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        ConfigCommand::Export => output.result(&client.config_export().await?, |config| {
            serde_json::to_string_pretty(config).expect("a configuration is JSON")
        }),
        ConfigCommand::Import(args) => import(args, client, output).await,
    }
}

async fn import(args: &ConfigImportArgs, client: &Client, output: Output) -> Result<()> {
    let file = args.file.display();
    let config = read(&args.file)?;
    config.check().map_err(|cause| Error::invalid(format!("{file}: {cause}")))?;
    let (new, differ) = config.beyond(&client.config_export().await?);
    if !args.replace && !differ.is_empty() {
        let message = format!(
            "{file}: {}: there with another content; nothing was changed; --replace replaces them",
            differ.join(", ")
        );
        return Err(Error::refused(message));
    }
    let unchanged = (config.count() - new.count()) as u64;
    if args.consent.dry_run {
        let (policies, tokens) = (new.policies.len() as u64, new.tokens.len() as u64);
        let would = ConfigImported { policies, tokens, thresholds: new.thresholds.len() as u64, unchanged };
        return output.result(&would, |would| format!("would import: {}", shown(would)));
    }
    ask(&new.policies, args.consent.yes, client).await?;
    let mut imported = ConfigImported { unchanged, ..ConfigImported::default() };
    for part in parts(new) {
        let done = client.config_import(args.replace, &part).await?;
        imported.policies += done.policies;
        imported.tokens += done.tokens;
        imported.thresholds += done.thresholds;
        imported.unchanged += done.unchanged;
    }
    output.result(&imported, |done| format!("imported: {}", shown(done)))
}

fn shown(of: &ConfigImported) -> String {
    let ConfigImported { policies, tokens, thresholds, unchanged } = of;
    format!("{policies} policies, {tokens} tokens, {thresholds} thresholds; there already: {unchanged}")
}

fn read(path: &Path) -> Result<Config> {
    let place = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    let file = fs::File::open(path).map_err(|e| Error::not_found(place(&e)))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| Error::invalid(place(&e)))?;
    serde_json::from_str(&text).map_err(|e| Error::invalid(place(&e)))
}

/// Asks before policies remove snapshots that exist.
async fn ask(policies: &[Policy], yes: bool, client: &Client) -> Result<()> {
    let mut removed = 0;
    for policy in policies.iter().filter(|policy| policy.enabled && !yes) {
        let preview = client.policy_preview(policy).await?;
        removed += preview.vms.iter().map(|vm| vm.removed.len()).sum::<usize>();
    }
    if removed == 0 {
        return Ok(());
    }
    let question = format!("the policies will remove {removed} snapshots that exist. Go on?");
    consent(&question, "lets the policies remove them")
}

/// Returns configurations that a request can have: policies last, because they begin to work at once.
fn parts(config: Config) -> Vec<Config> {
    let empty = || Config { version: CONFIG_VERSION, ..Config::default() };
    let tokens = config.tokens.chunks(PART).map(|part| Config { tokens: part.to_vec(), ..empty() });
    let thresholds =
        config.thresholds.chunks(PART).map(|part| Config { thresholds: part.to_vec(), ..empty() });
    let policies = config.policies.chunks(PART).map(|part| Config { policies: part.to_vec(), ..empty() });
    tokens.chain(thresholds).chain(policies).collect()
}
