//! Arguments that parse, and arguments that are usage errors.

use clap::CommandFactory;

use super::examples::EXAMPLES;
use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn the_version_says_what_it_reads() {
    assert!(
        Cli::command().render_version().contains("native store format 1."),
        "{}",
        super::VERSION.as_str()
    );
}

#[test]
fn every_documented_line_parses() {
    for line in EXAMPLES {
        parse(&format!("unstun {line}")).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

#[test]
fn nonsense_is_a_usage_error() {
    for line in [
        "unstun",
        "unstun vm create web",
        "unstun vm create web --disk 20GB",
        "unstun vm create web --disk 1000",
        "unstun vm create ../web --disk 1G",
        "unstun vm create web --disk 1G --store qcow2",
        "unstun up --nbd 10809",
        "unstun job pause first",
        "unstun job limit 1 0",
        "unstun vm show a@b",
        "unstun snapshot commit web a --dry-run --yes",
        "unstun vm create web --disk 1G,mode=fast",
        "unstun vm create web --disk dir=/fast",
        "unstun vm import",
        "unstun vm disk add web",
        "unstun vm disk add web 1G,2G",
        "unstun vm disk grow web/disk0",
        "unstun vm disk grow web 40G",
        "unstun vm disk set web/disk0",
        "unstun vm set web",
        "unstun vm set web --snapshot-dir /a --no-snapshot-dir",
        "unstun vm set web --shared-writers on --iops 2000",
        "unstun vm set web --guest-agent agent.sock",
        "unstun vm set web --guest-agent none --iops 2000",
        "unstun vm set web --frozen-max 99",
        "unstun vm rename web",
        "unstun snapshot take web a --quiesce=perhaps",
        "unstun vm set web --iops 0",
        "unstun vm set web --iops 2k",
        "unstun vm set web --bandwidth 99999999999999999999",
        "unstun vm set web --bandwidth 100MB",
        "unstun vm set web --burst-seconds 0",
        "unstun vm set web --weight 1001",
        "unstun vm clone web@a",
        "unstun vm move web",
        "unstun vm reset web --yes --dry-run",
        "unstun snapshot revert web --take-first a/b",
        "unstun snapshot diff web",
        "unstun space",
        "unstun vm remove web --purge",
        "unstun vm remove web --delete-disks --yes --dry-run",
        "unstun bin",
        "unstun bin restore",
        "unstun bin restore web --name ../x",
        "unstun up --bin-free-percent 101",
        "unstun up --bin-hours -1",
        "unstun up --log loud",
        "unstun up --log nbd=info",
        "unstun attach web --as vmware",
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
    }
}

#[test]
fn commas_and_repetition_add_disks() {
    let cli = parse("unstun vm create web --disk 1G,2G --disk 512").unwrap();
    let Command::Vm(VmCommand::Create(args)) = cli.command else { panic!("{:?}", cli.command) };
    let sizes: Vec<u64> = args.disks.iter().flat_map(|list| &list.0).map(|disk| disk.size_bytes).collect();
    assert_eq!(sizes, [1 << 30, 2 << 30, 512]);
}
