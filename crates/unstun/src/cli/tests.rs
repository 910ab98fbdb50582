//! Arguments that parse, and arguments that are usage errors.

use clap::CommandFactory;

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

const DOCUMENTED: &[&str] = &[
    "unstun up",
    "unstun up --nbd unix:/run/u.sock --nbd 127.0.0.1:10809",
    "unstun --datastore /srv/d status --json",
    "unstun vm create web --disk 20G --disk 200G --store redo",
    "unstun vm create web --disk 20G,200G",
    "unstun vm create web --disk 20G --store native",
    "unstun vm list",
    "unstun vm show web",
    "unstun vm remove web --delete-disks",
    "unstun vm remove web --delete-disks --purge --yes",
    "unstun vm remove web --delete-disks --dry-run",
    "unstun bin list",
    "unstun bin list --datastore fast",
    "unstun bin restore web",
    "unstun bin restore 0123456789abcdef --name web2",
    "unstun bin empty",
    "unstun bin empty web 0123456789abcdef --yes",
    "unstun bin empty --dry-run",
    "unstun up --bin-hours 0",
    "unstun up --log debug",
    "unstun up --log warn,client=debug",
    "unstun up --bin-hours 72 --bin-free-percent 20",
    "unstun snapshot take web before-upgrade -m text",
    "unstun snapshot take web@before-upgrade",
    "unstun vm create web --disk 20G,mode=independent-persistent,dir=/fast --disk 200G --from old.qcow2",
    "unstun vm create web --from old.qcow2",
    "unstun vm import /srv/web",
    "unstun vm import /srv/web/web.vmx --name web2 --in-place --allow-root /a --allow-root /b --ignore-content-ids",
    "unstun vm disk add web 20G,mode=independent-nonpersistent",
    "unstun vm disk add web --from data.vhdx",
    "unstun vm disk remove web/disk1 --delete-files",
    "unstun vm disk grow web/disk0 40G",
    "unstun vm disk set web/disk0 --mode independent-persistent",
    "unstun vm set web --snapshot-dir /fast",
    "unstun vm set web --no-snapshot-dir",
    "unstun vm set web --shared-writers on",
    "unstun vm set web --iops 2000 --iops-burst 5000 --burst-seconds 10 --bandwidth 100M --weight 500",
    "unstun vm set web --iops none --bandwidth 100M/s --bandwidth-burst 1G",
    "unstun vm clone web@before-upgrade test1",
    "unstun datastore add /mnt/a",
    "unstun datastore add fast=/mnt/a",
    "unstun datastore create /dev/sdb --force",
    "unstun up --map-cache 256M",
    "unstun up --memory 2G",
    "unstun datastore list",
    "unstun datastore remove fast",
    "unstun datastore remove fast --yes",
    "unstun datastore remove fast --dry-run",
    "unstun datastore take-over fast",
    "unstun datastore take-over lun=/dev/sdb --yes",
    "unstun vm create web --disk 20G --datastore fast",
    "unstun vm move web --to fast --store redo",
    "unstun vm defragment web",
    "unstun vm defragment web/disk0 --copy-shared --detach",
    "unstun vm move web/disk0 --to /mnt/a --detach",
    "unstun vm move web --store redo",
    "unstun vm move web/disk0 --store native --detach",
    "unstun vm close web --disconnect",
    "unstun vm open web",
    "unstun vm reset web --yes",
    "unstun snapshot revert web",
    "unstun snapshot revert web before-upgrade --take-first now --disconnect --yes",
    "unstun snapshot revert web@before-upgrade --dry-run",
    "unstun snapshot discard web before-upgrade --disconnect",
    "unstun snapshot consolidate web --yes --detach",
    "unstun check /srv/web",
    "unstun check",
    "unstun repair /srv/web --yes --ignore-content-ids",
    "unstun repair /srv/web --cut-deltas --stale-locks --move-orphans --parent web-000001.vmdk=web.vmdk",
    "unstun repair /srv/web --undo",
    "unstun scrub",
    "unstun attach web",
    "unstun attach web --as libvirt",
    "unstun generate man /tmp/m",
    "unstun snapshot tree web",
    "unstun snapshot list web",
    "unstun vm rm web",
    "unstun up --create",
    "unstun snapshot diff web before-upgrade after",
    "unstun snapshot diff web before-upgrade",
    "unstun space web",
    "unstun snapshot commit web before-upgrade",
    "unstun snapshot commit web@before-upgrade --yes",
    "unstun snapshot commit web --all",
    "unstun snapshot delete web before-upgrade",
    "unstun snapshot delete",
    "unstun job list",
    "unstun job pause 1",
    "unstun job resume 1",
    "unstun job cancel 1",
    "unstun job limit 1 200M",
    "unstun job limit 1 none",
    "unstun events web --follow",
    "unstun convert a.vmdk b.raw",
    "unstun demo",
    "unstun demo -o shown",
];

#[test]
fn every_documented_line_parses() {
    for line in DOCUMENTED {
        parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
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
