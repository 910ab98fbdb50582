//! The expected result of each format.

use super::*;
use crate::import::{Skipped, number};
use crate::run::Quantity;
use crate::workload::Worker;

fn says(imported: &Imported, part: &str) -> bool {
    imported.skipped.iter().any(|skipped| skipped.to_string().contains(part))
}

#[test]
fn formats_are_told_by_their_content() {
    for (name, text, format) in SOUND {
        assert_eq!(imported(name, text.as_bytes()).expect(name).format, format, "{name}");
    }
    for text in ["", "\n\n", "hello", "a,b,c\n1,2,3\n", "{\"jobs\": []}", "<html>"] {
        let error = imported("x", text.as_bytes()).unwrap_err();
        assert!(error.cause.contains("expected one of") && error.cause.contains("esxtop"), "{error}");
    }
}

#[test]
fn an_iometer_configuration_is_a_workload() {
    let imported = read(ICF);
    let workload = imported.workload.expect("a workload");
    let [reader, writer] = &workload.workers[..] else { panic!("{workload:?}") };
    let expected = Worker {
        name: "Reader".into(),
        disk: 0,
        block_bytes: 4096,
        read_percent: 100,
        random_percent: 70,
        sequential_run: 1,
        delay_us: 25_000,
        burst: 1,
        outstanding: 16,
        align_bytes: 0,
        first_byte: 64 * 512,
        working_set_bytes: 2_000_000 * 512,
        pacing: Default::default(),
        flush_interval_us: 0,
        mix: Vec::new(),
    };
    assert_eq!(*reader, expected);
    assert_eq!(
        (writer.name.as_str(), writer.block_bytes, writer.read_percent),
        ("Writer (Mixed, 64K)", 65_536, 67)
    );
    assert_eq!((writer.mix.len(), writer.mix[0].percent, writer.mix[0].block_bytes), (1, 30, 4096));
    assert!(imported.skipped.is_empty(), "{:?}", imported.skipped);
    workload.check(&[4 << 30]).unwrap();
}

#[test]
fn iometer_results_are_rows_or_samples() {
    let results = read(RESULTS);
    let rows = &results.records[0].rows;
    assert_eq!((rows[0].quantity, rows[0].predicted), (Quantity::ReadsPerS, Some(510.25)));
    assert_eq!((rows[2].quantity, rows[2].predicted), (Quantity::LatencyUs, Some(7_800.0)));
    assert_eq!(rows.len(), 4, "the manager's line is a part of the first");
    assert!(says(&results, "line 14: the line is cut"), "{:?}", results.skipped);

    let record = &read(INSTANT).records[0];
    assert_eq!(record.samples.len(), 2);
    let second = &record.samples[1];
    assert_eq!((second.at_us, second.interval_us), (1_000_000, 2_000_000));
    assert_eq!((second.reads, second.writes, second.read_bytes), (220, 200, 1_000_000));
    assert_eq!(second.read_latency.max_us, 300_000.0);
}

#[test]
fn fio_output_is_found_behind_its_warnings() {
    let imported = read(FIO);
    let record = &imported.records[0];
    assert!(says(&imported, "2 lines before the JSON"));
    let sample = &record.samples[0];
    assert_eq!((sample.reads, sample.writes, sample.interval_us), (10_000, 1_000, 300_000_000));
    assert_eq!((sample.read_latency.p99_us, sample.read_latency.mean_us), (700.0, 250.0005));
    assert_eq!(record.began_unix_us, 1_700_000_000_000_000);
    assert!(record.notes.iter().any(|note| note.contains("error 5")));
    let old = FIO.replace("clat_ns", "clat").replace("\"jobs\"", "\"client_stats\"");
    assert_eq!(
        read(&old).records[0].samples[0].read_latency.max_us,
        9_000_000.0,
        "microseconds before version 3"
    );
}

