//! `unstun generate`: man pages and shell completions from the definition of the command line, so that the repository
//! holds no copy that becomes outdated.

use std::io::Result as IoResult;
use std::path::Path;

use api::error::{Error, Result};
use api::output::Output;
use clap::CommandFactory;
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::cli::{Cli, GenerateArgs, Generated};

const NAME: &str = "unstun";

pub(super) fn run(args: &GenerateArgs, output: Output) -> Result<()> {
    let (dir, what) = match args.what {
        Generated::Man => (&args.dir, man as fn(&Path) -> IoResult<()>),
        Generated::Completions => (&args.dir, completions as fn(&Path) -> IoResult<()>),
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| what(dir))
        .map_err(|e| Error::failed(format!("{}: {e}", dir.display())))?;
    output.note(&format!("written to {}", dir.display()));
    Ok(())
}

/// Writes one page for each command: `unstun.1`, `unstun-vm.1`, `unstun-vm-create.1`, ...
fn man(dir: &Path) -> IoResult<()> {
    clap_mangen::generate_to(Cli::command(), dir)
}

/// Writes the completions under the names that the shells look for in their folders.
fn completions(dir: &Path) -> IoResult<()> {
    let mut command = Cli::command();
    clap_complete::generate_to(Bash, &mut command, NAME, dir)?;
    std::fs::rename(dir.join("unstun.bash"), dir.join(NAME))?;
    clap_complete::generate_to(Zsh, &mut command, NAME, dir)?;
    clap_complete::generate_to(Fish, &mut command, NAME, dir)?;
    Ok(())
}
