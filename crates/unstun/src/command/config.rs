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
use crate::rest::BODY_BYTES_MAX;

/// Maximum size of the file: the most policies and tokens that there can be, at 16 KiB each.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Maximum size of the entries of one request: half of the largest body. An entry that is larger has a request of its own.
const PART_BYTES_MAX: usize = BODY_BYTES_MAX / 2;

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
        let done = client.config_import(args.replace, &part).await;
        let done = done.map_err(|e| after(&imported, e))?;
        imported.policies += done.policies;
        imported.tokens += done.tokens;
        imported.thresholds += done.thresholds;
        imported.unchanged += done.unchanged;
    }
    output.result(&imported, |done| format!("imported: {}", shown(done)))
}

/// Returns the error of a part. Each part is imported as a whole or not at all.
fn after(imported: &ConfigImported, error: Error) -> Error {
    if imported.policies + imported.tokens + imported.thresholds == 0 {
        return error;
    }
    let shown = shown(imported);
    let message = format!("{}; imported before: {shown}; import the file again for the rest", error.message);
    Error::new(error.kind, message)
}

fn shown(of: &ConfigImported) -> String {
    let ConfigImported { policies, tokens, thresholds, unchanged } = of;
    format!("{policies} policies, {tokens} tokens, {thresholds} thresholds; there already: {unchanged}")
}

fn read(path: &Path) -> Result<Config> {
    let place = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    let file = fs::File::open(path).map_err(|e| Error::not_found(place(&e)))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| Error::invalid(place(&e)))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::invalid(place(&format!("expected at most {FILE_BYTES_MAX} bytes"))));
    }
    serde_json::from_str(&text).map_err(|e| Error::invalid(place(&e)))
}

/// Asks before policies remove snapshots that exist.
async fn ask(policies: &[Policy], yes: bool, client: &Client) -> Result<()> {
    let mut removing = Vec::new();
    for policy in policies.iter().filter(|policy| policy.enabled && !yes) {
        let preview = client.policy_preview(policy).await?;
        let removed: usize = preview.vms.iter().map(|vm| vm.removed.len()).sum();
        if removed > 0 {
            removing.push(format!("policy {} {removed}", policy.name));
        }
    }
    if removing.is_empty() {
        return Ok(());
    }
    let question = format!("Snapshots that exist will be removed: {}. Go on?", removing.join(", "));
    consent(&question, "lets the policies remove them")
}

/// Returns configurations that fit into a request each: policies last, because they begin to work at once.
fn parts(config: Config) -> Vec<Config> {
    let empty = || Config { version: CONFIG_VERSION, ..Config::default() };
    let tokens = config.tokens.into_iter().map(|one| Config { tokens: vec![one], ..empty() });
    let thresholds = config.thresholds.into_iter().map(|one| Config { thresholds: vec![one], ..empty() });
    let policies = config.policies.into_iter().map(|one| Config { policies: vec![one], ..empty() });
    let mut parts: Vec<(usize, Config)> = Vec::new();
    for one in tokens.chain(thresholds).chain(policies) {
        let bytes = serde_json::to_vec(&one).expect("a configuration is JSON").len();
        match parts.last_mut() {
            Some((sum, part)) if *sum + bytes <= PART_BYTES_MAX => {
                *sum += bytes;
                part.tokens.extend(one.tokens);
                part.thresholds.extend(one.thresholds);
                part.policies.extend(one.policies);
            }
            _ => parts.push((bytes, one)),
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_large_is_divided_and_nothing_is_left_out() {
        let policy = |n: usize| -> Policy {
            let vms = vec![format!("vm{n}-*"); 50];
            let value = serde_json::json!({"name": format!("p{n}"), "schedule": ["daily"], "keep": {"last": 1}, "vms": vms});
            serde_json::from_value(value).unwrap()
        };
        let policies: Vec<_> = (0..1000).map(policy).collect();
        let parts = parts(Config { version: 1, policies: policies.clone(), ..Config::default() });
        let sizes = parts.iter().map(|part| serde_json::to_vec(part).unwrap().len());
        assert!(parts.len() > 1 && sizes.max().unwrap() <= crate::rest::BODY_BYTES_MAX);
        assert_eq!(parts.into_iter().flat_map(|part| part.policies).collect::<Vec<_>>(), policies);
    }
}