#[test]
fn fio_logs_count_what_their_name_says() {
    let latency = imported("run_clat.1.log", FIO_LOG.as_bytes()).unwrap();
    let samples = &latency.records[0].samples;
    assert_eq!((samples[0].reads, samples[0].read_latency.mean_us), (2, 300.0));
    assert_eq!((samples[1].writes, samples[1].written_bytes), (1, 4096));
    assert!(says(&latency, "line 4"));
    let iops = imported("dir/run_iops.1.log", b"1000, 510, 0, 0, 0\n1000, 250, 1, 0, 0\n").unwrap();
    assert_eq!((iops.records[0].samples[0].reads, iops.records[0].samples[0].writes), (510, 250));
    let bandwidth = imported("run_bw.log", b"999, 4, 1, 0\n").unwrap();
    assert_eq!(bandwidth.records[0].samples[0].written_bytes, 4096);
    let error = imported("run.log", FIO_LOG.as_bytes()).unwrap_err();
    assert!(error.cause.contains("_iops, _bw or _lat"), "{error}");
}

fn subjects(imported: &Imported) -> Vec<&str> {
    imported.records.iter().map(|record| record.subject.as_str()).collect()
}

#[test]
fn the_vms_of_esxtop_are_series_that_are_not_added() {
    let imported = read(ESXTOP);
    let [sql, web, host] = &imported.records[..] else { panic!("{:?}", imported.records) };
    let [first, cut] = &sql.samples[..] else { panic!("{:?}", sql.samples) };
    assert_eq!(
        subjects(&imported),
        ["SQL01 (104c07ff-3663-44fb-9d89-a563c801611c)", "web", "devices of local"]
    );
    assert_eq!((first.reads, first.writes, first.interval_us), (220, 200, 2_000_000));
    assert_eq!((first.read_latency.mean_us, first.host), (4_500.0, None));
    assert_eq!((cut.reads, cut.interval_us), (220, 2_000_000));
    assert_eq!((web.samples.len(), web.samples[0].reads), (1, 80), "its column is cut off in the last line");
    let below = &host.samples[0];
    assert_eq!((below.reads, below.host.map(|host| host.reads)), (0, Some(440)), "below both VMs");
    assert!(says(&imported, "line 4: cut after 5 of 8 columns") && says(&imported, "sums of others"));
    assert_eq!(number::date_time("12/11/2012 19:09:23").month_first, Some(sql.began_unix_us));
}

#[test]
fn a_selected_vm_has_no_devices_of_other_vms() {
    let select = |text: &str, selection: Selection| import("f", &mut text.as_bytes(), &selection);
    let one = Selection { vm: Some("sql01".into()), ..Selection::default() };
    let imported = select(ESXTOP, one.clone()).unwrap();
    assert_eq!((imported.records.len(), imported.records[0].samples[0].reads), (1, 220));
    assert!(says(&imported, "1 columns of devices that other VMs use too"), "{:?}", imported.skipped);
    let alone = ESXTOP.replace(r"Virtual Disk(web:scsi0:0)", "Memory(web)");
    for selection in [one, Selection::default()] {
        let imported = select(&alone, selection).unwrap();
        assert_eq!(imported.records[0].samples[0].host.map(|host| host.reads), Some(440), "its own devices");
    }
    let none = Selection { disk: Some("scsi9".into()), ..Selection::default() };
    let error = select(ESXTOP, none).unwrap_err();
    assert!(
        error.cause.contains("8 columns, and none that is wanted") && error.cause.contains("SQL01"),
        "{error}"
    );
}

