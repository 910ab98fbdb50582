//! The configuration of a daemon as one file: its policies, its tokens with their quotas, and the thresholds of its alarms.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{AlarmThreshold, Policy, Token};

/// Version of the file's form.
pub const CONFIG_VERSION: u32 = 1;
/// Length of a SHA-256 in hexadecimal digits.
const SHA256_DIGITS: usize = 64;

/// Output of `config export`, and body of `POST /config`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// 1.
    pub version: u32,
    #[serde(default)]
    pub policies: Vec<Policy>,
    #[serde(default)]
    pub tokens: Vec<StoredToken>,
    /// In the order in which they were set.
    #[serde(default)]
    pub thresholds: Vec<AlarmThreshold>,
}

/// A token as the daemon knows it: a client's secret is valid again wherever it is imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoredToken {
    pub token: Token,
    /// SHA-256 of the secret, in hexadecimal digits. The secret itself is stored nowhere.
    pub sha256: String,
}

/// Output of `config import`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigImported {
    pub policies: u64,
    pub tokens: u64,
    pub thresholds: u64,
    /// Number of those that were there already.
    pub unchanged: u64,
}

impl Config {
    pub fn check(&self) -> Result<(), String> {
        if self.version != CONFIG_VERSION {
            return Err(format!("version: found {}, expected {CONFIG_VERSION}", self.version));
        }
        for policy in &self.policies {
            policy.check().map_err(|e| format!("policy {}: {e}", policy.name))?;
        }
        for StoredToken { token, sha256 } in &self.tokens {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if sha256.len() != SHA256_DIGITS || !sha256.bytes().all(is_digit) {
                return Err(format!(
                    "token {}: sha256: expected {SHA256_DIGITS} hexadecimal digits, in small letters",
                    token.name
                ));
            }
            // A secret belongs to one token.
            if self.tokens.iter().any(|other| other.sha256 == *sha256 && other.token.name != token.name) {
                return Err(format!("token {}: sha256: another token has the same", token.name));
            }
        }
        for threshold in &self.thresholds {
            threshold.check().map_err(|e| format!("threshold of {}: {e}", threshold.rule.as_str()))?;
        }
        let mut seen = BTreeSet::new();
        match self.names().into_iter().find(|name| !seen.insert(name.clone())) {
            Some(twice) => Err(format!("{twice}: it is there twice")),
            None => Ok(()),
        }
    }

    fn names(&self) -> Vec<String> {
        let policies = self.policies.iter().map(policy_name);
        policies
            .chain(self.tokens.iter().map(token_name))
            .chain(self.thresholds.iter().map(threshold_name))
            .collect()
    }

    /// Returns what of this configuration `known` does not have, and the names of what `known` has with another content.
    pub fn beyond(&self, known: &Config) -> (Config, Vec<String>) {
        let mut differ = Vec::new();
        let new = Config {
            version: self.version,
            policies: beyond(&self.policies, &known.policies, policy_name, &mut differ),
            tokens: beyond(&self.tokens, &known.tokens, token_name, &mut differ),
            thresholds: beyond(&self.thresholds, &known.thresholds, threshold_name, &mut differ),
        };
        (new, differ)
    }

    pub fn count(&self) -> usize {
        self.policies.len() + self.tokens.len() + self.thresholds.len()
    }
}

fn policy_name(policy: &Policy) -> String {
    format!("policy {}", policy.name)
}

fn token_name(stored: &StoredToken) -> String {
    format!("token {}", stored.token.name)
}

fn threshold_name(threshold: &AlarmThreshold) -> String {
    let AlarmThreshold { rule, vm, tag, .. } = threshold;
    let of_vm = vm.as_ref().map_or(String::new(), |vm| format!(" for VMs {vm}"));
    let of_tag = tag.as_ref().map_or(String::new(), |tag| format!(" for tag {tag}"));
    format!("threshold of {}{of_vm}{of_tag}", rule.as_str())
}

fn beyond<T: Clone + PartialEq>(
    wanted: &[T],
    known: &[T],
    name: fn(&T) -> String,
    differ: &mut Vec<String>,
) -> Vec<T> {
    let new: Vec<T> = wanted.iter().filter(|one| !known.contains(one)).cloned().collect();
    let names: BTreeSet<String> = known.iter().map(name).collect();
    differ.extend(new.iter().map(name).filter(|name| names.contains(name)));
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlarmRule;

    fn threshold(value: u64) -> AlarmThreshold {
        AlarmThreshold { rule: AlarmRule::Latency, vm: None, tag: None, value: Some(value) }
    }

    fn config(thresholds: Vec<AlarmThreshold>) -> Config {
        Config { version: 1, thresholds, ..Config::default() }
    }

    /// Returns a file with tokens, whose hashes are of one digit each.
    fn token(digits: &[&str]) -> String {
        let one = |(n, digit): (usize, &&str)| {
            let rest = r#""vms": [], "created": "2026-11-26T00:00:00Z", "by": "a", "expires": null, "quota_bytes": null"#;
            let hash = digit.repeat(SHA256_DIGITS);
            format!(r#"{{"sha256": "{hash}", "token": {{"name": "t{n}", "role": "viewer", {rest}}}}}"#)
        };
        let all: Vec<_> = digits.iter().enumerate().map(one).collect();
        format!(r#"{{"version": 1, "tokens": [{}]}}"#, all.join(", "))
    }

    #[test]
    fn what_is_new_and_what_differs_is_found() {
        let other = AlarmThreshold { vm: Some("web*".parse().unwrap()), ..threshold(7) };
        let wanted = config(vec![threshold(5), other.clone()]);
        assert_eq!(wanted.beyond(&config(Vec::new())), (wanted.clone(), Vec::new()));
        assert_eq!(wanted.beyond(&wanted).0.count(), 0);
        let (new, differ) = wanted.beyond(&config(vec![threshold(6), other]));
        assert_eq!((new.thresholds, differ), (vec![threshold(5)], vec!["threshold of latency".to_owned()]));
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        assert!(config(vec![threshold(5)]).check().is_ok());
        for (text, expected) in [
            (r#"{"version": 2}"#, "version: found 2, expected 1"),
            (r#"{"version": 1, "thresholds": [{"rule": "latency", "value": 0}]}"#, "threshold of latency"),
            (
                r#"{"version": 1, "thresholds": [{"rule": "latency", "value": 1}, {"rule": "latency", "value": 2}]}"#,
                "threshold of latency: it is there twice",
            ),
            (
                r#"{"version": 1, "tokens": [{"sha256": "x", "token": {"name": "a", "role": "viewer", "vms": [], "created":
                "2026-11-26T00:00:00Z", "by": "a", "expires": null, "quota_bytes": null}}]}"#,
                "token a: sha256: expected 64",
            ),
            (&token(&["A"; 1]), "token t0: sha256: expected 64 hexadecimal digits, in small letters"),
            (&token(&["a", "a"]), "token t0: sha256: another token has the same"),
        ] {
            let config: Config = serde_json::from_str(text).unwrap();
            let error = config.check().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
