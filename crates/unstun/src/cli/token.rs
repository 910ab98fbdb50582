//! Arguments of `unstun token` and `unstun audit`.

use api::name::TokenName;
use api::units::{parse_bytes, parse_duration_s};
use api::{Role, VmGlob};
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print its secret once
    Create(TokenCreateArgs),
    /// List the tokens
    List,
    /// Revoke a token at once
    Revoke { name: TokenName },
}

#[derive(Debug, Args)]
pub struct TokenCreateArgs {
    pub name: TokenName,
    /// Allow what this role may do
    #[arg(long, value_enum)]
    pub role: Role,
    /// Limit the token to the VMs with this name, in which * and ? are wildcards; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub vm: Vec<VmGlob>,
    /// Let the token expire after this time, such as 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = parse_duration_s)]
    pub expires: Option<u64>,
    /// Let an operator's token take and clone only while its VMs use less than this, such as 200G
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub quota: Option<u64>,
}

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Print this number of entries
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub last: usize,
}
