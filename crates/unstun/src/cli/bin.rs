//! `unstun bin`.

use api::name::VmName;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum BinCommand {
    /// List the entries of the bin, oldest first (with --datastore: of that datastore)
    List,
    /// Restore a removed VM with its snapshots, or a state that was thrown away
    Restore {
        /// Name the entry by its ID, or by the VM's name if the VM has one entry
        entry: String,
        /// Set the name of the restored VM [default: its former name]
        #[arg(long, value_name = "NEW")]
        name: Option<VmName>,
        /// End the sessions of the VM's clients first (when restoring a state)
        #[arg(long)]
        disconnect: bool,
    },
    /// Remove entries of the bin permanently (with --datastore: of that datastore)
    Empty {
        /// Name entries by ID, or by VM if the VM has one entry [default: all entries]
        #[arg(value_name = "ENTRY")]
        entries: Vec<String>,
        #[command(flatten)]
        consent: ConsentArgs,
    },
}

/// Options of a command that asks for confirmation.
#[derive(Debug, Args)]
pub struct ConsentArgs {
    /// Skip the confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print what would be done without doing it
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}
