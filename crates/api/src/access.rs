//! Access to the API: roles, tokens, and the audit of what callers did.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

use crate::name::{TokenName, VM_NAME_BYTES_MAX};

words! {
    /// What a caller may do. Each role may do what those before it may. The command line shows the variants' comments as
    /// its help.
    #[derive(PartialOrd, Ord, ValueEnum)]
    pub enum Role {
        /// Read the metrics
        Metrics = "metrics",
        /// Look at everything, and preview
        Viewer = "viewer",
        /// Take snapshots, clone, attach, and pause jobs too
        Operator = "operator",
        /// Do everything
        Admin = "admin",
    }
}

/// A pattern of VM names: `*` stands for any characters, `?` for one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct VmGlob(String);

impl VmGlob {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the pattern stands for `name`.
    pub fn matches(&self, name: &str) -> bool {
        WildMatch::new(&self.0).matches(name)
    }
}

impl FromStr for VmGlob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*' | '?');
        if !text.is_empty() && text.len() <= VM_NAME_BYTES_MAX && text.chars().all(allowed) {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(80).collect();
        Err(format!(
            "{shown:?}: expected a VM's name, in which `*` stands for any characters and `?` for one"
        ))
    }
}

as_text!(VmGlob);

impl fmt::Display for VmGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Body of `POST /tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    pub name: TokenName,
    pub role: Role,
    /// VMs that the token is limited to; empty means that it is not limited to any.
    #[serde(default)]
    pub vms: Vec<VmGlob>,
    /// Seconds for which the token is valid; null means for ever.
    #[serde(default)]
    pub valid_s: Option<u64>,
    /// Bytes that the VMs of an operator's token may use: at more, the token takes and clones nothing. Null: no quota.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
}

/// A row of `token list`. The secret itself is stored nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    pub name: TokenName,
    pub role: Role,
    pub vms: Vec<VmGlob>,
    pub created: Timestamp,
    /// Who created it.
    pub by: String,
    pub expires: Option<Timestamp>,
    pub quota_bytes: Option<u64>,
}

/// Answer of `POST /tokens`: the only time that the secret is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCreated {
    pub token: Token,
    /// What the client sends as `Authorization: Bearer SECRET`.
    pub secret: String,
}

/// Answer of `POST /console`: links that log in a browser as the caller, one of them once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleLink {
    /// One for each address of `Status.web`.
    pub urls: Vec<String>,
    /// Seconds within which a link has to be opened.
    pub valid_s: u64,
}

/// A line of the audit: one request that changes something, or one that was refused for want of access.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    pub time: Timestamp,
    /// Who asked: `user NAME (uid N)` or `token NAME`; `unknown` where the caller could not be identified.
    pub who: String,
    pub role: Option<Role>,
    /// Where the request came from: `api.sock`, or an address.
    pub from: String,
    /// The operation, as the command line names it.
    pub operation: String,
    /// The path under `/api/v1`.
    pub path: String,
    pub vm: Option<String>,
    /// The body of the request, if it is JSON of at most 2 KiB.
    pub request: Option<serde_json::Value>,
    /// HTTP status of the answer.
    pub status: u16,
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &str) -> VmGlob {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_stands_for_the_names_it_shows() {
        for (pattern, name) in [
            ("web", "web"),
            ("web-*", "web-1"),
            ("*", "a"),
            ("*-db", "eu-1-db"),
            ("a*b*c", "axxbybc"),
            ("?x", "yx"),
            ("**", "z"),
        ] {
            assert!(glob(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in [("web", "web1"), ("web-*", "web"), ("?", "ab"), ("a*b", "abc"), ("b*", "ab")]
        {
            assert!(!glob(pattern).matches(name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_that_no_name_can_match_is_refused() {
        for text in ["", "a/b", "web@x", "a b", "[ab]", "w\u{e9}b"] {
            assert!(text.parse::<VmGlob>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_role_may_do_what_those_before_it_may() {
        assert!(
            Role::Admin > Role::Operator && Role::Operator > Role::Viewer && Role::Viewer > Role::Metrics
        );
    }
}
