//! `unstun bin`.

use api::name::VmName;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum BinCommand {
    /// List the entries, oldest first (with --datastore: of that datastore)
    List,
    /// Restore a removed VM with its snapshots, or a state that was thrown away
    Restore {
        /// The entry's ID, or the VM's name if it has one entry
        entry: String,
        /// The name of the restored VM [default: its former name]
        #[arg(long, value_name = "NEW")]
        name: Option<VmName>,
        /// End the sessions of the VM's clients first (for a state)
        #[arg(long)]
        disconnect: bool,
    },
    /// Remove entries for good, or all (with --datastore: of that datastore)
    Empty {
        /// IDs of entries, or names of VMs that have one entry [default: all entries]
        #[arg(value_name = "ENTRY")]
        entries: Vec<String>,
        #[command(flatten)]
        consent: ConsentArgs,
    },
}

/// What may be asked of a command that asks back.
#[derive(Debug, Args)]
pub struct ConsentArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}