#[test]
fn a_vm_without_disks_is_counted_by_its_sum_and_no_column_twice() {
    let sums = ESXTOP.replace("(web:scsi0:0)", "(web)").replace(r"Disk SCSI Device(naa.6006)", "Disk(x)");
    let column = r#""\\local\Virtual Disk(web)\Reads/sec""#;
    let twice = sums.replace(column, &format!("{column},{column}")).replace(r#""40","#, r#""40","40","#);
    for text in [&sums, &twice] {
        let imported = read(text);
        let reads: Vec<_> = imported.records.iter().map(|record| record.samples[0].reads).collect();
        assert_eq!(reads, [220, 80], "{:?}", imported.skipped);
    }
    assert!(says(&read(&twice), "1 columns that repeat another"));
}

#[test]
fn computers_of_perfmon_managers_of_iometer_and_clients_of_fio_are_apart() {
    let two = PERFMON
        .replace(r"\\SERVER\PhysicalDisk(1 E:)\Disk Writes", r"\\other\PhysicalDisk(1 E:)\Disk Writes");
    let imported = read(&two);
    assert_eq!(subjects(&imported), ["SERVER", "other"]);
    assert_eq!((imported.records[0].samples[0].reads, imported.records[1].samples[0].writes), (10, 4000));

    let line = "MANAGER,HOST,Reader,1,2,2,760.5,510.25,250.25,2.97,1.99,0.98,0,0,10.5,7.8,16\n";
    let managers =
        RESULTS.replace(line, &format!("{line}{}", line.replace("HOST", "web").replace("510.25", "40")));
    let imported = read(&managers);
    assert_eq!(subjects(&imported), ["HOST", "web"]);
    assert_eq!(imported.records[1].rows[0].predicted, Some(40.0));

    let clients = FIO.replace("\"jobs\"", "\"client_stats\"");
    let named = clients
        .replace("\"oltp\"", "\"oltp\", \"hostname\": \"a\"")
        .replace("\"idle\"", "\"idle\", \"hostname\": \"b\"");
    let imported = read(&named);
    assert_eq!(subjects(&imported), ["a", "b"]);
    assert_eq!((imported.records[0].samples[0].reads, imported.records[1].samples[0].reads), (10_000, 0));
}

#[test]
fn the_vms_of_vcenter_are_apart_and_its_groups_of_counters_not_added() {
    let imported = read(VCENTER);
    assert_eq!(subjects(&imported), ["db", "web"]);
    let [db, web] = &imported.records[..] else { panic!("{:?}", imported.records) };
    assert_eq!((db.samples[0].writes, db.samples[0].interval_us), (100, 20_000_000));
    let reads: Vec<_> = web.samples.iter().map(|s| (s.at_us, s.reads, s.read_latency.mean_us)).collect();
    assert_eq!(reads, [(0, 800, 7_000.0), (20_000_000, 100, 0.0)]);
    assert_eq!(number::date_time("2015-09-18 10:44:00").day_first, Some(web.began_unix_us));
    assert!(says(&imported, "web: counters of disk, which have the same I/O"), "{:?}", imported.skipped);
    assert!(says(&imported, "line 10: no statistic of a disk"), "{:?}", imported.skipped);
    let selection =
        Selection { vm: Some("WEB".into()), disk: Some("scsi0:1".into()), ..Selection::default() };
    let one = import("f", &mut VCENTER.as_bytes(), &selection).unwrap();
    assert_eq!((one.records.len(), one.records[0].samples[0].reads), (1, 600));
}

#[test]
fn series_are_bounded() {
    let column = |n: usize| format!(",\"\\\\esx\\Virtual Disk(vm{n}:scsi0:0)\\Reads/sec\"");
    let vms = crate::import::SERIES_MAX + 2;
    let mut text = String::from("\"(PDH-CSV 4.0) (UTC)(0)\"");
    (0..vms).for_each(|n| text += &column(n));
    for second in 0..2 {
        text += &format!("\n\"12/11/2012 19:09:{second:02}\"{}", ",\"1\"".repeat(vms));
    }
    let imported = read(&text);
    assert_eq!(imported.records.len(), crate::import::SERIES_MAX);
    assert!(
        says(&imported, "2 VMs beyond the first 100; --vm PART selects others"),
        "{:?}",
        imported.skipped
    );
}

#[test]
fn perfmon_in_other_locales_and_with_tabs() {
    let imported = read(PERFMON);
    let record = &imported.records[0];
    assert_eq!((record.samples[0].reads, record.samples[0].writes), (10, 4000));
    assert_eq!((record.samples[1].reads, record.samples[1].writes), (11, 4000), "decimal commas");
    let local = number::date_time("07/23/2026 06:04:43").month_first.unwrap();
    assert_eq!(record.began_unix_us, local - 420 * 60_000_000);
    let tabs = PERFMON.replace("\",\"", "\"\t\"").replace("PDH-CSV", "PDH-TSV");
    assert_eq!(read(&tabs).records[0].samples, record.samples);
    let semicolons = PERFMON.replace("\",\"", "\";\"").replace('"', "");
    assert_eq!(read(&semicolons).records[0].samples, record.samples);
    let days_first = PERFMON.replace("07/23/2026", "23/07/2026");
    assert_eq!(read(&days_first).records[0].samples, record.samples);
    let dots = PERFMON.replace("07/23/2026", "23.07.2026");
    assert_eq!(read(&dots).records[0].samples, record.samples);
}

#[test]
fn fifty_thousand_columns_are_streamed() {
    let column = |n: u32| format!(",\"\\\\esx\\Group Cpu({n}:vm{n})\\% Used\"");
    let mut text = String::from("\"(PDH-CSV 4.0) (UTC)(0)\"");
    (0..50_000).for_each(|n| text += &column(n));
    text += ",\"\\\\esx\\Virtual Disk(vm7:scsi0:0)\\Reads/sec\"\n";
    for second in 0..20 {
        text += &format!("\"12/11/2012 19:09:{second:02}\"{},\"{second}\"\n", ",\"0.00\"".repeat(50_000));
    }
    let imported = read(&text);
    let reads: Vec<_> = imported.records[0].samples.iter().map(|s| s.reads).collect();
    assert_eq!(reads, (1..20).collect::<Vec<_>>());
}

#[test]
fn stuns_of_all_four_layouts() {
    let imported = read(VMWARE);
    let record = &imported.records[0];
    let lengths: Vec<_> = record.stuns.iter().map(|stun| stun.stun_us).collect();
    assert_eq!(lengths, [843_578, 3_658_889, 574_655, 385_332], "two counters of one stun are one stun");
    let span = record.stuns[3].at_us - record.stuns[1].at_us;
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_microsecond().unsigned_abs();
    let ends = at("2025-10-28T13:33:06.256Z") - at("2012-03-23T16:22:51.876Z");
    assert_eq!(span, ends + 3_658_889 - 385_332, "a line is written when the VM runs again");
    assert_eq!(record.marks.len(), 2);
    assert!(record.marks[1].text.starts_with("ConsolidateEnd"));
    assert!(says(&imported, "line 8: a stun without its microseconds"));
    assert_eq!(record.rows[0].predicted, Some(5_462_454.0));
    assert_eq!(record.subject, "imported");
    let named =
        format!("2016-02-05T22:50:00.000Z| vmx| I120: DICT              displayName = \"web\"\n{VMWARE}");
    assert_eq!(read(&named).records[0].subject, "web");
}

#[test]
fn pings_are_lost_where_their_number_is_missing() {
    let record = &read(LINUX_PING).records[0];
    assert_eq!(record.began_unix_us, 1_454_712_722_100_000);
    let beats: Vec<_> = record.beats.iter().map(|beat| (beat.at_us / 100_000, beat.lost)).collect();
    assert_eq!(beats, [(0, false), (10, false), (21, true), (31, false)]);
    let bare =
        LINUX_PING.lines().map(|line| line.split("] ").last().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let lost: Vec<_> = read(&bare).records[0].beats.iter().map(|beat| beat.lost).collect();
    assert_eq!(lost, [false, false, true, false]);
    for windows in [WINDOWS_PING.to_owned(), WINDOWS_PING.replace("\u{fc}", "?")] {
        let beats: Vec<_> = read(&windows).records[0].beats.iter().map(|b| (b.at_us, b.lost)).collect();
        assert_eq!(beats, [(0, false), (1_000_000, true), (5_000_000, false)]);
    }
}

#[test]
fn what_is_skipped_is_in_the_record_too() {
    let imported = read(ESXTOP);
    let notes = &imported.records[0].notes;
    for Skipped { what, .. } in &imported.skipped {
        assert!(notes.iter().any(|note| note.contains(what.as_str())), "{what}");
    }
}
