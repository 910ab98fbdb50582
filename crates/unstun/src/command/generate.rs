//! `unstun generate`: man pages and shell completions from the definition of the command line, so that the repository
//! holds no copy that becomes outdated.

use std::fs::OpenOptions;
use std::io::{Result as IoResult, Write};
use std::path::Path;

use api::error::{Error, Result};
use api::output::Output;
use clap::{Command, CommandFactory};
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::cli::examples::EXAMPLES;
use crate::cli::{Cli, GenerateArgs, Generated};

const NAME: &str = "unstun";
/// What the completions of bash have beyond the definition of the command line.
const NAMES_IN_BASH: &str = include_str!("names.bash");

/// The section FILES of the first page.
const FILES: [(&str, &str); 6] = [
    (
        "/var/lib/unstun",
        "Datastore of the system's daemon, if --datastore, $UNSTUN_DATASTORE and ./unstun-data name no other.",
    ),
    ("DATASTORE/.unstun", "Files of unstun in a datastore, with the sockets of the API and of NBD."),
    ("/etc/unstun/users", "Roles of the host's users."),
    ("/etc/unstun/alarms", "Where alarms are delivered: a file for each channel."),
    ("/etc/unstun/guests", "Commands that freeze and thaw guests: a file for each."),
    ("/etc/unstun/options.conf", "Options of the daemon, if the Debian package installed it."),
];

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
    clap_mangen::generate_to(Cli::command(), dir)?;
    let mut root = Cli::command();
    root.build();
    add_sections(&root, &[NAME.to_owned()], dir)
}

/// Adds to the pages of a command, and of those below it, what its definition does not say.
fn add_sections(command: &Command, words: &[String], dir: &Path) -> IoResult<()> {
    let below = || command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
    let mut page = OpenOptions::new().append(true).open(dir.join(format!("{}.1", words.join("-"))))?;
    let examples = examples(words);
    if !examples.is_empty() && below().next().is_none() {
        writeln!(page, ".SH EXAMPLES\n.nf")?;
        examples.iter().try_for_each(|line| writeln!(page, "{NAME} {}", roff(line)))?;
        writeln!(page, ".fi")?;
    }
    if words.len() == 1 {
        writeln!(page, ".SH FILES")?;
        for (path, what) in FILES {
            writeln!(page, ".TP\n.I {}\n{}", roff(path), roff(what))?;
        }
    }
    let above = words.split_last().filter(|(_, above)| !above.is_empty()).map(|(_, above)| above.join("-"));
    let pages = above.into_iter().chain(below().map(|one| format!("{}-{}", words.join("-"), one.get_name())));
    let pages: Vec<_> = pages.map(|name| format!(".BR {} (1)", roff(&name))).collect();
    writeln!(page, ".SH \"SEE ALSO\"\n{}", pages.join(",\n"))?;
    for one in below() {
        add_sections(one, &[words, &[one.get_name().to_owned()]].concat(), dir)?;
    }
    Ok(())
}

/// Returns the examples of the command that these words name.
fn examples(words: &[String]) -> Vec<&'static str> {
    let own = &words[1..];
    let is_of = |line: &&&str| line.split(' ').take(own.len()).eq(own.iter().map(String::as_str));
    EXAMPLES.iter().filter(is_of).copied().collect()
}

/// Escapes a text for a manual page: hyphens that are typed, and a line that would begin with a request.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

/// Writes the completions under the names that the shells look for in their folders.
fn completions(dir: &Path) -> IoResult<()> {
    let mut command = Cli::command();
    clap_complete::generate_to(Bash, &mut command, NAME, dir)?;
    let script = std::fs::read_to_string(dir.join("unstun.bash"))?;
    std::fs::write(dir.join(NAME), script + NAMES_IN_BASH)?;
    std::fs::remove_file(dir.join("unstun.bash"))?;
    clap_complete::generate_to(Zsh, &mut command, NAME, dir)?;
    clap_complete::generate_to(Fish, &mut command, NAME, dir)?;
    Ok(())
}
