//! `unstun bin`.

use clap::{Args, Subcommand};

use crate::name::VmName;

#[derive(Debug, Subcommand)]
pub enum BinCommand {
    /// List what is kept, the oldest first; with --datastore that one's
    List,
    /// Bring a VM back as it was, with its snapshots
    Restore {
        /// The VM's name, where it is in the bin once; else the entry's id
        entry: String,
        /// What to call it; else as it was called
        #[arg(long, value_name = "NEW")]
        name: Option<VmName>,
        /// End the sessions of the VM's clients first, of a state
        #[arg(long)]
        disconnect: bool,
    },
    /// Remove entries for good, or all; with --datastore that one's
    Empty {
        /// A VM's name, where it is in the bin once; else an entry's id; none: all entries
        #[arg(value_name = "ENTRY")]
        entries: Vec<String>,
        #[command(flatten)]
        consent: ConsentArgs,
    },
}

/// What may be asked of a command that asks back.
#[derive(Debug, Args)]
pub struct ConsentArgs {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Say what it would do, and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}
